"""The memo fields that the workflow-side library writes: open questions, message and progress.

Anybody may write a memo: a value of another shape counts as absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from mcp_workflows.adapter import JSON, InputRequest, Progress


def as_mapping(value: JSON) -> Mapping[str, JSON]:
    """Return an object; any other value counts as an empty one."""
    return cast("Mapping[str, JSON]", value) if isinstance(value, dict) else {}


def as_text(value: JSON) -> str | None:
    """Return a text; any other value counts as None."""
    return value if isinstance(value, str) else None


def read_progress(status: Mapping[str, JSON]) -> Progress | None:
    """Return the progress in `mcp.status`."""
    value, total = status.get("progress"), status.get("total")
    if not isinstance(value, int | float):
        return None
    return Progress(value=value, total=total if isinstance(total, int | float) else None)


def read_questions(asked: Mapping[str, JSON]) -> Mapping[str, InputRequest]:
    """Return the questions in `mcp.input`, by key."""
    return {key: request for key, value in as_mapping(asked.get("requests")).items() if (request := _request(value))}


def _request(value: JSON) -> InputRequest | None:
    method, params = as_mapping(value).get("method"), as_mapping(value).get("params")
    if not isinstance(method, str) or not isinstance(params, dict):
        return None
    return InputRequest(method=method, params=_in_order(as_mapping(params), as_mapping(value).get("order")))


def _in_order(params: Mapping[str, JSON], order: JSON) -> Mapping[str, JSON]:
    """Return the form with its fields in the workflow's order: most converters sort the keys of an object."""
    schema = as_mapping(params.get("requestedSchema"))
    fields = as_mapping(schema.get("properties"))
    if not isinstance(order, list) or not fields:
        return params
    names = cast("Sequence[JSON]", order)
    first = {name: fields[name] for name in names if isinstance(name, str) and name in fields}
    return {**params, "requestedSchema": {**schema, "properties": {**first, **fields}}}
