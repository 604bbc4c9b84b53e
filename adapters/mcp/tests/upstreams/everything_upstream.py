"""@modelcontextprotocol/server-everything (npm): tasks in the core of 2025-11-25, offered by the server itself.

Its tool `simulate-research-query` must be called as a task. It takes four seconds, and asks for an interpretation of
the topic if it is `ambiguous` and the client can be asked. Each session has tasks of its own, gone with the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from adapters.mcp.tests.upstreams.upstream import Upstream, UpstreamOverHttp, npm_command

TOOL: Final = "simulate-research-query"
CONFIG: Final[Mapping[str, Any]] = {
    "adapter": "mcp",
    "command": ["npx", "-y", "@modelcontextprotocol/server-everything"],
}


def everything() -> Upstream:
    """Return the server over stdio."""
    return Upstream(command=npm_command("@modelcontextprotocol/server-everything/dist/index.js"))


def everything_over_http(folder: Path) -> UpstreamOverHttp:
    """Return the server over HTTP, not started yet, with a log in `folder`."""

    def listening(port: int) -> Upstream:
        return Upstream(command=[*everything().command, "streamableHttp"], env={"PORT": str(port)})

    return UpstreamOverHttp(folder, listening)
