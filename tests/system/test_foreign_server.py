"""Our client against a server of the tasks extension that we did not write: FastMCP's."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from mcp.client import Client

from mcp_workflows import TasksClient
from mcp_workflows.client import TaskHandle, TaskState, reconnecting_http
from mcp_workflows.client.requests import TaskNotFound
from mcp_workflows.errors import TaskCancelled
from tests.support.child_processes import free_port, is_taken
from tests.support.environments import FASTMCP, ROOT, python_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def url(tmp_path: Path) -> Generator[str]:
    """The server, listening."""
    port = free_port()
    python = python_of("fastmcp", FASTMCP)
    script = ROOT / "tests" / "clients" / "programs" / "fastmcp_server.py"
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen([str(python), str(script), str(port)], stdout=log, stderr=log, cwd=tmp_path)
    try:
        deadline = time.monotonic() + 60
        while not is_taken(port):
            assert process.poll() is None, (tmp_path / "server.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait(60)


async def test_its_tasks_are_followed_to_their_results(url: str) -> None:
    seen: list[str] = []

    async def see(state: TaskState) -> None:
        seen.append(state.status)

    async with Client(url, extensions=[TasksClient(on_status=see)]) as client:
        result = await client.call_tool("slow", {"seconds": 0.5})
        assert (result.structured_content, seen) == ({"result": "slept 0.5"}, ["working", "completed"])
        assert (await client.call_tool("fail")).is_error


async def test_its_tasks_have_handles(url: str) -> None:
    tasks = TasksClient()
    async with Client(reconnecting_http(url), extensions=[tasks]) as client:
        handle = await tasks.start(client, "slow", {"seconds": 60})
        assert isinstance(handle, TaskHandle)
        assert (await handle.status()).status == "working"
        await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle.result()
        assert [state.status async for state in handle.updates()] == ["cancelled"]
        with pytest.raises(TaskNotFound):
            await tasks.handle(client, "nonsense").status()
