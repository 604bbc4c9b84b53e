"""How large what comes in and what is kept may be; in bytes of JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

from mcp_workflows.adapter import JSON, Execution
from mcp_workflows.errors import LimitReached
from mcp_workflows.result import tool_error

_SHOWN: Final = 2000  # characters of a failure that is too large to be kept


def size_of(value: JSON) -> int:
    """Bytes of it as JSON."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))


def check_size(what: str, value: JSON, most: int | None) -> None:
    """Make sure that it is not too large.

    Raises:
        LimitReached: it is; time does not help.
    """
    if most is not None and (size := size_of(value)) > most:
        raise LimitReached(f"{what}: {size} bytes of JSON, and at most {most} are taken: send less, or a link to it")


def keepable(execution: Execution, most: int | None) -> Execution:
    """The execution, with a note in place of an output or a failure that is too large to be kept.

    It ended as it ended: only what came of it is not here, but in the engine.
    """
    failure = execution.failure
    if most is None or not execution.terminal:
        return execution
    if failure is not None and (size := size_of([failure.text, failure.data])) > most:
        text = f"{failure.text[:_SHOWN]} ... ({size} bytes, over the limit of {most}; see the engine for the whole)"
        return replace(execution, failure=replace(failure, text=text, data=None))
    if execution.output is None or (size := size_of(execution.output)) <= most:
        return execution
    where = f" (execution {execution.execution_id})" if execution.execution_id else ""
    text = (
        f"The workflow has ended, and its result has {size} bytes, over the limit of {most} that this server keeps: "
        f"it can be read in the engine only{where}."
    )
    return replace(execution, output=tool_error(text))
