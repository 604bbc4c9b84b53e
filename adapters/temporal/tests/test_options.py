"""What a tool may set: with placeholders in the file, final at the start."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp_workflows_temporal import TemporalOptions
from mcp_workflows_temporal.start import attributes, priority, versioning_override
from temporalio.common import AutoUpgradeVersioningOverride, PinnedVersioningOverride, Priority

from mcp_workflows.adapter.templates import Template
from mcp_workflows.errors import ConfigError, EngineRefused
from mcp_workflows.sidecar.config.load import load_config

HEAD = """
engines: {orders: {adapter: temporal, task_queue: orders}}
tools:
  fulfil:
    engine: orders
    workflow: FulfilOrder
    input: {type: object, properties: {order_id: {type: string}, urgent: {type: integer}, wait: {type: string}}}
"""
ALL = """
    workflow_id: "fulfil-{{order_id}}"
    on_existing: adopt
    execution_timeout: "{{wait}}"
    run_timeout: 2h
    task_timeout: 500ms
    search_attributes:
      OrderId: "{{order_id}}"
      Urgent: {type: Int, value: "{{urgent}}"}
      Express: true
    priority: {key: "{{urgent}}", fairness_key: "{{order_id}}", fairness_weight: 2.5}
    versioning_override: {pinned: {deployment: orders, build_id: "1.{{urgent}}"}}
    cancel: {signal: stop, args: ["{{principal.id}}"]}
    summary: "order {{order_id}}"
    task_queue: "orders-{{urgent}}"
"""


def loaded(folder: Path, text: str) -> Mapping[str, Any]:
    file = folder / "workflows.yaml"
    file.write_text(HEAD + text)
    [tool] = load_config(file, {}).tools
    return tool.options


def filled(options: Mapping[str, Any], **arguments: Any) -> TemporalOptions:
    rendered: Mapping[str, Any] = Template(dict(options)).render({"args": arguments, "principal": {"id": "p"}})
    return TemporalOptions.final(rendered)


def test_all_that_a_tool_may_set_survives_the_file_and_is_filled_in(tmp_path: Path) -> None:
    options = filled(loaded(tmp_path, ALL), order_id="A1", urgent=2, wait="30m")
    assert options.workflow_id == "fulfil-A1"
    assert options.execution_timeout == timedelta(minutes=30)
    assert (options.run_timeout, options.task_timeout) == (timedelta(hours=2), timedelta(milliseconds=500))
    assert [(name, str(kind), value) for name, kind, value in attributes(options)] == [
        ("OrderId", "Keyword", "A1"),
        ("Urgent", "Int", 2),
        ("Express", "Bool", True),
    ]
    assert priority(options) == Priority(priority_key=2, fairness_key="A1", fairness_weight=2.5)
    pinned = versioning_override(options)
    assert isinstance(pinned, PinnedVersioningOverride)
    assert pinned.version.to_canonical_string() == "orders.1.2"
    assert options.cancel is not None
    assert (options.cancel.signal, options.cancel.args, options.summary) == ("stop", ["p"], "order A1")
    assert options.task_queue == "orders-2"


def test_what_the_arguments_do_not_bring_is_not_set(tmp_path: Path) -> None:
    options = filled(loaded(tmp_path, ALL), order_id="A1")
    assert options.execution_timeout is None
    assert [name for name, _, _ in attributes(options)] == ["OrderId", "Express"]
    assert priority(options) == Priority(fairness_key="A1", fairness_weight=2.5)


def test_auto_upgrade_is_a_word(tmp_path: Path) -> None:
    chosen = filled(loaded(tmp_path, "    versioning_override: auto_upgrade"))
    assert isinstance(versioning_override(chosen), AutoUpgradeVersioningOverride)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("on_existing: join", "on_existing: .*'refuse' or 'adopt'"),
        ("execution_timeout: soon", "execution_timeout: a duration is a number and a unit"),
        ("priority: {key: 0}", "priority.key: must be greater than or equal to 1"),
        ("priority: {kee: 1}", "unknown key; did you mean 'key'"),
        ("search_attributes: {A: {type: Keywrd, value: a}}", "Keyword"),
        ("versioning_override: newest", "auto_upgrade"),
        ("cancel: {args: []}", "cancel.signal: is missing"),
        ('workflow_id: "fulfil-{{order_id"', "braces that are not closed"),
        ('workflow_id: "fulfil-{{ordr_id}}"', "there is no argument 'ordr_id'; did you mean 'order_id'"),
    ],
)
def test_a_mistake_is_found_in_the_file(tmp_path: Path, line: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        loaded(tmp_path, f"    {line}")


@pytest.mark.parametrize(
    ("line", "arguments", "complaint"),
    [
        ('execution_timeout: "{{wait}}"', {"wait": "soon"}, "execution_timeout: .*a duration is a number and a unit"),
        ('execution_timeout: "{{wait}}"', {"wait": "{{wait}}"}, "a duration is a number and a unit"),
        ('priority: {key: "{{urgent}}"}', {"urgent": 0}, "priority.key"),
        ('priority: {fairness_key: "{{order_id}}"}', {"order_id": "x" * 65}, "longer than 64 bytes"),
        ('workflow_id: "{{order_id}}"', {"order_id": " "}, "empty"),
        ('workflow_id: "{{order_id}}"', {"order_id": "\u00e4" * 501}, "longer than 1000 bytes"),
        ('workflow_id: "{{order_id}}"', {"order_id": "a\nb"}, "cannot be printed"),
        ('workflow_id: "{{order_id}}"', {"order_id": "mcp-other"}, "begin with mcp-"),
    ],
)
def test_a_value_that_does_not_fit_is_a_definite_no(
    tmp_path: Path, line: str, arguments: Mapping[str, Any], complaint: str
) -> None:
    options = loaded(tmp_path, f"    {line}")
    with pytest.raises(EngineRefused, match=complaint):
        filled(options, **arguments)


def test_a_search_attribute_of_another_type_is_refused_without_repeating_it() -> None:
    options = TemporalOptions.final({"search_attributes": {"Due": {"type": "Datetime", "value": "hush-hush"}}})
    with pytest.raises(EngineRefused, match="search attribute Due is no Datetime") as caught:
        list(attributes(options))
    assert "hush" not in str(caught.value)


def test_a_workflow_id_may_be_a_number() -> None:
    assert TemporalOptions.final({"workflow_id": 17}).workflow_id == "17"
