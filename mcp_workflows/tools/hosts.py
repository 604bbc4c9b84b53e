"""Known hosts by the name that they send: how long they wait for a call, and whether they subscribe to events."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

UNKNOWN_WAIT: Final = timedelta(seconds=4)
"""The wait for an unknown host."""
_USUAL_LIMIT: Final = 30.0
"""Seconds; the limit of most frameworks, used for an unknown host."""
_PYTHON_SDK: Final = "mcp"
SHORTEST_LIMIT: Final = 5.0
"""Seconds; openai-agents 0.24 gives up after that, and uses the Python SDK's default name."""
LONGEST_WAIT: Final = timedelta(seconds=45)
"""The wait for patient hosts: many proxies close a request that is silent for 60 s."""
_SHARE: Final = 0.75  # of the limit; the rest is for the network, the start and the reply
_PATIENT: Final = float("inf")

CALL_LIMITS: Final[Mapping[str, float]] = {
    "claude-ai": 60,  # Claude Desktop: anthropics/claude-code#22542
    "claude-code": 60,  # in the desktop app (anthropics/claude-code#63379); the command line waits longer
    "codex-mcp-client": 60,  # `tool_timeout_sec`
    "cursor-vscode": 60,  # according to its users; not configurable
    "fastmcp": 300,  # set by pydantic-ai, observed with 2.68; FastMCP's client has no limit
    "gemini-cli-mcp-client": 600,  # `timeout`; the name of the server may follow
    "google-adk": 5,  # over stdio, observed with 2.13
    "mcp-workflows": _PATIENT,  # our own client
    "opencode": 180,  # observed: docs/use/clients.md
    "visual studio code": _PATIENT,  # microsoft/vscode, mcpServerRequestHandler.ts
    "zed": 60,  # zed-industries/zed, context_server/src/client.rs
}
"""Seconds after which hosts give up on a call, by the beginning of their `clientInfo.name` in lower case."""


_SUBSCRIBERS: Final = ("openai-mcp",)  # ChatGPT, which subscribes to events without declaring a capability


def subscribes(client: str | None) -> bool:
    """Return True if this client is known to subscribe to events."""
    return (client or "").lower().startswith(_SUBSCRIBERS)


def call_wait(client: str | None) -> timedelta:
    """Return how long a call of this client may take: its host's limit minus a margin."""
    limit = _known_limit(client)
    return UNKNOWN_WAIT if limit is None else min(LONGEST_WAIT, timedelta(seconds=min(limit, 3600) * _SHARE))


def call_limit(client: str | None, wait: timedelta | None) -> float:
    """Return the seconds after which this client gives up on a call; for an unknown one, the usual limit.

    If an operator sets the `wait` of a tool, unknown hosts are assumed to wait at least that long.
    """
    limit = _known_limit(client)
    if limit is not None:
        return limit
    limit = SHORTEST_LIMIT if client == _PYTHON_SDK else _USUAL_LIMIT
    return limit if wait is None else max(limit, wait.total_seconds() / _SHARE)


def _known_limit(client: str | None) -> float | None:
    name = (client or "").lower()
    return next((limit for known, limit in CALL_LIMITS.items() if name.startswith(known)), None)
