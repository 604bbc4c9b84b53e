"""How large requests and kept results may be: in bytes of JSON, and in JSON values."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

from pydantic_core import PydanticSerializationError, to_json

from mcp_workflows.adapter import JSON, Execution
from mcp_workflows.errors import LimitReached
from mcp_workflows.result import tool_error

_MARKS: Final = (b",", b"[", b"{")  # each stands before a value
_SHOWN: Final = 2000  # characters of a failure that is too large to be kept


def size_of(value: JSON) -> int:
    """Return the bytes of it as JSON."""
    return len(_dump(value))


def _dump(value: JSON) -> bytes:
    try:
        return to_json(value, inf_nan_mode="constants")  # five times as fast as `json` with a large value
    except PydanticSerializationError:  # half a surrogate pair, in the output of an engine
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def check_size(what: str, value: JSON, most: int | None, most_values: int | None = None) -> None:
    """Make sure that it has no more bytes than `most`, and no more JSON values than `most_values`.

    Raises:
        LimitReached: it is too large; time does not help.
    """
    if most is None and most_values is None:
        return
    text = _dump(value)
    if most is not None and len(text) > most:
        raise LimitReached(
            f"{what}: {len(text)} bytes of JSON, and at most {most} are taken: send less, or a link to it"
        )
    if most_values is not None and has_more_values(text, most_values):
        raise LimitReached(
            f"{what}: more than {most_values} JSON values (limits.max_json_values): send less, or a link to it"
        )


def has_more_values(text: bytes, most: int) -> bool:
    """Whether JSON holds more than `most` values, told without parsing it.

    Each list and object that is not empty has one value more than commas. What texts hold does not count.
    """
    if _count_marks(text) < most:
        return False
    if b"\0" in text:  # UTF-16 or UTF-32, which MCP does not use: texts cannot be told from the rest
        return True
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > 4 * most:  # two for each text and each name
        return True
    outside = b"0".join(plain.split(b'"')[::2]).translate(None, b" \t\r\n")
    return _count_marks(outside) - outside.count(b"[]") - outside.count(b"{}") >= most


def _count_marks(text: bytes) -> int:
    return sum(text.count(mark) for mark in _MARKS)


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
