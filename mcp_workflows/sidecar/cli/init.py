"""The command `mcp-workflows init`: write a first workflows.yaml, or print a draft of what to add to one."""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import anyio
import typer

from mcp_workflows.adapter import JSON, Adapter, installed_adapters, load_adapter
from mcp_workflows.adapter.display_text import cleaned
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import ConfigError, EngineError, EngineUnavailable, WorkflowsError
from mcp_workflows.kit.tooling import Discovered, Discovers, Drafts, Proposes
from mcp_workflows.sidecar.cli.app import app, say
from mcp_workflows.sidecar.cli.options import (
    DEFAULT_CONFIG,
    ConfigArgument,
    ConfigInstead,
    LogLevel,
    adapter_names,
    command_line,
    either,
    existing,
    is_python,
    load,
    log,
    names_in,
)
from mcp_workflows.sidecar.config.draft import draft, draft_engine, draft_python, tool_name
from mcp_workflows.sidecar.config.load import load_engines
from mcp_workflows.sidecar.config.models import Engine
from mcp_workflows.sidecar.config.problems import no_engine
from mcp_workflows.sidecar.config.yaml import mapping_in
from mcp_workflows.sidecar.engine_checks import described, one_workflow
from mcp_workflows.tools.json_schema import did_you_mean

MOST_LISTED: Final = 20  # workflows that are listed to choose from
_MCP: Final = "mcp"  # the adapter for MCP servers


@app.command()
def init(
    config: ConfigArgument = None,
    option: ConfigInstead = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="ADAPTER",
            help="The engine, by the name of its adapter: temporal.",
            autocompletion=adapter_names,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the engine; can be repeated.")
    ] = None,
    workflows: Annotated[
        list[str] | None,
        typer.Option("--workflow", metavar="WORKFLOW", help="A workflow that becomes a tool; can be repeated."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if there is one.")] = False,
    add: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="Print tools for the workflows of this engine of the configuration; write nothing.",
            autocompletion=names_in("engines"),
        ),
    ] = None,
    mcp: Annotated[
        str | None,
        typer.Option(
            "--mcp",
            metavar="URL|COMMAND",
            help="Print an engine for the tools of an MCP server; write nothing. --workflow names a tool that starts "
            "something. The variables of a command stand before it: 'TOKEN=x npx -y some-server'.",
        ),
    ] = None,
) -> None:
    """Write a first configuration: asks at a terminal for what the options leave open. Or print what to add to one."""
    log(LogLevel.WARNING)
    path = either(config, option)
    if add is not None or mcp is not None:
        lines = _of_engine(path, str(add)) if mcp is None else _of_server(mcp, next(iter(workflows or ()), None))
        for line in lines:
            say(line)
        return
    file = path if is_python(path) else None
    if file is not None:
        path = path.with_name(DEFAULT_CONFIG.name)
        path = DEFAULT_CONFIG if path.resolve() == DEFAULT_CONFIG.resolve() else path
    if path.exists() and not force:
        raise ConfigError(f"{path}: exists already; name another with -c CONFIG, or overwrite it with --force")
    if file is not None:
        drafted, problems = draft_python(file)
        text: Sequence[str] = [*drafted.splitlines(), *(f"# not offered: {problem}" for problem in problems)]
        change = "add rules, limits, gates and other engines"
    else:
        text = _first_configuration(path, engine, settings or [], workflows or [])
        change = "complete the lines with TODO: what each tool does, and what goes in"
    with _beside(path, text) as written:
        load(written)
    _write(path, text, force=force)
    typer.echo(f"{path}: written\nnext:\n  {change}\n  {command_line('check', config=path)}")


# --- a first configuration


def _first_configuration(
    path: Path, engine: str | None, settings: Sequence[str], workflows: Sequence[str]
) -> Sequence[str]:
    """Return the lines of a configuration with one engine, by the options or by answers at the terminal."""
    asks = sys.stdin.isatty() and sys.stderr.isatty() and not (engine and workflows)
    installed = installed_adapters()
    if engine is None and not asks:
        raise typer.BadParameter(f"which engine? one of: {', '.join(installed)}", param_hint="--engine")
    if engine is None:
        can = [name for name in installed if isinstance(load_adapter(name).tooling, Discovers)]
        engine = str(typer.prompt(f"Engine ({', '.join(installed)})", default=[*can, *installed][0], err=True))
    head = list(draft_engine(engine, _settings(load_adapter(engine), settings, asks=asks)))
    with _beside(path, head) as written:
        [loaded] = load_engines(written, os.environ)[0].values()
    say(f"asking engine {loaded.name} which workflows there are ...", err=True)
    found: Sequence[Discovered] = ()
    try:
        found = anyio.run(discover, loaded)
    except WorkflowsError as error:
        say(f"note: {error}", err=True)
    chosen = _chosen(found, workflows, asks=asks)
    seen = [*(each for each in chosen if each not in found), *found]
    return [*head, *draft(engine, seen, configured={}, taken=(), chosen=chosen)]


def _settings(kind: type[Adapter], words: Sequence[str], *, asks: bool) -> Mapping[str, JSON]:
    """Return the settings to write: the given ones, and those that a first configuration needs."""
    given = dict(map(_setting, words))
    fields = kind.Settings.model_fields
    required = {name: "" for name, field in fields.items() if field.is_required()}
    values: dict[str, JSON] = {}
    asked = kind.tooling.first_settings if isinstance(kind.tooling, Proposes) else required
    for name, proposed in asked.items():
        if name in given:
            values[name] = given.pop(name)
            continue
        needed = name in required and not proposed
        if asks:
            about = " ".join([f"{name}:", fields[name].description or "", f"[{proposed or 'left out'}]" * (not needed)])
            proposed = typer.prompt(about, default=None if needed else proposed, show_default=False, err=True)
        elif needed:
            raise typer.BadParameter(f"the engine needs it: --set {name}=...", param_hint="--set")
        if proposed:
            values[name] = proposed
    return values | given


def _setting(word: str) -> tuple[str, JSON]:
    """Read `NAME=VALUE`; the value is JSON, or else text."""
    name, equals, text = word.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{word!r} is not NAME=VALUE", param_hint="--set")
    try:
        value: Any = json.loads(text)  # any JSON value
    except ValueError:
        return name, text
    return name, value


def _chosen(found: Sequence[Discovered], names: Sequence[str], *, asks: bool) -> Sequence[Discovered]:
    """Return the workflows that become tools, at least one: a configuration without tools offers nothing."""
    listed = found[:MOST_LISTED]
    if not names and asks:
        for number, each in enumerate(listed, 1):
            say(f"  {number}. {each.workflow}", err=True)
        what = "Workflows to offer as tools, by number or name, with commas" if listed else "A workflow, by its name"
        names = str(typer.prompt(what, default="1" if listed else None, err=True)).split(",")
    names = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not names:
        seen = f" (there are: {', '.join(each.workflow for each in listed)})" if listed else ""
        raise typer.BadParameter(f"which workflow shall be a tool?{seen}", param_hint="--workflow")
    by_name = {each.workflow: each for each in reversed(found)}
    by_number = {str(number): each for number, each in enumerate(listed, 1)} if asks else {}
    for name in names if found else ():
        if name not in by_name and name not in by_number:
            say(f"note: no workflow {name!r} has been seen there{did_you_mean(name, by_name)}", err=True)
    return [by_name.get(name) or by_number.get(name) or Discovered(workflow=name) for name in names]


@contextmanager
def _beside(path: Path, lines: Sequence[str]) -> Generator[Path]:
    """Write the text to a temporary file in the same folder, to be read as the configuration would be.

    Raises:
        ConfigError: it is not valid, named by the final path; or it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write(beside, lines, force=False)
        yield beside
    except ConfigError as error:
        raise ConfigError(str(error).replace(str(beside), str(path))) from None
    finally:
        beside.unlink(missing_ok=True)


def _write(path: Path, lines: Sequence[str], *, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


# --- a draft of what to add


def _of_engine(config: Path, name: str) -> Iterator[str]:
    """Yield tools for the workflows of an engine that are not configured yet."""
    engines, tools = load_engines(existing(config, is_yaml=True), os.environ)
    if name not in engines:
        raise ConfigError(f"{config}: {no_engine(name, engines)}")
    seen = anyio.run(discover, engines[name])
    if not seen:
        raise ConfigError(f"engine {name}: no workflow has been seen there yet")
    configured = defaultdict[str, list[str]](list)
    for tool, written in tools.items():  # malformed ones are ignored
        entry = mapping_in(written)
        if entry.get("engine") == name:
            for each in seen:
                if one_workflow(engines[name].kind, str(entry.get("workflow")), each.workflow):
                    configured[each.workflow].append(tool)
    yield from draft(name, seen, configured=configured, taken=tools)


def _of_server(address: str, start: str | None) -> Iterator[str]:
    """Yield an engine for the tools of an MCP server."""
    tooling = load_adapter(_MCP).tooling
    if not isinstance(tooling, Drafts):
        raise ConfigError(f"the adapter {_MCP!r} cannot draft an engine")
    try:
        drafted = anyio.run(tooling.draft, address, start)
    except EngineError as error:
        raise EngineUnavailable(f"the MCP server of --mcp: {error}") from None
    yield from (f"# {' '.join(cleaned(line).split())}" for line in drafted.advice)
    yield from draft_engine(_MCP, drafted.settings, name=tool_name(drafted.name, frozenset()))


async def discover(engine: Engine) -> Sequence[Discovered]:
    """Return the workflows that were seen on the engine.

    Raises:
        ConfigError: its adapter cannot list them.
        EngineError: the engine gives no answer.
    """
    adapter = engine.kind(engine.settings)
    tooling = adapter.tooling
    if not isinstance(tooling, Discovers):
        raise ConfigError(f"engine {engine.name}: the adapter {engine.adapter!r} cannot list workflows")
    try:
        async with Engines({engine.name: adapter}) as engines, engines.calling(engine.name):
            return [described(each) for each in await tooling.discover()]
    except EngineError as error:
        raise EngineUnavailable(f"engine {engine.name}: {error}") from None
