"""Gates: workflows that were not written for us, seen waiting for a person and answered by their own signals."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import pytest
from mcp_workflows_temporal import TemporalAdapter, TemporalSettings
from mcp_workflows_temporal.gates import QUERIES_AT_ONCE
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.worker import Worker

from adapters.temporal.tests.gated import SHOP, notify_approver
from adapters.temporal.tests.scene import (
    PATIENCE,
    Scene,
    connect,
    open_adapter,
    workflow_id,
)
from adapters.temporal.tests.test_codec import coded
from mcp_workflows.adapter import JSON, Execution, Gate, InputRequest, Ref, Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows.kit.tooling import ExplainedGate, GateState
from tests.support.dev_server import DevServer

ASK = InputRequest(
    method="elicitation/create",
    params={
        "mode": "form",
        "message": "Ship A1?",
        "requestedSchema": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
    },
)
AFTER = {"after": "NotifyApprover"}
AWAITING = {"query": "state", "equals": "awaiting_approval"}
APPROVE = {"signal": "approve", "args": ["{{answer.ok}}", "{{principal.subject}}"]}
REJECT = {"signal": "reject"}


def gated(ref: Ref, when: JSON = AFTER, send: JSON = APPROVE, decline: JSON = None) -> Ref:
    return replace(ref, gates={"approve": Gate(when=when, request=ASK, send=send, decline=decline)})


def yes(*args: JSON, kind: str = "signal", name: str = "approve") -> Mapping[str, JSON]:
    """An answer as the core hands it over, its sending filled in."""
    return {"action": "accept", "content": {"ok": True}, "send": {kind: name, "args": list(args)}}


NO = {"action": "decline", "send": REJECT}


def shop(scene: Scene) -> Worker:
    return scene.worker(SHOP, [notify_approver])


async def start(scene: Scene, workflow: str = "ShipOrder", *args: Any, **gate: JSON) -> Ref:
    return gated(await scene.start(workflow, *args), **gate)


async def only_key(scene: Scene, ref: Ref) -> str:
    [key] = (await scene.asked(ref)).requests
    return key


async def waiting(scene: Scene, workflow: str = "ShipOrder", *args: Any, **gate: JSON) -> tuple[Ref, str]:
    """An execution that waits for a person, and the key of its question."""
    ref = await start(scene, workflow, *args, **gate)
    return ref, await only_key(scene, ref)


async def settled(scene: Scene, workflow: str = "ShipOrder", *args: Any, **gate: JSON) -> tuple[Ref, str]:
    """One that waits, and whose history does not grow by itself any more."""
    ref, key = await waiting(scene, workflow, *args, **gate)
    await handled(scene, ref)
    return ref, key


async def left(scene: Scene, workflow: str = "ShipOrder", *args: Any, **gate: JSON) -> tuple[Ref, str]:
    """One that waits, and whose worker is gone."""
    async with shop(scene):
        return await settled(scene, workflow, *args, **gate)


async def signals(scene: Scene, ref: Ref, attribute: str = "signal_name") -> Sequence[str]:
    events = scene.client.get_workflow_handle(workflow_id(ref)).fetch_history_events()
    kind = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    return [
        getattr(event.workflow_execution_signaled_event_attributes, attribute)
        async for event in events
        if event.event_type == kind
    ]


async def tell(scene: Scene, ref: Ref, signal: str, *args: Any) -> None:
    """Somebody else signals the workflow."""
    await scene.client.get_workflow_handle(workflow_id(ref)).signal(signal, args=args)


async def handled(scene: Scene, ref: Ref) -> None:
    """Wait until the workflow has taken what it was sent: a signal that comes meanwhile is not in the history yet."""
    described = scene.client.get_workflow_handle(workflow_id(ref)).describe
    while (await described()).raw_description.HasField("pending_workflow_task"):  # no event tells us
        await anyio.sleep(0.03)


@pytest.fixture
async def other(dev_server: DevServer, scene: Scene) -> AsyncIterator[Scene]:
    """A replica that has seen nothing yet."""
    async with open_adapter(dev_server, scene.queue) as adapter:
        yield scene.on(adapter)


# after an activity


async def test_a_workflow_that_waits_after_an_activity_is_shown_and_goes_on_with_the_answer(selling: Scene) -> None:
    ref = await start(selling, "ShipOrder", "A1")
    seen = await selling.asked(ref)
    assert (seen.status, seen.requests) == (Status.INPUT_REQUIRED, {"approve.7": replace(ASK, gate="approve")})
    await handled(selling, ref)
    await selling.adapter.answer(ref, {"approve.7": yes(True, "alice")})
    assert (await selling.adapter.describe(ref)).requests == {}
    assert (await selling.ended(ref)).output == [{"ok": True, "who": "alice"}]


async def test_a_refusal_is_sent_as_the_gate_says_and_the_history_tells_whose_it_is(selling: Scene) -> None:
    ref = replace(await start(selling, "ShipOrder", "A1", decline=REJECT), principal={"subject": "bob"})
    await selling.adapter.answer(ref, {await only_key(selling, ref): NO})
    assert (await selling.ended(ref)).output == [{"ok": False, "who": None}]
    assert await signals(selling, ref, "identity") == ["mcp-workflows: decline by bob"]


async def test_the_question_is_seen_explained_and_answered_while_no_worker_is_up(scene: Scene) -> None:
    ref, key = await left(scene, "ShipOrder", "A1")
    assert list((await scene.adapter.describe(ref)).requests) == [key]
    await until_told(scene, ref, "open: it asks: Ship A1? (approve.7)")
    await scene.adapter.answer(ref, {key: yes(True, "alice")})
    assert (await scene.adapter.describe(ref)).requests == {}  # it is in the history, whoever takes it when
    gate = await told(scene, ref)
    assert gate.state is GateState.CLOSED
    assert re.fullmatch(
        r"answered already: signal approve came \(event \d+, \d+ s ago\); "
        "it opens again when NotifyApprover completes again",
        gate.why,
    )
    async with shop(scene):
        assert (await scene.ended(ref)).output == [{"ok": True, "who": "alice"}]


async def test_two_replicas_with_two_answers_send_one(scene: Scene, other: Scene) -> None:
    ref, key = await left(scene, "ShipOrder", "A1", 2, decline=REJECT)
    await other.adapter.describe(ref)
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(scene.adapter.answer, ref, {key: yes(True, "alice")})
            group.start_soon(other.adapter.answer, ref, {key: NO})
    assert len(await signals(scene, ref)) == 1


async def test_two_gates_are_open_and_answered_on_their_own(selling: Scene) -> None:
    ref = await start(selling, "ShipOrder", "A1", 2)
    veto = Gate(when=AFTER, request=ASK, send=REJECT)
    ref = replace(ref, gates={**ref.gates, "veto": veto})
    seen = await selling.asked(ref, 2)
    assert {key: request.gate for key, request in seen.requests.items()} == {
        "approve.7": "approve",
        "veto.7": "veto",
    }
    await handled(selling, ref)
    await selling.adapter.answer(ref, {"veto.7": {"action": "accept", "content": {}, "send": REJECT}})
    assert await signals(selling, ref) == ["reject"]


async def test_questions_of_the_workflow_and_of_a_gate_are_open_together(selling: Scene) -> None:
    ref = await start(selling, "ShipAndAsk", "A1")
    seen = await selling.asked(ref, 2)
    [own] = [key for key, request in seen.requests.items() if request.gate is None]
    size = {"action": "accept", "content": {"size": "S"}}
    await selling.adapter.answer(ref, {own: size, "approve.7": yes(True, "alice")})
    assert (await selling.ended(ref)).output == {"size": "S", "who": "alice"}


async def test_a_question_of_the_workflow_whose_key_looks_like_a_gates_is_answered(selling: Scene) -> None:
    ref = await start(selling, "AskByHand")
    answer = {"action": "accept", "content": {"size": "S"}}
    await selling.adapter.answer(ref, {await only_key(selling, ref): answer})
    assert (await selling.ended(ref)).output == answer


async def test_an_answer_goes_through_the_codec_of_your_client(dev_server: DevServer) -> None:
    scene = Scene.new(await coded(dev_server))
    async with TemporalAdapter.from_client(scene.client, TemporalSettings(task_queue=scene.queue)) as adapter:
        scene = scene.on(adapter)
        async with shop(scene):
            ref = await start(scene, "ShipOrder", "A1")
            await adapter.answer(ref, {await only_key(scene, ref): yes(True, "alice")})
            assert (await scene.ended(ref)).output == [{"ok": True, "who": "alice"}]
            ref = await start(scene, "ShipByStatus", when=AWAITING)
            assert await only_key(scene, ref) == "approve.1"
            ref = await start(scene, "ShipByUpdate", "A1", send={"update": "approve"})
            with pytest.raises(EngineRefused, match="carol may not approve"):
                await adapter.answer(ref, {await only_key(scene, ref): yes("carol", kind="update")})


async def test_a_cheap_list_leaves_out_what_has_gates(selling: Scene) -> None:
    ref, _ = await waiting(selling, "ShipOrder", "A1")
    assert await selling.adapter.describe_many([ref]) == {}


# why a gate is closed


async def told(scene: Scene, ref: Ref, name: str = "approve") -> ExplainedGate:
    """What `explain` says of a gate."""
    return (await scene.adapter.tooling.explain(ref)).gates[name]


async def until_told(scene: Scene, ref: Ref, said: str) -> None:
    """Explained again and again until it is said of the gate that is closed, with the times of events left out."""
    why = ""
    try:
        with anyio.fail_after(PATIENCE):
            while why != said:
                gate = await told(scene, ref)
                why = f"{gate.state}: {re.sub(r', [0-9]+ s ago', '', gate.why)}"
    except TimeoutError:
        raise AssertionError(why) from None


async def test_a_gate_whose_activity_never_ran_is_explained_with_what_ran(selling: Scene) -> None:
    ref = await start(selling, "ShipOrder", "A1", when={"after": "NotifyAprover"})
    await until_told(
        selling,
        ref,
        "closed: after: NotifyAprover has not completed; seen so far: NotifyApprover; did you mean 'NotifyApprover'?",
    )


async def test_a_gate_whose_activity_is_under_way_or_has_not_begun_is_explained(scene: Scene) -> None:
    async with scene.worker(SHOP, []):  # nobody runs its activities
        ref = await start(scene, "ShipOrder", "A1")
        await until_told(scene, ref, "closed: after: NotifyApprover has not completed: it is under way, attempt 1")
    ref = await start(scene, "ShipOrder", "A1")
    await until_told(scene, ref, "closed: after: NotifyApprover has not completed; seen so far: none")


async def test_a_gate_of_a_query_is_explained_by_what_the_query_gives(selling: Scene) -> None:
    ref = await start(selling, "ShipByStatus", when={"query": "state", "equals": "awaiting_aproval"})
    said = 'query state gives "awaiting_approval", and the gate is open at "awaiting_aproval"'
    await until_told(selling, ref, f"closed: {said}")
    unknown = gated(ref, when={"query": "stat", "equals": 1})
    gate = await told(selling, unknown)
    assert (gate.state, "the query stat failed: " in gate.why) == (GateState.UNKNOWN, True)
    assert "state" in gate.why


async def test_a_gate_of_a_paused_execution_or_with_senseless_settings_is_explained(
    scene: Scene, dev_server: DevServer
) -> None:
    ref = gated(await scene.start("ShipOrder", "A1"), when={"after": None})
    assert (await told(scene, ref)).why.startswith("when: ")
    assert "gate approve: when: " in ((await scene.adapter.describe(ref)).message or "")
    dev_server.cli("workflow", "pause", "--workflow-id", workflow_id(ref), "--reason", "stock-taking")
    await until_told(scene, gated(ref), "closed: the execution is paused: it asks nothing until it is unpaused")


# what it costs


class Calls:
    """Counts what an adapter asks of Temporal, by call."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: Counter[str] = Counter()
        self.under_way: Counter[str] = Counter()
        self.most: Counter[str] = Counter()  # at the same time
        service = client.service_client
        call = service._rpc_call  # pyright: ignore[reportPrivateUsage]  # the SDK shows it nowhere else

        async def counted(rpc: str, *args: Any, **more: Any) -> Any:
            self.made[rpc] += 1
            self.under_way[rpc] += 1
            self.most[rpc] = max(self.most[rpc], self.under_way[rpc])
            try:
                return await call(rpc, *args, **more)
            finally:
                self.under_way[rpc] -= 1

        monkeypatch.setattr(service, "_rpc_call", counted)

    def take(self) -> Mapping[str, int]:
        made, self.made = self.made, Counter()
        return dict(made)


DESCRIBED = {"describe_workflow_execution": 1}
READ = {**DESCRIBED, "get_workflow_execution_history_reverse": 1}
QUERIED = {**DESCRIBED, "query_workflow": 1}


@pytest.fixture
async def counted(
    dev_server: DevServer, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Scene, Calls]]:
    """A replica whose calls are counted."""
    client = await connect(dev_server)
    async with TemporalAdapter.from_client(client) as adapter:
        yield scene.on(adapter), Calls(client, monkeypatch)


async def test_the_history_is_read_only_when_it_has_grown(scene: Scene, counted: tuple[Scene, Calls]) -> None:
    replica, calls = counted
    async with shop(scene):
        ref, _ = await settled(scene, "ShipOrder", "A1")
        for cost in (READ, DESCRIBED, DESCRIBED):
            await replica.adapter.describe(ref)
            assert calls.take() == cost
        await replica.adapter.describe(replace(ref, gates={}))
        assert calls.take() == DESCRIBED
        await tell(scene, ref, "noise")
        await handled(scene, ref)
        for cost in (READ, DESCRIBED):
            assert len((await replica.adapter.describe(ref)).requests) == 1
            assert calls.take() == cost


async def test_a_long_history_is_read_in_bounded_pages_and_never_twice(
    scene: Scene, counted: tuple[Scene, Calls], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows_temporal.gates.PAGE", 10)
    monkeypatch.setattr("mcp_workflows_temporal.gates.PAGES_PER_POLL", 4)
    for patience in ("NEVER_BEGUN_AFTER", "NO_WORKER_AFTER"):  # a slow machine takes long for 118 signals to nobody
        monkeypatch.setattr(f"mcp_workflows_temporal.diagnosis.{patience}", timedelta(hours=1))
    replica, calls = counted
    ref, key = await left(scene, "ShipOrder", "A1")
    for _ in range(95):  # nobody takes them: one event each
        await tell(scene, ref, "noise")
    first = await replica.adapter.describe(ref)
    assert first.requests == {}
    assert first.message is not None
    assert "gate approve: the history is being read, 50 of " in first.message
    assert calls.take()["get_workflow_execution_history_reverse"] == 5  # the newest page, and four more
    await tell(scene, ref, "noise")
    await replica.adapter.describe(ref)
    assert calls.take()["get_workflow_execution_history_reverse"] == 5
    assert list((await replica.adapter.describe(ref)).requests) == [key]
    assert calls.take()["get_workflow_execution_history_reverse"] <= 2
    for _ in range(22):
        await tell(scene, ref, "noise")
    assert list((await replica.adapter.describe(ref)).requests) == [key]
    assert calls.take() == {**DESCRIBED, "get_workflow_execution_history_reverse": 3}
    await replica.adapter.describe(ref)
    assert calls.take() == DESCRIBED


async def test_while_a_replica_reads_the_history_a_question_is_as_it_was_last(
    scene: Scene, other: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref, key = await left(scene, "ShipOrder", "A1")
    for _ in range(40):
        await tell(scene, ref, "noise")
    monkeypatch.setattr("mcp_workflows_temporal.gates.PAGE", 5)
    monkeypatch.setattr("mcp_workflows_temporal.gates.PAGES_PER_POLL", 1)
    of_others = {"approve.7.another-run", "veto.7", "approve.x"}
    for asked, shown in ((of_others, []), ({*of_others, key}, [key])):
        seen = await other.adapter.describe(replace(ref, asked=frozenset(asked)))
        assert list(seen.requests) == shown
        assert "gate approve: the history is being read" in (seen.message or "")
    await other.adapter.answer(ref, {key: yes(True)})  # it reads as much as it takes
    assert (await signals(scene, ref))[-1] == "approve"
    assert (await other.adapter.describe(replace(ref, asked=frozenset({key})))).requests == {}


# by an update


async def test_what_the_workflow_refuses_can_be_answered_again(selling: Scene) -> None:
    ref, key = await waiting(selling, "ShipByUpdate", "A1", send={"update": "approve"})
    with pytest.raises(EngineRefused, match="the workflow does not accept this answer: who approves"):
        await selling.adapter.answer(ref, {key: yes("", kind="update")})
    assert await only_key(selling, ref) == key
    await selling.adapter.answer(ref, {key: yes("alice", kind="update")})
    await selling.adapter.answer(ref, {key: yes("bob", kind="update")})
    assert (await selling.ended(ref)).output == "alice"


@pytest.mark.parametrize("who", ["slow", "last"])
async def test_an_update_that_takes_its_time_or_ends_the_workflow_before_it_is_done_is_delivered(
    selling: Scene, who: str
) -> None:
    ref, key = await waiting(selling, "ShipByUpdate", "A1", send={"update": "approve"})
    await selling.adapter.answer(ref, {key: yes(who, kind="update")})
    if who == "slow":
        assert (await selling.adapter.describe(ref)).requests == {}
    assert (await selling.ended(ref)).output == who


async def test_an_update_without_a_worker_is_not_delivered_and_the_question_stays(scene: Scene) -> None:
    ref, key = await left(scene, "ShipByUpdate", "A1", send={"update": "approve"})
    with pytest.raises(EngineUnavailable, match=f"no worker on task queue {scene.queue} took the answer"):
        await scene.adapter.answer(ref, {key: yes("alice", kind="update")})
    assert list((await scene.adapter.describe(ref)).requests) == [key]
    async with shop(scene):
        await scene.adapter.answer(ref, {key: yes("alice", kind="update")})
        assert (await scene.ended(ref)).output == "alice"


# by a query


async def test_a_workflow_that_tells_by_a_query_is_asked_in_two_rounds(selling: Scene) -> None:
    ref, first = await waiting(selling, "ShipByStatus", 2, when=AWAITING)
    assert first == "approve.1"
    await selling.adapter.answer(ref, {first: yes(True)})
    seen = await selling.until(ref, lambda seen: seen.requests and first not in seen.requests)
    await selling.adapter.answer(ref, {first: yes(False)})  # too late: ignored
    await selling.adapter.answer(ref, {next(iter(seen.requests)): yes(True)})
    assert (await selling.ended(ref)).output == [True, True]


async def test_an_answer_while_the_workflow_does_not_wait_is_refused_and_asked_for_again(selling: Scene) -> None:
    ref, key = await waiting(selling, "ShipByStatus", when=AWAITING)
    await tell(selling, ref, "waits", False)
    with pytest.raises(EngineRefused, match="does not wait for an answer now"):
        await selling.adapter.answer(ref, {key: yes(True)})
    await tell(selling, ref, "waits", True)
    assert await only_key(selling, ref) == key
    await selling.adapter.answer(ref, {key: yes(True)})
    assert (await selling.ended(ref)).output == [True]


async def test_the_query_is_not_asked_again_while_nothing_happens(scene: Scene, counted: tuple[Scene, Calls]) -> None:
    replica, calls = counted
    async with shop(scene):
        ref, _ = await waiting(scene, "ShipByStatus", when=AWAITING)
        for cost in ({**READ, **QUERIED}, DESCRIBED):
            await replica.adapter.describe(ref)
            assert calls.take() == cost
        await tell(scene, ref, "noise")
        await handled(scene, ref)
        await replica.adapter.describe(ref)
        assert calls.take() == {**READ, **QUERIED}


async def test_without_a_worker_the_question_stays_as_it_was_last(scene: Scene, other: Scene) -> None:
    ref, key = await left(scene, "ShipByStatus", 2, when=AWAITING)
    why = await other.adapter.tooling.explain(replace(ref, asked=frozenset({key})))
    assert why.reason.startswith("it waited for an answer when it was last asked: Ship A1?; no worker on task queue")
    assert why.advice == f"start a worker on task queue {scene.queue} in namespace default"
    await tell(scene, ref, "noise")  # the history grows, so the query is asked, and nobody tells
    ref = replace(ref, asked=frozenset({key}))
    for replica in (scene, other):
        seen = await replica.adapter.describe(ref)
        assert (list(seen.requests), seen.status) == ([key], Status.INPUT_REQUIRED)
        assert says_who_can_tell(seen, scene)
    await other.adapter.answer(ref, {key: yes(True)})
    for replica in (scene, other):
        assert (await replica.adapter.describe(ref)).requests == {}  # sent, and not taken yet
    assert await signals(scene, ref) == ["noise", "approve"]


async def test_without_a_worker_a_question_that_nobody_has_seen_is_not_shown(scene: Scene, other: Scene) -> None:
    ref, key = await left(scene, "ShipByStatus", when=AWAITING)
    of_another_gate = replace(ref, asked=frozenset({"veto.1", "approve.7"}))
    seen = await other.adapter.describe(of_another_gate)
    assert (seen.status, seen.requests) == (Status.RUNNING, {})
    assert says_who_can_tell(seen, scene)
    gate = await told(other, ref)
    assert (gate.state, gate.why) == (GateState.UNKNOWN, only_a_worker_can_tell(scene))
    with pytest.raises(EngineUnavailable, match="only a live worker"):
        await other.adapter.answer(ref, {key: yes(True)})
    assert await signals(scene, ref) == []


async def test_without_a_worker_a_question_goes_when_it_is_answered_elsewhere_or_the_execution_ends(
    scene: Scene, other: Scene
) -> None:
    async with shop(scene):
        ref = await start(scene, "ShipByStatus", when=AWAITING)
        ended = await start(scene, "ShipByStatus", when=AWAITING)
        for each in (ref, ended):
            assert await only_key(scene, each) == "approve.1"
            await handled(scene, each)
    await tell(scene, ref, "approve", True)
    await scene.client.get_workflow_handle(workflow_id(ended)).terminate(reason="fire")
    for each in (ref, ended):
        assert (await other.adapter.describe(replace(each, asked=frozenset({"approve.1"})))).requests == {}


async def test_many_gates_with_queries_are_asked_together_and_not_one_by_one_when_nobody_answers(
    scene: Scene, counted: tuple[Scene, Calls]
) -> None:
    replica, calls = counted
    async with shop(scene):
        ref = await start(scene, "ShipByStatus", when=AWAITING)
        ref = replace(ref, gates={f"gate{number}": ref.gates["approve"] for number in range(8)})
        await scene.asked(ref, 8)
        await handled(scene, ref)
        assert len((await replica.adapter.describe(ref)).requests) == 8
        assert (calls.take()["query_workflow"], calls.most["query_workflow"]) == (8, QUERIES_AT_ONCE)
    await tell(scene, ref, "noise")
    asked = frozenset(f"gate{number}.1" for number in range(8))
    seen = await replica.adapter.describe(replace(ref, asked=asked))
    assert seen.requests.keys() == asked
    assert calls.take()["query_workflow"] == 1


def only_a_worker_can_tell(scene: Scene) -> str:
    return f"only a live worker on task queue {scene.queue} can tell whether it waits (query state)"


def says_who_can_tell(seen: Execution, scene: Scene) -> bool:
    return f"gate approve: {only_a_worker_can_tell(scene)}" in (seen.message or "")


async def test_a_query_that_the_workflow_does_not_have_is_named(selling: Scene) -> None:
    ref = await start(selling, "ShipByStatus", when={"query": "statsu", "equals": 1})
    seen = await selling.until(ref, lambda seen: seen.message and "the query statsu failed" in seen.message)
    assert (seen.status, seen.requests) == (Status.RUNNING, {})
