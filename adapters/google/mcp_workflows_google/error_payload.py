"""Errors that a workflow raised, as text for people: the payload may be JSON, plain text or nothing.

Google's own errors are maps with `tags` and a `message`; a workflow may raise any text or map.

Source: https://cloud.google.com/workflows/docs/reference/syntax/error-types
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from mcp_workflows.adapter import JSON, Failure
from mcp_workflows_google.redaction import redact, redact_json, shorten

PROTOCOL_ERROR: Final = "mcp_error"  # `raise: {mcp_error: {code, message, data}}`
_LARGEST_CODE: Final = 2**31 - 1  # the largest that clients in other languages can read
_DEEPEST: Final = 4  # levels of nested errors: of a branch, of a child execution, a text that is JSON
_MESSAGES: Final = ("message", "error", "reason", "detail", "description")
_SECRET: Final = frozenset({"headers", "body", "auth", "authorization", "request", "response", "query"})

_Object = Mapping[str, Any]  # Any: JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorText:
    """An error as text; `own` is true if the workflow chose the words."""

    text: str = ""
    kind: str | None = None
    own: bool = True
    protocol: Failure | None = None  # the JSON-RPC error that the workflow asks for


def read_payload(payload: str | None) -> ErrorText:
    """Read the payload of an error."""
    return ErrorText() if payload is None else _read_value(_read(payload), 0)


def _read(text: str) -> JSON:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _read_value(value: JSON, depth: int) -> ErrorText:
    if isinstance(value, str):
        inner = _read(value) if value.lstrip().startswith("{") and depth < _DEEPEST else None
        return _read_value(inner, depth + 1) if isinstance(inner, dict) else ErrorText(text=redact(value).strip())
    if not isinstance(value, dict):
        return ErrorText() if value is None else ErrorText(text=shorten(redact(_dump(value))))
    found = cast("_Object", value)
    if (protocol := _protocol(found.get(PROTOCOL_ERROR))) is not None:
        return ErrorText(protocol=protocol)
    nested = _nested(found, depth) if depth < _DEEPEST else None
    return nested or _of_map(found)


def _protocol(found: JSON) -> Failure | None:
    """Return the JSON-RPC error that the workflow asks for; None without an integer code."""
    if not isinstance(found, dict):
        return None
    error = cast("_Object", found)
    code, message = error.get("code"), error.get("message")
    if not isinstance(code, int) or isinstance(code, bool) or abs(code) > _LARGEST_CODE:
        return None
    text = redact(message).strip() if isinstance(message, str) else ""
    try:
        data = redact_json(error.get("data"))
    except RecursionError:
        data = None  # nested too deeply for any client
    return Failure(text=text or PROTOCOL_ERROR, kind=PROTOCOL_ERROR, code=code, data=data)


def _of_map(found: _Object) -> ErrorText:
    """Read the message and the code of a map; without a message, dump all fields that cannot hold secrets."""
    tags = _texts(found.get("tags"))
    kind, code = next((redact(shorten(tag)) for tag in tags), None), found.get("code")
    texts = (found.get(name) for name in _MESSAGES)
    text = next((redact(text).strip() for text in texts if isinstance(text, str) and text.strip()), "")
    if not text:
        left = _without_secrets(found)
        text = shorten(redact(_dump(left))) if left else ""
    return ErrorText(text=_joined(kind, text, None if code == text else code), kind=kind or _kind(code), own=not tags)


def _joined(kind: str | None, text: str, code: JSON) -> str:
    """Join kind, message and code, without repetitions."""
    words = text if not kind or text == kind or text.startswith(f"{kind}:") else f"{kind}: {text}" if text else kind
    known = isinstance(code, int | str) and not isinstance(code, bool) and str(code)
    return f"{words} (code {redact(shorten(str(code)))})" if known and words and str(code) not in words else words


def _kind(code: JSON) -> str | None:
    return redact(shorten(code)) if isinstance(code, str) and code else None


def _without_secrets(value: JSON, depth: int = 0) -> JSON:
    if isinstance(value, dict):
        items = cast("_Object", value).items()
        kept = {name: item for name, item in items if str(name).lower() not in _SECRET | {"tags"}}
        return {name: _without_secrets(item, depth + 1) for name, item in kept.items()} if depth < _DEEPEST else {}
    if isinstance(value, list):
        return [_without_secrets(item, depth + 1) for item in cast("list[object]", value)] if depth < _DEEPEST else []
    return value


def _texts(value: JSON) -> Sequence[str]:
    return [each for each in cast("list[object]", value) if isinstance(each, str)] if isinstance(value, list) else ()


def _dump(value: JSON) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""


def _nested(found: _Object, depth: int) -> ErrorText | None:
    """Return the inner error of the first failed branch or of a child execution; None if there is none."""
    for read in (_branches, _child):
        if (inner := read(found, depth)) is not None:
            return inner
    return None


def _branches(found: _Object, depth: int) -> ErrorText | None:
    """Read an error of parallel branches.

    Source: https://cloud.google.com/workflows/docs/reference/syntax/parallel-steps, exceptions.
    """
    several = found.get("branches")
    every: Sequence[JSON] = cast("list[object]", several) if isinstance(several, list) else ()
    failed = [cast("_Object", each) for each in every if isinstance(each, dict)]
    if not failed or "UnhandledBranchError" not in _texts(found.get("tags")):
        return None
    more = {1: "", 2: ", and 1 more"}.get(len(failed), f", and {len(failed) - 1} more")
    return _inside(failed[0].get("error"), "a branch failed", more, depth)


def _child(found: _Object, depth: int) -> ErrorText | None:
    """Read an error of the connector `workflowexecutions.executions.run`, which contains the child execution."""
    child = found.get("operation")
    if not isinstance(child, dict) or "OperationError" not in _texts(found.get("tags")):
        return None
    return _inside(cast("_Object", child).get("error"), "a child execution failed", "", depth)


def _inside(error: JSON, what: str, more: str, depth: int) -> ErrorText | None:
    payload = cast("_Object", error).get("payload") if isinstance(error, dict) else None
    inner = _read_value(_read(payload) if isinstance(payload, str) else payload, depth + 1)
    if inner.protocol is not None:
        return inner
    return replace(inner, text=f"{what}: {inner.text}{more}") if inner.text else None
