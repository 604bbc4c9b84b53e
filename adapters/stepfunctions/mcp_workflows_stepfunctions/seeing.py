"""What an execution is seen as, wherever that is read: in a look, in an Express reply, in an exported history."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from mcp_workflows.adapter import Execution, Failure, Gate, Status
from mcp_workflows_stepfunctions.asking import complaints, requests
from mcp_workflows_stepfunctions.fold import Fold
from mcp_workflows_stepfunctions.outcome import failure, stopped

STATUSES: Final[Mapping[str, Status]] = {
    "RUNNING": Status.RUNNING,
    "PENDING_REDRIVE": Status.RUNNING,  # a child of a Map run that waits to be redriven
    "SUCCEEDED": Status.SUCCEEDED,
    "FAILED": Status.FAILED,
    "TIMED_OUT": Status.FAILED,
    "ABORTED": Status.CANCELLED,
}


def unfinished(fold: Fold, gates: Mapping[str, Gate]) -> Execution:
    """While it runs: the state it is in, what is wrong with its questions, and those that can be answered."""
    asked = requests(fold, gates)
    said = [text for text in (fold.state, *complaints(fold, gates)) if text]
    status = Status.INPUT_REQUIRED if asked else Status.RUNNING
    return Execution(status=status, message="; ".join(said) or None, progress=fold.progress, requests=asked)


def finished(status: str, told: Mapping[str, Any]) -> Execution:
    """How it ended, in the words of the API; `output`, `error` and `cause` may all be missing."""
    error, cause = _text(told.get("error")), _text(told.get("cause"))
    match STATUSES[status]:
        case Status.SUCCEEDED:
            return _succeeded(told.get("output"))
        case Status.CANCELLED:
            return Execution(status=Status.CANCELLED, message=stopped(error, cause))
        case _:
            return Execution(status=Status.FAILED, failure=failure(status, error, cause))


def _succeeded(output: object) -> Execution:
    try:
        return Execution(status=Status.SUCCEEDED, output=json.loads(output) if isinstance(output, str) else output)
    except (ValueError, RecursionError) as error:
        what = "is nested too deeply" if isinstance(error, RecursionError) else "is no JSON"
        why = Failure(text=f"the execution succeeded, but its output {what}", kind="UndecodableResult")
        return Execution(status=Status.FAILED, failure=why)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
