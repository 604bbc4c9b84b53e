"""A server of FastMCP that offers tasks itself, in 2026-07-28: the extension io.modelcontextprotocol/tasks.

Its tasks are in its memory, and gone with its process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from adapters.mcp.tests.upstreams.upstream import Upstream, UpstreamOverHttp
from tests.support.environments import FASTMCP, python_of

CONFIG: Final[Mapping[str, Any]] = {"adapter": "mcp", "command": ["python", "server.py"]}

_SERVER: Final = '''
import asyncio
import sys
from pathlib import Path

import mcp_types as types
from fastmcp import Context, FastMCP
from fastmcp_tasks import TasksExtension

FOLDER = Path(__file__).parent
FORM = {"type": "object", "properties": {"approved": {"type": "boolean"}}, "required": ["approved"]}

server = FastMCP("with-tasks")
server.add_extension(TasksExtension(url="memory://", concurrency=50))


@server.tool(task=True)
async def build(name: str) -> dict:
    """Runs until there is the file NAME.go."""
    with (FOLDER / f"{name}.started").open("a") as started:
        started.write("started\\n")
    while not (FOLDER / f"{name}.go").exists():
        await asyncio.sleep(0.05)
    return {"built": name}


@server.tool(task=True)
async def fail() -> str:
    """Does not work."""
    raise ValueError("no luck")


@server.tool(task=True)
async def release(version: str, ctx: Context) -> str | types.InputRequiredResult:
    """Asks before it releases."""
    answer = (ctx.input_responses or {}).get("approve")
    if answer is None:
        params = types.ElicitRequestFormParams(message=f"Release {version}?", requested_schema=FORM)
        return types.InputRequiredResult(input_requests={"approve": types.ElicitRequest(params=params)})
    if answer.action == "accept" and answer.content["approved"]:
        return f"released {version}"
    return f"{version} was held back: {answer.action}"


@server.tool
def plain() -> str:
    """Is no task."""
    return "done"


if len(sys.argv) > 1:
    server.run("http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
else:
    server.run(show_banner=False)
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskServer:
    """The server, with its files in `folder`; `build` runs until it is told to end."""

    folder: Path

    def server(self) -> Upstream:
        """The server over stdio."""
        return Upstream(command=self._command())

    def over_http(self) -> UpstreamOverHttp:
        """The same over HTTP, not started yet."""
        return UpstreamOverHttp(self.folder, lambda port: Upstream(command=[*self._command(), str(port)]))

    def finish(self, name: str) -> None:
        """Let the builds of this name end."""
        (self.folder / f"{name}.go").touch()

    def starts(self, name: str) -> int:
        """Return how often a build of this name was started."""
        started = self.folder / f"{name}.started"
        return len(started.read_text().splitlines()) if started.exists() else 0

    def _command(self) -> list[str]:
        script = self.folder / "server.py"
        script.write_text(_SERVER)
        return [str(python_of("fastmcp", FASTMCP)), str(script)]
