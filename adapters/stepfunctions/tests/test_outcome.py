"""Why an execution failed, in words for people."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp_workflows_stepfunctions.describe import describe_stop, read_failure

from mcp_workflows.adapter import Failure

PYTHON = """Traceback (most recent call last):
  File "/var/task/app.py", line 7, in handler
    charge(card)
app.CardDeclined: the card was declined"""
JAVA = """com.example.CardDeclined: the card was declined
\tat com.example.Charge.handle(Charge.java:17)
\t... 12 more
Caused by: java.io.IOException: broken pipe
\tat com.example.Other.run(Other.java:3)"""
NODE = """Error: the card was declined
    at charge (file:///var/task/index.mjs:7:11)
    at async handler (file:///var/task/index.mjs:3:5)"""
GO = "panic: the card was declined\ngoroutine 1 [running]:\nmain.main()\n\t/app/main.go:7"
RUBY = "/var/task/app.rb:7:in `charge': boom\n\tfrom /var/task/app.rb:3:in `handler'"


def child(**more: Any) -> str:
    arn = "arn:aws:states:us-east-1:123456789012:execution:Child:x"
    return json.dumps({"ExecutionArn": arn, "Input": '{"secret": 1}', "Name": "x", "Status": "FAILED", **more})


def lambda_cause(**more: Any) -> str:
    return json.dumps({"errorMessage": "the card was declined", "errorType": "CardDeclined", **more})


OF_LAMBDA = lambda_cause(errorMessage="m")


@pytest.mark.parametrize(
    ("error", "cause", "text"),
    [
        ("CardDeclined", "the card was declined", "CardDeclined: the card was declined"),
        ("CardDeclined", None, "CardDeclined"),
        (None, "the card was declined", "the card was declined"),
        (None, None, "the execution failed without a reason"),
        ("E", "E: said once", "E: said once"),
        ("E", "E", "E"),
        ("States.TaskFailed", "the card was declined", "the card was declined"),
        # Lambda
        ("CardDeclined", lambda_cause(stackTrace=["  File a\n"]), "CardDeclined: the card was declined"),
        ("CardDeclined", lambda_cause(trace=["Error: x", "    at y"]), "CardDeclined: the card was declined"),
        ("Error", lambda_cause(errorMessage=NODE, errorType="Error"), "Error: the card was declined"),
        ("Payment.Failed", lambda_cause(), "Payment.Failed: CardDeclined: the card was declined"),
        ("Lambda.Unknown", json.dumps({"errorMessage": "timed out"}), "Lambda.Unknown: timed out"),
        ("E", json.dumps({"errorType": "E", "errorMessage": None}), "E"),
        ("E", json.dumps({"errorType": 1, "errorMessage": 2}), "E"),
        # stack traces in a plain text
        ("E", PYTHON, "E: app.CardDeclined: the card was declined"),
        ("E", f"charging failed\n{PYTHON}", "E: charging failed"),
        ("E", JAVA, "E: com.example.CardDeclined: the card was declined"),
        ("E", NODE, "E: Error: the card was declined"),
        ("E", GO, "E: panic: the card was declined"),
        ("E", RUBY, "E"),
        ("E", "look\nat the second line", "E: look\nat the second line"),
        # other JSON
        ("Batch.Failed", json.dumps({"JobId": "j", "StatusReason": "no memory"}), "Batch.Failed: no memory"),
        ("E", '{"a":1}', 'E: {"a": 1}'),
        ("E", json.dumps({"a": "x" * 1000}), f'E: {{"a": "{"x" * 493}...'),
        ("E", "{no JSON", "E: {no JSON"),
        # child executions
        ("States.TaskFailed", child(Error="E", Cause="c"), "a child execution failed: E: c"),
        ("States.TaskFailed", child(Error="E", Cause=OF_LAMBDA), "a child execution failed: E: CardDeclined: m"),
        ("States.TaskFailed", child(), "a child execution failed"),
        ("States.TaskFailed", child(Status="ABORTED", Cause="stop"), "a child execution was stopped: stop"),
        ("States.TaskFailed", child(Status="?", Error=1), "a child execution did not succeed"),
        ("States.TaskFailed", child(Cause=child(Error="E")), "a child execution failed: a child execution failed: E"),
    ],
)  # fmt: skip
def test_a_failure_is_told_in_words(error: str | None, cause: str | None, text: str) -> None:
    found = read_failure("FAILED", error, cause)
    assert (found.text, found.kind) == (text, error or None)


@pytest.mark.parametrize(
    ("cause", "details"),
    [
        (None, None),
        ("the card was declined", None),
        ('{"card": "c-1", "left": [0]}', {"card": "c-1", "left": [0]}),
        (
            lambda_cause(stackTrace=["  File a\n"]),
            {"errorMessage": "the card was declined", "errorType": "CardDeclined"},
        ),
        (child(Error="E", Cause='{"card": "c-1"}'), {"card": "c-1"}),
        (child(Error="E", Cause="c"), None),
        (json.dumps({"JobId": "j", "Container": {"Environment": [{"Name": "PIN", "Value": "secret"}]}}), None),
    ],
)
def test_a_cause_that_is_json_is_the_details(cause: str | None, details: Any) -> None:
    assert read_failure("FAILED", "E", cause).details == details


def test_a_failure_shows_no_stack_trace() -> None:
    for cause in (PYTHON, JAVA, NODE, GO, RUBY, lambda_cause(stackTrace=[PYTHON]), child(Cause=PYTHON)):
        text = str(read_failure("FAILED", "E", cause))
        assert not any(word in text for word in ("line 7", "Charge.java", "index.mjs", "main.go", "app.rb", "secret"))


def test_a_time_out_needs_no_words_of_its_own() -> None:
    assert read_failure("TIMED_OUT", None, None) == Failure(text="States.Timeout", kind="States.Timeout")
    assert read_failure("TIMED_OUT", "Late", "c") == Failure(text="Late: c", kind="Late")


@pytest.mark.parametrize(
    ("cause", "text", "code", "data"),
    [
        ({"code": -32602, "message": "no such order"}, "no such order", -32602, None),
        ({"code": 7, "message": "m", "data": {"a": [1]}}, "m", 7, {"a": [1]}),
        ({"code": "7", "message": "m"}, "McpError: m", None, None),
        ({"code": 10**400, "message": "m"}, "McpError: m", None, None),
        ("just words", 'McpError: "just words"', None, None),
        ({"code": True, "message": "m"}, "McpError: m", None, None),
    ],
)
def test_a_machine_may_ask_for_a_protocol_error(cause: Any, text: str, code: int | None, data: Any) -> None:
    found = read_failure("FAILED", "McpError", json.dumps(cause))
    assert (found.text, found.kind, found.code, found.data) == (text, "McpError", code, data)


@pytest.mark.parametrize(
    ("error", "cause", "said"),
    [
        (None, None, "aborted"),
        ("Ops", "maintenance", "aborted: Ops: maintenance"),
        ("Mcp.Cancelled", None, "cancelled"),
        ("Mcp.Cancelled", "not needed any more", "not needed any more"),
    ],
)
def test_who_stopped_it_is_told(error: str | None, cause: str | None, said: str) -> None:
    assert describe_stop(error, cause) == said
