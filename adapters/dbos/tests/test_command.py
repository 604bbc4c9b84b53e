"""`mcp-workflows dev app.py`: a file of plain functions is served, and started again when it is saved."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp_types as types
import psutil
import pytest
from mcp.client import Client, ClientRequestContext
from mcp.shared.exceptions import MCPError

from mcp_workflows.client import TasksClient
from mcp_workflows.sidecar.config.load import load_config
from tests.support import commands
from tests.support.child_processes import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("processes")]

PAGE = Path(__file__).parents[3] / "docs" / "engines" / "dbos.md"
CODE = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
YAML = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
PATIENCE = 60  # seconds


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of the quick start."""
    found = tmp_path / "app.py"
    found.write_text(CODE[0])
    return found


def command(file: Path, *words: str) -> Sequence[str]:
    return [sys.executable, "-m", "mcp_workflows", words[0], file.name, *words[1:]]


@contextmanager
def developing(file: Path) -> Generator[tuple[str, Callable[[], None]]]:
    """`dev` for this file; yields its URL, and what kills it."""
    port = free_port()
    words = command(file, "dev", "--http", f"127.0.0.1:{port}")
    with (file.parent / "log").open("wb") as log:
        process = commands.start(words, cwd=file.parent, stderr=log)
        try:
            yield f"http://127.0.0.1:{port}/mcp", process.kill
        finally:
            process.terminate()  # as Ctrl-C does, which a shell in the background has switched off
            process.wait(PATIENCE)


async def tools(url: str) -> dict[str, Any]:
    """The tools that are listed now, by name; none while nothing is served, or the process ends."""
    found: dict[str, Any] = {}
    try:
        async with httpx2.AsyncClient() as http:
            await http.get(url.removesuffix("/mcp") + "/readyz")
        async with Client(url) as client:
            found = {tool.name: tool for tool in (await client.list_tools()).tools}
    except* (httpx2.TransportError, MCPError):
        pass
    return found


async def until_offered(url: str, *names: str) -> dict[str, Any]:
    with anyio.fail_after(PATIENCE):
        while not (found := await tools(url)).keys() >= set(names):
            await anyio.sleep(0.1)
    return found


async def test_a_file_is_served_with_schemas_until_dev_is_killed_and_a_question_is_answered(file: Path) -> None:
    with developing(file) as (url, kill):
        order = (await until_offered(url, "order"))["order"]
        assert order.description == "Charge a card for an order, once a person agrees."
        assert order.input_schema["required"] == ["order_id"]
        assert order.input_schema["properties"]["amount"] == {"type": "integer", "default": 20}
        asked: list[str] = []

        async def accept(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
            asked.append(params.message)
            return types.ElicitResult(action="accept", content={})

        tasks = TasksClient(on_elicitation=accept)
        async with Client(url, extensions=[tasks]) as client:
            [listed] = (await client.list_tools()).tools
            assert listed.output_schema == {"type": "object", "additionalProperties": {"type": "string"}}
            result = await client.call_tool("order", {"order_id": "A-1"})
        assert result.structured_content == {"charged": "receipt of 20 for A-1"}
        assert asked == ["Charge 20 for order A-1?"]
        kill()
        with anyio.fail_after(PATIENCE):  # the server that it has started ends by itself
            while await tools(url):
                await anyio.sleep(0.1)


async def test_after_a_mistake_dev_waits_for_the_next_save_and_the_port_is_free_at_the_end(file: Path) -> None:
    save(file, CODE[0].replace("async def order", "async def task_wait"))
    with developing(file) as (url, _):
        await until_logged(file, "restarts when a Python file here is saved")
        assert f"{file}:11: tools.task_wait: this name is reserved for a task tool" in log_of(file)
        save(file, CODE[0])
        await until_offered(url, "order")
        save(file, "import nobody_wrote_this\n")
        await until_logged(file, f"{file}:1: ModuleNotFoundError")
        save(file, CODE[0].replace("async def order", "async def reorder"))
        assert "order" not in await until_offered(url, "reorder")
    assert await tools(url) == {}
    assert "Traceback" not in log_of(file)


TOOLS = """
import socket

from mcp_workflows_dbos import tool

tool(
    order,
    title="Order a cake",
    description="Order one.",
    wait="2s",
    annotations={"destructiveHint": True},
)


@DBOS.workflow()
async def bare(sock: socket.socket) -> None: ...


@DBOS.workflow()
async def mistyped() -> None: ...


tool(mistyped, titel="Typo")


@DBOS.workflow()
async def task_wait() -> None: ...


@DBOS.workflow()
async def _private() -> None: ...


@DBOS.workflow()
async def nightly() -> None: ...


tool(nightly, expose=False)
"""
NO_TOOLS = {
    "async def bare": "bare: no JSON Schema for the type hint of sock",
    "async def mistyped": "tools.mistyped.titel: ",
    "async def task_wait": "tools.task_wait: this name is reserved for a task tool",
}


async def test_functions_that_cannot_be_tools_are_reported_with_their_lines_and_the_others_served(file: Path) -> None:
    save(file, text := CODE[0] + TOOLS)
    lines = text.splitlines()
    line_of = {code: next(n for n, line in enumerate(lines) if line.startswith(code)) for code in NO_TOOLS}
    told = [f"not offered: {file}:{line_of[code]}: {why}" for code, why in NO_TOOLS.items()]  # the decorator's line
    with developing(file) as (url, _):
        found = await until_offered(url, "order")
        log = log_of(file)
    assert {name for name in found if not name.startswith("task_")} <= {"order", "my_tasks"}
    order = found["order"]
    assert (order.title, order.description) == ("Order a cake", "Order one.")
    assert order.annotations.destructive_hint is True
    assert [line for line in told if line not in log] == []
    checked = commands.run(command(file, "check"), cwd=file.parent)
    assert checked.returncode == 1
    assert [line for line in told if line not in checked.stdout] == []
    assert f"{len(told)} problems" in checked.stdout + checked.stderr
    made = commands.run(command(file, "init"), cwd=file.parent)
    assert made.returncode == 0, made.stderr
    config = (file.parent / "workflows.yaml").read_text()
    assert 'wait: "2s"' in config
    assert [line for line in told if f"# {line}" not in config] == []


async def until_logged(file: Path, said: str) -> None:
    with anyio.fail_after(PATIENCE):
        while said not in log_of(file):
            await anyio.sleep(0.1)


@pytest.mark.parametrize("made", [True, False], ids=["taken", "no file"])
def test_dev_ends_if_no_save_could_help(file: Path, made: bool) -> None:
    if not made:
        file.unlink()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = command(file, "dev", "--http", f"127.0.0.1:{taken.getsockname()[1]}")
        done = commands.run(words, cwd=file.parent)
    assert done.returncode == 1
    assert ("choose another with --http HOST:PORT" if made else "app.py: no such file") in done.stderr


FORKS = """
import os, signal, time

signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)


@DBOS.workflow()
def fork() -> dict[str, int]:
    if (child := os.fork()) == 0:
        while True:
            time.sleep(1)
    return {"child": child}
"""


async def test_a_file_that_forks_and_handles_signals_is_ended_with_all_it_started(file: Path) -> None:
    save(file, CODE[0] + FORKS)
    with developing(file) as (url, _):
        await until_offered(url, "fork")
        async with Client(url, extensions=[TasksClient()]) as client:
            started = (await client.call_tool("fork", {})).structured_content
    assert started
    with anyio.fail_after(PATIENCE):
        while psutil.pid_exists(started["child"]):
            await anyio.sleep(0.1)
    assert await tools(url) == {}


def save(file: Path, text: str) -> None:
    file.write_text(text)


def log_of(file: Path) -> str:
    return (file.parent / "log").read_text()


def test_init_writes_the_configuration_that_the_file_has_without_one(file: Path) -> None:
    done = commands.run(command(file, "init"), cwd=file.parent)
    assert "workflows.yaml: written" in done.stdout, done.stderr
    checked = commands.run([sys.executable, "-m", "mcp_workflows", "check"], cwd=file.parent)
    assert (checked.returncode, "everything is fine" in checked.stdout) == (0, True), checked.stderr
    again = commands.run(command(file, "init"), cwd=file.parent)
    assert (again.returncode, "already exists" in again.stderr) == (1, True)


def test_a_workflow_that_the_function_contradicts_is_refused(file: Path) -> None:
    commands.run(command(file, "init"), cwd=file.parent)
    config = file.parent / "workflows.yaml"
    config.write_text(config.read_text().replace("workflow: order", "workflow: odrer"))
    checked = commands.run([sys.executable, "-m", "mcp_workflows", "check"], cwd=file.parent)
    assert checked.returncode == 1
    assert "tools.order.workflow: app:order is the workflow 'order', and not 'odrer'" in checked.stderr


@pytest.mark.parametrize("block", YAML)
def test_a_block_of_the_page_is_a_configuration(file: Path, block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "input: app:order" in block:  # another module `app` may be loaded in this process
        block = re.sub(r"\bapp:order", "page_app:order", block).replace("module: app", "module: page_app")
        (file.parent / "page_app.py").write_text(CODE[0])
        monkeypatch.setattr(sys, "path", [str(file.parent), *sys.path])
    config = file.parent / "workflows.yaml"
    config.write_text(block)
    loaded = load_config(config, {"DBOS_SYSTEM_DATABASE_URL": "postgresql://me@127.0.0.1/dbos"})
    assert [tool.name for tool in loaded.tools] == ["order"]


FORM = """
from dbos import DBOS
from mcp_workflows_dbos import ask
from pydantic import BaseModel


class Approval(BaseModel):
    ship: bool


@DBOS.workflow()
async def approve(order_id: str) -> bool:
    answer = await ask(f"Ship {order_id}?", Approval)
    return answer.accepted and answer.content["ship"]
"""


def test_a_model_is_a_form(tmp_path: Path) -> None:
    file = tmp_path / "approval.py"
    file.write_text(FORM)
    done = commands.run(command(file, "check"), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
