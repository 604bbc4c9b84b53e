"""`mcp-workflows init --mcp`: a server's list of tools becomes a draft of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp_workflows_mcp import McpAdapter
from mcp_workflows_mcp.tooling.discover import address_of, definition_of, splits

from adapters.mcp.tests.support import served
from mcp_workflows.errors import ConfigError


def tool(name: str, *needed: str) -> types.Tool:
    properties: Mapping[str, Any] = {each: {"type": "string"} for each in needed}
    return types.Tool(name=name, input_schema={"type": "object", "properties": properties, "required": list(needed)})


PAIRS: Sequence[tuple[Sequence[types.Tool], tuple[str, str, str | None]]] = [
    (
        [tool("agent", "prompt"), tool("agent_status", "id"), tool("scrape", "url")],
        ("agent", "agent_status", None),
    ),
    (
        [tool("startExport", "table"), tool("getExport", "exportId"), tool("cancelExport", "exportId")],
        ("startExport", "getExport", "cancelExport"),
    ),
    (
        [tool("trigger_dag", "dag_id"), tool("get_dag_run", "dag_id", "dag_run_id"), tool("delete_dag_run", "dag_id")],
        ("trigger_dag", "get_dag_run", None),
    ),
]


@pytest.mark.parametrize(("tools", "expected"), PAIRS, ids=lambda each: str(each[0])[:30])
def test_tools_that_belong_together_are_found_by_their_names(
    tools: Sequence[types.Tool], expected: tuple[str, str, str | None]
) -> None:
    [split] = splits(tools)
    assert (split.start.name, split.describe.name, split.cancel and split.cancel.name) == expected


def test_the_id_of_a_look_is_the_argument_that_is_called_like_it() -> None:
    [split] = splits(PAIRS[2][0])
    drafted = definition_of(split)
    assert drafted["start"]["handle"] == {"dag_run_id": "{{reply.dag_run_id}}", "dag_id": "{{arguments.dag_id}}"}
    assert drafted["describe"]["args"] == {"dag_id": "{{handle.dag_id}}", "dag_run_id": "{{handle.dag_run_id}}"}


def test_an_argument_of_the_look_that_nobody_gives_is_an_option() -> None:
    [split] = splits([tool("start_export", "table"), tool("export_status", "export_id", "region")])
    assert definition_of(split)["describe"]["args"] == {"export_id": "{{handle}}", "region": "{{options.region}}"}


def test_a_tool_that_returns_the_result_is_called_once_the_status_says_so() -> None:
    names = ("start_export", "get_export_result", "get_export_status", "cancel_export", "get_order_result")
    [split] = splits([tool(name, *(["id"] if name != "start_export" else ["table"])) for name in names])
    describe = definition_of(split)["describe"]
    call = {"tool": "get_export_result", "args": {"id": "{{handle}}"}, "when": "{{status == 'succeeded'}}"}
    assert (describe["tool"], describe["more"], describe["output"]) == (
        "get_export_status",
        {"result": call},
        "{{more.result}}",
    )


def test_what_is_made_and_read_is_no_draft_unless_it_is_named() -> None:
    tools = [tool("create_note", "text"), tool("get_note", "note_id"), tool("merge_note", "note_id")]
    assert not splits(tools)
    assert [split.start.name for split in splits(tools, "create_note")] == ["create_note"]


def test_tools_that_only_read_and_write_are_no_draft() -> None:
    assert not splits([tool("search", "query"), tool("get_page", "page_id"), tool("delete_page", "page_id")])


def test_secrets_of_a_command_are_not_in_the_draft() -> None:
    settings, shown = address_of("API_KEY=s3cret MODE=fast npx -y server")
    assert settings == {"command": ["npx", "-y", "server"], "env": {"API_KEY": "s3cret", "MODE": "fast"}}
    assert shown["env"] == {"API_KEY": "${API_KEY}", "MODE": "fast"}
    _, shown = address_of("server --user me --api-token s3cret --password=s3cret --verbose")
    assert shown["command"] == [
        "server", "--user", "me", "--api-token", "${API_TOKEN}", "--password=${PASSWORD}", "--verbose"
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "KEY=x", "npx 'open", "tools.example.com/mcp"])
def test_what_is_neither_a_url_nor_a_command_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--mcp"):
        address_of(text)


async def test_a_draft_names_what_belongs_together(tmp_path: Path) -> None:
    async with served(tmp_path / "jobs.json") as url:
        drafted = await McpAdapter.tooling.draft(url, None)
        assert drafted.name == "jobs"
        assert drafted.settings["url"] == url
        assert drafted.settings["describe"]["tool"] == "get_job"
        assert drafted.settings["cancel"]["tool"] == "stop_job"
        assert drafted.settings["expose"] == ["start_job"]
        with pytest.raises(ConfigError, match="no tool 'nothing'"):
            await McpAdapter.tooling.draft(url, "nothing")
        with pytest.raises(ConfigError, match="answer_job does not seem to start"):
            await McpAdapter.tooling.draft(url, "answer_job")
