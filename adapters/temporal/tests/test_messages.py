"""Messages to executions on a real server: delivered once, refused in words, and progress by a query."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import anyio
import pytest
from mcp_workflows_temporal import TemporalAdapter, TemporalOptions, TemporalSettings
from mcp_workflows_temporal.settings import MESSAGES, TemporalAction
from pydantic import ValidationError
from temporalio.service import RPCError, RPCStatusCode

from adapters.temporal.tests.scene import PATIENCE, Scene, connect, plan, workflow_id
from mcp_workflows.adapter import Execution, Failure, Progress, Ref, Start, Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from tests.support.dev_server import DevServer

BASKET = {"workflow": "Basket", "after_end": "refuse"}
KINDS = pytest.mark.parametrize("kind", [{"signal": "put"}, {"update": "add"}])


def message(options: Mapping[str, Any], *args: Any, target: Ref | None = None, key: str | None = None) -> Start:
    """An order to send a message."""
    order = plan("message", *args, key=key)
    return replace(order, options=options, target=target and target.handle, context={"owner": "alice"})


async def sent(scene: Scene, order: Start) -> Execution:
    """The outcome of a message, once it is known."""
    ref = Ref(workflow="message", handle=await scene.adapter.start(order), options=order.options)
    return await scene.ended(ref)


async def ask(scene: Scene, target: Ref) -> Mapping[str, Any]:
    found = await sent(scene, message({"query": "state"}, target=target))
    assert found.status is Status.SUCCEEDED
    return dict(found.output)


async def opened(scene: Scene, ref: Ref) -> Ref:
    """The execution, once its worker has begun it."""
    await scene.until(ref, lambda seen: True)
    with anyio.fail_after(PATIENCE):
        while (await sent(scene, message({"query": "state"}, target=ref))).failure:
            await anyio.sleep(0.05)
    return ref


@pytest.fixture
async def basket(working: Scene) -> Ref:
    """A workflow that takes messages."""
    return await opened(working, await working.start("Basket"))


Call = Callable[[], Awaitable[Any]]
Around = Callable[[Call], Awaitable[Any]]


async def renew(scene: Scene, address: str) -> None:
    """The execution goes on in a new run."""
    handle = scene.client.get_workflow_handle(address)
    before = (await handle.describe()).run_id
    await handle.signal("renew")
    with anyio.fail_after(PATIENCE):
        while (await handle.describe()).run_id == before:
            await anyio.sleep(0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """An adapter, the names of its calls to Temporal, and by name what is done around a call."""

    adapter: TemporalAdapter
    calls: list[str] = field(default_factory=list[str])
    around: dict[str, Around] = field(default_factory=dict[str, Around])


@pytest.fixture
async def watched(working: Scene, dev_server: DevServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    """Another replica, whose calls are watched."""
    client = await connect(dev_server)
    adapter = TemporalAdapter.from_client(client, TemporalSettings(task_queue=working.queue))
    found = Watched(adapter=adapter)
    send = client.service_client._rpc_call  # pyright: ignore[reportPrivateUsage]  # the SDK has no public hook

    async def watch(rpc: str, req: Any, resp_type: Any, **more: Any) -> Any:  # Any: the SDK's own types
        found.calls.append(rpc)
        call = partial(send, rpc, req, resp_type, **more)
        around = found.around.get(rpc)
        return await (around(call) if around else call())

    monkeypatch.setattr(client.service_client, "_rpc_call", watch)
    async with adapter:
        yield found


async def test_a_signal_an_update_and_a_query_reach_an_execution_that_knows_nothing_of_us(
    working: Scene, basket: Ref
) -> None:
    found = await sent(working, message({"signal": "put"}, "tea", target=basket))
    assert (found.status, found.output) == (Status.SUCCEEDED, {"sent": "put", "to": workflow_id(basket)})
    added = await sent(working, message({"update": "add"}, "milk", target=basket))
    assert (added.status, added.output) == (Status.SUCCEEDED, 2)
    assert (await ask(working, basket))["items"] == ["tea", "milk"]


@KINDS
async def test_one_key_is_one_message_even_after_the_execution_has_ended(
    working: Scene, basket: Ref, kind: Mapping[str, str]
) -> None:
    order = message(kind, "tea", target=basket)
    first = await working.adapter.start(order)
    assert await working.adapter.start(order) == first
    assert (await ask(working, basket))["items"] == ["tea"]
    await sent(working, message({"signal": "close"}, target=basket))
    assert (await working.ended(basket)).output == ["tea"]
    assert json.loads(await working.adapter.start(order))["workflow_id"] == workflow_id(basket)
    with pytest.raises(EngineRefused, match="is running"):
        await working.adapter.start(message(kind, "late", target=basket))


@KINDS
async def test_one_key_is_one_message_in_all_runs_of_an_execution(
    working: Scene, basket: Ref, kind: Mapping[str, str]
) -> None:
    order = message(kind, "tea", target=basket)
    await working.adapter.start(order)
    await renew(working, workflow_id(basket))
    await working.adapter.start(order)
    await working.adapter.start(message(kind, "milk", target=basket))
    assert (await ask(working, basket))["items"] == ["milk"]


@KINDS
async def test_one_key_is_one_message_although_another_execution_has_the_id_by_now(
    working: Scene, kind: Mapping[str, str]
) -> None:
    address = f"cart-{uuid.uuid4().hex}"
    options = {**kind, "workflow_id": address, "start_if_missing": {**BASKET, "after_end": "start"}}
    order = message(options, "tea")
    await working.adapter.start(order)
    await sent(working, message({"signal": "close", "workflow_id": address}))
    assert await working.client.get_workflow_handle(address).result() == ["tea"]
    await working.adapter.start(message(options, "milk"))
    await working.adapter.start(order)
    assert (await sent(working, message({"query": "state", "workflow_id": address}))).output["items"] == ["milk"]


async def test_a_signal_whose_reply_was_lost_is_not_repeated_to_the_next_run(working: Scene, watched: Watched) -> None:
    address = f"cart-{uuid.uuid4().hex}"
    await working.client.start_workflow("Basket", id=address, task_queue=working.queue)

    async def lose_the_reply(call: Call) -> None:
        del watched.around["signal_workflow_execution"]
        await call()
        await renew(working, address)
        raise RPCError("the connection is lost", RPCStatusCode.UNAVAILABLE, b"")

    watched.around["signal_workflow_execution"] = lose_the_reply
    order = replace(message({"signal": "put", "workflow_id": address}, "tea"), attempt=1)
    await watched.adapter.start(order)
    assert watched.calls[0] == "signal_workflow_execution"
    assert (await sent(working, message({"query": "state", "workflow_id": address}))).output["items"] == []


async def test_the_first_attempt_to_send_a_message_needs_no_search(
    working: Scene, basket: Ref, watched: Watched
) -> None:
    address = f"cart-{uuid.uuid4().hex}"
    await working.client.start_workflow("Basket", id=address, task_queue=working.queue)
    await renew(working, workflow_id(basket))
    for kind, call in (({"signal": "put"}, "signal"), ({"update": "add"}, "update")):
        for order, calls in (
            (message({**kind, "workflow_id": address}, "tea"), []),
            (message(kind, "tea", target=basket), ["describe_workflow_execution"]),
        ):
            watched.calls.clear()
            await watched.adapter.start(replace(order, attempt=1))
            assert watched.calls == [*calls, f"{call}_workflow_execution"]


async def test_an_update_that_is_rejected_or_fails_says_why(working: Scene, basket: Ref) -> None:
    with pytest.raises(EngineRefused, match="there is no such item"):
        await working.adapter.start(message({"update": "add"}, "nonsense", target=basket))
    failed = await sent(working, message({"update": "add"}, "gone", target=basket))
    assert failed.failure is not None
    assert failed.failure == Failure(text="it is sold out", kind="SoldOut", details=[{"left": 0}])
    with pytest.raises(EngineRefused, match="unheard"):
        await working.adapter.start(message({"update": "unheard"}, target=basket))


async def test_an_update_without_a_worker_is_sent_again_until_one_takes_it(scene: Scene) -> None:
    async with scene.worker():
        basket = await opened(scene, await scene.start("Basket"))
    order = message({"update": "add"}, "tea", target=basket)
    with pytest.raises(EngineUnavailable, match=f"no worker on task queue {scene.queue}"):
        await scene.adapter.start(order)
    async with scene.worker():
        with anyio.fail_after(PATIENCE):
            while True:
                try:
                    found = await sent(scene, order)
                    break
                except EngineUnavailable:
                    continue
        assert found.output == 1
        assert (await ask(scene, basket))["items"] == ["tea"]


async def test_a_query_without_a_worker_and_one_that_fails_say_so(scene: Scene) -> None:
    async with scene.worker():
        basket = await opened(scene, await scene.start("Basket"))
        failed = await sent(scene, message({"query": "broken"}, target=basket))
        unknown = await sent(scene, message({"query": "unheard"}, target=basket))
    lonely = await sent(scene, message({"query": "state"}, target=basket))
    assert failed.failure is not None
    assert failed.failure.text == "the query broken failed: an inner reason"
    assert unknown.failure is not None
    assert "unheard" in unknown.failure.text
    assert lonely.failure is not None
    assert "only a worker can answer the query state: try again later" in lonely.failure.text


@pytest.mark.parametrize("kind", ["signal", "update"])
async def test_an_execution_of_the_business_is_started_if_it_is_missing(working: Scene, kind: str) -> None:
    name = {"signal": "put", "update": "add"}[kind]
    address = f"cart-{uuid.uuid4().hex}"
    options = {kind: name, "workflow_id": address}
    with pytest.raises(EngineRefused, match=f"no execution {address} is running"):
        await working.adapter.start(message(options, "tea"))
    refusing = {**options, "start_if_missing": BASKET}
    order = message(refusing, "tea")
    await sent(working, order)
    await sent(working, message(refusing, "milk"))
    asking = {"query": "state", "workflow_id": address}
    assert (await sent(working, message(asking))).output["items"] == ["tea", "milk"]
    await sent(working, message({"signal": "close", "workflow_id": address}))
    with anyio.fail_after(PATIENCE):
        while (await working.client.get_workflow_handle(address).describe()).close_time is None:
            await anyio.sleep(0.05)
    await sent(working, order)  # it was delivered before the end
    with pytest.raises(EngineRefused, match="has ended, and `after_end: refuse`"):
        await working.adapter.start(message(refusing, "late"))
    again = {**options, "start_if_missing": {**BASKET, "after_end": "start", "args": ["first"]}}
    await sent(working, message(again, "bread"))
    assert sorted((await sent(working, message(asking))).output["items"]) == ["bread", "first"]


async def test_an_execution_that_ends_before_each_message_is_started_twice(working: Scene, watched: Watched) -> None:
    address = f"echo-{uuid.uuid4().hex}"

    async def wait_for_the_end(call: Call) -> Any:
        if "start_workflow_execution" in watched.calls:
            await working.client.get_workflow_handle(address).result()
        return await call()

    watched.around["signal_workflow_execution"] = wait_for_the_end
    missing = {"workflow": "Echo", "after_end": "start"}
    order = message({"signal": "put", "workflow_id": address, "start_if_missing": missing}, "tea")
    with pytest.raises(EngineRefused, match=f"{address} was started, and ended before the message came"):
        await watched.adapter.start(order)
    assert watched.calls.count("start_workflow_execution") == 2


async def test_an_execution_of_a_task_is_spoken_to_by_its_task_alone(working: Scene, basket: Ref) -> None:
    with pytest.raises(EngineRefused, match="workflow ids that begin with mcp-"):
        await working.adapter.start(message({"signal": "put", "workflow_id": workflow_id(basket)}, "tea"))


@pytest.mark.parametrize("kind", [{"signal": "put"}, {"update": "add"}, {"query": "state"}])
async def test_a_message_to_a_task_never_reaches_another_chain_with_its_id(
    working: Scene, kind: Mapping[str, str]
) -> None:
    address = f"cart-{uuid.uuid4().hex}"
    start = replace(plan("Basket"), options={"workflow_id": address})
    handle = await working.adapter.start(start)
    stale = Ref(workflow="Basket", handle=f"{address}/{uuid.uuid4()}")
    assert handle != stale.handle
    with pytest.raises(EngineRefused, match="belongs to another execution"):
        await working.adapter.start(message(kind, "tea", target=stale))


async def test_a_query_of_a_task_is_answered_by_its_run_alone(working: Scene) -> None:
    address = f"cart-{uuid.uuid4().hex}"
    handle = await working.adapter.start(replace(plan("Basket", "alice's"), options={"workflow_id": address}))
    order = message({"query": "state"}, target=Ref(workflow="Basket", handle=handle))
    asked = Ref(workflow="query state", handle=await working.adapter.start(order), options=order.options)
    await sent(working, message({"signal": "close"}, target=Ref(workflow="Basket", handle=handle)))
    await working.client.get_workflow_handle(address).result()
    await working.client.start_workflow("Basket", "bob's", id=address, task_queue=working.queue)
    assert (await working.ended(asked)).output["items"] == ["alice's"]
    with pytest.raises(EngineRefused, match="belongs to another execution"):
        await working.adapter.start(order)


async def test_a_query_that_cannot_be_taken_was_certainly_not_sent(basket: Ref, watched: Watched) -> None:
    async def fail(call: Call) -> None:
        raise RPCError("no connection", RPCStatusCode.UNAVAILABLE, b"")

    watched.around["describe_workflow_execution"] = fail
    with pytest.raises(EngineUnavailable) as caught:
        await watched.adapter.start(message({"query": "state"}, target=basket))
    assert not caught.value.sent


async def test_an_ended_task_is_asked_nothing(working: Scene, basket: Ref) -> None:
    await sent(working, message({"signal": "close"}, target=basket))
    await working.ended(basket)
    with pytest.raises(EngineRefused, match="is running"):
        await working.adapter.start(message({"query": "state"}, target=basket))


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"signal": "a", "update": "b", "workflow_id": "x"}, "a tool sends one message"),
        ({"signal": "a"}, "workflow_id is missing: signal needs the id"),
        ({"query": "a", "workflow_id": "x", "start_if_missing": BASKET}, "only with signal or update"),
        ({"start_if_missing": BASKET}, "only with signal or update"),
        *(({kind: "a-{{name}}", "workflow_id": "x"}, f"{kind}: .*write the name itself") for kind in MESSAGES),
    ],
)
def test_options_of_messages_that_make_no_sense_are_refused(options: Mapping[str, Any], wrong: str) -> None:
    with pytest.raises(EngineRefused, match=wrong):
        TemporalOptions.written(options)


@pytest.mark.parametrize("kind", MESSAGES)
def test_the_name_of_an_action_has_no_placeholders(kind: str) -> None:
    with pytest.raises(ValidationError, match="write the name itself"):
        TemporalAction.model_validate({kind: "{{name}}"})


# --- progress


def with_progress(ref: Ref, **more: Any) -> Ref:
    progress = {"query": "state", "value": "{{done}}", "total": "{{total}}", "message": "{{done}} packed", **more}
    return replace(ref, options={"progress": progress})


async def test_a_query_tells_the_progress_also_while_its_worker_is_away(scene: Scene) -> None:
    async with scene.worker():
        ref = with_progress(await opened(scene, await scene.start("Basket")))
        await sent(scene, message({"signal": "put"}, "tea", target=ref))
        seen = await scene.until(ref, lambda seen: seen.progress == Progress(value=1, total=4))
        assert seen.message == "1 packed"
    await sent(scene, message({"signal": "put"}, "milk", target=ref))
    away = await scene.adapter.describe(ref)
    assert away.progress == Progress(value=1, total=4)


async def test_a_progress_that_cannot_be_read_says_why(working: Scene, basket: Ref) -> None:
    for more, said in (({"query": "unheard"}, "unheard"), ({"value": "{{items}}", "message": None}, "is no number")):
        seen = await working.adapter.describe(with_progress(basket, **more))
        assert seen.progress is None
        assert seen.message is not None
        assert seen.message.startswith("its progress is not known: ")
        assert said in seen.message


async def test_a_silent_workflow_tells_the_child_that_it_waits_for(working: Scene) -> None:
    ref = await working.start("Sells")
    seen = await working.until(ref, lambda seen: seen.steps)
    assert [(step.name, step.status) for step in seen.steps] == [("Basket", Status.RUNNING)]
    assert seen.message == "running child workflow Basket"
    await working.client.get_workflow_handle(f"{workflow_id(ref)}-basket").signal("close")
    assert (await working.ended(ref)).output == ["first"]


# --- check and dry-run


async def test_check_finds_the_names_of_messages_that_no_worker_knows(working: Scene, basket: Ref) -> None:
    tooling = working.adapter.tooling
    actions = {"pack": {"signal": "put"}, "unpack": {"signal": "putt"}, "see": {"query": "state"}}
    options = {"progress": {"query": "stat", "value": "{{done}}"}, "actions": actions}
    findings = await tooling.verify("Basket", options, {})
    wrong = [each.text for each in findings if each.ok is False]
    assert len(wrong) == 2
    assert any("actions.unpack.signal" in text and "putt" in text for text in wrong)
    assert any("progress.query" in text and "stat" in text for text in wrong)
    starting = {"update": "ad", "workflow_id": "cart-1", "start_if_missing": BASKET}
    [mistake] = [each for each in await tooling.verify("update ad", starting, {}) if each.ok is False]
    assert "update" in mistake.text
    assert (await tooling.check("update ad", starting)).ok
    assert await tooling.verify("update ad", {"update": "ad", "workflow_id": "cart-1"}, {}) == ()
    found = await tooling.check("update ad", {"update": "ad", "workflow_id": "cart-{{user}}"})
    assert (found.ok, found.text) == (True, "it is sent to workflow id cart-{{user}}, whoever started that")


async def test_a_message_cannot_be_taken_back_and_is_explained(working: Scene, basket: Ref) -> None:
    order = message({"update": "add"}, "gone", target=basket)
    ref = Ref(workflow="update add", handle=await working.adapter.start(order), options=order.options)
    await working.ended(ref)
    with pytest.raises(EngineRefused, match="cannot be taken back"):
        await working.adapter.cancel(ref)
    why = await working.adapter.tooling.explain(ref)
    assert (why.reason, why.facts) == ("it is sold out", {"workflow id": workflow_id(basket)})


async def test_a_preview_of_a_message_shows_what_is_sent(scene: Scene) -> None:
    order = message({"signal": "put", "workflow_id": "cart-1"}, "tea")
    shown = {"signal": "put", "workflowId": "cart-1", "input": ["tea"]}
    assert scene.adapter.tooling.preview(order) == shown
