"""The wire of 2026-07-28 as truth tables: dict in, dict out, no event loop."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from mcp_workflows.adapter import InputRequest, Progress, Status
from mcp_workflows.errors import RequestError
from mcp_workflows.wire import v2026_07_28 as wire
from mcp_workflows.wire.commands import (
    Capability,
    CapabilityNeeded,
    Created,
    Document,
    Finished,
    Outcome,
    ProtocolError,
    Questions,
    TaskView,
)
from mcp_workflows.wire.params import IDEMPOTENCY_KEY, with_extension

QUESTION = InputRequest(method="elicitation/create", params={"mode": "form", "message": "ok?"})
RESULT = {"content": [{"type": "text", "text": "done"}], "isError": False}
ERROR_RESULT = {"content": [{"type": "text", "text": "declined"}], "isError": True}
TASK = TaskView(
    task_id="t1",
    tool="t",
    cancelled=False,
    status=Status.RUNNING,
    message=None,
    progress=None,
    created=datetime(2026, 7, 28, 12, 0, 0, 123456, tzinfo=UTC),
    updated=datetime(2026, 7, 28, 12, 0, 1, tzinfo=UTC),
    ttl_ms=60_000,
    poll_interval_ms=500,
    requests={},
    result=None,
    error=None,
    meta={"mcp-workflows/engine": "orders"},
)
DECLARED = wire.Client(takes_tasks=True, takes_questions=True)
UNDECLARED = wire.Client(takes_tasks=False, takes_questions=False)


def _meta(**capabilities: Any) -> dict[str, Any]:
    return {"_meta": {"io.modelcontextprotocol/clientCapabilities": capabilities}}


@pytest.mark.parametrize(
    ("task", "status", "inlined"),
    [
        (TASK, "working", {}),
        (
            replace(TASK, status=Status.INPUT_REQUIRED, requests={"k": QUESTION}),
            "input_required",
            {"inputRequests": {"k": {"method": QUESTION.method, "params": dict(QUESTION.params)}}},
        ),
        (
            replace(TASK, status=Status.SUCCEEDED, result=RESULT),
            "completed",
            {"result": {**RESULT, "resultType": "complete"}},
        ),
        (
            replace(TASK, status=Status.FAILED, error=ProtocolError(code=-32000, message="boom")),
            "failed",
            {"error": {"code": -32000, "message": "boom"}},
        ),
        (replace(TASK, status=Status.CANCELLED), "cancelled", {}),
    ],
)
def test_each_status_is_written_as_the_spec_says(task: TaskView, status: str, inlined: dict[str, Any]) -> None:
    written = wire.detailed(task)
    assert written["status"] == status
    assert {key: written[key] for key in ("result", "error", "inputRequests") if key in written} == inlined


def test_a_failed_workflow_is_completed_with_an_error_result() -> None:
    written = wire.detailed(replace(TASK, status=Status.FAILED, message="declined", result=ERROR_RESULT))
    assert written["status"] == "completed"
    assert written["result"] == {**ERROR_RESULT, "resultType": "complete"}
    assert "error" not in written
    assert written["statusMessage"] == "declined"


@pytest.mark.parametrize("status", list(Status))
def test_a_created_task_is_flat_and_inlines_nothing(status: Status) -> None:
    task = replace(TASK, status=status, requests={"k": QUESTION}, result=RESULT, message="hello")
    assert wire.render(Created(task=task)) == {
        "resultType": "task",
        "taskId": "t1",
        "status": wire.STATUS[status],
        "statusMessage": "hello",
        "createdAt": "2026-07-28T12:00:00.123Z",
        "lastUpdatedAt": "2026-07-28T12:00:01.000Z",
        "ttlMs": 60_000,
        "pollIntervalMs": 500,
        "_meta": {"mcp-workflows/engine": "orders"},
    }


def test_an_unlimited_task_says_null_explicitly() -> None:
    assert wire.detailed(replace(TASK, ttl_ms=None))["ttlMs"] is None


@pytest.mark.parametrize(
    ("outcome", "result_type"),
    [
        (Created(task=TASK), "task"),
        (Finished(result=RESULT), "complete"),
        (Questions(requests={"k": QUESTION}, state="s"), "input_required"),
        (Document(uri="u", mime_type="application/json", text="{}"), "complete"),
    ],
)
def test_every_outcome_names_its_result_type(outcome: Outcome, result_type: str) -> None:
    assert wire.render(outcome)["resultType"] == result_type


def test_a_task_is_complete_and_an_acknowledgement_empty() -> None:
    assert wire.described(TASK) == {"resultType": "complete", **wire.detailed(TASK)}
    assert wire.acknowledged() == {"resultType": "complete"}


@pytest.mark.parametrize(
    ("capability", "required"),
    [
        (Capability.TASKS, {"extensions": {"io.modelcontextprotocol/tasks": {}}}),
        (Capability.ELICITATION, {"elicitation": {"form": {}}}),
    ],
)
def test_a_missing_capability_is_named(capability: Capability, required: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as raised:
        wire.render(CapabilityNeeded(capability=capability, message="needed"))
    assert raised.value.code == -32021
    assert raised.value.data == {"requiredCapabilities": required}


@pytest.mark.parametrize(
    ("params", "client"),
    [
        ({}, (False, False)),
        ({"_meta": None}, (False, False)),
        ({"_meta": {"io.modelcontextprotocol/clientCapabilities": "nonsense"}}, (False, False)),
        (_meta(extensions={}), (False, False)),
        (_meta(extensions={"io.modelcontextprotocol/tasks": {}}), (True, False)),
        (_meta(extensions={"io.modelcontextprotocol/tasks": None}), (False, False)),
        (_meta(extensions={"io.modelcontextprotocol/tasks": False}), (False, False)),
        (_meta(extensions=["io.modelcontextprotocol/tasks"]), (False, False)),
        (_meta(elicitation={}), (False, True)),
        (_meta(elicitation={"form": {}}), (False, True)),
        (_meta(elicitation={"url": {}}), (False, False)),
        (_meta(elicitation={"form": {}}, extensions={"io.modelcontextprotocol/tasks": {}}), (True, True)),
    ],
)
def test_only_what_this_request_declares_counts(params: dict[str, Any], client: tuple[bool, bool]) -> None:
    found = wire.client_of(params)
    assert (found.takes_tasks, found.takes_questions) == client


def test_task_requests_are_read() -> None:
    params: dict[str, Any] = {"taskId": "t1", "inputResponses": {"k": {"action": "decline"}}}
    assert wire.parse_task_request("tasks/get", params, DECLARED) == ("t1", {})
    assert wire.parse_task_request("tasks/cancel", params, DECLARED) == ("t1", {})
    assert wire.parse_task_request("tasks/update", params, DECLARED) == ("t1", params["inputResponses"])


@pytest.mark.parametrize("method", sorted(wire.TASK_METHODS))
def test_a_task_request_without_the_extension_is_a_missing_capability(method: str) -> None:
    with pytest.raises(RequestError) as raised:
        wire.parse_task_request(method, {"taskId": "t1"}, UNDECLARED)
    assert raised.value.code == -32021


@pytest.mark.parametrize(
    ("method", "params", "complaint"),
    [
        ("tasks/get", {}, "params.taskId"),
        ("tasks/get", {"taskId": ""}, "params.taskId"),
        ("tasks/get", {"taskId": "\ud800"}, "params.taskId holds half a surrogate pair"),
        ("tasks/cancel", {"taskId": 7}, "params.taskId"),
        ("tasks/update", {"taskId": "t"}, "params.inputResponses"),
        ("tasks/update", {"taskId": "t", "inputResponses": []}, "params.inputResponses"),
    ],
)
def test_malformed_params_say_which(method: str, params: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint) as raised:
        wire.parse_task_request(method, params, DECLARED)
    assert raised.value.code == -32602


@pytest.mark.parametrize("key", ["", 7, "x" * 257, {}, "\ud800"])
def test_a_bad_idempotency_key_is_refused(key: object) -> None:
    with pytest.raises(RequestError, match="idempotencyKey"):
        wire.parse_call({"name": "t", "_meta": {IDEMPOTENCY_KEY: key}}, DECLARED)


def _nested(depth: int) -> Any:
    return {"a": _nested(depth - 1)} if depth else 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (_nested(102), "nested too deeply"),
        ({"a": [[float("nan")]]}, "not finite"),
        ({"a": float("inf")}, "not finite"),
        ({"a": {"b": "\ud800"}}, "surrogate"),
        ({"\udfff": 1}, "surrogate"),
    ],
)
def test_what_could_not_be_kept_is_refused(arguments: dict[str, Any], complaint: str) -> None:
    for read in (
        lambda: wire.parse_call({"name": "t", "arguments": arguments}, DECLARED),
        lambda: wire.parse_task_request("tasks/update", {"taskId": "t", "inputResponses": arguments}, DECLARED),
    ):
        with pytest.raises(RequestError, match=complaint) as raised:
            read()
        assert raised.value.code == -32602


def test_a_subscription_to_too_many_tasks_is_refused() -> None:
    with pytest.raises(RequestError, match="at most 1000"):
        wire.parse_listen({"notifications": {"taskIds": [str(number) for number in range(1001)]}}, DECLARED)


def test_a_call_carries_its_key_and_trace_and_no_legacy_task() -> None:
    meta = {IDEMPOTENCY_KEY: "k", "traceparent": "00-a-b-01", "other": "x"}
    call = wire.parse_call({"name": "t", "arguments": None, "task": {"ttl": 1}, "_meta": meta}, DECLARED)
    assert (call.idempotency_key, call.arguments, call.context) == ("k", {}, {"traceparent": "00-a-b-01"})


@pytest.mark.parametrize("trace", ["x" * 513, "\ud800", 7, {}], ids=["too long", "no text", "a number", "an object"])
def test_what_can_be_no_trace_is_not_kept(trace: Any) -> None:
    call = wire.parse_call({"name": "t", "_meta": {"traceparent": trace, "tracestate": "a=b"}}, DECLARED)
    assert call.context == {"tracestate": "a=b"}


@pytest.mark.parametrize(
    ("name", "refused"),
    [("t1", False), (None, False), ("t2", True)],
)
def test_the_name_header_must_be_the_task_id(name: str | None, refused: bool) -> None:
    if not refused:
        wire.check_name_header(name, "t1")
        return
    with pytest.raises(RequestError) as raised:
        wire.check_name_header(name, "t1")
    assert raised.value.code == -32020


@pytest.mark.parametrize(
    ("message", "progress", "written"),
    [
        (None, None, None),
        ("charging card", None, "charging card"),
        ("charging card", Progress(value=2, total=5), "charging card (2 of 5)"),
        ("uploading", Progress(value=2.5), "uploading (2.5)"),
        (None, Progress(value=2, total=5), "2 of 5"),
        (None, Progress(value=1_234_567, total=2_500_000.0), "1234567 of 2500000"),
    ],
)
def test_the_message_tells_the_progress(message: str | None, progress: Progress | None, written: str | None) -> None:
    assert wire.status_message(message, progress) == written


def test_a_notification_is_the_task_under_its_subscription() -> None:
    params = wire.notification(TASK, 7)
    assert params.pop("_meta") == {"mcp-workflows/engine": "orders", "io.modelcontextprotocol/subscriptionId": 7}
    expected = wire.detailed(TASK)
    del expected["_meta"]
    assert params == expected


@pytest.mark.parametrize("ids", ["t1", [1], {"a": 1}])
def test_malformed_task_ids_of_a_subscription_are_refused(ids: object) -> None:
    with pytest.raises(RequestError, match="taskIds"):
        wire.parse_listen({"notifications": {"taskIds": ids}}, DECLARED)


def test_other_extensions_stay_advertised() -> None:
    found = with_extension({"capabilities": {"tools": {}, "extensions": {"a/b": {"x": 1}}}, "x": 1}, wire.EXTENSION)
    assert found == {
        "capabilities": {"tools": {}, "extensions": {"a/b": {"x": 1}, "io.modelcontextprotocol/tasks": {}}},
        "x": 1,
    }


PAGE = InputRequest(
    method="elicitation/create", params={"mode": "url", "message": "Log in", "url": "https://a.example/"}
)


@pytest.mark.parametrize(
    ("elicitation", "shown"),
    [
        ({}, ["form"]),
        ({"form": {}}, ["form"]),
        ({"url": {}}, ["form", "page"]),
        ({"form": {}, "url": {}}, ["form", "page"]),
    ],
)
def test_only_a_client_that_declares_url_mode_is_sent_to_pages(elicitation: dict[str, Any], shown: list[str]) -> None:
    task = replace(TASK, status=Status.INPUT_REQUIRED, requests={"form": QUESTION, "page": PAGE})
    takes_urls = wire.client_of(_meta(elicitation=elicitation)).takes_urls
    for written in (
        wire.detailed(task, takes_urls=takes_urls),
        wire.notification(task, "s", takes_urls=takes_urls),
        wire.described(task, takes_urls=takes_urls),
    ):
        assert list(written["inputRequests"]) == shown
    alone = wire.detailed(replace(task, requests={"page": PAGE}), takes_urls=takes_urls)
    assert alone["status"] == ("input_required" if takes_urls else "working")
    assert ("https://a.example/" in str(alone)) is takes_urls
