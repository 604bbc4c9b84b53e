"""Type hints to schemas, and arguments back to positional parameters."""

from __future__ import annotations

from typing import Any

import pytest
from mcp_workflows_temporal import TemporalAdapter
from mcp_workflows_temporal.tooling.schema import read_schema

from adapters.temporal.tests.scene import Scene
from mcp_workflows.adapter.templates import Template
from mcp_workflows.errors import ConfigError
from mcp_workflows.tools.json_schema import check_schema, violations

HERE = "adapters.temporal.tests.hints"


def derive(name: str) -> Any:
    return TemporalAdapter.tooling.schema(f"{HERE}:{name}")


@pytest.mark.parametrize(
    ("name", "args", "required"),
    [
        ("OneModel", ["{{args}}"], ["items"]),
        ("OneDataclass", ["{{args}}"], ["id", "items"]),
        ("Recursive", ["{{args}}"], None),
        ("Positional", '{{[args."order_id", not_null(args."express", `false`)]}}', ["order_id"]),
        ("SharedModels", '{{[args."first", args."second"]}}', ["first", "second"]),
        ("Described", '{{[args."count"]}}', ["count"]),
        ("Nothing", [], None),
        ("Untyped", '{{[args."anything", args."more"]}}', ["anything"]),
    ],
)
def test_a_record_is_the_input_and_anything_else_becomes_properties(
    name: str, args: str | list[str], required: list[str] | None
) -> None:
    schema = derive(name)
    assert schema.args == args
    assert schema.input.get("required") == required
    check_schema(dict(schema.input))


@pytest.mark.parametrize("name", ["OneModel", "OneDataclass", "SharedModels"])
def test_a_record_refuses_fields_that_its_class_would_drop(name: str) -> None:
    item = {"sku": "a", "count": 1}
    given = {"first": item, "second": item} if name == "SharedModels" else {"id": "r", "items": [item], "total": 1.0}
    schema = derive(name).input
    given = {key: value for key, value in given.items() if key in schema["properties"]}
    assert not violations(schema, given)
    assert violations(schema, {**given, "itmes": []})
    nested = {"first": {**item, "cuont": 2}} if name == "SharedModels" else {"items": [{**item, "cuont": 2}]}
    assert any("cuont" in each for each in violations(schema, {**given, **nested}))


@pytest.mark.parametrize(
    ("name", "properties"),
    [
        ("OneModel", {"id", "items"}),
        ("Recursive", {"children"}),
        ("Positional", set[str]()),
        ("SharedModels", {"total"}),
        ("OneDataclass", None),
        ("Defaults", None),
        ("Nothing", None),
        ("Untyped", None),
    ],
)
def test_only_an_object_is_an_output_schema(name: str, properties: set[str] | None) -> None:
    output = derive(name).output
    assert (None if output is None else set(output.get("properties", {}))) == properties
    if output is not None:
        check_schema(dict(output))


def test_a_definition_shared_by_parameters_is_there_once_and_found() -> None:
    schema = derive("SharedModels").input
    assert list(schema["$defs"]) == ["Item"]
    assert not violations(schema, {"first": {"sku": "a"}, "second": {"sku": "b", "count": 2}})
    assert violations(schema, {"first": {"sku": "a"}, "second": {"count": 2}})


def test_a_recursive_model_is_checked_all_the_way_down() -> None:
    schema = derive("Recursive").input
    assert not violations(schema, {"children": [{"children": []}]})
    assert violations(schema, {"children": [{"children": 1}]})


@pytest.mark.parametrize(
    ("name", "zoned", "zoneless"), [("plain", True, True), ("aware", True, False), ("naive", False, True)]
)
def test_a_date_time_needs_a_zone_where_its_type_does(name: str, zoned: bool, zoneless: bool) -> None:
    schema = derive("Timed").input
    for end, fits in {"Z": zoned, "+01:00": zoned, "-00:30": zoned, "": zoneless, ".5": zoneless}.items():
        assert (not violations(schema, {name: f"2026-01-02T03:04:05{end}"})) is fits, end
    assert not violations(schema, {"at": "03:04:05"})
    assert violations(schema, {name: "tomorrow"})


def test_an_argument_no_parameter_takes_is_an_error() -> None:
    assert violations(derive("Positional").input, {"order_id": "1", "expres": True})


def test_annotations_reach_the_schema() -> None:
    assert derive("Described").input["properties"]["count"] == {
        "type": "integer",
        "minimum": 1,
        "description": "How many",
    }


@pytest.mark.parametrize(
    ("given", "positional"),
    [
        ({}, [1, None, True, "t"]),
        ({"c": False}, [1, None, False, "t"]),
        ({"a": 0, "b": [2], "c": True, "task": "y"}, [0, [2], True, "y"]),
    ],
)
def test_what_is_left_out_keeps_its_default_whatever_comes_after_it(
    given: dict[str, Any], positional: list[Any]
) -> None:
    scope = {"args": given, "task": {"id": "not this"}}
    assert Template(derive("Defaults").args).render(scope) == positional


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [
        ("no_such_module_anywhere:Order", "cannot import no_such_module_anywhere"),
        (f"{HERE}:Missing", "has no Missing"),
        (f"{HERE}:NoWorkflow", "is not a workflow"),
        (f"{HERE}:number", "is not a workflow"),
        ("adapters.temporal.tests.hidden_hints:Hidden", "'Decimal' is not defined"),
        (f"{HERE}:NoSchema", "no JSON Schema for a type hint"),
        (HERE, "is not module:WorkflowClass"),
        (":Order", "is not module:WorkflowClass"),
        ("..:Order", "cannot import"),
    ],
)
def test_what_cannot_be_read_is_a_config_error_that_says_why(reference: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        TemporalAdapter.tooling.schema(reference)


@pytest.mark.anyio
async def test_what_is_left_out_costs_the_workflow_no_type(scene: Scene) -> None:
    schema = read_schema("adapters.temporal.tests.workflows:Typed")
    given = {"orders": [{"sku": "a"}, {"sku": "b", "count": 2}]}
    async with scene.worker():
        ref = await scene.start("Typed", *Template(schema.args).render({"args": given}))
        assert (await scene.ended(ref)).output == {"count": 3, "note": None, "limit": 3}
