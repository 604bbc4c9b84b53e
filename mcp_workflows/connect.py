"""What to put into a host's configuration so that it finds a sidecar; pure.

Sources: code.claude.com/docs/en/mcp, code.visualstudio.com/docs/copilot/reference/mcp-configuration,
cursor.com/docs/context/mcp, developers.openai.com/codex/mcp, github.com/modelcontextprotocol/inspector.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Host(StrEnum):
    """The hosts whose configuration is known here."""

    CLAUDE = "claude"
    VSCODE = "vscode"
    CURSOR = "cursor"
    CODEX = "codex"
    INSPECTOR = "inspector"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverHttp:
    """A sidecar that is being served."""

    name: str  # ASCII letters, digits, `_` and `-`: what every host takes
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OverStdio:
    """A sidecar that the host starts itself."""

    name: str
    command: Sequence[str]  # with absolute paths: the host has its own folder
    variables: Sequence[str] = ()  # of the environment, which hosts do not hand on by themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """What to put there, and where that is."""

    text: str  # JSON, TOML or a command line
    place: str  # for people


def snippet(host: Host, target: OverHttp | OverStdio) -> Snippet:
    """What this host needs to reach that sidecar."""
    return _HOSTS[host](target)


def _entry(target: OverHttp | OverStdio, *, typed: bool, variable: str = "") -> Mapping[str, Any]:
    """How to reach it, in the words that all of the hosts share; some want to be told the transport."""
    if isinstance(target, OverHttp):
        return {"type": "http", "url": target.url} if typed else {"url": target.url}
    started: dict[str, Any] = {"command": target.command[0], "args": list(target.command[1:])}
    if variable and target.variables:
        started["env"] = {name: variable.replace("NAME", name) for name in target.variables}
    return {"type": "stdio", **started} if typed else started


def _json(section: str, target: OverHttp | OverStdio, *, typed: bool, variable: str) -> str:
    entry = _entry(target, typed=typed, variable=variable)
    return json.dumps({section: {target.name: entry}}, indent=2, ensure_ascii=False)


def _claude(target: OverHttp | OverStdio) -> Snippet:
    if isinstance(target, OverHttp):
        command = ["claude", "mcp", "add", "--transport", "http", target.name, target.url]
    else:
        command = ["claude", "mcp", "add", "--transport", "stdio", target.name, "--", *target.command]
    place = f".mcp.json in the project's folder, or run: {shlex.join(command)}"
    return Snippet(text=_json("mcpServers", target, typed=True, variable="${NAME}"), place=place)


def _vscode(target: OverHttp | OverStdio) -> Snippet:
    text = _json("servers", target, typed=True, variable="${env:NAME}")
    return Snippet(text=text, place=".vscode/mcp.json in the workspace")


def _cursor(target: OverHttp | OverStdio) -> Snippet:
    place = "~/.cursor/mcp.json, or .cursor/mcp.json in the project's folder"
    return Snippet(text=_json("mcpServers", target, typed=False, variable="${env:NAME}"), place=place)


def _codex(target: OverHttp | OverStdio) -> Snippet:
    entry = _entry(target, typed=False)
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()]
    if isinstance(target, OverStdio) and target.variables:
        lines.append(f"env_vars = {json.dumps(list(target.variables))}")
    text = "\n".join([f"[mcp_servers.{target.name}]", *lines])
    return Snippet(text=text, place="~/.codex/config.toml")


def _inspector(target: OverHttp | OverStdio) -> Snippet:
    where = ["--transport", "http", "--server-url", target.url] if isinstance(target, OverHttp) else target.command
    variables = target.variables if isinstance(target, OverStdio) else ()
    text = " ".join(
        ["npx @modelcontextprotocol/inspector", *(f'-e {name}="${name}"' for name in variables), shlex.join(where)]
    )
    return Snippet(
        text=text,
        place="a terminal; then choose a protocol era: modern (2026-07-28) or legacy (2025-11-25), both have tasks",
    )


_HOSTS: Mapping[Host, Callable[[OverHttp | OverStdio], Snippet]] = {
    Host.CLAUDE: _claude,
    Host.VSCODE: _vscode,
    Host.CURSOR: _cursor,
    Host.CODEX: _codex,
    Host.INSPECTOR: _inspector,
}
