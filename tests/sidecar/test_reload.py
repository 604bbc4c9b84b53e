"""Reload on save: what clients see and hear of it, and what becomes of tasks, calls and engines."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.subscriptions import ToolsListChanged

from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import ConfigError, EngineUnavailable
from mcp_workflows.receiver.task_tools.definitions import TASK_TOOL_NAMES
from mcp_workflows.sidecar.app import Sidecar, build, http_app
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.reload import Reloader, files_of
from tests.support.child_processes import free_port
from tests.support.commands import COMMAND
from tests.support.served import Peer, Reply, peer, serving
from tests.support.sidecars import Process

pytestmark = pytest.mark.anyio

HEAD = "server: {name: dev}\nstore: sqlite:///tasks.db\n"
HERE = "engines:\n  here: {adapter: memory}\n"
BOTH = HERE + "  there: {adapter: memory, name: elsewhere}\n"
ECHO = "tools:\n  echo: {engine: here, workflow: echo}\n"
MORE = "  ask: {engine: here, workflow: ask}\n  forever: {engine: here, workflow: forever}\n"
SLEEP = "  sleep: {engine: here, workflow: sleep, input: {type: object}}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A sidecar whose configuration is edited."""

    path: Path
    sidecar: Sidecar
    reloading: Reloader
    client: Peer

    async def save(self, text: str) -> None:
        self.path.write_text(text)
        await self.reloading.reload(self.sidecar)

    async def listed(self) -> Sequence[str]:
        return [tool["name"] for tool in (await self.client.send("tools/list")).result["tools"]]


@asynccontextmanager
async def edited(folder: Path, text: str) -> AsyncGenerator[Stage]:
    path = folder / "workflows.yaml"
    path.write_text(text)
    config = load_config(path, {})
    sidecar, reloading = build(config), Reloader(path, config, {})
    async with serving(http_app(sidecar, config, "127.0.0.1", 0)) as url, peer(url) as client:
        yield Stage(path=path, sidecar=sidecar, reloading=reloading, client=client)


def errors(caplog: pytest.LogCaptureFixture, level: int = logging.ERROR) -> Sequence[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "mcp_workflows.sidecar.reload" and record.levelno == level
    ]


async def test_a_bad_edit_changes_nothing_and_all_that_is_wrong_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with edited(tmp_path, HEAD + HERE + ECHO) as stage:
        await stage.save(HEAD + HERE + ECHO + "  ask: {engine: her, workflow: ask}\n  say: {}\n")
        [said] = errors(caplog)
        assert said.startswith("not reloaded; the last good configuration stays:\n")
        assert [line.rpartition(":")[0].partition(": ")[0] for line in said.splitlines()[1:]] == [
            f"{stage.path}:{line}" for line in (7, 8, 8)
        ]
        assert await stage.listed() == ["echo"]
        await stage.save("tools: [")
        stage.path.unlink()
        await stage.reloading.reload(stage.sidecar)
        assert len(errors(caplog)) == 3
        assert (await stage.client.call("echo")).result["resultType"] == "task"


async def test_what_needs_a_restart_is_said_and_not_done(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with edited(tmp_path, HEAD + HERE + ECHO) as stage:
        await stage.save(HEAD.replace("dev", "other").replace("tasks.db", "others.db") + HERE + ECHO + MORE)
        assert await stage.listed() == ["echo", "ask", "forever"]
        assert errors(caplog, logging.WARNING) == [
            f"{section} has changed: restart the server to apply this" for section in ("server", "store")
        ]
    assert not (tmp_path / "others.db").exists()


async def test_a_task_of_a_removed_tool_is_read_answered_and_cancelled(tmp_path: Path) -> None:
    async with edited(tmp_path, HEAD + HERE + ECHO + MORE) as stage:
        client = stage.client
        asking, endless = [(await client.call(tool)).result["taskId"] for tool in ("ask", "forever")]
        await stage.save(HEAD + HERE + ECHO)
        unknown = await client.call("ask")
        assert (unknown.code, unknown.error["message"]) == (-32602, "Unknown tool: ask")
        seen = await client.until(asking, "input_required")
        await client.answer(asking, **{key: _accept("yes") for key in seen["inputRequests"]})
        assert (await client.until(asking))["status"] == "completed"
        await client.send("tasks/cancel", {"taskId": endless})
        assert (await client.until(endless))["status"] == "cancelled"


async def test_a_task_on_a_removed_engine_says_so_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    tools = ECHO + "  forever: {engine: there, workflow: forever}\n  ask: {engine: there, workflow: ask}\n"
    async with edited(tmp_path, HEAD + BOTH + tools) as stage:
        client = stage.client
        endless, asking = [(await client.call(tool)).result["taskId"] for tool in ("forever", "ask")]
        [key] = (await client.until(asking, "input_required"))["inputRequests"]
        await stage.save(HEAD + HERE + ECHO)
        gone = await _until_gone(client, endless)
        assert gone["status"] == "working"
        assert gone["statusMessage"].startswith("engine there: it is no longer in the configuration; last known: ")
        refused = await client.answer(asking, **{key: _accept("yes")})
        assert "engine there did not accept the answer: it is no longer in the configuration" in str(refused.error)
        await client.send("tasks/cancel", {"taskId": endless})
        await stage.save(HEAD + BOTH + tools)
        assert (await client.until(endless))["status"] == "cancelled"
        await client.answer(asking, **{key: _accept("yes")})
        assert (await client.until(asking))["status"] == "completed"


async def _until_gone(client: Peer, task_id: str) -> Any:  # any JSON value
    with anyio.fail_after(60):
        while "no longer in the configuration" not in (seen := await client.get(task_id)).get("statusMessage", ""):
            await anyio.sleep(0.05)
    return seen


def _accept(answer: str) -> Any:  # any JSON value
    return {"action": "accept", "content": {"answer": answer}}


async def test_a_call_under_way_finishes_although_its_tool_is_removed(tmp_path: Path) -> None:
    replies: list[Reply] = []
    async with edited(tmp_path, HEAD + HERE + ECHO + SLEEP) as stage:

        async def wait() -> None:
            replies.append(await stage.client.call("sleep", {"seconds": 1}, capabilities={}))

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            engine = stage.sidecar.workflows.adapters["here"]
            assert isinstance(engine, MemoryAdapter)
            known = len(engine.handles)
            with anyio.fail_after(60):
                while len(engine.handles) == known:
                    await anyio.sleep(0.01)
            await stage.save(HEAD + HERE + ECHO)
    assert replies[0].result["structuredContent"] == {"slept": 1}


class Door(MemoryAdapter):
    """Writes down when it is opened and closed; one that is `jammed` cannot be opened."""

    def __init__(self, name: str, log: list[str], jammed: Exception | None = None) -> None:
        super().__init__(MemorySettings())
        self.name, self.log, self.jammed = name, log, jammed

    async def __aenter__(self) -> MemoryAdapter:
        if self.jammed:
            raise self.jammed
        self.log.append(f"{self.name} opened")
        return await super().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.log.append(f"{self.name} closed")


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():
            await anyio.sleep(0.005)


async def test_a_removed_engine_is_closed_when_its_last_call_is_over() -> None:
    log: list[str] = []
    old, new, kept = Door("old", log), Door("new", log), Door("kept", log)
    async with Engines({"a": old, "b": kept}) as engines:
        async with engines.calling("a") as under_way:
            engines.use(await engines.opened({"a": new, "b": kept}))
            async with engines.calling("a") as next_one:
                assert (under_way, next_one) == (old, new)
            await anyio.wait_all_tasks_blocked()
            assert log == ["old opened", "kept opened", "new opened"]
        await until(lambda: log[-1] == "old closed")
        engines.use(await engines.opened({"b": kept}))
        await until(lambda: log[-1] == "new closed")
        with pytest.raises(EngineUnavailable, match="no longer in the configuration"):
            async with engines.calling("a"):
                pass
    assert log[-1] == "kept closed"
    assert len(log) == 6


@pytest.mark.parametrize(
    ("jammed", "complaint"),
    [(ConfigError("no such file"), "no such file"), (OSError("x"), r"cannot be opened \(OSError\)")],
)
async def test_an_engine_that_cannot_be_opened_leaves_all_as_it_was(jammed: Exception, complaint: str) -> None:
    log: list[str] = []
    old, fine = Door("old", log), Door("fine", log)
    async with Engines({"a": old}) as engines:
        with pytest.raises(ConfigError, match=complaint):
            await engines.opened({"a": old, "b": fine, "c": Door("jammed", log, jammed)})
        await until(lambda: log[-1] == "fine closed")
        assert engines.adapters == {"a": old}
    assert log == ["old opened", "fine opened", "fine closed", "old closed"]


CODE = """
from temporalio import workflow

@workflow.defn
class Flow:
    @workflow.run
    async def run(self, {name}: str) -> None: ...
"""


async def test_edited_code_and_schemas_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    code, schema = tmp_path / "edited_flow.py", tmp_path / "schemas" / "flow.json"
    schema.parent.mkdir()
    schema.write_text('{"type": "object"}')
    code.write_text(CODE.format(name="first"))
    text = f"""{HEAD}engines: {{t: {{adapter: temporal, task_queue: q}}}}
tools:
  code: {{engine: t, workflow: Flow, input: edited_flow:Flow}}
  file: {{engine: t, workflow: Flow, input: ./schemas/flow.json}}
"""
    async with edited(tmp_path, text) as stage:
        assert files_of(stage.path, {}) == {stage.path, code, schema}
        code.write_text(CODE.format(name="another"))
        schema.write_text('{"type": "object", "properties": {"a": {}}}')
        await stage.reloading.reload(stage.sidecar)
        inputs = {name: tool.input["properties"].keys() for name, tool in stage.sidecar.workflows.tools.items()}
        assert inputs == {"code": {"another"}, "file": {"a"}}


# --- the command


@asynccontextmanager
async def developing(config: Path) -> AsyncGenerator[Process]:
    port = free_port()
    process = Process([COMMAND, "dev", str(config), "--http", str(port)], port, config.with_suffix(".log"))
    try:
        await anyio.to_thread.run_sync(process.wait_until_ready)
        yield process
    finally:
        process.stop()


@pytest.mark.usefixtures("processes")
async def test_clients_of_both_eras_hear_of_changed_tools(tmp_path: Path) -> None:
    config = tmp_path / "workflows.yaml"
    config.write_text(HEAD + HERE + ECHO)
    heard: list[str] = []

    async def hear(message: Any) -> None:  # Any: whatever the client gets
        heard.append(getattr(message, "method", ""))

    async with (
        developing(config) as process,
        Client(process.url) as new,
        Client(process.url, mode="legacy", message_handler=hear) as old,
    ):
        for client in (new, old):
            assert client.server_capabilities.tools
            assert client.server_capabilities.tools.list_changed
        async with new.listen(tools_list_changed=True) as listening:
            config.write_text(HEAD + HERE + "tools: {}")
            await _until_logged(process, "not reloaded; the last good configuration stays")
            config.write_text(HEAD + HERE + ECHO + MORE)
            with anyio.fail_after(60):
                assert await anext(aiter(listening)) == ToolsListChanged()
        await until(lambda: "notifications/tools/list_changed" in heard)
        for client in (new, old):
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert [name for name in names if name not in TASK_TOOL_NAMES] == ["echo", "ask", "forever"]
        assert "tool ask, forever added" in process.log.read_text()
    assert "Traceback" not in process.log.read_text()


async def _until_logged(process: Process, text: str) -> None:
    await until(lambda: text in process.log.read_text())


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=pytest.mark.slow)])
async def test_a_host_that_starts_it_itself_hears_of_changed_tools_too(tmp_path: Path, mode: Any) -> None:
    config = tmp_path / "workflows.yaml"
    config.write_text(HEAD + HERE + ECHO)
    server = StdioServerParameters(command=COMMAND, args=["dev", str(config), "--stdio"])
    changed = anyio.Event()

    async def hear(message: Any) -> None:  # Any: whatever the client gets
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            changed.set()

    async with Client(stdio_client(server), mode=mode, message_handler=hear) as client:
        if mode == "legacy":
            config.write_text(HEAD + HERE + ECHO + MORE)
            with anyio.fail_after(60):
                await changed.wait()
        else:
            async with client.listen(tools_list_changed=True) as listening:
                config.write_text(HEAD + HERE + ECHO + MORE)
                with anyio.fail_after(60):
                    await anext(aiter(listening))
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names - TASK_TOOL_NAMES == {"echo", "ask", "forever"}
