"""The limits of hosts, and the tools that they refuse."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mcp_workflows import Tool
from mcp_workflows.sidecar.host_rules import refusals
from mcp_workflows.tools.hosts import CALL_LIMITS, LONGEST_WAIT, UNKNOWN_WAIT, call_wait


@pytest.mark.parametrize(
    ("client", "seconds"),
    [
        ("codex-mcp-client", 45),
        ("Cursor-VSCode", 45),
        ("Visual Studio Code - Insiders", 45),
        ("gemini-cli-mcp-client-workflows", 45),
        ("google-adk", 3.75),
        ("mcp", 4),  # the Python SDK's own name: openai-agents gives up after 5 s, others after 30 s or never
        ("my codex-mcp-client", 4),
        ("", 4),
        (None, 4),
    ],
)
def test_a_call_waits_as_long_as_its_host_allows(client: str | None, seconds: float) -> None:
    assert call_wait(client) == timedelta(seconds=seconds)


def test_no_host_is_kept_waiting_up_to_its_limit() -> None:
    assert CALL_LIMITS.keys() == {name.lower() for name in CALL_LIMITS}
    for name, limit in CALL_LIMITS.items():
        assert call_wait(name).total_seconds() <= min(limit - 1, LONGEST_WAIT.total_seconds())
    assert UNKNOWN_WAIT.total_seconds() <= min(CALL_LIMITS.values()) - 1


TEXT = {"type": "string"}


def with_input(**properties: Any) -> dict[str, Any]:
    """The schema of an object with these properties."""
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("changes", "host", "words"),
    [
        ({"name": "orders.fulfil"}, "Claude Desktop", "dot"),
        ({"name": "a" * 61}, "Cursor", "61 characters"),
        ({"input": {**with_input(a=TEXT), "anyOf": [{"required": ["a"]}]}}, "the Claude API", "anyOf at the top level"),
        ({"input": {**with_input(a=TEXT), "oneOf": [{"required": ["a"]}]}}, "the Claude API", "oneOf at the top level"),
        ({"input": {**with_input(a=TEXT), "allOf": [{"required": ["a"]}]}}, "the Claude API", "allOf at the top level"),
        ({"input": {"type": "object"}}, "the OpenAI Agents SDK", "no properties"),
        ({"input": with_input(a={"type": "array"})}, "VS Code", "input.properties.a: an array without items"),
        (
            {"input": with_input(a={"anyOf": [TEXT, {"type": "array"}]})},
            "VS Code",
            "input.properties.a.anyOf.1: an array without items",
        ),
        (
            {"input": {**with_input(a={"$ref": "#/$defs/rows"}), "$defs": {"rows": {"type": "array"}}}},
            "VS Code",
            "input.$defs.rows: an array without items",
        ),
        (
            {"input": with_input(a={"type": "array", "items": {"type": ["object", "null"]}})},
            "Gemini",
            "input.properties.a: items of several types",
        ),
        ({"input": with_input(**{"when it is": TEXT})}, "the Claude API", "'when it is'"),
        ({"input": with_input(a=with_input(ä=TEXT))}, "the Claude API", "'ä'"),
        ({"input": with_input(**{"a" * 65: TEXT})}, "the Claude API", "letters"),
    ],
)
def test_a_tool_that_a_host_refuses_is_named_with_the_host_and_a_remedy(
    changes: dict[str, Any], host: str, words: str
) -> None:
    settings = {"name": "order", "engine": "memory", "workflow": "echo", "input": with_input(a=TEXT), **changes}
    ((rule, text),) = refusals(Tool.model_validate(settings))
    assert (rule.host, words in text) == (host, True), text
    assert rule.hint
    assert rule.source
