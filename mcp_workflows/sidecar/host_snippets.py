"""Configuration snippets that connect a host to a sidecar; pure.

Sources: code.claude.com/docs/en/mcp, code.visualstudio.com/docs/copilot/reference/mcp-configuration,
cursor.com/docs/context/mcp, developers.openai.com/codex/mcp, geminicli.com/docs/tools/mcp-server,
opencode.ai/docs/mcp-servers, github.com/modelcontextprotocol/inspector (its page on the configuration of servers; its
authorization: modelcontextprotocol.io/docs/draft/tools/inspector). `make hosts` runs Codex, Gemini CLI and opencode.

Variables that are not set: VS Code inserts an empty text (its variableResolver.ts), so that the configuration takes its
default. Codex passes nothing on. Claude Code and shells know `${NAME:-default}`, and Claude Code leaves `${NAME}`
unchanged. opencode inserts an empty text. Cursor and Gemini CLI document no behaviour and know no defaults.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

from mcp_workflows.access.authn.settings import AuthSettings


class Host(StrEnum):
    """The hosts with a known configuration."""

    CLAUDE = "claude"
    VSCODE = "vscode"
    CURSOR = "cursor"
    CODEX = "codex"
    GEMINI = "gemini"
    OPENCODE = "opencode"
    INSPECTOR = "inspector"


INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"
"""Pinned: without a version, npm takes the newest one for the installed Node, which may not know tasks."""
INSPECTOR_NODE = "22.19"  # the least version of Node for it


class Login(StrEnum):
    """The ways to log in at a sidecar that identifies its callers."""

    PAGE = "page"  # of its authorization server, which hosts find by the metadata (RFC 9728)
    TOKEN = "token"  # noqa: S105  # one that was made by hand, in a header: there is nothing that a host could find
    PROXY = "proxy"  # as the proxy in front requires


@dataclass(frozen=True, slots=True, kw_only=True)
class OverHttp:
    """A sidecar that is served over HTTP."""

    name: str  # ASCII letters, digits, `_` and `-`, which every host accepts
    url: str
    login: Login | None = None  # None: callers are not identified, or it is unknown

    @property
    def token_variable(self) -> str:
        """The variable of the host's environment that holds a static token."""
        name = re.sub(r"\W", "_", self.name, flags=re.ASCII).upper()
        return f"{'_' if name[:1].isdigit() else ''}{name}_TOKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A variable of the environment that the configuration reads."""

    name: str
    default: str | None  # None: there is none; empty: it differs between the places that read it
    is_set: bool  # in the environment of this command


@dataclass(frozen=True, slots=True, kw_only=True)
class OverStdio:
    """A sidecar that the host starts."""

    name: str
    command: Sequence[str]  # with absolute paths: the host runs in another folder
    variables: Sequence[Variable] = ()  # hosts do not pass them on by default


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """A snippet and the place where it belongs."""

    text: str  # JSON, TOML or a command line
    place: str  # for people
    command: str = ""  # a command line that does the same
    login: str = ""  # the steps to log in, for people


def login_of(auth: AuthSettings | None) -> Login | None:
    """Return the way to log in with these settings: by the login page if there is one."""
    if auth is None:
        return None
    if auth.issuers or auth.introspection:
        return Login.PAGE
    return Login.TOKEN if auth.tokens else Login.PROXY


def snippet(host: Host, target: OverHttp | OverStdio) -> Snippet:
    """Return the snippet for this host and sidecar; it never contains a token, only the place to read it from."""
    made = _HOSTS[host](target)
    if isinstance(target, OverStdio) or target.login is None:
        return made
    said = _LOGINS[target.login][host].format(name=target.name, variable=target.token_variable)
    return replace(made, login=said)


Reference: TypeAlias = Callable[[Variable], str]  # the host's syntax for reading a variable


def _env(variable: Variable) -> str:
    return f"${{env:{variable.name}}}"


def _or_default(reference: Reference) -> Reference:
    """Return a reference, or the default of a variable that is not set, for a host without a syntax for defaults."""
    return lambda variable: reference(variable) if variable.default is None or variable.is_set else variable.default


def _with_default(variable: Variable) -> str:
    return f"${{{variable.name}}}" if variable.default is None else f"${{{variable.name}:-{variable.default}}}"


def _in_shell(variable: Variable) -> str:
    """Return a reference that a shell fills in, in double quotes; nothing in the default is expanded."""
    if variable.default is None:
        return f'"${variable.name}"'
    escaped = re.sub(r'([\\"$`])', r"\\\1", variable.default)
    return f'"${{{variable.name}:-{escaped}}}"'


def _entry(target: OverHttp | OverStdio, *, typed: bool, reference: Reference | None = None) -> Mapping[str, Any]:
    """Return the entry in the format that all hosts share; some of them need the transport."""
    if isinstance(target, OverHttp):
        entry = {"type": "http", "url": target.url} if typed else {"url": target.url}
        return {**entry, **_header(target, reference)}
    started: dict[str, Any] = {"command": target.command[0], "args": list(target.command[1:])}
    if reference and target.variables:
        started["env"] = {variable.name: reference(variable) for variable in target.variables}
    return {"type": "stdio", **started} if typed else started


def _header(target: OverHttp, reference: Reference | None) -> Mapping[str, Any]:
    if target.login is not Login.TOKEN or reference is None:
        return {}
    token = Variable(name=target.token_variable, default=None, is_set=False)
    return {"headers": {"Authorization": f"Bearer {reference(token)}"}}


def _shell_header(target: OverHttp) -> str:
    """Return the header for a command line, where the shell inserts the token."""
    return f' --header "Authorization: Bearer ${target.token_variable}"' if target.login is Login.TOKEN else ""


def _json(section: str, target: OverHttp | OverStdio, *, typed: bool, reference: Reference) -> str:
    entry = _entry(target, typed=typed, reference=reference)
    return json.dumps({section: {target.name: entry}}, indent=2, ensure_ascii=False)


def _claude(target: OverHttp | OverStdio) -> Snippet:
    return Snippet(
        text=_json("mcpServers", target, typed=True, reference=_with_default),
        place=".mcp.json in the project's folder",
        command=_claude_command(target),
    )


def _claude_command(target: OverHttp | OverStdio) -> str:
    add = ["claude", "mcp", "add"]
    if isinstance(target, OverHttp):
        return shlex.join([*add, "--transport", "http", target.name, target.url]) + _shell_header(target)
    variables = [word for each in target.variables for word in ("--env", f"{each.name}={_with_default(each)}")]
    if variables:  # quoted: Claude Code fills them in when it starts the server, in the file of a project
        add += [*variables, "--scope", "project"]
    return shlex.join([*add, "--transport", "stdio", target.name, "--", *target.command])


def _vscode(target: OverHttp | OverStdio) -> Snippet:
    place = ".vscode/mcp.json in the workspace"
    if isinstance(target, OverStdio) or target.login is not Login.TOKEN:
        return Snippet(text=_json("servers", target, typed=True, reference=_env), place=place)
    wanted = {
        "type": "promptString",
        "id": target.token_variable,
        "description": f"The token for {target.name}",
        "password": True,
    }
    entry = _entry(target, typed=True, reference=lambda token: f"${{input:{token.name}}}")
    return Snippet(text=json.dumps({"inputs": [wanted], "servers": {target.name: entry}}, indent=2), place=place)


def _cursor(target: OverHttp | OverStdio) -> Snippet:
    place = "~/.cursor/mcp.json, or .cursor/mcp.json in the project's folder"
    return Snippet(text=_json("mcpServers", target, typed=False, reference=_or_default(_env)), place=place)


_CODEX_EXEC = (
    "# `codex exec` can ask nobody, so it refuses tools that may change something, and begins without slow servers:",
    '# default_tools_approval_mode = "approve"',
    "# required = true",
)


def _codex(target: OverHttp | OverStdio) -> Snippet:
    entry = _entry(target, typed=False)
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()]
    if isinstance(target, OverStdio) and target.variables:
        lines.append(f"env_vars = {json.dumps([variable.name for variable in target.variables])}")
    if isinstance(target, OverHttp) and target.login is Login.TOKEN:
        lines.append(f"bearer_token_env_var = {json.dumps(target.token_variable)}")
    text = "\n".join([f"[mcp_servers.{target.name}]", *lines, *_CODEX_EXEC])
    return Snippet(text=text, place="~/.codex/config.toml")


def _gemini(target: OverHttp | OverStdio) -> Snippet:
    entry = dict(_entry(target, typed=False, reference=_or_default(lambda variable: f"${{{variable.name}}}")))
    if "url" in entry:
        entry = {"httpUrl": entry.pop("url"), **entry}
    place = "~/.gemini/settings.json, or .gemini/settings.json in the project's folder"
    return Snippet(text=json.dumps({"mcpServers": {target.name: entry}}, indent=2, ensure_ascii=False), place=place)


def _opencode(target: OverHttp | OverStdio) -> Snippet:
    reference = _or_default(lambda variable: f"{{env:{variable.name}}}")
    entry: dict[str, Any]
    if isinstance(target, OverHttp):
        entry = {"type": "remote", "url": target.url, **_header(target, reference)}
    else:
        entry = {"type": "local", "command": list(target.command)}
        if target.variables:
            entry["environment"] = {variable.name: reference(variable) for variable in target.variables}
    place = "~/.config/opencode/opencode.json, or opencode.json in the project's folder"
    return Snippet(text=json.dumps({"mcp": {target.name: entry}}, indent=2, ensure_ascii=False), place=place)


def _inspector(target: OverHttp | OverStdio) -> Snippet:
    where = ["--transport", "http", "--server-url", target.url] if isinstance(target, OverHttp) else target.command
    variables = target.variables if isinstance(target, OverStdio) else ()
    header = _shell_header(target) if isinstance(target, OverHttp) else ""
    env = (f"-e {variable.name}={_in_shell(variable)}" for variable in variables)
    text = " ".join([f"npx {INSPECTOR}", *env, shlex.join(where)])
    return Snippet(
        text=text + header,
        place=f"a terminal, with Node {INSPECTOR_NODE} or newer; then choose a protocol era: modern (2026-07-28) or "
        "legacy (2025-11-25), both have tasks",
    )


_HOSTS: Mapping[Host, Callable[[OverHttp | OverStdio], Snippet]] = {
    Host.CLAUDE: _claude,
    Host.VSCODE: _vscode,
    Host.CURSOR: _cursor,
    Host.CODEX: _codex,
    Host.GEMINI: _gemini,
    Host.OPENCODE: _opencode,
    Host.INSPECTOR: _inspector,
}

_FROM_VARIABLE = "the token is read from {variable} in the environment of the host"
_LOGINS: Mapping[Login, Mapping[Host, str]] = {
    Login.PAGE: {
        Host.CLAUDE: "no token is needed here: /mcp in Claude Code opens the login page, which it finds by itself",
        Host.VSCODE: "no token is needed here: VS Code opens the login page, which it finds by itself",
        Host.CURSOR: "no token is needed here: Cursor opens the login page, which it finds by itself",
        Host.CODEX: "no token is needed here: `codex mcp login {name}` opens the login page, which it finds by itself",
        Host.GEMINI: "no token is needed here: `/mcp auth {name}` in Gemini CLI opens the login page, which it finds",
        Host.OPENCODE: "no token is needed here: `opencode mcp auth {name}` opens the login page, which it finds",
        Host.INSPECTOR: "no token is needed here: the Inspector opens the login page, which it finds by itself",
    },
    Login.TOKEN: {
        Host.CLAUDE: _FROM_VARIABLE,
        Host.VSCODE: "VS Code asks for the token when it first starts the server, and keeps it",
        Host.CURSOR: _FROM_VARIABLE,
        Host.CODEX: _FROM_VARIABLE,
        Host.GEMINI: _FROM_VARIABLE,
        Host.OPENCODE: _FROM_VARIABLE,
        Host.INSPECTOR: "the token is read from {variable} in the environment of that terminal",
    },
    Login.PROXY: dict.fromkeys(Host, "a proxy in front of the server says who is calling: log in as it wants that"),
}
