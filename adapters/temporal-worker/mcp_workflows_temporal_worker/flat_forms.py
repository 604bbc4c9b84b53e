"""Forms: the flat schemas that MCP clients show to a person (`requestedSchema` of `elicitation/create`); pure.

Workflows supply schemas as pydantic or other tools write them. Strict clients refuse any keyword beyond MCP's, so
schemas are flattened here: references are replaced by their targets, and nullable fields by optional ones. Source: MCP
2026-07-28, elicitation, "Requested Schema".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

_Object = Mapping[str, Any]  # Any: JSON from any author

_FORM_KEYS: Final = ("$schema", "type", "properties", "required")  # Codex CLI refuses any other (openai/codex#31163)
_FORMATS: Final = frozenset({"email", "uri", "date", "date-time"})  # those of MCP's StringSchema
FIELD_TYPES: Final = ("string", "number", "integer", "boolean", "array")
_DEEPEST: Final = 20  # nested references and alternatives
_TYPE_OF: Final[Mapping[type, str]] = {str: "string", bool: "boolean", int: "integer", float: "number"}


def read_form(schema: _Object | type) -> dict[str, Any]:
    """Return the form of a JSON Schema of an object, or of a pydantic model or dataclass.

    Raises:
        ValueError: no client can show it; the message names the property.
    """
    if isinstance(schema, type):
        try:
            found = flat_form(TypeAdapter(schema).json_schema())
        except PydanticUserError as error:
            raise ValueError(f"no form can be made of {schema.__name__}: {error.message}") from None
    else:
        found = flat_form(schema)
    if found.get("type") != "object":
        raise ValueError("a question needs the schema of an object: {'type': 'object', 'properties': {...}}")
    for name, rules in found.get("properties", {}).items():
        if problem := field_problem(rules):
            raise ValueError(f"property {name!r} of a question {problem}")
    return found


def flat_form(schema: _Object) -> dict[str, Any]:
    """Return the schema as a form if a form can express it; a form stays unchanged."""
    defined = {**_as_object(schema.get("definitions")), **_as_object(schema.get("$defs"))}
    top, _ = _flat(schema, defined)
    form: dict[str, Any] = {key: top[key] for key in _FORM_KEYS if key in top}
    if isinstance(top.get("properties"), dict):
        fields = {name: _flat_field(_as_object(rules), defined) for name, rules in top["properties"].items()}
        form["properties"] = {name: field for name, (field, _) in fields.items()}
        if isinstance(top.get("required"), list):
            named: list[Any] = top["required"]  # Any: JSON
            optional = [name for name, (_, nullable) in fields.items() if nullable]
            form["required"] = [name for name in named if name not in optional]
            if optional and not form["required"]:
                del form["required"]
    return {**form, "$defs": defined} if defined and '"$ref"' in json.dumps(form) else form


def _flat_field(rules: _Object, defined: _Object, *, is_item: bool = False) -> tuple[dict[str, Any], bool]:
    """Return a field of a form (or an item of one), and True if it is nullable, so that it can be left out."""
    field, nullable = _flat(rules, defined)
    if "const" in field:
        field["enum"] = [field.pop("const")]
    if isinstance(field.get("enum"), list):
        nullable = nullable or None in field["enum"]
        field["enum"] = [each for each in field["enum"] if each is not None]
        kinds = {_TYPE_OF.get(each.__class__) for each in field["enum"]}
        if "type" not in field and len(kinds) == 1 and (kind := kinds.pop()):
            field["type"] = kind
    if field.get("default", 0) is None:
        del field["default"]
    match field.get("type"):
        case "integer":
            _use_bounds(field)
        case "string" if str(field.get("format", "date")) not in _FORMATS | {"password"}:
            field = {"description": f"Format: {field.pop('format')}", **field}
        case "array" if isinstance(field.get("items"), dict) and not is_item:
            items, _ = _flat_field(field["items"], defined, is_item=True)
            titled = {"anyOf": items["oneOf"]} if "oneOf" in items else items  # MCP: TitledMultiSelectEnumSchema
            field["items"] = {key: titled[key] for key in titled if key not in {"title", "description"}}
        case _:
            pass
    return field, nullable


def _use_bounds(field: dict[str, Any]) -> None:
    """Express other integer limits with `minimum` and `maximum`, the only ones that MCP has."""
    for word, other, step in (("minimum", "exclusiveMinimum", 1), ("maximum", "exclusiveMaximum", -1)):
        if isinstance(field.get(other), int) and word not in field:
            field[word] = field.pop(other) + step
    values: list[Any] = field.get("enum") or [None]  # Any: JSON
    if all(type(each) is int for each in values) and len({*values}) == len(values) == max(values) - min(values) + 1:
        field |= {"minimum": min(values), "maximum": max(values)}
        del field["enum"]


def _flat(rules: _Object, defined: _Object) -> tuple[dict[str, Any], bool]:
    """Return a schema with references and alternatives resolved, and True if it is nullable."""
    found, nullable = dict(rules), False
    for _ in range(_DEEPEST):
        inner: _Object | None = None
        kinds, choices = found.get("type"), found.get("anyOf", found.get("oneOf"))
        if isinstance(found.get("$ref"), str):
            word, inner = "$ref", _named(found, defined) or None
        elif isinstance(found.get("allOf"), list) and len(found["allOf"]) == 1:
            word, inner = "allOf", found["allOf"][0]
        elif isinstance(kinds, list) and "null" in kinds:
            rest = [each for each in found["type"] if each != "null"]
            word, inner, nullable = "type", {"type": rest[0] if len(rest) == 1 else rest}, True
        elif isinstance(choices, list) and kinds is None:
            word = "anyOf" if "anyOf" in found else "oneOf"
            options = [_as_object(each) for each in found[word]]
            rest = [each for each in options if each.get("type") != "null"]
            nullable = nullable or len(rest) < len(options)
            inner = rest[0] if len(rest) == 1 else _merged([_named(each, defined) for each in rest])
        else:
            break
        if not isinstance(inner, dict):
            break
        del found[word]
        found = {**inner, **found}
    return found, nullable


def _named(rules: _Object, defined: _Object) -> _Object:
    """Return the target of a reference; return anything else unchanged."""
    return _as_object(defined.get(str(rules["$ref"]).rpartition("/")[2])) if "$ref" in rules else rules


def _merged(options: Sequence[_Object]) -> _Object | None:
    """Return one schema for all of these, or None if no form can ask for any of them at once."""
    options = [each for each in options if isinstance(each.get("enum", []), list)]
    if not options:
        return None
    kinds = {each.get("type") for each in options if isinstance(each.get("type"), str)}
    if any("title" in each for each in options) and all(isinstance(each.get("const"), str) for each in options):
        return {"type": "string", "oneOf": [{k: each[k] for k in ("const", "title") if k in each} for each in options]}
    values = [value for each in options for value in each.get("enum", [each["const"]] if "const" in each else [])]
    if values and all(each.keys() & {"enum", "const"} for each in options):
        return {"enum": values, **({"type": kinds.pop()} if len(kinds) == 1 else {})}
    written = [each.get("type") for each in options]
    if written == ["number", "string"]:
        return options[0]  # a Decimal, which pydantic also accepts as text
    if sorted(map(str, written)) == ["integer", "number"]:
        return {"type": "number"}
    same = {key: value for key, value in options[0].items() if all(each.get(key) == value for each in options)}
    return same if "type" in same else None


def field_problem(field: object, *, only_choices: bool = False) -> str | None:
    """Return why no client can show this field, or None; `only_choices`: a list must name its choices.

    A workflow may ask for a list of free texts, which some clients show although MCP has no such field.
    """
    rules = _as_object(field)
    kind, items = rules.get("type"), _as_object(rules.get("items"))
    if kind not in FIELD_TYPES:
        return f"must have one type of {', '.join(FIELD_TYPES)}"
    if rules.get("format") == "password":
        return "asks for a secret, and a form must not: what is typed in can be read by the client and the model"
    choices = [each.get("const") for each in items.get("anyOf", items.get("oneOf", []))] or items.get("enum", [])
    are_texts = all(isinstance(each, str) for each in choices) if choices else items.get("type", "string") == "string"
    if kind == "array" and not (are_texts and (choices or not only_choices)):
        return "is a list, whose items must be strings: {'type': 'string', 'enum': [...]}"
    return None


def _as_object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
