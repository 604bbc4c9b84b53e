"""What AWS says no with, and what that must be for us."""

from __future__ import annotations

from typing import Any, TypeAlias

from adapters.stepfunctions.tests.injecting import LOST, Answer, error
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, ExecutionNotFound

Asking: TypeAlias = tuple[str, dict[str, Any]]  # an operation and its parameters; Any: as boto3 takes them

REGION = "eu-west-1"
ACCOUNT = "123456789012"
MACHINE = f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:orders"
EXECUTION = f"arn:aws:states:{REGION}:{ACCOUNT}:execution:orders:o-1"
ELSEWHERE = EXECUTION.replace(REGION, "us-east-1")
FOREIGN = EXECUTION.replace(ACCOUNT, "210987654321")
INPUT = '{"card": "hush"}'
TOKEN = "AQChushhush"
WHO_WE_ARE = "arn:aws:sts::123456789012:assumed-role/secret-role/alice"

START: Asking = ("start_execution", {"stateMachineArn": MACHINE, "name": "o-1", "input": INPUT})
DESCRIBE: Asking = ("describe_execution", {"executionArn": EXECUTION})
STOP: Asking = ("stop_execution", {"executionArn": EXECUTION})
ANSWER: Asking = ("send_task_success", {"taskToken": TOKEN, "output": INPUT})


def no(action: str, resource: str, because: str = "") -> str:
    return f"User: {WHO_WE_ARE} is not authorized to perform: {action} on resource: {resource}{because}"


POLICY = " because no identity-based policy allows the states:StartExecution action"
RULE = "Member must have length less than or equal to 262144"
TOO_LONG = f"1 validation error detected: Value '{INPUT}' at 'input' failed to satisfy constraint: {RULE}"

Row: TypeAlias = tuple[Asking, Answer, type[EngineError], bool | None, str]


def refused(call: Asking, answer: Answer, words: str, *, final: bool = False) -> Row:
    return (call, answer, EngineRefused, final, words)


def unavailable(call: Asking, answer: Answer, words: str) -> Row:
    return (call, answer, EngineUnavailable, True, words)


TABLE: list[Row] = [
    # the input itself: final
    refused(
        START,
        error("InvalidExecutionInput", f"Invalid State Machine Execution Input: '{INPUT}'"),
        "no JSON, or over 256 KiB",
        final=True,
    ),
    refused(START, error("ValidationException", TOO_LONG), rf"\(input: {RULE}\)", final=True),
    refused(START, error("InvalidName", "Invalid Name: 'o 1'"), "name of the execution", final=True),
    refused(ANSWER, error("InvalidOutput", f"Invalid Output: '{INPUT}'"), "answer is no JSON", final=True),
    refused(
        ANSWER,
        error("ValidationException", f"Value '{TOKEN}' at 'taskToken' failed to satisfy constraint: Member too long"),
        "taskToken: Member too long",
        final=True,
    ),
    # what is asked for
    refused(
        START,
        error("StateMachineDoesNotExist", f"State Machine Does Not Exist: '{MACHINE}'"),
        f"no state machine {MACHINE}$",
    ),
    refused(START, error("StateMachineDeleting"), "orders is being deleted"),
    refused(START, error("StateMachineTypeNotSupported"), "states:StartExecution is not possible .*Express"),
    refused(START, error("InvalidArn", "Invalid Arn"), "is no ARN that states:StartExecution takes"),
    (DESCRIBE, error("InvalidArn", "Invalid Arn"), ExecutionNotFound, None, "is no execution"),
    (DESCRIBE, error("ExecutionDoesNotExist"), ExecutionNotFound, None, "no such execution"),
    refused(
        ("describe_execution", {"executionArn": ELSEWHERE}),
        error("InvalidArn"),
        "is in us-east-1, and this engine is set up for eu-west-1: check region",
    ),
    refused(("describe_execution", {"executionArn": ELSEWHERE}), error("ExecutionDoesNotExist"), "is in us-east-1"),
    refused(
        ("describe_execution", {"executionArn": FOREIGN}), error("ExecutionDoesNotExist"), "is in account 210987654321"
    ),
    refused(ANSWER, error("TaskTimedOut", f"Task Timed Out: '{TOKEN}'"), "not open any more"),
    refused(ANSWER, error("InvalidToken", f"Invalid Token: '{TOKEN}'"), "not open any more"),
    # limits
    unavailable(START, error("ExecutionLimitExceeded"), "too many executions are open"),
    # who we are
    refused(
        START,
        error("AccessDeniedException", no("states:StartExecution", MACHINE, POLICY)),
        f"no permission: states:StartExecution on {MACHINE} is not allowed",
    ),
    refused(
        DESCRIBE, error("AccessDeniedException", "Access denied"), f"states:DescribeExecution on {EXECUTION} is not"
    ),
    refused(
        DESCRIBE,
        error("AccessDeniedException", no("kms:Decrypt", "arn:aws:kms:eu-west-1:123456789012:key/k")),
        "kms:Decrypt on arn:aws:kms:eu-west-1:123456789012:key/k is not",
    ),
    refused(
        START,
        error("ExpiredTokenException", "The security token included in the request is expired"),
        "credentials have expired: renew them",
    ),
    refused(
        START,
        error("UnrecognizedClientException", "The security token included in the request is invalid."),
        "does not know our access key",
    ),
    refused(
        START,
        error("InvalidSignatureException", "The request signature we calculated does not match"),
        "secret access key is wrong",
    ),
    refused(
        START,
        error("InvalidSignatureException", "Signature expired: 20260101T000000Z is now earlier than"),
        "clock of this machine is wrong",
    ),
    refused(
        START,
        error("InvalidSignatureException", "Credential should be scoped to a valid region, not 'us-east-1'. "),
        "check region and endpoint_url",
    ),
    refused(START, error("IncompleteSignature"), "signature"),
    refused(START, error("OptInRequired", status=403), "opt in to the Region"),
    # encryption
    refused(DESCRIBE, error("KmsAccessDeniedException"), "kms:Decrypt"),
    refused(DESCRIBE, error("KmsInvalidStateException"), "key that encrypts it is disabled"),
    # AWS itself
    unavailable(DESCRIBE, error("InternalFailure", status=500), "AWS has an internal error"),
    unavailable(DESCRIBE, error("ServiceUnavailable", status=503), "internal error, or is overloaded"),
    unavailable(DESCRIBE, error("SomethingNew", status=502), "internal error, or is overloaded"),
    unavailable(DESCRIBE, LOST, "the connection to http://127.0.0.1:\\d+ was lost"),
    # something else
    refused(DESCRIBE, error("SomethingNew", f"about {INPUT}"), r"refuses states:DescribeExecution \(SomethingNew\)"),
    refused(
        DESCRIBE,
        Answer(status=400, body="<html>The plain HTTP request was sent to HTTPS port</html>"),
        r"is not this API \(HTTP 400\): check endpoint_url",
    ),
    refused(DESCRIBE, Answer(status=404, body="not here"), r"is not this API \(HTTP 404\)"),
    unavailable(DESCRIBE, Answer(body="<html>welcome</html>"), "is not this API"),
    refused(("describe_execution", {}), Answer(), r"not valid \(executionArn\)", final=True),
    refused(
        ("start_execution", {"stateMachineArn": MACHINE, "input": {"card": "hush"}}),
        Answer(),
        r"not valid \(input\)",
        final=True,
    ),
]
