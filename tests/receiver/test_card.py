"""The run card: the page, the tools that name it, and what hosts that show pages get in place of a long wait."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.client import Client
from mcp.client.extension import advertise
from mcp.server.apps import Apps
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from pydantic import ValidationError

from mcp_workflows import Card, TaskSupport, Tool, attach
from mcp_workflows.adapter import Execution, Ref
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.receiver.task_tools.definitions import TASK_TOOL_NAMES
from mcp_workflows.receiver.task_view import page_at, page_text, page_uri
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.wire.params import Params
from tests.support.in_memory import MODERN, Line, entered, line
from tests.support.served import Peer, peer, site

pytestmark = pytest.mark.anyio

OLD = "2025-11-25"
BOTH = pytest.mark.parametrize("version", [MODERN, OLD])
MIME = "text/html;profile=mcp-app"
APPS: Mapping[str, Any] = {"io.modelcontextprotocol/ui": {"mimeTypes": [MIME]}}
UI: Mapping[str, Any] = {"extensions": APPS}
TASKS: Mapping[str, Any] = {"io.modelcontextprotocol/tasks": {}}
UI_AND_FORMS: Mapping[str, Any] = {**UI, "elicitation": {"form": {}}}
OTHER_PAGES: Mapping[str, Any] = {"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/plain"]}}}
LONG = timedelta(hours=1)
HOSTILE = '</script><img src=x onerror=alert(1)><a href="javascript:alert(1)">approve</a>'


def tool(workflow: str = "ask", **more: Any) -> Tool:
    """A tool that waits for an hour, if nothing stops it."""
    return Tool.model_validate({"name": workflow, "engine": "memory", "workflow": workflow, "wait": LONG, **more})


@asynccontextmanager
async def server_of(folder: Path, *tools: Tool, **more: Any) -> AsyncGenerator[Server[Any]]:
    """A server with these tools."""
    store = f"sqlite:///{folder}/tasks.db"
    async with entered(tools or [tool(), tool("echo")], store=store, engine=str(folder), **more) as (server, _):
        yield server


@asynccontextmanager
async def client_of(
    folder: Path, *tools: Tool, version: str = MODERN, capabilities: Mapping[str, Any] = UI
) -> AsyncGenerator[Line]:
    """A client of a server with these tools, on stdio: an identified caller."""
    async with server_of(folder, *tools) as server, line(server, version, capabilities) as client:
        yield client


def told(result: Mapping[str, Any]) -> str:
    """The text of a result."""
    return "\n".join(block["text"] for block in result["content"] if block["type"] == "text")


def ui_of(tools: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """What each tool says to hosts that show pages."""
    return {name: each.get("_meta", {}).get("ui", {}) for name, each in tools.items()}


# --- the page and its address


@BOTH
async def test_tools_that_start_name_the_page_and_no_task_tool_does(tmp_path: Path, version: str) -> None:
    async with client_of(tmp_path, version=version) as client:
        shown = ui_of(await client.tools())
    assert {name for name, ui in shown.items() if "resourceUri" in ui} == {"ask", "echo"}
    assert {ui["resourceUri"] for name, ui in shown.items() if name not in TASK_TOOL_NAMES} == {page_uri()}


@BOTH
async def test_the_page_is_read_at_the_address_that_the_tool_names(tmp_path: Path, version: str) -> None:
    async with client_of(tmp_path, version=version) as client:
        uri = (await client.tools())["ask"]["_meta"]["ui"]["resourceUri"]
        result = (await client.send("resources/read", {"uri": uri}))["result"]
    (found,) = result["contents"]
    assert found == {"uri": uri, "mimeType": MIME, "text": page_text(), "_meta": {"ui": {"prefersBorder": True}}}
    assert (
        (result["ttlMs"] > 0, result["cacheScope"]) == (True, "private") if version == MODERN else "ttlMs" not in result
    )


@BOTH
async def test_the_address_of_an_older_version_gets_the_page_of_today(tmp_path: Path, version: str) -> None:
    older = "ui://mcp-workflows/run/0123456789abcdef.html"
    async with client_of(tmp_path, version=version) as client:
        (found,) = (await client.send("resources/read", {"uri": older}))["result"]["contents"]
        assert (found["uri"], found["text"]) == (older, page_text())
        for uri in (
            "ui://mcp-workflows/run/",
            "ui://mcp-workflows/other.html",
            "ui://other/run/1.html",
            page_uri()[:-5],
        ):
            assert "error" in await client.send("resources/read", {"uri": uri})


@pytest.mark.parametrize("uri", [None, 7, [], {"a": 1}, ""])
def test_an_address_that_is_none_is_not_the_pages(uri: object) -> None:
    assert page_at(uri) is None


WRITES_MARKUP = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "srcdoc", "DOMParser", "setHTML")
RUNS_TEXT = ("eval(", "new Function", "javascript:", 'setAttribute("on', "import(")
REACHES_OUT = ("fetch(", "XMLHttpRequest", "WebSocket", "EventSource", "sendBeacon", "window.open", "<link", "@import")
KEEPS = ("localStorage", "sessionStorage", "indexedDB", "document.cookie")
BLOCKS = ("alert(", "confirm(", "prompt(", "reportValidity()")


def code_of(page: str) -> str:
    """The page without the comments of its script."""
    return re.sub(r"(?<!:)//[^\n]*", "", page)


@pytest.mark.parametrize("word", [*WRITES_MARKUP, *RUNS_TEXT, *REACHES_OUT, *KEEPS, *BLOCKS])
def test_the_page_makes_no_markup_of_texts_and_has_neither_network_nor_memory(word: str) -> None:
    assert word not in code_of(page_text())


def test_the_page_loads_nothing() -> None:
    assert re.findall(r"""\b(?:src|href|action)\s*=\s*["']|url\(""", code_of(page_text())) == []


# --- for whom it is


@pytest.mark.parametrize(
    ("version", "capabilities"), list(product([MODERN, OLD, "2025-06-18"], [{}, OTHER_PAGES, {"extensions": TASKS}]))
)
async def test_without_the_declaration_or_with_cards_off_there_is_no_trace(
    tmp_path: Path, version: str, capabilities: Mapping[str, Any]
) -> None:
    """Byte for byte: a server without cards is what there was before there were cards."""
    off = [tool(card="off"), tool("echo", card="off")]
    seen: list[Sequence[str]] = []
    kinds: Sequence[tuple[str, Sequence[Tool], Mapping[str, Any]]] = [("a", [], {}), ("b", off, {}), ("c", off, APPS)]
    for folder, tools, more in kinds:
        (tmp_path / folder).mkdir()
        extensions = {**capabilities.get("extensions", {}), **more}
        declared = {**capabilities, "extensions": extensions} if extensions else capabilities
        async with client_of(tmp_path / folder, *tools, version=version, capabilities=declared) as client:
            seen.append([json.dumps(reply) async for reply in everything(client)])
    assert seen[0] == seen[1] == seen[2]
    assert "ui://" not in "".join(seen[0]).replace(page_uri(), "")
    assert "task_find" not in seen[0][0]


async def everything(client: Line) -> AsyncGenerator[Mapping[str, Any]]:
    """What a card could have changed."""
    yield await client.send("tools/list")
    yield await client.send("resources/list")
    yield await client.send("resources/read", {"uri": page_uri()})
    yield await client.call("task_find", {"tool": "echo", "arguments": {}})
    if client.version == MODERN:
        yield await client.send("server/discover")
    else:
        hello = {"protocolVersion": client.version, "capabilities": {}, "clientInfo": {"name": "raw", "version": "0"}}
        yield await client.send("initialize", hello)


async def test_one_tool_without_a_card_names_no_page_and_no_page_may_call_it(tmp_path: Path) -> None:
    waiting = Tool(**each_of("forever", tasks=TaskSupport.WAIT))
    async with client_of(tmp_path, tool(), tool("echo", card="off"), waiting) as client:
        shown = ui_of(await client.tools())
    assert shown["ask"]["resourceUri"] == page_uri()
    assert shown["echo"] == shown["forever"] == {"visibility": ["model"]}


def each_of(name: str, **more: Any) -> dict[str, Any]:
    """The settings of a tool without a `wait`."""
    return {"name": name, "engine": "memory", "workflow": name, **more}


@BOTH
async def test_a_page_may_call_what_its_task_needs_and_can_start_nothing(tmp_path: Path, version: str) -> None:
    async with client_of(tmp_path, version=version) as client:
        shown = ui_of(await client.tools())
    for_app = {name for name, ui in shown.items() if "app" in ui["visibility"]}
    assert for_app == {"task_status", "task_answer", "task_cancel", "task_find"}
    assert {name for name, ui in shown.items() if "model" not in ui["visibility"]} == {"task_find"}


# --- what a call gives


@BOTH
async def test_a_card_gets_its_handle_soon_however_long_the_tool_would_wait(tmp_path: Path, version: str) -> None:
    async with client_of(tmp_path, tool("forever"), version=version) as client:
        result = await client.tool("forever")
    shown = result["structuredContent"]
    assert shown["status"] == "working"
    assert (shown["pollIntervalMs"] > 0, shown["createdAt"][-1]) == (True, "Z")
    assert "The user sees it in a card where it was started, and can answer or cancel there." in told(result)
    assert shown["next"].startswith(f'call task_wait with {{"taskId": "{shown["taskId"]}"}} for its result')


@BOTH
async def test_the_card_asks_what_the_workflow_asks_also_where_the_client_could(tmp_path: Path, version: str) -> None:
    async with client_of(tmp_path, version=version, capabilities=UI_AND_FORMS) as client:
        handle = await client.tool("ask")
        assert client.asked == []
        shown = handle["structuredContent"]
        assert shown["questions"]["question"]["schema"]["required"] == ["answer"]
        assert "let the user answer in the card, or, if they answer you, call task_answer" in shown["next"]
        answer = {"taskId": shown["taskId"], "key": "question", "content": {"answer": "yes"}}
        await client.tool("task_answer", answer)
        ended = await client.tool("task_wait", {"taskId": shown["taskId"]})
    assert ended["structuredContent"]["status"] == "completed"
    assert "pollIntervalMs" not in ended["structuredContent"]


@BOTH
async def test_with_answers_only_the_model_is_neither_given_nor_told_a_way_to_answer(
    tmp_path: Path, version: str
) -> None:
    async with client_of(tmp_path, tool(card="answers_only"), tool("echo"), version=version) as client:
        shown = ui_of(await client.tools())
        assert shown["task_answer"] == shown["task_cancel"] == {"visibility": ["app"]}
        assert shown["task_status"] == {"visibility": ["model", "app"]}
        handle = await client.tool("ask")
        assert handle["structuredContent"]["questions"]["question"]["message"] == "question?"  # for the card
        assert "- question?" in told(handle)
        assert "can answer or cancel only there" in told(handle)
        assert "task_answer" not in told(handle) + handle["structuredContent"]["next"]


class Linked(MemoryAdapter):
    """An engine with a page for each execution, or something else that it calls so."""

    page = "https://engine.example/1"

    async def describe(self, ref: Ref) -> Execution:
        """The execution with its page, and a message that means no good."""
        return replace(await super().describe(ref), url=self.page, message=HOSTILE)


class Crooked(Linked):
    """An engine whose pages are no pages."""

    page = "javascript:alert(1)"


@pytest.mark.parametrize(("adapter", "shown"), [(Linked, Linked.page), (Crooked, None)])
async def test_texts_of_a_workflow_reach_the_card_as_texts_and_only_pages_as_links(
    tmp_path: Path, adapter: type[Linked], shown: str | None
) -> None:
    engines = {"memory": adapter(MemorySettings(name=str(tmp_path)))}
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with (
        site(store=store, tools=[tool("forever")], adapters=engines) as found,
        peer(found.url, capabilities=UI) as client,
    ):
        content = (await client.call("forever")).result["structuredContent"]
    assert (content["message"], content.get("url")) == (HOSTILE, shown)


async def test_a_server_with_pages_of_its_own_keeps_them(tmp_path: Path) -> None:
    apps, uri = Apps(), "ui://own/page.html"
    apps.add_html_resource(uri, "<!doctype html>own")

    @apps.tool(resource_uri=uri)
    async def show() -> str:  # pyright: ignore[reportUnusedFunction]  # the decorator took it
        """Show the server's own page."""
        return "shown"

    server: MCPServer[None] = MCPServer("own", extensions=[apps])
    engines = {"memory": MemoryAdapter(MemorySettings(name=str(tmp_path)))}
    workflows = attach(server, tools=[tool()], engines=engines, store=f"sqlite:///{tmp_path}/tasks.db")
    extension = advertise("io.modelcontextprotocol/ui", {"mimeTypes": [MIME]})
    async with workflows, Client(server, extensions=[extension]) as client:
        tools = {each.name: (each.meta or {}).get("ui", {}) for each in (await client.list_tools()).tools}
        assert (tools["show"]["resourceUri"], tools["ask"]["resourceUri"]) == (uri, page_uri())
        for address, text in ((uri, "<!doctype html>own"), (page_uri(), page_text())):
            (found,) = (await client.read_resource(address)).contents
            assert isinstance(found, types.TextResourceContents)
            assert found.text == text


# --- a card that has lost its task


@BOTH
async def test_a_card_that_lost_its_task_finds_the_newest_of_its_call(tmp_path: Path, version: str) -> None:
    async with client_of(tmp_path, tool("sleep"), tool("forever"), version=version) as client:
        arguments = {"seconds": 60, "note": "é"}
        first = (await client.tool("sleep", arguments))["structuredContent"]["taskId"]
        await client.tool("sleep", {"seconds": 61})
        sought: Mapping[str, Any] = {"tool": "sleep", "arguments": {"note": "é", "seconds": 60}}  # in any order
        assert (await client.tool("task_find", sought))["structuredContent"]["taskId"] == first
        second = (await client.tool("sleep", arguments))["structuredContent"]["taskId"]
        assert (await client.tool("task_find", sought))["structuredContent"]["taskId"] == second
        for wrong in ({"tool": "forever"}, {"tool": "nobody_knows"}):
            missing = await client.tool("task_find", {**sought, **wrong})
            assert missing["isError"]
            assert "Task not found" in told(missing)


async def test_task_find_is_there_for_clients_that_show_pages_alone(tmp_path: Path) -> None:
    sought: Mapping[str, Any] = {"tool": "echo", "arguments": {}}
    async with server_of(tmp_path) as server, line(server, MODERN, {}) as other, line(server, MODERN, UI) as client:
        assert "Unknown tool" in (await other.call("task_find", sought))["error"]["message"]
        assert "task_find" in await client.tools()


ALICE, BOB = "alice+orders:write", "bob+orders:approve"
RULES: Mapping[str, Any] = {
    "call": {"scopes": ["orders:write"]},
    "see": {},
    "answer": {"scopes": ["orders:approve"], "not_owner": True},
    "cancel": {},
}


@asynccontextmanager
async def callers(folder: Path, *tools: Tool, authenticated: bool = True) -> AsyncGenerator[Sequence[Peer]]:
    """Alice and Bob in hosts that show pages, and heed nothing of what the list says of them."""
    async with (
        site(
            store=f"sqlite:///{folder}/tasks.db",
            tools=tools,
            adapters={"memory": MemoryAdapter(MemorySettings(name=str(folder)))},
            authenticated=authenticated,
        ) as found,
        peer(found.url, token=ALICE, capabilities=UI) as alice,
        peer(found.url, token=BOB, capabilities=UI) as bob,
    ):
        yield alice, bob


async def test_a_card_finds_no_task_of_somebody_else(tmp_path: Path) -> None:
    sought: Mapping[str, Any] = {"tool": "forever", "arguments": {"order": 1}}
    async with callers(tmp_path, tool("forever")) as (alice, bob):
        theirs = (await alice.call("forever", sought["arguments"])).result["structuredContent"]["taskId"]
        missing = (await bob.call("task_find", sought)).result
        never = (await bob.call("task_find", {**sought, "arguments": {"order": 2}})).result
        assert without_ids(missing) == without_ids(never)
        assert missing["isError"]
        assert (await alice.call("task_find", sought)).result["structuredContent"]["taskId"] == theirs


def without_ids(result: Params) -> Params:
    """A result without the envelope."""
    return {**result, "_meta": None}


async def test_a_caller_who_may_not_see_its_task_does_not_find_it(tmp_path: Path) -> None:
    hidden = {**RULES, "see": {"scopes": ["orders:audit"]}}
    async with callers(tmp_path, tool("forever", allow=hidden)) as (alice, _):
        await alice.call("forever")
        found = (await alice.call("task_find", {"tool": "forever", "arguments": {}})).result
        assert found["isError"]
        assert "Task not found" in told(found)


async def test_a_host_that_ignores_for_whom_a_tool_is_gets_past_no_rule(tmp_path: Path) -> None:
    async with callers(tmp_path, tool(allow=RULES, card="answers_only")) as (alice, bob):
        shown = (await alice.call("ask")).result["structuredContent"]
        assert (shown["status"], shown["waitsFor"]) == ("working", "somebody else's answer")
        assert "questions" not in shown
        answer = {"taskId": shown["taskId"], "content": {"answer": "yes"}}
        refused = (await alice.call("task_answer", answer)).result
        assert refused["isError"]
        assert "somebody else must answer" in told(refused)
        stopped = (await bob.call("task_cancel", {"taskId": shown["taskId"]})).result
        assert stopped["isError"]
        assert not (await bob.call("task_answer", answer)).result.get("isError")
        seen = (await alice.call("task_wait", {"taskId": shown["taskId"]})).result["structuredContent"]
        assert (seen["status"], "waitsFor" in seen) == ("completed", False)


# --- the setting


@pytest.mark.parametrize(
    ("written", "card"),
    [("on", Card.ON), ("off", Card.OFF), ("answers_only", Card.ANSWERS_ONLY), ("true", Card.ON), ("false", Card.OFF)],
)
def test_the_setting_is_read_as_people_write_it(tmp_path: Path, written: str, card: Card) -> None:
    tools = f"{{one: {{engine: here, workflow: echo, card: {written}}}}}"
    assert config_of(tmp_path, f"tools: {tools}") == {"one": card}


def config_of(folder: Path, text: str) -> Mapping[str, Card]:
    """The cards of the tools of a configuration."""
    path = folder / "workflows.yaml"
    path.write_text(f"engines: {{here: {{adapter: memory}}}}\n{text}")
    return {each.name: each.effective_card for each in load_config(path, {}).tools}


@pytest.mark.parametrize("more", [{"tasks": "wait"}, {"tasks": "required"}])
def test_a_tool_that_hands_nothing_over_has_no_card_to_set(more: Mapping[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"card: only with .*; remove it"):
        Tool.model_validate({**each_of("echo"), "card": "on", **more})
