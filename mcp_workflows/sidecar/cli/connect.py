"""The command `mcp-workflows connect`: a snippet for the configuration of a host, printed or written.

Sources: code.claude.com/docs/en/mcp, code.visualstudio.com/docs/copilot/reference/mcp-configuration,
cursor.com/docs/context/mcp, developers.openai.com/codex/mcp, geminicli.com/docs/tools/mcp-server,
opencode.ai/docs/mcp-servers, github.com/modelcontextprotocol/inspector (its page on server configuration;
authorization: modelcontextprotocol.io/docs/draft/tools/inspector). `make hosts` runs Codex, Gemini CLI and opencode.

Unset variables: VS Code inserts an empty text (its variableResolver.ts), so that the configuration uses its default.
Codex passes nothing on. Claude Code and shells support `${NAME:-default}`, and Claude Code leaves `${NAME}` unchanged.
opencode inserts an empty text. Cursor and Gemini CLI document no behaviour and support no defaults.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import sysconfig
import tomllib
from base64 import b64encode
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, cast
from urllib.parse import quote

import typer

from mcp_workflows.access.authn.settings import AuthSettings
from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar import DISTRIBUTION
from mcp_workflows.sidecar.app import PATH
from mcp_workflows.sidecar.cli.app import app, say
from mcp_workflows.sidecar.cli.chatgpt import connect_chatgpt
from mcp_workflows.sidecar.cli.options import (
    DEFAULT_CONFIG,
    DEFAULT_HOST,
    DEFAULT_PORT,
    PYTHON_FILE,
    ConfigOption,
    Yes,
    confirm,
    load,
)
from mcp_workflows.sidecar.config.models import ServerSettings
from mcp_workflows.sidecar.config.yaml import variables_in


class Host(StrEnum):
    """The hosts whose configuration is known."""

    CLAUDE = "claude"
    VSCODE = "vscode"
    CURSOR = "cursor"
    CODEX = "codex"
    GEMINI = "gemini"
    OPENCODE = "opencode"
    INSPECTOR = "inspector"
    CHATGPT = "chatgpt"


class Login(StrEnum):
    """The ways to log in at a sidecar that identifies its callers."""

    PAGE = "page"  # the authorization server's page, which hosts find by its metadata (RFC 9728)
    TOKEN = "token"  # noqa: S105  # a static token in a header; hosts cannot discover it
    PROXY = "proxy"  # depends on the proxy in front


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """An environment variable."""

    name: str
    default: str | None = None  # None: no default; empty: the mentions differ
    is_set: bool = False  # in the environment of this command


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A sidecar at a URL, or one that the host starts with a command."""

    name: str  # ASCII letters, digits, `_` and `-`, which every host accepts
    url: str = ""
    login: Login | None = None  # None: callers are not identified, or unknown
    command: Sequence[str] = ()  # with absolute paths: the host runs in another folder
    variables: Sequence[Variable] = ()  # read by the configuration; hosts do not pass them on by default

    @property
    def token(self) -> Variable | None:
        """The host's environment variable with a static token; None if there is no such token."""
        return Variable(name=self.variable) if self.url and self.login is Login.TOKEN else None

    @property
    def variable(self) -> str:
        """The name of a variable for a token."""
        name = re.sub(r"\W", "_", self.name, flags=re.ASCII).upper()
        return f"{'_' if name[:1].isdigit() else ''}{name}_TOKEN"


@app.command()
def connect(
    host: Annotated[Host, typer.Argument(help="The host to connect.")],
    config: ConfigOption = DEFAULT_CONFIG,
    url: Annotated[
        str | None, typer.Option(help="Where the server listens, for HTTP. Without it, the host starts the server.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The server's name in the host. Default: that in CONFIG.")] = None,
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Let the host start the server, although CONFIG has a public URL.")
    ] = False,
    write: Annotated[
        bool,
        typer.Option("--write", help="Write the entry to the host's file after confirmation; keep a backup."),
    ] = False,
    yes: Yes = False,
) -> None:
    """Print the entry for a host's configuration; standard error says where it belongs and how to log in."""
    if write and host not in _FILES:
        raise typer.BadParameter(f"{host} has no file to write to; omit this option", param_hint="--write")
    if stdio and url:
        raise typer.BadParameter("the host starts the server itself, so there is no --url", param_hint="--stdio")
    if url is None and config == DEFAULT_CONFIG and not config.exists() and PYTHON_FILE.exists():
        config = PYTHON_FILE
    if url is not None and not re.match(r"https?://[^/@\s]+(/|$)", url):
        raise typer.BadParameter("write http(s)://, a host and a path, but no user or password", param_hint="--url")
    server = _server_in(config, needed=url is None or config != DEFAULT_CONFIG)
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", name or server.name).strip("-") or DISTRIBUTION
    if host is Host.CHATGPT:
        url = url or (f"{server.public_url}{PATH}" if server.public_url else "")
        if not url:
            raise ConfigError("ChatGPT cannot start a server: set server.public_url, or pass --url https://...")
        connect_chatgpt(name, url, server.events, Target(name=name).variable)
        return
    if not url and not stdio and server.auth and server.public_url:
        url = f"{server.public_url}{PATH}"
        typer.echo(f"note: {config} says that the server is at {url}; pass --stdio to let the host start it", err=True)
    login = "nothing: the user who starts the server is its user; server.auth is for HTTP, see --url"
    if url:
        target = Target(name=name, url=url, login=_login_of(server.auth))
        login = _login(host, target)
    else:
        here = shutil.which(DISTRIBUTION, path=sysconfig.get_path("scripts")) or shutil.which(DISTRIBUTION)
        executable = str(Path(here or sys.argv[0]).absolute())
        mentioned: Mapping[str, str | None] = {} if config.suffix == ".py" else variables_in(config)
        variables = [
            Variable(name=variable, default=default, is_set=bool(os.environ.get(variable)))
            for variable, default in mentioned.items()
        ]
        target = Target(name=name, command=[executable, "serve", str(config.resolve())], variables=variables)
    if write:
        _write(host, target, yes=yes)
    else:
        typer.echo(f"{_PLACES[host]}:", err=True)
        typer.echo(_snippet(host, target))
    if (
        host in _LINKS and target.url and not write and not (host is Host.VSCODE and target.token)
    ):  # that is two entries
        entry = _entries(_FORMATS[host], target)[_FORMATS[host].section][target.name]
        typer.echo(f"or open: {_LINKS[host](target.name, entry)}", err=True)
    if host is Host.CLAUDE and not write:
        typer.echo(f"or run:\n{_claude_command(target)}", err=True)
    if server.auth:
        typer.echo(f"to log in: {login}", err=True)


def _server_in(config: Path, *, needed: bool) -> ServerSettings:
    """Return the server section of the configuration; print other problems as notes, as they may not exist on the
    server.

    Raises:
        ConfigError: the file is needed but does not exist.
    """
    if not config.exists():
        if needed:
            say_url = f"pass its address: --url http://{DEFAULT_HOST}:{DEFAULT_PORT}{PATH}"
            raise ConfigError(f"{config}: no such file; name the configuration with --config, or {say_url}")
        return ServerSettings(name=DISTRIBUTION)
    try:
        return load(config).server
    except ConfigError as error:
        typer.echo(f"note: the configuration has errors here:\n{error}", err=True)
        return ServerSettings(name=DISTRIBUTION)


def _login_of(auth: AuthSettings | None) -> Login | None:
    """Return the way to log in with these settings; the login page if there is one."""
    if auth is None:
        return None
    if auth.issuers or auth.introspection:
        return Login.PAGE
    return Login.TOKEN if auth.tokens else Login.PROXY


def _login(host: Host, target: Target) -> str:
    """Return the steps to log in, for people."""
    if target.login is Login.PAGE:
        opened_by = _OPENED_BY[host].format(name=target.name)
        return f"no token is needed: {opened_by} finds and opens the login page"
    if target.token is None:
        return "a proxy identifies callers: log in there"
    if host is Host.VSCODE:
        return "VS Code asks for the token when it first starts the server, and keeps it"
    place = "that terminal" if host is Host.INSPECTOR else "the host"
    return f"the token is read from {target.token.name} in the environment of {place}"


# --- hosts with JSON

Reference: TypeAlias = Callable[[Variable], str]  # the host's syntax for reading a variable


def _or_default(reference: Reference) -> Reference:
    """Return a reference that inserts the default of an unset variable, for a host without a syntax for defaults."""
    return lambda variable: reference(variable) if variable.default is None or variable.is_set else variable.default


def _env(variable: Variable) -> str:
    return f"${{env:{variable.name}}}"


def _with_default(variable: Variable) -> str:
    return f"${{{variable.name}}}" if variable.default is None else f"${{{variable.name}:-{variable.default}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    """The format of a host's configuration."""

    section: str
    reference: Reference
    types: tuple[str, str] | None = None  # of a server at a URL, and of one that the host starts
    url: str = "url"
    variables: str = "env"
    is_one_list: bool = False  # the command and its arguments are one list


_FORMATS: Final[Mapping[Host, _Format]] = {
    Host.CLAUDE: _Format(section="mcpServers", reference=_with_default, types=("http", "stdio")),
    Host.VSCODE: _Format(section="servers", reference=_env, types=("http", "stdio")),
    Host.CURSOR: _Format(section="mcpServers", reference=_or_default(_env)),
    Host.GEMINI: _Format(
        section="mcpServers", reference=_or_default(lambda variable: f"${{{variable.name}}}"), url="httpUrl"
    ),
    Host.OPENCODE: _Format(
        section="mcp",
        reference=_or_default(lambda variable: f"{{env:{variable.name}}}"),
        types=("remote", "local"),
        variables="environment",
        is_one_list=True,
    ),
}


def _entries(host: _Format, target: Target) -> dict[str, Any]:
    """Return the snippet; it never contains a token, only where to read it."""
    whole: dict[str, Any] = {}
    entry: dict[str, Any] = {} if host.types is None else {"type": host.types[0 if target.url else 1]}
    if target.url:
        entry[host.url] = target.url
    elif host.is_one_list:
        entry["command"] = list(target.command)
    else:
        entry |= {"command": target.command[0], "args": list(target.command[1:])}
    if target.variables:
        entry[host.variables] = {variable.name: host.reference(variable) for variable in target.variables}
    if target.token and host is _FORMATS[Host.VSCODE]:
        about = f"The token for {target.name}"
        whole["inputs"] = [
            {"type": "promptString", "id": target.token.name, "description": about, "password": True},
        ]
        entry["headers"] = {"Authorization": f"Bearer ${{input:{target.token.name}}}"}
    elif target.token:
        entry["headers"] = {"Authorization": f"Bearer {host.reference(target.token)}"}
    return {**whole, host.section: {target.name: entry}}


def _dumped(value: Any, indent: str = "  ") -> str:  # Any: JSON
    return json.dumps(value, indent=indent, ensure_ascii=False)


# --- hosts with something else


def _shell_header(target: Target) -> str:
    """Return the header for a command line, in which the shell inserts the token."""
    return f' --header "Authorization: Bearer ${target.token.name}"' if target.token else ""


def _claude_command(target: Target) -> str:
    add = ["claude", "mcp", "add"]
    if target.url:
        return shlex.join([*add, "--transport", "http", target.name, target.url]) + _shell_header(target)
    variables = [word for each in target.variables for word in ("--env", f"{each.name}={_with_default(each)}")]
    if variables:  # quoted: Claude Code fills them in when it starts the server, in the project's file
        add += [*variables, "--scope", "project"]
    return shlex.join([*add, "--transport", "stdio", target.name, "--", *target.command])


def _codex(target: Target) -> str:
    lines = [f"[mcp_servers.{target.name}]"]
    if target.url:
        lines.append(f"url = {json.dumps(target.url, ensure_ascii=False)}")
    else:
        lines.append(f"command = {json.dumps(target.command[0], ensure_ascii=False)}")
        lines.append(f"args = {json.dumps(target.command[1:], ensure_ascii=False)}")
    if target.variables:
        lines.append(f"env_vars = {json.dumps([variable.name for variable in target.variables])}")
    if target.token:
        lines.append(f"bearer_token_env_var = {json.dumps(target.token.name)}")
    about = (
        "# `codex exec` can ask nobody, so it refuses tools that may change something, and begins without slow servers:"
    )
    return "\n".join([*lines, about, '# default_tools_approval_mode = "approve"', "# required = true"])


INSPECTOR: Final = "@modelcontextprotocol/inspector@2.12.0"
"""Pinned: without a version, npm takes the newest one for the installed Node, which may not support tasks."""
INSPECTOR_NODE: Final = "22.19"  # the minimum version of Node for it


def _inspector(target: Target) -> str:
    where = ["--transport", "http", "--server-url", target.url] if target.url else target.command
    env: list[str] = []
    for variable in target.variables:  # in double quotes, with the default escaped for the shell
        default = "" if variable.default is None else re.sub(r'([\\"$`])', r"\\\1", variable.default)
        read = f"${variable.name}" if variable.default is None else f"${{{variable.name}:-{default}}}"
        env.append(f'-e {variable.name}="{read}"')
    return " ".join([f"npx {INSPECTOR}", *env, shlex.join(where)]) + _shell_header(target)


_SNIPPETS: Final[Mapping[Host, Callable[[Target], str]]] = {Host.CODEX: _codex, Host.INSPECTOR: _inspector}


def _snippet(host: Host, target: Target) -> str:
    """Return the entry for a host; it never contains a token, only where to read it."""
    return _SNIPPETS[host](target) if host in _SNIPPETS else _dumped(_entries(_FORMATS[host], target))


_LINKS: Final[Mapping[Host, Callable[[str, Mapping[str, Any]], str]]] = {  # Any: JSON
    Host.VSCODE: lambda name, entry: f"vscode:mcp/install?{quote(json.dumps({'name': name, **entry}))}",
    Host.CURSOR: lambda name, entry: (
        f"cursor://anysphere.cursor-deeplink/mcp/install?name={quote(name)}"
        f"&config={quote(b64encode(json.dumps(entry).encode()).decode())}"
    ),
}
"""Links that install the entry with one click, from a page or a chat."""
_PLACES: Final[Mapping[Host, str]] = {
    Host.CLAUDE: ".mcp.json in the project's folder",
    Host.VSCODE: ".vscode/mcp.json in the workspace",
    Host.CURSOR: "~/.cursor/mcp.json, or .cursor/mcp.json in the project's folder",
    Host.CODEX: "~/.codex/config.toml",
    Host.GEMINI: "~/.gemini/settings.json, or .gemini/settings.json in the project's folder",
    Host.OPENCODE: "~/.config/opencode/opencode.json, or opencode.json in the project's folder",
    Host.INSPECTOR: f"a terminal, with Node {INSPECTOR_NODE} or newer; then choose a protocol era: modern (2026-07-28) "
    "or legacy (2025-11-25), both have tasks",
}
_OPENED_BY: Final[Mapping[Host, str]] = {
    Host.CLAUDE: "/mcp in Claude Code",
    Host.VSCODE: "VS Code",
    Host.CURSOR: "Cursor",
    Host.CODEX: "`codex mcp login {name}`",
    Host.GEMINI: "`/mcp auth {name}` in Gemini CLI",
    Host.OPENCODE: "`opencode mcp auth {name}`",
    Host.INSPECTOR: "the Inspector",
}


# --- the files of hosts

_FILES: Final[Mapping[Host, Sequence[str]]] = {  # the first existing file, else the first
    Host.CLAUDE: (".mcp.json",),
    Host.VSCODE: (".vscode/mcp.json",),
    Host.CURSOR: (".cursor/mcp.json",),
    Host.CODEX: ("~/.codex/config.toml",),
    Host.GEMINI: (".gemini/settings.json",),
    Host.OPENCODE: ("opencode.json", "opencode.jsonc"),
}
_OURS: Final = frozenset(  # keys that are removed when the connection type changes
    {"type", "command", "args", "url", "httpUrl", "headers", "env_vars", "bearer_token_env_var"}
)
_STRING: Final = r'"(?:[^"\\\n]|\\.)*"'  # a JSON string, which may contain `//` and commas
_COMMENTS = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMAS = re.compile(rf"{_STRING}|,(?=\s*[}}\]])")
_SPACE = re.compile(r"\s*")


def _write(host: Host, target: Target, *, yes: bool) -> None:
    """Write the entry to the host's file, after showing it and asking; keep the other content, and a backup.

    Raises:
        ConfigError: the file cannot be read, parsed or written; it is unchanged.
        OperatorError: there is no terminal to ask.
    """
    codex = os.environ.get("CODEX_HOME") or "~/.codex"
    shown = Path(_FILES[host][0])
    before = b""
    try:
        places = [Path(place.replace("~/.codex", codex)).expanduser() for place in _FILES[host]]
        shown = next((place for place in places if place.exists()), places[0])
        path = shown.resolve()  # keep a symbolic link
        with suppress(FileNotFoundError):
            before = path.read_bytes()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, or no home
        raise ConfigError(f"{shown}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    codec = "utf-8-sig" if before.startswith(BOM_UTF8) else "utf-8"
    try:
        text = before.decode(codec)
        newline = "\r\n" if 0 < text.count("\n") == text.count("\r\n") else "\n"  # keep mixed line endings
        after, gone = _with_entry(text.replace(newline, "\n"), host, target)
        content = after.replace("\n", newline).encode(codec)
    except (ValueError, RecursionError) as error:
        by_hand = f"correct it, or add by hand what `{DISTRIBUTION} connect {host}` prints"
        raise ConfigError(f"{shown}: nothing was changed: {error}\n{by_hand}") from None
    if content == before:
        say(f"{shown}: {target.name} is up to date")
        return
    say(f"{shown}:\n{_snippet(host, target)}")  # never show the file's content, which may contain secrets
    if gone:
        say(f"replaces these keys of {target.name}: {', '.join(gone)}")
    confirm(f"Write {shown}?", yes=yes)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    backup = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _create(beside, content, path)
        if (path.read_bytes() if path.exists() else b"") != before:
            raise ConfigError(f"{shown}: another program has just changed it; run this again")
        if path.exists():
            names = (path.with_name(f"{path.name}.bak{number or ''}") for number in count())
            backup = next(name for name in names if not name.exists())
            _create(backup, before, path)
        beside.replace(path)
    except OSError as error:
        raise ConfigError(f"{shown}: cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
    kept = f"; as it was: {backup}" if backup else ""
    say(f"{shown}: written{kept}\nnext: restart {host}")


def _create(path: Path, content: bytes, like: Path) -> None:
    """Create a file with the owner and mode of `like`; until then only its user can read it."""
    path.touch(0o600 if like.exists() else 0o666, exist_ok=False)
    path.write_bytes(content)
    if like.exists():
        with suppress(OSError):  # only root may do this
            os.chown(path, like.stat().st_uid, like.stat().st_gid)
        shutil.copymode(like, path)


def _with_entry(text: str, host: Host, target: Target) -> tuple[str, Sequence[str]]:
    """Return the text with the new entry, comments preserved, and the keys of the old entry that change.

    Raises:
        ValueError: the text cannot be parsed, or has a form that cannot be changed here.
    """
    is_toml, snippet = host is Host.CODEX, _snippet(host, target)
    parse: Callable[[str], Any] = tomllib.loads if is_toml else lambda text: json.loads(_plain(text))  # Any: JSON
    section, variables = ("mcp_servers", "env") if is_toml else (_FORMATS[host].section, _FORMATS[host].variables)
    text = text if is_toml or text.strip() else "{}\n"
    whole, new = _object(parse(text), "the file"), parse(snippet)
    servers = _object(whole.get(section, {}), section)
    old = _object(servers.get(target.name, {}), target.name)
    dropped = _OURS if target.command else _OURS | {variables}
    entry = {**{key: value for key, value in old.items() if key not in dropped}, **new[section][target.name]}
    if target.command and variables in old:
        entry[variables] = {**_object(old[variables], variables), **entry.get(variables, {})}
    wanted = {**whole, section: {**servers, target.name: entry}}
    if entry != old:
        table = snippet.splitlines()
        text = _put_table(text, target.name, table) if is_toml else _put(text, [section, target.name], entry)
    for each in new.get("inputs", ()):
        inputs = cast("list[Any]", whole.get("inputs", []))  # Any: JSON
        if type(inputs) is not list:
            raise ValueError("inputs must be a list")
        if all(_object(have, "an input").get("id") != each["id"] for have in inputs):
            wanted["inputs"] = [*inputs, each]
            text = _put(text, ["inputs", len(inputs)], each) if "inputs" in whole else _put(text, ["inputs"], [each])
    with suppress(ValueError):
        if parse(text) == wanted:
            return text, [key for key, value in old.items() if entry.get(key) != value]
    raise ValueError(f"{section}.{target.name} has a form that cannot be changed here")


def _object(value: Any, what: str) -> dict[str, Any]:  # Any: JSON or TOML
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be an object")
    return cast("dict[str, Any]", value)


def _plain(text: str) -> str:
    """Return JSON without comments and trailing commas; the other characters keep their positions."""

    def blank(found: re.Match[str]) -> str:
        return found[0] if found[0].startswith('"') else re.sub(r"[^\n]", " ", found[0])

    return _LAST_COMMAS.sub(blank, _COMMENTS.sub(blank, text))


def _put(text: str, path: Sequence[str | int], value: Any) -> str:  # Any: JSON
    """Return the text of a JSON object with this value at a path, otherwise unchanged."""
    plain = _plain(text)
    at, stop = _after_space(plain, 0), len(plain)
    indent = re.search(r'\n([ \t]+)"', text)
    unit = indent[1] if indent else "  "
    for depth, key in enumerate(path, 1):
        places, end = _members(plain, at)
        if key in places:
            at, stop = places[key]
            continue
        for outer in reversed(path[depth:]):
            value = {outer: value}
        shown = _dumped(value, unit).replace("\n", "\n" + unit * depth)
        shown = shown if isinstance(key, int) else f"{_dumped(key)}: {shown}"
        last = max((stop for _, stop in places.values()), default=end)
        has_comma = not places or "," in _COMMENTS.sub(lambda found: " " * len(found[0]), text[last:end])
        kept = f"{text[:last]}{'' if has_comma else ','}{text[last:end]}".rstrip()
        return f"{kept}\n{unit * depth}{shown}\n{unit * (depth - 1)}{text[end:]}"
    return text[:at] + _dumped(value, unit).replace("\n", "\n" + unit * len(path)) + text[stop:]


def _members(plain: str, at: int) -> tuple[Mapping[str | int, tuple[int, int]], int]:
    """Return the positions of all values in the object or list that begins at `at`, by key, and of its end."""
    read = json.JSONDecoder().raw_decode
    found: dict[str | int, tuple[int, int]] = {}
    is_object = plain[at] == "{"
    at = _after_space(plain, at + 1)
    while plain[at] not in "}]":
        key: Any = len(found)  # Any: JSON, a text or a number here
        if is_object:
            key, at = read(plain, at)
            at = _after_space(plain, _after_space(plain, at) + 1)
        _, stop = read(plain, at)
        found[key] = at, stop
        at = _after_space(plain, stop)
        at = _after_space(plain, at + 1) if plain[at] == "," else at
    return found, at


def _after_space(plain: str, at: int) -> int:
    found = _SPACE.match(plain, at)
    return found.end() if found else at


def _put_table(text: str, name: str, lines: Sequence[str]) -> str:
    """Return Codex's file with our table, updated in place or appended."""
    header = re.search(rf'^\[ *mcp_servers *\. *"?{re.escape(name)}"? *\][^\n]*(\n|$)', text, re.MULTILINE)
    if header is None:
        return f"{text.rstrip()}\n\n".lstrip() + "\n".join(lines) + "\n"
    begin = header.end()
    rest = re.search(r"^\[", text[begin:], re.MULTILINE)
    stop = begin + rest.start() if rest else len(text)
    ours = rf"^({'|'.join(sorted(_OURS))}) *=[^\n]*(\n|$)"
    mine = "".join(f"{line}\n" for line in lines[1:] if not line.startswith("#"))
    return text[:begin] + mine + re.sub(ours, "", text[begin:stop], flags=re.MULTILINE) + text[stop:]
