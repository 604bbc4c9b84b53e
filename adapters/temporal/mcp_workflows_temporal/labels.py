"""What our own workflow-side library leaves in the memo: what is asked, and how far the work is.

A memo is open to strangers: whatever has another shape counts as nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from mcp_workflows.adapter import JSON, InputRequest, Progress


def mapping(value: JSON) -> Mapping[str, JSON]:
    """What should be an object; whatever a stranger wrote there instead counts as empty."""
    return cast("Mapping[str, JSON]", value) if isinstance(value, dict) else {}


def text(value: JSON) -> str | None:
    """What should be a text."""
    return value if isinstance(value, str) else None


def progress(status: Mapping[str, JSON]) -> Progress | None:
    """How far it is, by `mcp.status`."""
    value, total = status.get("progress"), status.get("total")
    if not isinstance(value, int | float):
        return None
    return Progress(value=value, total=total if isinstance(total, int | float) else None)


def questions(asked: Mapping[str, JSON]) -> Mapping[str, InputRequest]:
    """What `mcp.input` asks, by key."""
    return {key: request for key, value in mapping(asked.get("requests")).items() if (request := _request(value))}


def _request(value: JSON) -> InputRequest | None:
    method, params = mapping(value).get("method"), mapping(value).get("params")
    if not isinstance(method, str) or not isinstance(params, dict):
        return None
    return InputRequest(method=method, params=_in_order(mapping(params), mapping(value).get("order")))


def _in_order(params: Mapping[str, JSON], order: JSON) -> Mapping[str, JSON]:
    """The form with its fields as the workflow wrote them: what is in an object comes sorted from most converters."""
    schema = mapping(params.get("requestedSchema"))
    fields = mapping(schema.get("properties"))
    if not isinstance(order, list) or not fields:
        return params
    names = cast("Sequence[JSON]", order)
    first = {name: fields[name] for name in names if isinstance(name, str) and name in fields}
    return {**params, "requestedSchema": {**schema, "properties": {**first, **fields}}}
