"""The operator's view of everybody's tasks: from store and engines, also when an engine gives no answer."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from mcp_workflows.access import Principal
from mcp_workflows.access.audit import Record
from mcp_workflows.adapter import Adapter, Failure, Finding, Gate, InputRequest, Start, Status
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import OperatorError
from mcp_workflows.sidecar.checks import CheckReport, ItemKind, Row
from mcp_workflows.sidecar.cli.app import say
from mcp_workflows.sidecar.cli.format import (
    message_of,
    render_facts,
    render_table,
    render_task,
    summary_json,
    task_json,
)
from mcp_workflows.sidecar.operator import Operator
from mcp_workflows.store.protocol import Store, TaskFilter, open_store
from mcp_workflows.task import Task, refuse
from mcp_workflows.testing import MemoryAdapter, MemorySettings, make_task
from mcp_workflows.tools.tool import Tool

pytestmark = pytest.mark.anyio

DAY = timedelta(days=1)


class FourVerbs(MemoryAdapter):
    """An engine without any of the optional capabilities."""

    terminate = None  # type: ignore[assignment]  # taken away
    adopt = None  # type: ignore[assignment]  # taken away


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """An operator, and what they work on."""

    store: Store
    adapter: MemoryAdapter
    operator: Operator

    async def task(self, workflow: str = "forever", argument: Any = None, **changes: Any) -> Task:
        """A task of a running execution."""
        plan = Start(workflow=workflow, arguments=[argument], key=uuid.uuid4().hex, created=datetime.now(UTC))
        fields = {"engine": "here", "workflow": workflow, "handle": await self.adapter.start(plan), **changes}
        return await self.store.create(make_task(created=datetime.now(UTC), **fields))


@asynccontextmanager
async def office(kind: type[MemoryAdapter] = MemoryAdapter, tools: Sequence[Tool] = ()) -> AsyncGenerator[Office]:
    adapter = kind(MemorySettings(name=uuid.uuid4().hex))
    engines: dict[str, Adapter] = {"here": adapter}
    async with open_store("sqlite:///:memory:") as store, Engines(engines, call_timeout=0.2) as opened:
        yield Office(store=store, adapter=adapter, operator=Operator(store=store, engines=opened, tools=tools))


@pytest.fixture
async def here() -> AsyncGenerator[Office]:
    async with office() as office_here:
        yield office_here


# --- list and find


async def test_everybodys_tasks_are_listed_the_youngest_first_after_a_look(here: Office) -> None:
    old = await here.task(owner="anna")
    young = await here.task("sleep", {"seconds": 0}, owner="ben")
    assert [observed.task.id for observed in await here.operator.tasks(TaskFilter())] == [
        old.id
    ]  # the other has just ended
    discoveries = await here.operator.tasks(TaskFilter(live_only=False))
    assert [observed.task.id for observed in discoveries] == [young.id, old.id]
    assert discoveries[0].task.execution.output == {"slept": 0}
    kept = await here.store.get(young.id, "ben")
    assert kept is not None
    assert kept.ended


async def test_an_engine_that_is_silent_is_waited_for_once_and_the_store_speaks_for_it(here: Office) -> None:
    tasks = [await here.task() for _ in range(40)]
    here.adapter.faults.silent = frozenset({"describe"})
    discoveries = await here.operator.tasks(TaskFilter())
    assert {observed.task.id for observed in discoveries} == {task.id for task in tasks}
    assert all("no answer within 0.2 s" in (observed.warning or "") for observed in discoveries)
    assert here.adapter.calls["describe"] < len(tasks)


async def test_a_task_is_found_by_the_beginning_of_its_id_if_no_other_begins_so(here: Office) -> None:
    one, other = await here.task(id="abc1"), await here.task(id="abc2")
    longer = await here.task(id="abc12")
    assert (await here.operator.find("abc2")).task.id == other.id
    assert (await here.operator.find("abc1")).task.id == one.id  # all of it, though another begins so
    assert (await here.operator.find("abc12")).task.id == longer.id
    for name, complaint in (("abc", "more than one"), ("x", "no task"), ("", "give the id"), ("ab%", "no task")):
        with pytest.raises(OperatorError, match=complaint):
            await here.operator.find(name)


async def test_what_the_engine_forgot_is_not_ended_by_the_operator(here: Office) -> None:
    task = await here.task()
    here.adapter.forget(task.handle or "")
    observed = await here.operator.find(task.id)
    assert (observed.task.ended, "no such execution" in (observed.warning or "")) == (None, True)


# --- why


async def test_why_says_when_the_engine_is_down_or_the_task_has_ended_or_never_began(here: Office) -> None:
    failed, lost = await here.task("fail"), await here.task()
    unborn = await here.store.create(make_task(engine="here"))
    assert (await here.operator.why(failed.id))[1].reason == "it has ended: failed, the card was declined"
    assert "start not confirmed" in (await here.operator.why(unborn.id))[1].reason
    here.adapter.faults.unavailable = frozenset({"describe"})
    _, found = await here.operator.why(lost.id)
    assert "does not answer" in found.reason
    assert "mcp-workflows check" in (found.advice or "")


async def test_what_is_known_of_a_failure_is_shown_with_its_text(here: Office) -> None:
    failure = Failure(text="declined", kind="CardDeclined", details=[{"card": "c-1"}], retryable=False, step="charge")
    task = await here.store.create(make_task(engine="here"))
    await here.store.change(task.id, task.owner, lambda row: refuse(row, failure, datetime.now(UTC), final=True))
    observed = await here.operator.read(task.id)
    shown = render_task(observed)
    for line in (
        "error type:",
        "CardDeclined",
        "error step:",
        "charge",
        "error retryable:",
        "false",
        '[{"card": "c-1"}]',
    ):
        assert line in shown
    error = {"type": "CardDeclined", "step": "charge", "retryable": False, "details": [{"card": "c-1"}]}
    assert task_json(observed)["error"] == error


# --- why: the gates


ASKED = InputRequest(method="elicitation/create", params={"mode": "form", "message": "Ship A1?"})


def memory_gate(after_seconds: float) -> Gate:
    return Gate(when={"after_seconds": after_seconds}, request=ASKED, send={})


async def gates_of(here: Office, task: Task) -> Mapping[str, str]:
    """What `why` says of each gate."""
    _, found = await here.operator.why(task.id)
    return {name: f"{gate.state}: {gate.why}" for name, gate in found.gates.items()}


async def test_every_gate_of_a_task_is_told_open_closed_or_unknown(here: Office) -> None:
    task = await here.task("gated", gates={"first": memory_gate(0), "later": memory_gate(1000)})
    assert await gates_of(here, task) == {
        "first": "open: it asks: Ship A1? (first.1)",
        "later": "closed: it asks nothing now; the adapter of engine here cannot explain why",
    }
    await here.store.change(task.id, task.owner, lambda row: replace(row, answered=frozenset({"first.1"})))
    assert (await gates_of(here, task))["first"] == "closed: answered already (first.1)"
    here.adapter.faults.unavailable = frozenset({"describe"})
    assert (await gates_of(here, task))["later"].startswith("unknown: engine here: ")


# --- answer

YES: dict[str, Any] = {"action": "accept", "content": {"answer": "Ada"}}


async def test_an_answer_is_checked_as_a_clients_is_and_delivered_once(here: Office) -> None:
    task = await here.task("ask_two", owner="anna")
    with pytest.raises(OperatorError, match=r"^content does not match the question: .*; nothing was applied$"):
        await here.operator.answer(task.id, "first", {"action": "accept", "content": {"answer": 7}})
    observed = await here.operator.answer(task.id, "first", YES)
    assert (list(observed.task.seen.requests), observed.task.answered) == (["second"], {"first"})
    with pytest.raises(OperatorError, match="no longer open"):
        await here.operator.answer(task.id, "first", YES)
    observed = await here.operator.answer(task.id[:6], "second", {"action": "decline"})
    assert observed.task.execution.output == {"first": {"answer": "Ada"}, "second": {"action": "decline"}}
    assert here.adapter.calls["answer"] == 2


async def test_what_cannot_be_answered_says_why(here: Office) -> None:
    ended, watched, down = await here.task("echo"), await here.task("ask", may_answer=False), await here.task("ask")
    unborn = await here.store.create(make_task(engine="here"))
    for task, complaint in ((ended, "no longer open"), (watched, "only watches"), (unborn, "start not confirmed")):
        with pytest.raises(OperatorError, match=complaint):
            await here.operator.answer(task.id, "question", YES)
    here.adapter.faults.unavailable = frozenset({"answer"})
    with pytest.raises(OperatorError, match=r"engine here did not accept the answer: .* does not answer"):
        await here.operator.answer(down.id, "question", YES)
    kept = await here.store.get(down.id, down.owner)
    assert kept is not None
    assert kept.answered == frozenset()


async def test_what_the_operator_does_is_on_record_as_theirs_and_a_change_of_status_as_the_owners(
    here: Office,
) -> None:
    asking, running, stubborn = await here.task("ask"), await here.task(), await here.task("stubborn", {"seconds": 99})
    records: list[Record] = []
    async with Engines({"here": here.adapter}) as engines:
        operator = Operator(store=here.store, engines=engines, audit=records.append)
        await operator.answer(asking.id, "question", YES)
        await operator.read(asking.id)
        await operator.cancel(running.id)
        await operator.cancel(running.id)
        await operator.terminate(stubborn.id, "it hangs")
        await operator.adopt(SLEEP.model_copy(update={"workflow": "forever"}), running.handle or "", OLGA, {}, DAY)
    assert [(record.event, record.outcome, record.principal) for record in records] == [
        ("status", "input_required", "anna"),
        ("answer", "ok", "operator"),
        ("status", "succeeded", "anna"),
        ("retrieve", "ok", "operator"),
        ("cancel", "ok", "operator"),
        ("status", "cancelled", "anna"),
        ("cancel", "ended", "operator"),
        ("cancel", "terminated", "operator"),
        ("status", "cancelled", "anna"),
        ("create", "watched", "operator"),
        ("status", "cancelled", "olga"),
    ]
    assert "Ada" not in str([replace(record, result=None) for record in records])


# --- cancel and terminate


async def test_a_cancel_the_engine_does_not_take_is_kept_for_the_sidecar(here: Office) -> None:
    task = await here.task()
    here.adapter.faults.unavailable = frozenset({"cancel"})
    observed = await here.operator.cancel(task.id)
    assert observed.warning is not None
    kept = await here.store.get(task.id, task.owner)
    assert kept is not None
    assert (kept.cancel_requested is not None, kept.cancel_delivered) == (True, False)


async def test_a_task_that_does_not_listen_can_be_terminated(here: Office) -> None:
    task = await here.task("stubborn", {"seconds": 1000})
    assert (await here.operator.cancel(task.id)).task.seen.status is Status.RUNNING
    observed = await here.operator.terminate(task.id, "it hangs")
    assert (observed.task.seen.status, observed.task.seen.message) == (Status.CANCELLED, "terminated: it hangs")
    assert (await here.operator.terminate(task.id, "again")).task == observed.task


async def test_what_cannot_be_terminated_says_why(here: Office) -> None:
    unborn, down = await here.store.create(make_task(engine="here")), await here.task()
    with pytest.raises(OperatorError, match="nothing was done"):
        await here.operator.terminate(unborn.id, "no reason")
    here.adapter.faults.unavailable = frozenset({"terminate"})
    with pytest.raises(OperatorError, match="not terminated: engine here"):
        await here.operator.terminate(down.id, "no reason")
    async with office(FourVerbs) as plain:
        task = await plain.task()
        with pytest.raises(OperatorError, match="omit --terminate"):
            await plain.operator.terminate(task.id, "no reason")


# --- adopt

SLEEP = Tool(name="nap", engine="here", workflow="sleep", options={"queue": "{{args.queue}}", "size": "{{args.size}}"})
OLGA = Principal(id="olga")


async def test_an_adopted_execution_is_a_task_of_its_owner_and_only_once(here: Office) -> None:
    handle = await here.adapter.start(
        Start(workflow="sleep", arguments=[0.0], key=uuid.uuid4().hex, created=datetime.now(UTC))
    )
    observed = await here.operator.adopt(SLEEP, handle, OLGA, {"queue": "q"}, DAY)
    assert (observed.task.owner, observed.task.tool, observed.task.handle) == ("olga", "nap", handle)
    assert observed.task.seen.status is Status.SUCCEEDED
    assert dict(observed.task.options) == {"queue": "q"}
    assert (await here.operator.adopt(SLEEP, handle, OLGA, {}, DAY)).task.id == observed.task.id
    assert (await here.operator.adopt(SLEEP, handle, Principal(id="ben"), {}, DAY)).task.id != observed.task.id
    assert here.adapter.calls["start"] == 1


async def test_what_cannot_be_adopted_says_why(here: Office) -> None:
    task = await here.task("forever")
    with pytest.raises(OperatorError, match="runs workflow forever, and tool nap sleep"):
        await here.operator.adopt(SLEEP, task.handle or "", OLGA, {}, DAY)
    with pytest.raises(OperatorError, match="no such execution"):
        await here.operator.adopt(SLEEP, "nobody", OLGA, {}, DAY)
    with pytest.raises(OperatorError, match="cannot adopt"):
        await here.operator.adopt(SLEEP.model_copy(update={"engine": "other"}), "x", OLGA, {}, DAY)


# --- how it is told


async def test_arguments_are_never_shown_and_the_result_only_of_one(here: Office) -> None:
    task = await here.task("echo", {"answer": "of the result"}, input=["a secret argument"])
    observed = await here.operator.find(task.id)
    observed = observed._replace(
        task=replace(observed.task, input=["a secret argument"], arguments={"x": "a secret argument"})
    )
    everything = f"{render_table([observed])}{render_task(observed)}{summary_json(observed)}{task_json(observed)}"
    assert "secret" not in everything
    assert "of the result" in render_task(observed)
    assert "of the result" not in f"{render_table([observed])}{summary_json(observed)}"


async def test_what_workflows_say_does_nothing_to_the_terminal(
    here: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    task = await here.task("echo", {"answer": "\x1b[2J"})
    observed = await here.operator.find(task.id)
    loud = replace(observed.task.execution, message="\x1b[31mred\r\nsecond")
    loud_observed = observed._replace(task=replace(observed.task, execution=loud))
    for text in (render_table([loud_observed]), render_task(loud_observed), render_facts({"\x1b": "\x07"})):
        assert "\x1b" not in text
        assert "\r" not in text
    assert "\n" not in message_of(loud_observed.task)
    say(f"as last known: \x1b[2J{loud.message}", err=True)
    assert "\x1b" not in capsys.readouterr().err
    found = Finding(ok=True, text="it says \x1b[2J")
    row = Row(kind=ItemKind.TOOL, name="a\x1b[2J", details={"workflow": "\x1b]0;x\x07"}, finding=found)
    Console().print(CheckReport(rows=[row]).as_table())
    assert "\x1b" not in capsys.readouterr().out
