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

TABLE: list[tuple[Asking, Answer, type[EngineError], bool | None, str]] = [
    # the input itself: final
    (
        START,
        error("InvalidExecutionInput", f"Invalid State Machine Execution Input: '{INPUT}'"),
        EngineRefused,
        True,
        "no JSON, or over 256 KiB",
    ),
    (START, error("ValidationException", TOO_LONG), EngineRefused, True, rf"\(input: {RULE}\)"),
    (START, error("InvalidName", "Invalid Name: 'o 1'"), EngineRefused, True, "name of the execution"),
    (ANSWER, error("InvalidOutput", f"Invalid Output: '{INPUT}'"), EngineRefused, True, "answer is no JSON"),
    (
        ANSWER,
        error("ValidationException", f"Value '{TOKEN}' at 'taskToken' failed to satisfy constraint: Member too long"),
        EngineRefused,
        True,
        "taskToken: Member too long",
    ),
    # what is asked for
    (
        START,
        error("StateMachineDoesNotExist", f"State Machine Does Not Exist: '{MACHINE}'"),
        EngineRefused,
        False,
        f"no state machine {MACHINE}$",
    ),
    (START, error("StateMachineDeleting"), EngineRefused, False, "orders is being deleted"),
    (
        START,
        error("StateMachineTypeNotSupported"),
        EngineRefused,
        False,
        "states:StartExecution is not possible .*Express",
    ),
    (START, error("InvalidArn", "Invalid Arn"), EngineRefused, False, "is no ARN that states:StartExecution takes"),
    (DESCRIBE, error("InvalidArn", "Invalid Arn"), ExecutionNotFound, None, "is no execution"),
    (DESCRIBE, error("ExecutionDoesNotExist"), ExecutionNotFound, None, "no such execution"),
    (
        ("describe_execution", {"executionArn": ELSEWHERE}),
        error("InvalidArn"),
        EngineRefused,
        False,
        "is in us-east-1, and this engine is set up for eu-west-1: check region",
    ),
    (
        ("describe_execution", {"executionArn": ELSEWHERE}),
        error("ExecutionDoesNotExist"),
        EngineRefused,
        False,
        "is in us-east-1",
    ),
    (
        ("describe_execution", {"executionArn": FOREIGN}),
        error("ExecutionDoesNotExist"),
        EngineRefused,
        False,
        "is in account 210987654321",
    ),
    (ANSWER, error("TaskTimedOut", f"Task Timed Out: '{TOKEN}'"), EngineRefused, False, "not open any more"),
    (ANSWER, error("InvalidToken", f"Invalid Token: '{TOKEN}'"), EngineRefused, False, "not open any more"),
    # limits
    (START, error("ExecutionLimitExceeded"), EngineUnavailable, True, "too many executions are open"),
    # who we are
    (
        START,
        error("AccessDeniedException", no("states:StartExecution", MACHINE, POLICY)),
        EngineRefused,
        False,
        f"no permission: states:StartExecution on {MACHINE} is not allowed",
    ),
    (
        DESCRIBE,
        error("AccessDeniedException", "Access denied"),
        EngineRefused,
        False,
        f"states:DescribeExecution on {EXECUTION} is not",
    ),
    (
        DESCRIBE,
        error("AccessDeniedException", no("kms:Decrypt", "arn:aws:kms:eu-west-1:123456789012:key/k")),
        EngineRefused,
        False,
        "kms:Decrypt on arn:aws:kms:eu-west-1:123456789012:key/k is not",
    ),
    (
        START,
        error("ExpiredTokenException", "The security token included in the request is expired"),
        EngineRefused,
        False,
        "credentials have expired: renew them",
    ),
    (
        START,
        error("UnrecognizedClientException", "The security token included in the request is invalid."),
        EngineRefused,
        False,
        "does not know our access key",
    ),
    (
        START,
        error("InvalidSignatureException", "The request signature we calculated does not match"),
        EngineRefused,
        False,
        "secret access key is wrong",
    ),
    (
        START,
        error("InvalidSignatureException", "Signature expired: 20260101T000000Z is now earlier than"),
        EngineRefused,
        False,
        "clock of this machine is wrong",
    ),
    (
        START,
        error("InvalidSignatureException", "Credential should be scoped to a valid region, not 'us-east-1'. "),
        EngineRefused,
        False,
        "check region and endpoint_url",
    ),
    (START, error("IncompleteSignature"), EngineRefused, False, "signature"),
    (START, error("OptInRequired", status=403), EngineRefused, False, "opt in to the Region"),
    # encryption
    (DESCRIBE, error("KmsAccessDeniedException"), EngineRefused, False, "kms:Decrypt"),
    (DESCRIBE, error("KmsInvalidStateException"), EngineRefused, False, "key that encrypts it is disabled"),
    # AWS itself
    (DESCRIBE, error("InternalFailure", status=500), EngineUnavailable, True, "AWS has an internal error"),
    (DESCRIBE, error("ServiceUnavailable", status=503), EngineUnavailable, True, "internal error, or is overloaded"),
    (DESCRIBE, error("SomethingNew", status=502), EngineUnavailable, True, "internal error, or is overloaded"),
    (DESCRIBE, LOST, EngineUnavailable, True, "the connection to http://127.0.0.1:\\d+ was lost"),
    # something else
    (
        DESCRIBE,
        error("SomethingNew", f"about {INPUT}"),
        EngineRefused,
        False,
        r"refuses states:DescribeExecution \(SomethingNew\)",
    ),
    (
        DESCRIBE,
        Answer(status=400, body="<html>The plain HTTP request was sent to HTTPS port</html>"),
        EngineRefused,
        False,
        r"is not this API \(HTTP 400\): check endpoint_url",
    ),
    (DESCRIBE, Answer(status=404, body="not here"), EngineRefused, False, r"is not this API \(HTTP 404\)"),
    (DESCRIBE, Answer(body="<html>welcome</html>"), EngineUnavailable, True, "is not this API"),
    (("describe_execution", {}), Answer(), EngineRefused, True, r"not valid \(executionArn\)"),
    (
        ("start_execution", {"stateMachineArn": MACHINE, "input": {"card": "hush"}}),
        Answer(),
        EngineRefused,
        True,
        r"not valid \(input\)",
    ),
]
