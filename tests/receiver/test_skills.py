"""Skills for the tools: the files, and the extension `io.modelcontextprotocol/skills`."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from mcp.server.lowlevel import Server
from ruamel.yaml import YAML

from mcp_workflows import Tool, WatchTool, attach
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.receiver.skills import skills_of
from tests.support import commands
from tests.support.commands import COMMAND
from tests.support.environments import FASTMCP_ATTACHED, python_of
from tests.support.in_memory import MODERN, line
from tests.support.served import peer, site

pytestmark = pytest.mark.anyio

EXTENSION = "io.modelcontextprotocol/skills"
ORDER = Tool.model_validate(
    {
        "name": "fulfil_order",
        "engine": "memory",
        "workflow": "echo",
        "title": "Fulfil an order",
        "description": "Reserve stock:\ncharge the card, and ship.",
        "input": {
            "type": "object",
            "properties": {"order_id": {"type": "string", "description": "Such as A-1001."}, "express": {}},
            "required": ["order_id"],
        },
        "questions": {"sure": {"message": "Charge {{order_id}}?"}},
        "actions": {"hold": {"event": "hold", "description": "Hold the parcel."}},
    }
)


def read_frontmatter(text: str) -> Any:
    _, fields, _ = text.split("---\n", 2)
    return dict(YAML(typ="safe").load(fields))  # pyright: ignore[reportUnknownMemberType]


def test_a_skill_tells_what_the_tool_needs_asks_and_does() -> None:
    skill = skills_of([ORDER])["fulfil_order"]
    assert read_frontmatter(skill.text) == skill.frontmatter
    assert skill.name == "fulfil-order"
    for part in (
        "- `order_id` (string, required): Such as A-1001.",
        "- `express` (any, optional)",
        "- Before the start: Charge {{order_id}}?",
        "- `hold`: Hold the parcel.",
        "Call `task_wait` with the `taskId`.",
        "4. To stop the workflow, call `task_cancel`",
        "A second call can start a second workflow.",
    ):
        assert part in skill.text


def test_a_skill_promises_only_what_its_tool_can_do() -> None:
    of = {"engine": "memory", "workflow": "echo"}
    waiting = Tool.model_validate({"name": "waits", **of, "tasks": "wait"})
    watching = WatchTool.model_validate({"name": "seen", "kind": "watch", **of})
    given = skills_of([waiting, watching])
    assert "task_wait" not in given["waits"].text
    assert "The call returns the result." in given["waits"].text
    assert "Watches an execution of the workflow echo" in given["seen"].text
    assert "task_cancel" not in given["seen"].text
    assert "A second call" not in given["seen"].text


def test_any_schema_that_the_check_accepts_has_a_skill() -> None:
    schema = {"type": "object", "properties": {"any": True}, "required": ["any", "elsewhere"]}
    text = skills_of([ORDER.model_copy(update={"input": schema})])["fulfil_order"].text
    assert "- `any` (any, required)\n" in text
    assert "- `elsewhere` (any, required)\n" in text


def test_names_of_skills_follow_the_specification_and_differ() -> None:
    names = ("Fulfil.Order", "fulfil_order", "fulfil-order", "___", "x" * 64)
    found = skills_of([ORDER.model_copy(update={"name": name}) for name in names])
    used = [skill.name for skill in found.values()]
    assert used == ["fulfil-order", "fulfil-order-2", "fulfil-order-3", "tool", "x" * 60]
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) and len(name) <= 64 for name in used)


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
async def test_skills_are_listed_and_read_by_their_digest(tmp_path: Path, version: str) -> None:
    server: Server[Any] = Server("test", version="1")
    engine = MemoryAdapter(MemorySettings(name=str(tmp_path)))
    store = f"sqlite:///{tmp_path}/tasks.db"
    workflows = attach(server, tools=[ORDER], engines={"memory": engine}, store=store, skills=True)
    async with workflows, line(server, version) as client:
        listed = (await client.send("skills/list"))["result"]
        assert ("resultType" in listed) == (version == MODERN)
        [entry] = listed["skills"]
        assert entry["frontmatter"] == skills_of([ORDER])["fulfil_order"].frontmatter
        assert (await client.send("skills/get", {"uri": entry["uri"]}))["result"]["skill"] == entry
        [file] = entry["resources"]
        [content] = (await client.send("resources/read", {"uri": entry["uri"]}))["result"]["contents"]
        raw = content["text"].encode()
        assert file == {
            "uri": "skill://fulfil-order/SKILL.md",
            "digest": f"sha256:{sha256(raw).hexdigest()}",
            "size": len(raw),
        }
        assert content["mimeType"] == "text/markdown"
        for method in ("skills/get", "resources/read"):
            assert (await client.send(method, {"uri": "skill://other/SKILL.md"}))["error"]["code"] == -32602


async def test_without_the_setting_there_are_no_skills(tmp_path: Path) -> None:
    server: Server[Any] = Server("test", version="1")
    engine = MemoryAdapter(MemorySettings(name=str(tmp_path)))
    workflows = attach(server, tools=[ORDER], engines={"memory": engine}, store=f"sqlite:///{tmp_path}/tasks.db")
    async with workflows, line(server, MODERN) as client:
        assert EXTENSION not in (await client.send("server/discover"))["result"]["capabilities"]["extensions"]
        assert (await client.send("skills/list"))["error"]["code"] == -32601
        assert "error" in await client.send("resources/read", {"uri": "skill://fulfil-order/SKILL.md"})


async def test_a_caller_sees_the_skills_of_the_tools_that_it_may_call(tmp_path: Path) -> None:
    allow = {"call": {"scopes": ["ops"]}, "see": {}}
    ruled = Tool.model_validate({"name": "ruled", "engine": "memory", "workflow": "echo", "allow": allow})
    same = Tool.model_validate({"name": "fulfil-order", "engine": "memory", "workflow": "echo", "allow": allow})
    hidden = Tool(name="hidden", engine="memory", workflow="echo", listed=False)
    engine = MemoryAdapter(MemorySettings(name=str(tmp_path)))
    async with site(
        store=f"sqlite:///{tmp_path}/tasks.db",
        tools=[same, ORDER, ruled, hidden],
        adapters={"memory": engine},
        authenticated=True,
        skills=True,
    ) as found:
        for token, names in (("anna", ["fulfil-order-2"]), ("bob+ops", ["fulfil-order", "fulfil-order-2", "ruled"])):
            async with peer(found.url, token=token) as client:
                listed = (await client.send("skills/list", {})).result["skills"]
                assert [each["frontmatter"]["name"] for each in listed] == names


async def test_an_anonymous_caller_sees_no_skill_of_a_tool_that_is_not_listed_for_it(tmp_path: Path) -> None:
    watching = WatchTool.model_validate({"name": "seen", "kind": "watch", "engine": "memory", "workflow": "echo"})
    engine = MemoryAdapter(MemorySettings(name=str(tmp_path)))
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with (
        site(store=store, tools=[ORDER, watching], adapters={"memory": engine}, skills=True) as found,
        peer(found.url) as client,
    ):
        listed = (await client.send("skills/list", {})).result["skills"]
        assert [each["frontmatter"]["name"] for each in listed] == ["fulfil-order"]
        assert "error" in (await client.send("resources/read", {"uri": "skill://seen/SKILL.md"})).body


FASTMCP_CLIENT = """
import asyncio, sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp.skills.client import SkillsClientExtension

async def main():
    transport = StdioTransport(sys.argv[1], ["serve", "workflows.yaml"])
    async with Client(transport, extensions=[SkillsClientExtension()]) as client:
        [skill] = await client.list_skills()
        assert await client.get_skill(skill.uri) == skill
        [content] = await client.read_resource(skill.uri)
        assert len(content.text.encode()) == skill.resources[0].size

asyncio.run(main())
"""


@pytest.mark.slow
def test_the_client_of_fastmcp_reads_the_skills(tmp_path: Path) -> None:
    config = (
        "server: {skills: true}\nengines: {here: {adapter: memory}}\ntools: {echo: {engine: here, workflow: echo}}\n"
    )
    (tmp_path / "workflows.yaml").write_text(config)
    (tmp_path / "client.py").write_text(FASTMCP_CLIENT)
    python = python_of("fastmcp-attached", FASTMCP_ATTACHED)
    done = commands.run([str(python), "client.py", COMMAND], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
