"""How executions ended, and where they are: results, errors in words, what is never told."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from mcp_workflows_google.outcome import ended_execution, read_failure, running_execution, status_of

from adapters.google.tests.tell import seen
from mcp_workflows.adapter import TERMINAL, Failure, Status

CONTEXT = 'HTTP server responded with error code 404\nin step "read_item", routine "main", line: 5'
URL = "https://workflowexecutions.googleapis.com/v1/projects/p-12345/locations/l-1/workflows/w/executions/e/callbacks/c"


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (1, Status.RUNNING),
        (2, Status.SUCCEEDED),
        (3, Status.FAILED),
        (4, Status.CANCELLED),
        (5, Status.RUNNING),
        (6, Status.RUNNING),
        (42, Status.RUNNING),
    ],
)
def test_each_state_has_a_status_and_unknown_ones_are_no_end(state: int, status: Status) -> None:
    assert status_of(state) == status
    assert (status in TERMINAL) == (state in {2, 3, 4})


@pytest.mark.parametrize(
    ("result", "output"),
    [
        ('{"refunded": 40}', {"refunded": 40}),
        ('"shipped"', "shipped"),
        ("null", None),
        ("", None),
    ],
)
def test_a_result_is_json_and_may_be_nothing(result: str, output: Any) -> None:
    done = ended_execution(seen(2, result=result))
    assert (done.status, done.failure) == (Status.SUCCEEDED, None)
    assert done.output == output


@pytest.mark.parametrize(
    ("result", "why"), [("shipped", "is no JSON"), ("{", "is no JSON"), ("[" * 100_000, "is nested too deeply")]
)
def test_a_result_that_cannot_be_read_is_a_failure_and_is_not_shown(result: str, why: str) -> None:
    done = ended_execution(seen(2, result=result))
    assert done.status == Status.FAILED
    assert done.failure == Failure(text=f"the execution succeeded, but its result {why}", kind="UndecodableResult")


def told(payload: Any, context: str | None = None) -> Failure:
    return read_failure(json.dumps(payload), context)


@pytest.mark.parametrize(
    ("step", "routine", "begins"),
    [
        ("not_told", "mcp_elicit", "it could not ask the MCP server (HttpError: error code 404): that server's log"),
        ("claim_key", "mcp_claim", "it could not claim its key at the MCP server (HttpError: error code 404): "),
        ("not_told", "main", 'HttpError: error code 404 (in step "not_told", routine "main")'),
        ("question_refused", "mcp_elicit", 'HttpError: error code 404 (in step "question_refused", '),
    ],
)
def test_a_workflow_that_could_not_call_us_is_told_in_words(step: str, routine: str, begins: str) -> None:
    context = f'in step "{step}", routine "{routine}", line: 3'
    found = told({"message": "error code 404", "tags": ["HttpError"]}, context)
    assert found.text.startswith(begins)
    assert found.kind == "HttpError"


@pytest.mark.parametrize(
    ("payload", "text", "kind"),
    [
        ("out of stock", "out of stock", None),
        ({"message": "out of stock", "code": 55}, "out of stock (code 55)", None),
        ({"message": "error 55", "code": 55}, "error 55", None),
        ({"message": "out of stock", "code": "E_STOCK"}, "out of stock (code E_STOCK)", "E_STOCK"),
        ({"error": "out of stock"}, "out of stock", None),
        ({"order": "A1", "left": 0}, '{"order": "A1", "left": 0}', None),
        (json.dumps({"message": "out of stock"}), "out of stock", None),
        (7, "7", None),
    ],
)
def test_what_a_workflow_raises_is_told_as_it_is(payload: Any, text: str, kind: str | None) -> None:
    found = told(payload, CONTEXT)
    assert (found.text, found.kind, found.step) == (text, kind, "read_item")


@pytest.mark.parametrize(
    ("payload", "text", "kind"),
    [
        (
            {"code": 404, "message": "HTTP server responded with error code 404", "tags": ["HttpError"]},
            "HttpError: HTTP server responded with error code 404",
            "HttpError",
        ),
        ({"code": 404, "message": "no", "tags": ["HttpError"]}, "HttpError: no (code 404)", "HttpError"),
        ({"message": "TypeError: a + 1", "tags": ["TypeError"]}, "TypeError: a + 1", "TypeError"),
        ({"tags": ["TimeoutError"]}, "TimeoutError", "TimeoutError"),
    ],
)
def test_googles_errors_are_told_with_their_first_tag_and_the_step(payload: Any, text: str, kind: str) -> None:
    found, bare = told(payload, CONTEXT), told(payload)
    assert (found.text, found.kind) == (f'{text} (in step "read_item", routine "main")', kind)
    assert (bare.text, bare.kind, bare.step) == (text, kind, None)


@pytest.mark.parametrize(
    ("payload", "details"),
    [
        ({"code": 404, "tags": ["HttpError"], "body": "s3cret", "headers": {}}, {"code": 404, "tags": ["HttpError"]}),
        ({"code": "E_STOCK", "message": "m", "order": "A1"}, {"code": "E_STOCK"}),
        ({"code": True, "tags": [1]}, None),
        ({"message": "m"}, None),
        ("out of stock", None),
        (
            {"tags": ["UnhandledBranchError"], "branches": [{"error": {"payload": {"code": 7, "message": "m"}}}]},
            {"code": 7},
        ),
    ],
)
def test_the_code_and_tags_of_an_error_are_its_details(payload: Any, details: Any) -> None:
    assert told(payload, CONTEXT).details == details


def test_a_step_of_ours_is_no_step_of_the_workflow() -> None:
    assert told("m", 'in step "not_told", routine "mcp_elicit", line: 3').step is None
    assert told("m", 'in step "pack", routine "ship", line: 3').step == "pack in ship"


@pytest.mark.parametrize(
    "payload",
    [
        {"code": 401, "message": "no", "tags": ["HttpError"], "headers": {"a": "s3cret"}, "body": {"a": "s3cret"}},
        {"headers": {"a": "s3cret"}, "body": "s3cret"},
        {"order": "A1", "details": [{"body": {"a": "s3cret"}, "Headers": {"a": "s3cret"}}]},
        {"message": "Authorization: Bearer s3cret"},
        "Bearer s3cret",
        "token ya29.s3cret-s3cret was refused",
        {"message": "got eyJhbGciOiJSUzI1NiJ9.s3cret.s3cret back"},
        {"response": {"deep": "s3cret"}},
        json.dumps({"code": 1, "body": "s3cret"}),
    ],
)
def test_headers_bodies_and_tokens_are_never_told(payload: Any) -> None:
    assert "s3cret" not in repr(told(payload, CONTEXT))


@pytest.mark.parametrize("payload", [f"cannot call {URL}", {"message": f'Post "{URL}": EOF'}, {"where": URL}])
def test_the_url_of_a_callback_is_never_told(payload: Any) -> None:
    assert URL not in told(payload, f"{URL} failed").text
    assert "[callback URL]" in told(payload).text


@pytest.mark.parametrize("text", ["/executions/" * 40_000, "eyJaaaaaaaa-" * 40_000, "Bearer" + " " * 480_000 + "."])
def test_long_texts_are_looked_through_in_no_time(text: str) -> None:
    began = time.process_time()
    assert told(text).text
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("payload", "context", "text"),
    [
        (None, None, "the execution failed without a reason"),
        ("not JSON", None, "not JSON"),
        (None, CONTEXT, 'HTTP server responded with error code 404 (in step "read_item", routine "main")'),
        ('{"tags": 1, "message": [], "code": {}}', None, '{"message": [], "code": {}}'),
        ("{}", None, "the execution failed without a reason"),
    ],
)
def test_a_payload_may_be_anything_or_missing(payload: str | None, context: str | None, text: str) -> None:
    assert read_failure(payload, context).text.startswith(text)


def test_stack_traces_are_left_out() -> None:
    context = f'{CONTEXT}\nin step "call_it", routine "main", line: 12\n  at secret'
    assert told({"message": "m", "tags": ["KeyError"]}, context).text == (
        'KeyError: m (in step "read_item", routine "main")'
    )


def branch(payload: Any) -> Any:
    return {"id": "0", "error": {"context": 'in step "x", routine "main"', "payload": payload}}


PARALLEL = {"message": "UnhandledBranchError: One or more branches", "tags": ["UnhandledBranchError", "RuntimeError"]}
PROTOCOL = {"mcp_error": {"code": -32602, "message": "no such order", "data": {"field": "order_id"}}}


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({**PARALLEL, "branches": [branch("boom")]}, "a branch failed: boom"),
        ({**PARALLEL, "branches": [branch("boom"), branch("b")]}, "a branch failed: boom, and 1 more"),
        ({**PARALLEL, "branches": [branch('{"message": "boom"}')]}, "a branch failed: boom"),
        ({**PARALLEL, "branches": []}, "UnhandledBranchError: One or more branches"),
        ({**PARALLEL, "branches": [{"id": 1}]}, "UnhandledBranchError: One or more branches"),
        (
            {
                "tags": ["OperationError"],
                "message": "m",
                "operation": {"error": {"payload": '"gone"'}, "argument": "s"},
            },
            "a child execution failed: gone",
        ),
        ({"tags": ["OperationError"], "message": "m", "operation": {"argument": "s"}}, "OperationError: m"),
    ],
)
def test_the_error_inside_an_error_is_told(payload: Any, text: str) -> None:
    assert told(payload).text == text


@pytest.mark.parametrize(
    "payload", [PROTOCOL, json.dumps(PROTOCOL), {**PARALLEL, "branches": [branch(PROTOCOL)]}, {**PROTOCOL, "tags": []}]
)
def test_a_workflow_may_ask_for_a_protocol_error(payload: Any) -> None:
    wanted = Failure(text="no such order", kind="mcp_error", code=-32602, data={"field": "order_id"})
    assert told(payload, CONTEXT) == wanted


@pytest.mark.parametrize(
    "error", [{"code": "7", "message": "m"}, {"code": True}, {"message": "m"}, {"code": 10**12}, "m", None, [], {}]
)
def test_a_protocol_error_without_a_code_is_an_ordinary_failure(error: Any) -> None:
    assert told({"mcp_error": error}).code is None


@pytest.mark.parametrize(
    ("payload", "message"),
    [(None, "cancelled"), ("", "cancelled"), ('"by ops"', "cancelled: by ops"), ("{", "cancelled: {")],
)
def test_a_cancelled_execution_may_say_why(payload: str | None, message: str) -> None:
    done = ended_execution(seen(4, payload=payload))
    assert (done.status, done.message, done.failure) == (Status.CANCELLED, message, None)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], None),
        (["charge"], "charge"),
        (["stock.reserve"], "reserve in stock"),
        (["a", "b"], "a, b"),
        (["a", "a", "a"], "a"),
        (["a", "b", "c", "d", "e", "f"], "a, b, c, d and 2 more"),
        (["mcp_elicit.wait_for_answer"], "waiting for an answer"),
        (["mcp_elicit.tell_question"], "waiting for the MCP server"),
        (["mcp_retry.of_http"], "waiting for the MCP server"),
        (["mcp_claim.claim_key"], "claiming its key"),
        (["approve", "mcp_elicit.wait_for_answer"], "approve"),
    ],
)
def test_where_it_is_is_told_in_the_words_of_its_author(steps: list[str], message: str | None) -> None:
    found = running_execution(seen(1, *steps))
    assert (found.status, found.message, found.progress) == (Status.RUNNING, message, None)


@pytest.mark.parametrize(
    ("state", "state_error", "message"),
    [
        (0, None, "in no state that Google tells"),
        (5, None, "its data cannot be read now"),
        (5, "KMS key disabled", "its data cannot be read now: KMS key disabled"),
        (6, None, "queued (too many executions run at once)"),
        (42, None, "in a state that this version does not know (42)"),
    ],
)
def test_why_it_does_not_run_is_told(state: int, state_error: str | None, message: str) -> None:
    found = running_execution(seen(state, "charge", state_error=state_error))
    assert (found.status, found.message) == (Status.RUNNING, message)
