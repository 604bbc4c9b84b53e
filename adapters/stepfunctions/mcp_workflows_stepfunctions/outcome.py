"""The reason why an execution failed, for people: causes that are JSON are read, stack traces are removed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, cast

from mcp_workflows.adapter import Failure
from mcp_workflows_stepfunctions.names import CANCELLED, PROTOCOL_ERROR

TIMEOUT: Final = "States.Timeout"
TASK_FAILED: Final = "States.TaskFailed"  # carries no information

_Object = Mapping[str, Any]  # Any: JSON

_NOTHING_SAID: Final = "the execution failed without a reason"
_WITHOUT_ERROR: Final[Mapping[str, str]] = {"TIMED_OUT": TIMEOUT}
_CHILD_STATUS: Final[Mapping[str, str]] = {
    "FAILED": "a child execution failed",
    "TIMED_OUT": "a child execution timed out",
    "ABORTED": "a child execution was stopped",
}
_MESSAGES: Final = ("errorMessage", "ErrorMessage", "message", "Message", "StatusReason", "StoppedReason", "Cause")
_LARGEST_CODE: Final = 2**31 - 1  # the largest integer that all clients can read
_DEEPEST: Final = 3  # causes in causes
_LONGEST: Final = 500  # characters of a JSON cause of unknown form
_TRACE: Final = re.compile(
    r"Traceback \(most recent call last\)"  # Python
    r"|\s+File \".*\", line \d+"
    r"|\s+at\s+\S"  # Java, JavaScript, .NET
    r"|\s*\.\.\. \d+ (?:more|common frames omitted)"
    r"|Caused by: "  # Java
    r"|\s+from \S+:\d+"  # Ruby
    r"|\S+\.rb:\d+:in "
    r"|goroutine \d+ \["  # Go
)


def read_failure(status: str, error: str | None, cause: str | None) -> Failure:
    """Return the failure of an execution with this status; error and cause may both be missing."""
    error = error or _WITHOUT_ERROR.get(status)
    if error == PROTOCOL_ERROR and (details := _protocol_error(error, _object(cause))):
        return details
    return Failure(text=_words(error, cause) or _NOTHING_SAID, kind=error)


def describe_stop(error: str | None, cause: str | None) -> str:
    """Return the message for an execution that was stopped; error and cause may both be missing."""
    if error == CANCELLED:
        return _words(None, cause) or "cancelled"
    words = _words(error, cause)
    return f"aborted: {words}" if words else "aborted"


def _protocol_error(error: str, found: _Object | None) -> Failure | None:
    """Return the JSON-RPC error that a Fail state asks for, or None without an integer code: an ordinary failure."""
    code = found.get("code") if found else None
    if found is None or not isinstance(code, int) or isinstance(code, bool) or abs(code) > _LARGEST_CODE:
        return None
    message = found.get("message")
    text = _without_trace(message) if isinstance(message, str) else ""
    return Failure(text=text or error, kind=error, code=code, data=found.get("data"))


def _words(error: str | None, cause: str | None, depth: int = 0) -> str:
    """Return error and cause in one sentence, without repetition."""
    message = _cause(cause, depth)
    if not error or (error == TASK_FAILED and message) or message == error or message.startswith(f"{error}:"):
        return message
    return f"{error}: {message}" if message else error


def _cause(cause: str | None, depth: int) -> str:
    found = _object(cause)
    if found is None:
        return _without_trace(cause or "")
    if "errorType" in found or "errorMessage" in found:
        return _of_lambda(found)
    if "ExecutionArn" in found and depth < _DEEPEST:
        return _of_child(found, depth)
    texts = (found.get(name) for name in _MESSAGES)
    message = next((text for text in texts if isinstance(text, str) and text.strip()), None)
    return _without_trace(message) if message else _short(json.dumps(found, ensure_ascii=False))


def _of_lambda(found: _Object) -> str:
    """Return the message of a Lambda error.

    Source: https://docs.aws.amazon.com/lambda/latest/dg/python-exceptions.html, the same in all runtimes.
    """
    message, kind = found.get("errorMessage"), found.get("errorType")
    message = _without_trace(message) if isinstance(message, str) else ""
    if not isinstance(kind, str) or not kind or message == kind or message.startswith(f"{kind}:"):
        return message
    return f"{kind}: {message}" if message else kind


def _of_child(found: _Object, depth: int) -> str:
    """Return the message of a failed child of `startExecution.sync`, whose cause is the reply of DescribeExecution."""
    error, cause = found.get("Error"), found.get("Cause")
    what = _CHILD_STATUS.get(str(found.get("Status")), "a child execution did not succeed")
    message = _words(error if isinstance(error, str) else None, cause if isinstance(cause, str) else None, depth + 1)
    return f"{what}: {message}" if message else what


def _object(text: str | None) -> _Object | None:
    if not text or not text.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("_Object", found) if isinstance(found, dict) else None


def _without_trace(text: str) -> str:
    """Return the text before a stack trace; in Python, where the error comes last, the text after it."""
    lines = text.strip().splitlines()
    begin = next((number for number, line in enumerate(lines) if _TRACE.match(line)), None)
    if begin is None:
        return text.strip()
    before = "\n".join(lines[:begin]).strip()
    after = [line for line in lines[begin:] if line.strip() and not line[0].isspace() and not _TRACE.match(line)]
    return before or (after[-1].strip() if after else "")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
