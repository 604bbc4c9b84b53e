"""Reading what is the same in every era: params of requests; and writing times and status messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias, TypeGuard, cast

from mcp_workflows.adapter import JSON, Progress
from mcp_workflows.adapter.display_text import number_text
from mcp_workflows.errors import INVALID_PARAMS, RequestError
from mcp_workflows.wire.json_limits import checked

Params: TypeAlias = Mapping[str, JSON]

IDEMPOTENCY_KEY: Final = "mcp-workflows/idempotencyKey"
MAX_IDEMPOTENCY_KEY: Final = 256  # characters
KeyPath: TypeAlias = tuple[str, ...]  # the members of `_meta` that lead to a key, from outside in
OWN_KEY: Final[KeyPath] = (IDEMPOTENCY_KEY,)
KEY_PATHS: Final[Sequence[KeyPath]] = (
    OWN_KEY,
    ("claudecode/toolUseId",),  # Claude Code
    ("modelcontextprotocol.io/task", "taskId"),  # clients of SEP-1686 before it was in a revision
    ("taskId",),
)
"""Where hosts put what numbers their calls, and what counts first."""
_TRACE: Final = ("traceparent", "tracestate")  # SEP-414
_LONGEST_TRACE: Final = 512  # characters, all of them ASCII (W3C Trace Context, 3.3.1.5)


def is_object(value: JSON) -> TypeGuard[Params]:
    """Whether it is one; nearly all are dicts or nothing, and each poll asks: what asks ABCs comes last."""
    return type(value) is dict or (value is not None and isinstance(value, Mapping))


def object_of(value: JSON) -> Params:
    """The value, if it is an object; otherwise an empty one."""
    if type(value) is dict:  # not to ask `is_object` for it
        return cast("Params", value)
    return value if is_object(value) else {}


def text_of(params: Params, name: str) -> str:
    """A text that must be there."""
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise RequestError(INVALID_PARAMS, f"params.{name} must be a non-empty string")
    if not value.isascii():  # nearly all are, and each poll asks
        checked(value, f"params.{name}")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What the client sent that can make its call safe to send again."""

    own: str | None = None  # made for us
    host: tuple[str, ...] | None = None  # of its host, which wins: where it was found, and the key
    unusable: Sequence[str] = ()  # where something of a host's was found that can be no key


def keys_of(meta: Params, paths: Sequence[KeyPath] = KEY_PATHS) -> Keys:
    """The first that there is of these; ours counts always, and first if it is not among them.

    A host's that can be none is passed over: it was not made for us.
    """
    own = idempotency_key_of(meta)
    unusable: list[str] = []
    for path in paths if OWN_KEY in paths else (OWN_KEY, *paths):
        if path == OWN_KEY and own is not None:
            break
        if path == OWN_KEY or (found := _at(meta, path)) is None:
            continue
        if _is_key(found):
            return Keys(own=own, host=(*path, found), unusable=unusable)
        unusable.append(".".join(path))
    return Keys(own=own, unusable=unusable)


def _at(meta: Params, path: KeyPath) -> JSON:
    *outer, name = path
    for step in outer:
        meta = object_of(meta.get(step))
    return meta.get(name)


def _is_key(value: JSON) -> TypeGuard[str]:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_IDEMPOTENCY_KEY:
        return False
    return value.encode("utf-8", "replace").decode() == value  # no half of a surrogate pair, which is no text


def trace_of(meta: Params) -> Mapping[str, str]:
    """The trace that the call belongs to; what can be none is left out, as it would be kept with the task."""
    found = {key: value for key in _TRACE if isinstance(value := meta.get(key), str)}
    return {key: value for key, value in found.items() if len(value) <= _LONGEST_TRACE and value.isascii()}


def takes_forms(capabilities: Params) -> bool:
    """Whether a client with these capabilities can put a form to a person (`elicitation`)."""
    elicitation = capabilities.get("elicitation")
    return is_object(elicitation) and (not elicitation or "form" in elicitation)


def time_of(moment: datetime) -> str:
    """ISO 8601, to the millisecond, UTC."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def status_message(message: str | None, progress: Progress | None) -> str | None:
    """The message with its progress: "charging card (2 of 5)"."""
    step = progress and progress_text(progress)
    return f"{message} ({step})" if message and step else step or message


def progress_text(progress: Progress) -> str:
    """How far it is: "2 of 5"."""
    done = number_text(progress.value)
    return done if progress.total is None else f"{done} of {number_text(progress.total)}"
