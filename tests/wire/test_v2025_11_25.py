"""The wire of 2025-11-25 as truth tables: dict in, dict out, no event loop."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from mcp_workflows.adapter import InputRequest, Progress, Status
from mcp_workflows.errors import RequestError
from mcp_workflows.wire import v2025_11_25 as wire
from mcp_workflows.wire.commands import (
    Capability,
    CapabilityNeeded,
    Created,
    Document,
    Finished,
    Listed,
    Outcome,
    ProtocolError,
    TaskView,
)

RESULT = {"content": [{"type": "text", "text": "done"}], "isError": False}
ERROR_RESULT = {"content": [{"type": "text", "text": "declined"}, {"type": "image"}], "isError": True}
TASK = TaskView(
    task_id="t1",
    tool="pay",
    status=Status.RUNNING,
    message=None,
    progress=None,
    created=datetime(2025, 11, 25, 12, 0, 0, 123456, tzinfo=UTC),
    updated=datetime(2025, 11, 25, 12, 0, 1, tzinfo=UTC),
    ttl_ms=60_000,
    poll_interval_ms=500,
    requests={},
    result=None,
    error=None,
    cancelled=False,
    meta={"mcp-workflows/engine": "orders"},
)
ASKED = {"k": InputRequest(method="elicitation/create", params={"message": "ok?"})}
SHAPE = {
    "taskId": "t1",
    "status": "working",
    "createdAt": "2025-11-25T12:00:00.123Z",
    "lastUpdatedAt": "2025-11-25T12:00:01.000Z",
    "ttl": 60_000,
    "pollInterval": 500,
}


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({}, "working", None),
        ({"message": "charging", "progress": Progress(value=1, total=2)}, "working", "charging (1 of 2)"),
        ({"status": Status.INPUT_REQUIRED}, "input_required", None),
        ({"status": Status.INPUT_REQUIRED, "requests": ASKED}, "input_required", "asks: ok?"),
        ({"status": Status.INPUT_REQUIRED, "requests": ASKED, "message": "m"}, "input_required", "m; asks: ok?"),
        ({"status": Status.SUCCEEDED, "result": RESULT}, "completed", None),
        ({"status": Status.SUCCEEDED, "result": ERROR_RESULT}, "failed", "declined"),
        ({"status": Status.FAILED, "result": ERROR_RESULT, "message": "m"}, "failed", "declined"),
        ({"status": Status.FAILED, "error": ProtocolError(code=-1, message="no"), "message": "no"}, "failed", "no"),
        ({"status": Status.CANCELLED, "message": "terminated"}, "cancelled", "terminated"),
        ({"cancelled": True}, "cancelled", "cancelled by request"),
        ({"cancelled": True, "status": Status.SUCCEEDED, "result": RESULT}, "cancelled", "cancelled by request"),
        ({"cancelled": True, "status": Status.FAILED, "result": ERROR_RESULT}, "cancelled", "cancelled by request"),
    ],
)
def test_each_state_is_written_as_the_spec_says(changes: dict[str, Any], status: str, message: str | None) -> None:
    written = wire.task_of(replace(TASK, **changes))
    assert (written["status"], written.get("statusMessage")) == (status, message)
    assert wire.ended(replace(TASK, **changes)) is (status in {"completed", "failed", "cancelled"})


def test_a_created_task_is_nested_and_says_something_for_the_model() -> None:
    written = wire.render(Created(task=TASK))
    assert written["task"] == SHAPE
    said, related = "io.modelcontextprotocol/model-immediate-response", "io.modelcontextprotocol/related-task"
    assert written["_meta"].keys() == {said, related}
    assert written["_meta"][related] == {"taskId": "t1"}


def test_only_results_name_the_task_they_belong_to() -> None:
    related = "io.modelcontextprotocol/related-task"
    assert wire.result_of(TASK, {**RESULT, "_meta": {"a": 1}}) == {
        **RESULT,
        "_meta": {"a": 1, related: {"taskId": "t1"}},
    }
    assert wire.detailed(TASK) == {**SHAPE, "_meta": {"mcp-workflows/engine": "orders"}}
    assert wire.listed(Listed(tasks=[TASK], next_cursor="c")) == {"tasks": [SHAPE], "nextCursor": "c"}
    assert wire.listed(Listed(tasks=[], next_cursor=None)) == {"tasks": []}
    question = InputRequest(method="elicitation/create", params={"message": "ok?", "_meta": {"a": 1}})
    assert wire.question(question, "t1") == {"message": "ok?", "_meta": {"a": 1, related: {"taskId": "t1"}}}
    assert wire.question(question, None) == question.params


def test_an_unlimited_task_says_null_explicitly() -> None:
    assert wire.task_of(replace(TASK, ttl_ms=None))["ttl"] is None


@pytest.mark.parametrize(
    ("outcome", "wants_task", "expected"),
    [
        (Finished(result=RESULT), False, RESULT),
        (Finished(result=ERROR_RESULT), False, ERROR_RESULT),
        (Finished(result=ERROR_RESULT), True, -32602),  # never a plain result for who asked for a task
        (CapabilityNeeded(capability=Capability.TASKS, message="m"), False, -32601),
        (CapabilityNeeded(capability=Capability.ELICITATION, message="m"), True, -32602),
        (
            Document(uri="u", mime_type="application/json", text="{}"),
            False,
            {"contents": [{"uri": "u", "mimeType": "application/json", "text": "{}"}]},
        ),
    ],
)
def test_each_outcome_is_a_result_or_an_error(outcome: Outcome, wants_task: bool, expected: Any) -> None:
    try:
        written: Any = wire.render(outcome, wants_task=wants_task)
    except RequestError as error:
        written = error.code
    assert written == expected


@pytest.mark.parametrize(
    ("task", "in_core", "expected"),
    [
        (None, True, (False, None)),
        ({}, True, (True, None)),
        ({"ttl": None}, True, (True, None)),
        ({"ttl": 60_000}, True, (True, 60_000)),
        ({"ttl": 1.9}, True, (True, 1)),
        ({"ttl": 60_000}, False, (False, None)),  # a revision without tasks: ignored
        ("nonsense", False, (False, None)),
    ],
)
def test_a_task_is_asked_for_in_this_revision_alone(
    task: Any, in_core: bool, expected: tuple[bool, int | None]
) -> None:
    call = wire.parse_call({"name": "pay", "task": task}, in_core=in_core, takes_questions=False)
    assert (call.wants_task, call.ttl_ms) == expected
    assert call.takes_tasks is call.wants_task


@pytest.mark.parametrize("task", ["yes", 1, [], {"ttl": -1}, {"ttl": "1"}, {"ttl": True}, {"ttl": float("nan")}])
def test_a_task_parameter_that_makes_no_sense_is_refused(task: Any) -> None:
    with pytest.raises(RequestError) as refused:
        wire.parse_call({"name": "pay", "task": task}, in_core=True, takes_questions=False)
    assert refused.value.code == -32602


@pytest.mark.parametrize(("identified", "listed"), [(True, {"list"}), (False, set[str]())])
def test_tasks_are_declared_and_listed_for_who_is_known(identified: bool, listed: set[str]) -> None:
    before = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"a": 1}}}
    after = wire.with_tasks(before, lists=identified, tools_change=True)
    assert after["capabilities"]["tasks"].keys() == {"cancel", "requests"} | listed
    assert after["capabilities"]["tools"] == {"a": 1, "listChanged": True}
