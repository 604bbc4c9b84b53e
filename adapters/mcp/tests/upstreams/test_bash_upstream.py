"""bash-command-mcp as it is: what the adapter reads of it, and how it fails."""

from __future__ import annotations

from pathlib import Path

import anyio
import psutil
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from adapters.mcp.tests.upstreams.bash_upstream import Commands, pids
from adapters.mcp.tests.upstreams.upstream import error_of, reply_of

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return Commands(folder=tmp_path)


async def started(client: Client, command: str) -> int:
    reply = await reply_of(client, "run_background", command=command)
    assert reply.startswith("Started background process.\nPID: ")
    assert "\nSTATUS: running\nEXIT_CODE: N/A\nSIGNAL: N/A\n" in reply
    [pid] = pids(reply)
    return pid


async def looked_at(client: Client, pid: int, *, until: str) -> str:
    """Return what it says of this process, once that has this line."""
    with anyio.fail_after(10):
        while f"\n{until}\n" not in (reply := await reply_of(client, "tail_background", pid=pid, lines=5)):
            await anyio.sleep(0.02)
    return reply


async def test_a_command_is_started_and_looked_at_until_it_has_ended(commands: Commands) -> None:
    async with Client(commands.server().parameters) as client:
        pid = await started(client, commands.waiting("build", "echo built; exit 3"))
        running = await looked_at(client, pid, until="STATUS: running")
        assert running.endswith("\n\nSTDOUT_TAIL:\n<empty>\n\nSTDERR_TAIL:\n<empty>")
        assert pids(await reply_of(client, "list_background")) == [pid]

        commands.finish("build")
        ended = await looked_at(client, pid, until="STATUS: exited")
        assert "\nEXIT_CODE: 3\n" in ended
        assert ended.endswith("\n\nSTDOUT_TAIL:\nbuilt\n\nSTDERR_TAIL:\n<empty>")
    assert commands.starts("build") == 1


async def test_a_command_is_killed_and_killing_it_again_does_nothing(commands: Commands) -> None:
    async with Client(commands.server().parameters) as client:
        pid = await started(client, commands.waiting("build"))
        killed = await reply_of(client, "kill_background", pid=pid)
        assert killed.startswith(f"Sent SIGTERM to background process {pid}.\nPID: {pid}\nSTATUS: killed\n")
        again = await reply_of(client, "kill_background", pid=pid)
        assert again.startswith(f"Process {pid} is already killed.\n")


async def test_killed_is_what_it_says_although_the_command_goes_on(commands: Commands) -> None:
    stubborn = f"trap '' TERM; {commands.waiting('build')}"
    async with Client(commands.server().parameters) as client:
        pid = await started(client, stubborn)
        while not commands.starts("build"):
            await anyio.sleep(0.02)
        await reply_of(client, "kill_background", pid=pid)
        await looked_at(client, pid, until="STATUS: killed")
        assert psutil.Process(pid).is_running()
        commands.finish("build")


async def test_errors_are_prose(commands: Commands) -> None:
    async with Client(commands.server().parameters) as client:
        unknown = "No tracked background process found for PID 1."
        assert await error_of(client, "tail_background", pid=1) == unknown
        assert await error_of(client, "kill_background", pid=1) == unknown
        assert await error_of(client, "run_background") == 'Either "command" or "cmd" must be provided.'
        text = await error_of(client, "tail_background", pid="7")
        assert text.startswith("MCP error -32602: Input validation error: Invalid arguments for tool tail_background")
        assert await error_of(client, "nothing") == "MCP error -32602: Tool nothing not found"
        assert await reply_of(client, "list_background") == "No tracked background processes."


async def test_a_new_process_of_it_knows_nothing_of_the_commands_that_go_on(commands: Commands) -> None:
    server = commands.server()
    async with Client(server.parameters) as client:
        pid = await started(client, commands.waiting("build"))
        while not commands.starts("build"):
            await anyio.sleep(0.02)
    assert server.processes() == []
    async with Client(server.parameters) as client:
        assert (
            await error_of(client, "tail_background", pid=pid) == f"No tracked background process found for PID {pid}."
        )
    assert psutil.Process(pid).is_running()
    commands.finish("build")


async def test_a_folder_that_is_not_there_ends_the_whole_server(commands: Commands) -> None:
    server = commands.server()
    async with Client(server.parameters) as client:
        refused = await error_of(client, "run_background", command="true", cwd="/nowhere")
        assert refused == "Failed to start background process:\nfailed to start process (missing pid)"
        with anyio.fail_after(10):
            while server.processes():
                await anyio.sleep(0.02)
        with pytest.raises(MCPError, match="Connection closed"):
            await client.list_tools()
