"""bash-command-mcp (npm): shell commands in the background, complete as it is.

The replies are plain text. `run_background` starts, `tail_background` looks, `kill_background` cancels. The server
keeps what it has started in memory only, and its commands go on when it has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from adapters.mcp.tests.upstreams.upstream import Upstream, documented_engine, npm_command

CONFIG: Final = documented_engine("shell")


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Commands that note their start in `folder`, and run until they are told to end."""

    folder: Path

    def server(self) -> Upstream:
        """The MCP server that runs them."""
        env = {"OTEL_ENABLED": "false", "BASH_COMMAND_MCP_LOG_DIR": str(self.folder / "logs")}
        return Upstream(command=npm_command("bash-command-mcp/dist/index.js"), env=env)

    def waiting(self, name: str, then: str = "true") -> str:
        """Return a command that runs until `finish(name)`, and then does this."""
        wait = f"while [ ! -e '{self.folder}/{name}.go' ]; do sleep 0.05; done"
        return f"echo $$ >> '{self.folder}/{name}.started'; {wait}; {then}"

    def finish(self, name: str) -> None:
        """Let the command of this name go on."""
        (self.folder / f"{name}.go").touch()

    def starts(self, name: str) -> int:
        """Return how often the command of this name was started."""
        started = self.folder / f"{name}.started"
        return len(started.read_text().splitlines()) if started.exists() else 0
