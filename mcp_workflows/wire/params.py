"""The params that are the same in every revision, the limits of their JSON, and the format of times and messages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeGuard, cast

from mcp_workflows.adapter import JSON, Progress, Status
from mcp_workflows.adapter.display_text import number_text
from mcp_workflows.errors import INVALID_PARAMS, RequestError
from mcp_workflows.wire.commands import Call, Document, TaskView

Params: TypeAlias = Mapping[str, JSON]

IDEMPOTENCY_KEY: Final = "mcp-workflows/idempotencyKey"
MAX_IDEMPOTENCY_KEY: Final = 256  # characters
KeyPath: TypeAlias = tuple[str, ...]  # the members of `_meta` that lead to a key, from outside in
OWN_KEY: Final[KeyPath] = (IDEMPOTENCY_KEY,)
KEY_PATHS: Final[Sequence[KeyPath]] = (
    OWN_KEY,
    ("claudecode/toolUseId",),  # Claude Code
    ("modelcontextprotocol.io/task", "taskId"),  # clients of SEP-1686 before a revision included it
    ("taskId",),
)
"""The places where hosts put the id of a call, in order of precedence."""

STATUS: Mapping[Status, str] = {
    Status.RUNNING: "working",
    Status.INPUT_REQUIRED: "input_required",
    Status.SUCCEEDED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
}
"""MCP's terms for the statuses; 2026-07-28 uses `failed` for less, see `v2026_07_28`."""

MAX_DEPTH: Final = 100  # nested lists and objects; later parsers stop at about twice that
_TRACE: Final = ("traceparent", "tracestate")  # SEP-414
_LONGEST_TRACE: Final = 512  # ASCII characters (W3C Trace Context, 3.3.1.5)


def is_object(value: JSON) -> TypeGuard[Params]:
    """Return True if it is a JSON object. ABCs come last, because polls call this, mostly with a dict or None."""
    return type(value) is dict or (value is not None and isinstance(value, Mapping))


def object_of(value: JSON) -> Params:
    """Return the value if it is an object, or else an empty one."""
    if type(value) is dict:  # saves the call of `is_object`
        return cast("Params", value)
    return value if is_object(value) else {}


def with_extension(declared: Params, extension: str) -> dict[str, Any]:  # Any: JSON
    """Return the result of `initialize` or `server/discover` with an extension that has no settings."""
    capabilities = object_of(declared.get("capabilities"))
    extensions: dict[str, JSON] = {**object_of(capabilities.get("extensions")), extension: {}}
    return {**declared, "capabilities": {**capabilities, "extensions": extensions}}


def text_of(params: Params, name: str) -> str:
    """Return a required text.

    Raises:
        RequestError: it is missing or no text.
    """
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise RequestError(INVALID_PARAMS, f"params.{name} must be a non-empty string")
    if not value.isascii():  # nearly all are, and each poll calls this
        checked(value, f"params.{name}")
    return value


def task_id_of(params: Params) -> str:
    """Return the id in the params of a request about one task; a task in their `_meta` does not count."""
    return text_of(params, "taskId")


def mapping_of(params: Params, name: str, default: Params | None = None) -> Params:
    """Return an object that can be stored unchanged; it is required unless there is a default.

    Raises:
        RequestError: it is missing or invalid.
    """
    value = params.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, Mapping):
        raise RequestError(INVALID_PARAMS, f"params.{name} must be an object")
    checked(cast("JSON", value), f"params.{name}")
    return cast("Params", value)


def idempotency_key_of(meta: Params) -> str | None:
    """Return the key in `_meta` under which the client may repeat this call.

    Raises:
        RequestError: it is invalid.
    """
    value = meta.get(IDEMPOTENCY_KEY)
    if value is None:
        return None
    where = f"_meta[{IDEMPOTENCY_KEY!r}]"
    if not isinstance(value, str) or not 0 < len(value) <= MAX_IDEMPOTENCY_KEY:
        raise RequestError(INVALID_PARAMS, f"{where} must be a string of 1 to {MAX_IDEMPOTENCY_KEY} characters")
    checked(value, where)
    return value


def call_of(
    params: Params,
    key_paths: Sequence[KeyPath],
    *,
    takes_tasks: bool = False,
    takes_questions: bool = False,
    takes_urls: bool = False,
) -> Call:
    """Return the parts of `tools/call` that are the same in every revision.

    It has the first usable key of a host, and ours, which comes first if it is not among the paths. A host's value that
    cannot be a key is skipped, because it was not made for us.
    """
    meta = object_of(params.get("_meta"))
    own, host = idempotency_key_of(meta), None
    unusable: list[str] = []
    for path in key_paths if OWN_KEY in key_paths else (OWN_KEY, *key_paths):
        if path == OWN_KEY and own is not None:
            break
        if path == OWN_KEY or (found := _at(meta, path)) is None:
            continue
        if _is_key(found):
            host = (*path, found)
            break
        unusable.append(".".join(path))
    return Call(
        tool=text_of(params, "name"),
        arguments=mapping_of(params, "arguments", default={}),
        takes_tasks=takes_tasks,
        takes_questions=takes_questions,
        takes_urls=takes_urls,
        idempotency_key=own,
        host_key=host,
        unusable_keys=unusable,
        context=trace_of(meta),
    )


def _at(meta: Params, path: KeyPath) -> JSON:
    *outer, name = path
    for step in outer:
        meta = object_of(meta.get(step))
    return meta.get(name)


def _is_key(value: JSON) -> TypeGuard[str]:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_IDEMPOTENCY_KEY:
        return False
    return value.encode("utf-8", "replace").decode() == value  # an unpaired surrogate is not text


def trace_of(meta: Params) -> Mapping[str, str]:
    """Return the trace of the call as stored with the task, without invalid values."""
    found = {key: value for key in _TRACE if isinstance(value := meta.get(key), str)}
    return {key: value for key, value in found.items() if len(value) <= _LONGEST_TRACE and value.isascii()}


def takes_forms(capabilities: Params) -> bool:
    """Return True if a client with these capabilities can show a form to a person (`elicitation`)."""
    elicitation = capabilities.get("elicitation")
    return is_object(elicitation) and (not elicitation or "form" in elicitation)


def takes_urls(capabilities: Params) -> bool:
    """Return True if a client with these capabilities can send a person to a page (`elicitation.url`)."""
    return "url" in object_of(capabilities.get("elicitation"))


def checked(value: JSON, where: str) -> None:
    """Check that a value from a client can be stored unchanged; `where` names it in the error.

    Source: RFC 8259, sections 6 (numbers), 8.2 (unpaired surrogates) and 9 (limits of nesting).

    Raises:
        RequestError: it cannot.
    """
    level: list[JSON] = [value]
    for _ in range(MAX_DEPTH + 1):  # level by level, because a function call for each of 100,000 values takes too long
        if not level:
            return
        for item in level:
            if isinstance(item, float) or (isinstance(item, str) and not item.isascii()):
                _check_scalar(item, where)
        inside: list[JSON] = [each for each in level if isinstance(each, dict | list)]
        objects = [cast("Mapping[str, JSON]", each) for each in inside if isinstance(each, dict)]
        level = [child for each in inside for child in each]  # for an object, the names
        level += [child for each in objects for child in each.values()]
    raise RequestError(INVALID_PARAMS, f"{where} is nested too deeply: at most {MAX_DEPTH} levels")


def _check_scalar(value: JSON, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise RequestError(INVALID_PARAMS, f"{where} holds a number that is not finite: JSON has none")
    if isinstance(value, str) and not _whole(value):
        raise RequestError(INVALID_PARAMS, f"{where} holds half a surrogate pair: it is not Unicode text")


def _whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def time_of(moment: datetime) -> str:
    """Return a time as ISO 8601, to the millisecond, UTC."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def status_message(message: str | None, progress: Progress | None) -> str | None:
    """Return the message with its progress: "charging card (2 of 5)"."""
    step = progress and progress_text(progress)
    return f"{message} ({step})" if message and step else step or message


def progress_text(progress: Progress) -> str:
    """Return the progress as text: "2 of 5"."""
    done = number_text(progress.value)
    return done if progress.total is None else f"{done} of {number_text(progress.total)}"


def fields_of(task: TaskView, status: str, message: str | None, *, unit: str = "") -> dict[str, JSON]:
    """Return the fields of a task that all revisions share; `unit` is the suffix of duration names."""
    found: dict[str, JSON] = {
        "taskId": task.task_id,
        "status": status,
        "createdAt": time_of(task.created),
        "lastUpdatedAt": time_of(task.updated),
        f"ttl{unit}": task.ttl_ms,
        f"pollInterval{unit}": task.poll_interval_ms,
    }
    return {**found, "statusMessage": message} if message else found


def contents_of(document: Document) -> dict[str, JSON]:
    """Return a resource as one of the `contents` of `resources/read`."""
    found: dict[str, JSON] = {"uri": document.uri, "mimeType": document.mime_type, "text": document.text}
    return found if document.meta is None else {**found, "_meta": dict(document.meta)}
