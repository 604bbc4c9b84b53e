"""Reading what is the same in every era: params of requests; and writing times and status messages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, TypeAlias, cast

from mcp_workflows.adapter import JSON, Progress
from mcp_workflows.errors import INVALID_PARAMS, RequestError
from mcp_workflows.wire.strict import checked

Params: TypeAlias = Mapping[str, JSON]

IDEMPOTENCY_KEY: Final = "mcp-workflows/idempotencyKey"
MAX_IDEMPOTENCY_KEY: Final = 256  # characters
_TRACE: Final = ("traceparent", "tracestate")  # SEP-414
_LONGEST_TRACE: Final = 512  # characters, all of them ASCII (W3C Trace Context, 3.3.1.5)


def object_of(value: JSON) -> Params:
    """The value, if it is an object; otherwise an empty one."""
    return cast("Params", value) if isinstance(value, Mapping) else {}


def text_of(params: Params, name: str) -> str:
    """A text that must be there."""
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise RequestError(INVALID_PARAMS, f"params.{name} must be a non-empty string")
    return value


def mapping_of(params: Params, name: str, default: Params | None = None) -> Params:
    """An object that must be there, unless there is a default, and that we can keep as it is."""
    value = params.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, Mapping):
        raise RequestError(INVALID_PARAMS, f"params.{name} must be an object")
    checked(cast("JSON", value), f"params.{name}")
    return cast("Params", value)


def idempotency_key_of(meta: Params) -> str | None:
    """The key in `_meta` under which the client may send this call again."""
    value = meta.get(IDEMPOTENCY_KEY)
    if value is None:
        return None
    where = f"_meta[{IDEMPOTENCY_KEY!r}]"
    if not isinstance(value, str) or not 0 < len(value) <= MAX_IDEMPOTENCY_KEY:
        raise RequestError(INVALID_PARAMS, f"{where} must be a string of 1 to {MAX_IDEMPOTENCY_KEY} characters")
    checked(value, where)
    return value


def trace_of(meta: Params) -> Mapping[str, str]:
    """The trace that the call belongs to; what can be none is left out, as it would be kept with the task."""
    found = {key: value for key in _TRACE if isinstance(value := meta.get(key), str)}
    return {key: value for key, value in found.items() if len(value) <= _LONGEST_TRACE and value.isascii()}


def takes_forms(capabilities: Params) -> bool:
    """Whether a client with these capabilities can put a form to a person (`elicitation`)."""
    elicitation = capabilities.get("elicitation")
    return isinstance(elicitation, Mapping) and (not elicitation or "form" in elicitation)


def time_of(moment: datetime) -> str:
    """ISO 8601, to the millisecond, UTC."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def status_message(message: str | None, progress: Progress | None) -> str | None:
    """The message with its progress: "charging card (2 of 5)"."""
    if progress is None:
        return message
    step = f"{progress.value:g}" if progress.total is None else f"{progress.value:g} of {progress.total:g}"
    return f"{message} ({step})" if message else step
