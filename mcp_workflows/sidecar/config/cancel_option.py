"""`cancel:` of a tool, read by two: how an execution is asked to cancel is its adapter's, what follows the tool's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast, get_args

from pydantic import BaseModel

from mcp_workflows.adapter import Adapter, takes_grace
from mcp_workflows.sidecar.config.problems import Report, known_keys
from mcp_workflows.sidecar.config.yaml import Where
from mcp_workflows.tools.json_schema import Schema
from mcp_workflows.tools.tool import AfterCancel

Written: TypeAlias = Mapping[str, Any]  # Any: any JSON value

CANCEL = "cancel"
_OURS = known_keys(AfterCancel)


def split_cancel(
    report: Report, fields: dict[str, Any], options: dict[str, Any], kind: type[Adapter] | None, where: Where
) -> tuple[dict[str, Any], dict[str, Any]]:  # Any: any JSON value
    """The fields of a tool and the settings for its adapter, with what `cancel` says where it belongs."""
    written = fields.get(CANCEL)
    if written and kind is not None and not takes_grace(kind) and report.by_default((*where, CANCEL)):
        return {key: value for key, value in fields.items() if key != CANCEL}, options
    theirs = _theirs(kind)
    if not isinstance(written, dict) or not theirs:
        return fields, options
    said = cast("Written", written)
    for key in said.keys() - _OURS - theirs:
        report.unknown((*where, CANCEL, key), _OURS | theirs)
    ours = {key: value for key, value in said.items() if key in _OURS}
    others = {key: value for key, value in said.items() if key in theirs}
    without = {key: value for key, value in fields.items() if key != CANCEL}
    kept = {**without, CANCEL: ours} if ours or not said else without
    return kept, {**options, CANCEL: others} if others else options


def _theirs(kind: type[Adapter] | None) -> frozenset[str]:
    """What the adapter reads of `cancel`, if it does."""
    field = None if kind is None else kind.Options.model_fields.get(CANCEL)
    models = () if field is None else _models(field.annotation)
    return frozenset[str]().union(*(known_keys(model) for model in models))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:  # Any: whatever can stand in an annotation
    for found in (annotation, *get_args(annotation)):
        if isinstance(found, type) and issubclass(found, BaseModel):
            yield found


def cancel_entry(tool: Schema, adapters: Sequence[Schema], models: Mapping[str, Schema]) -> Schema:
    """The schema of `cancel` as it is written: the words of the tool and of all adapters, each only with its own."""
    found = [shape for schema in (tool, *adapters) for shape in _shapes(schema, models)]
    merged: dict[str, Any] = {}  # Any: schemas
    for shape in found:
        merged |= shape["properties"]
    return {
        "type": ["object", "null"],
        "description": tool["description"],
        "properties": merged,
        "additionalProperties": False,
        "anyOf": [{"required": shape.get("required", [])} for shape in found],
    }


def _shapes(schema: Schema, models: Mapping[str, Schema]) -> Iterator[Schema]:
    for option in (schema, *schema.get("anyOf", ())):
        if "$ref" in option:
            yield models[option["$ref"].rpartition("/")[2]]
