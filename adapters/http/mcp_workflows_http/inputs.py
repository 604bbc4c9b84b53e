"""Inputs that an API lists, as a JSON Schema: those of a workflow, and the fields of a question."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast

from mcp_workflows.adapter import JSON
from mcp_workflows_http.definition import Inputs
from mcp_workflows_http.expressions import Scope, as_list, as_object, lenient


def form_of(how: Inputs, scope: Scope) -> Mapping[str, JSON] | None:
    """Return the JSON Schema of an object with these inputs; None if the API lists none."""
    found = lenient(partial(scope.value, how.each))
    by_name = as_object(found)
    listed = (
        as_list(found) if by_name is None else [{**(as_object(each) or {}), "name": n} for n, each in by_name.items()]
    )
    if listed is None:
        return None
    properties, required = dict[str, JSON](), list[JSON]()
    for each in (scope | {"input": entry} for entry in listed):
        if how.when is not None and not lenient(partial(each.is_true, how.when)):
            continue
        if name := lenient(partial(each.text, how.name)):
            properties[name] = _property(how, each)
            if how.required is not None and lenient(partial(each.is_true, how.required)):
                required.append(name)
    schema: Mapping[str, JSON] = {"type": "object", "properties": properties}
    return {**schema, "required": required} if required else schema


def _property(how: Inputs, scope: Scope) -> Mapping[str, JSON]:
    def value(source: JSON) -> JSON:
        return None if source is None else lenient(partial(scope.value, source))

    def text(source: str | None) -> str:
        return "" if source is None else lenient(partial(scope.text, source)) or ""

    given = as_object(value(how.json_schema)) or {}
    written: Mapping[str, JSON] = {
        "type": None if "type" in given else how.types.get(text(how.type), "string"),
        "description": text(how.description) or None,
        "enum": cast("JSON", as_list(value(how.choices))) or None,
        "default": value(how.default),
    }
    return {**given, **{name: found for name, found in written.items() if found is not None}}
