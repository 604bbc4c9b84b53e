"""A task of a workflow in this process: its result as JSON, its steps, its schemas; with `async` and without."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from dbos import DBOS
from dbos._utils import INTERNAL_QUEUE_NAME
from mcp_workflows_dbos import DbosAdapter
from mcp_workflows_dbos.describe import execution_of
from mcp_workflows_dbos.settings import DbosAction
from mcp_workflows_dbos.tables import Row
from mcp_workflows_dbos.workflow import ANSWER
from pydantic import ValidationError

from adapters.dbos.tests.test_contract import FLOWS, in_process, message, read_event, received
from mcp_workflows import Tool
from mcp_workflows.adapter import Execution, Ref, Start, Status
from mcp_workflows.errors import EngineRefused
from mcp_workflows.tasks.results import mismatch, tool_result

PATIENCE = 60.0  # seconds


async def started(adapter: DbosAdapter, workflow: str, **arguments: object) -> Ref:
    start = Start(workflow=workflow, arguments=arguments, key=uuid.uuid4().hex, created=datetime.now(UTC))
    return Ref(workflow=workflow, handle=await adapter.start(start))


async def until(adapter: DbosAdapter, ref: Ref, holds: Callable[[Execution], bool]) -> Execution:
    with anyio.fail_after(PATIENCE):
        while not holds(seen := await adapter.describe(ref)):
            await anyio.sleep(0.02)
    return seen


async def ended(folder: Path, workflow: str, **arguments: object) -> Execution:
    async with in_process(f"sqlite:///{folder}/flows.db") as adapter:
        return await until(adapter, await started(adapter, workflow, **arguments), lambda seen: seen.terminal)


@pytest.mark.anyio
async def test_a_question_is_explained_and_answered_and_another_is_cancelled(tmp_path: Path) -> None:
    async with in_process(f"sqlite:///{tmp_path}/flows.db") as adapter:
        async with in_process(f"sqlite:///{tmp_path}/flows.db") as beside:
            assert (await beside.tooling.check("approve", {})).ok
        ref, other = [await started(adapter, "approve") for _ in range(2)]
        seen = await until(adapter, ref, lambda seen: bool(seen.requests))
        why = await adapter.tooling.explain(ref)
        assert why.reason == "it waits for a person: Ship it?"
        assert "version of this process" in why.facts
        answer = {"action": "accept", "content": {"answer": "yes"}}
        await adapter.answer(ref, dict.fromkeys(seen.requests, answer))
        assert (await until(adapter, ref, lambda seen: seen.terminal)).output == {"answers": [{"answer": "yes"}]}
        await until(adapter, other, lambda seen: bool(seen.requests))
        await adapter.cancel(other)
        assert (await until(adapter, other, lambda seen: seen.terminal)).status is Status.CANCELLED


@pytest.mark.anyio
async def test_a_model_is_a_result_as_json_and_steps_have_their_names(tmp_path: Path) -> None:
    seen = await ended(tmp_path, "buy", order_id="A-1")
    assert seen.output == {"order_id": "A-1", "amount": 3, "paid": True}
    assert [(step.name, step.status) for step in seen.steps] == [("charge", Status.SUCCEEDED)]


@pytest.mark.anyio
async def test_a_workflow_without_async_runs_in_a_thread(tmp_path: Path) -> None:
    assert (await ended(tmp_path, "echo_without_async", text="hi")).output == {"text": "hi"}


@pytest.mark.anyio
@pytest.mark.parametrize("zone", ["", "Z", "+01:00"])
async def test_times_are_taken_and_returned_with_a_zone_and_without(tmp_path: Path, zone: str) -> None:
    arguments = {"when": f"2026-01-02T03:04:05{zone}", "at": f"03:04:05{zone}"}
    schema = DbosAdapter.tooling.schema(f"{FLOWS}:clock")
    assert schema.output is not None
    tool = Tool(name="t", engine="e", workflow="clock", input=dict(schema.input), output=dict(schema.output))
    assert not tool.complaints(arguments)
    output = (await ended(tmp_path, "clock", **arguments)).output
    assert output == arguments
    assert mismatch(tool_result(output), tool.output) is None


@pytest.mark.anyio
async def test_what_can_be_imported_are_the_workflows_of_the_module(tmp_path: Path) -> None:
    async with in_process(f"sqlite:///{tmp_path}/flows.db") as adapter:
        found = {each.workflow: each for each in await adapter.tooling.discover()}
    assert found.keys() >= {"echo", "buy", "approve"}
    assert found["buy"].code == f"{FLOWS}:buy"
    assert found["buy"].description == "Charge a card and return a receipt.\n\nA second paragraph."


def test_schemas_come_from_type_hints_and_defaults() -> None:
    schema = DbosAdapter.tooling.schema(f"{FLOWS}:buy")
    assert schema.input == {
        "type": "object",
        "properties": {"order_id": {"type": "string"}, "amount": {"type": "integer", "default": 3}},
        "additionalProperties": False,
        "required": ["order_id"],
    }
    assert schema.output is not None
    assert schema.output["properties"].keys() == {"order_id", "amount", "paid"}


def test_the_queue_of_an_execution_is_named_unless_it_is_dbos_own() -> None:
    row = Row(
        id="1",
        status="ENQUEUED",
        workflow="echo",
        version=None,
        queue="orders",
        attempts=0,
        created_at=0,
        updated_at=0,
        delayed_until=None,
        digest=None,
    )
    assert execution_of(row).message == "waits in the queue orders"
    assert execution_of(replace(row, queue=INTERNAL_QUEUE_NAME)).message == "waits for its turn"


@pytest.mark.anyio
async def test_a_result_has_the_names_of_its_schema(tmp_path: Path) -> None:
    schema = DbosAdapter.tooling.schema(f"{FLOWS}:sell").output
    assert schema is not None
    assert (await ended(tmp_path, "sell")).output == dict.fromkeys(schema["properties"], "A-1")


@pytest.mark.anyio
async def test_bytes_that_are_no_text_are_base64_in_a_result_and_the_task_says_where(tmp_path: Path) -> None:
    seen = await ended(tmp_path, "scan")
    assert (seen.status, seen.output) == (Status.SUCCEEDED, {"image": "iVBORw==", "kind": "png"})
    assert seen.message == "base64, because its bytes are no text: image"


@pytest.mark.anyio
async def test_of_more_ends_than_fit_the_earliest_are_listed_and_a_resumed_execution_has_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows_dbos.adapter.MOST_ENDED", 2)
    async with in_process(f"sqlite:///{tmp_path}/flows.db") as adapter:
        refs = [await started(adapter, "declines") for _ in range(3)]
        for ref in refs:
            await until(adapter, ref, lambda seen: seen.terminal)
        ends = {ref.handle: 1_700_000_000_001 + number for number, ref in enumerate(refs)}
        set_ends(tmp_path / "flows.db", ends)
        first = await adapter.list_ended("declines", datetime.fromtimestamp(1_700_000_000, UTC))
        assert [(each.handle, each.status) for each in first] == [(each.handle, Status.FAILED) for each in refs[:2]]
        second = await adapter.list_ended("declines", first[-1].ended)
        assert [each.handle for each in second] == [each.handle for each in refs[1:]]
        since, ref = datetime.now(UTC), await started(adapter, "forever")
        await adapter.cancel(ref)
        await until(adapter, ref, lambda seen: seen.terminal)
        assert [each.handle for each in await adapter.list_ended("forever", since)] == [ref.handle]
        await DBOS.resume_workflow_async(ref.handle)
        assert await adapter.list_ended("forever", since) == []
        await adapter.cancel(ref)


@pytest.mark.anyio
async def test_an_ended_workflow_takes_no_message_but_one_that_was_sent_before(tmp_path: Path) -> None:
    async with in_process(f"sqlite:///{tmp_path}/flows.db") as adapter:
        ref = await started(adapter, "inbox")
        unset = (await read_event(adapter, ref.handle, "received")).failure
        assert unset is not None
        assert unset.text == f"workflow {ref.handle} has not set the event received"
        put, close = [message({"send": "put"}, ref.handle, text) for text in ("tea", "close")]
        handles = [await adapter.start(each) for each in (put, close)]
        assert (await until(adapter, ref, lambda seen: seen.terminal)).output == ["tea"]
        assert [await adapter.start(each) for each in (put, close)] == handles
        with pytest.raises(EngineRefused, match="has ended, and receives nothing"):
            await adapter.start(message({"send": "put"}, ref.handle, "late"))
        assert await received(adapter, ref) == ["tea"]


@pytest.mark.parametrize("settings", [{}, {"send": "put", "event": "received"}])
def test_an_action_is_one_message(settings: Mapping[str, str]) -> None:
    with pytest.raises(ValidationError, match="write one of send and event"):
        DbosAction.model_validate(settings)


@pytest.mark.parametrize("settings", [{"send": "{{topic}}"}, {"event": "mcp.{{key}}"}])
def test_arguments_cannot_choose_the_message_of_an_action(settings: Mapping[str, str]) -> None:
    with pytest.raises(ValidationError, match="write the name itself"):
        DbosAction.model_validate(settings)


def test_an_action_cannot_answer_a_question() -> None:
    with pytest.raises(ValidationError, match=f"topics that begin with {ANSWER}"):
        DbosAction.model_validate({"send": f"{ANSWER}1"})


@pytest.mark.anyio
async def test_an_end_in_whole_seconds_is_not_lost_within_its_second(tmp_path: Path) -> None:
    async with in_process(f"sqlite:///{tmp_path}/flows.db") as adapter:
        ref = await started(adapter, "declines")
        await until(adapter, ref, lambda seen: seen.terminal)
        set_ends(tmp_path / "flows.db", {ref.handle: 1_700_000_000_000})
        found = [
            [each.handle for each in await adapter.list_ended("declines", datetime.fromtimestamp(seconds, UTC))]
            for seconds in (1_700_000_000.5, 1_700_000_001)
        ]
    assert found == [[ref.handle], []]


def set_ends(database: Path, ends: Mapping[str, int]) -> None:
    """Set the times of the ends of executions, in ms since 1970."""
    with closing(sqlite3.connect(database)) as connection, connection:
        rows = [(at, name) for name, at in ends.items()]
        connection.executemany("UPDATE workflow_status SET completed_at = ? WHERE workflow_uuid = ?", rows)
