"""The command `mcp-workflows init`: write a first workflows.yaml, or print a draft of additions to one."""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, cast

import anyio
import typer

from mcp_workflows.adapter import JSON, Adapter, installed_adapters, load_adapter
from mcp_workflows.adapter.display_text import cleaned
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import ConfigError, EngineError, EngineUnavailable, WorkflowsError
from mcp_workflows.kit.tooling import Discovered, Discovers, Drafts, HasPresets, Proposes
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
from mcp_workflows.sidecar.config.draft import SAMPLED, draft, draft_engine, draft_python, one_line, summary, tool_name
from mcp_workflows.sidecar.config.load import load_engines
from mcp_workflows.sidecar.config.models import Engine
from mcp_workflows.sidecar.config.problems import no_engine
from mcp_workflows.sidecar.config.yaml import mapping_in
from mcp_workflows.sidecar.engine_checks import described, one_workflow
from mcp_workflows.tools.json_schema import did_you_mean

MOST_LISTED: Final = 20  # workflows listed for selection
_SAMPLE: Final = "MyWorkflow"  # an example, if no workflow has run yet
_MCP: Final = "mcp"  # the adapter for MCP servers


@app.command()
def init(
    config: ConfigArgument = None,
    option: ConfigInstead = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="ADAPTER",
            help="The engine, by the name of its adapter or preset: temporal, airflow.",
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
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing: take the usual settings and the first workflow found.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if there is one.")] = False,
    add: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="Print tools for the workflows of this configured engine; write nothing.",
            autocompletion=names_in("engines"),
        ),
    ] = None,
    mcp: Annotated[
        str | None,
        typer.Option(
            "--mcp",
            metavar="URL|COMMAND",
            help="Print an engine for the tools of an MCP server; write nothing. --workflow names a tool that starts "
            "something. Put variables before a command: 'TOKEN=x npx -y some-server'.",
        ),
    ] = None,
) -> None:
    """Create a configuration, and ask at a terminal for what the options leave open; or print what to add to one."""
    log(LogLevel.WARNING)
    path = either(config, option)
    if add is not None or mcp is not None:
        named = workflows or []
        lines = _of_engine(path, str(add), named) if mcp is None else _of_server(mcp, next(iter(named), None))
        for line in lines:
            say(line)
        return
    file = path if is_python(path) else None
    if file is not None:
        path = path.with_name(DEFAULT_CONFIG.name)
        path = DEFAULT_CONFIG if path.resolve() == DEFAULT_CONFIG.resolve() else path
    asks = sys.stdin.isatty() and sys.stderr.isatty() and not yes
    if path.exists() and asks and not force:
        force = typer.confirm(f"{path} exists already. Overwrite it?", abort=True, err=True)
    if path.exists() and not force:
        raise ConfigError(f"{path}: already exists; name another file with -c CONFIG, or overwrite it with --force")
    if file is not None:
        drafted, problems = draft_python(file)
        text: Sequence[str] = [*drafted.splitlines(), *(f"# not offered: {problem}" for problem in problems)]
        change = "add rules, limits, gates and other engines"
    else:
        text = _first_configuration(path, engine, settings or [], workflows or [], asks=asks, yes=yes)
        change = "complete the lines with TODO: what each tool does"
    with _beside(path, text) as written:
        first = next(iter(load(written).tools))
    _write(path, text, force=force)
    given = [f"{name}=..." for name in cast("Sequence[str]", first.input.get("required", ()))]
    commands = [("check",), ("call", first.name, *given), ("connect", "claude", "--write")]
    next_steps = [change, *(command_line(*words, config=path) for words in commands)]
    say("\n  ".join([f"{path}: written\nnext:", *next_steps]))


# --- a first configuration


def _first_configuration(
    path: Path, engine: str | None, settings: Sequence[str], workflows: Sequence[str], *, asks: bool, yes: bool
) -> Sequence[str]:
    """Return the lines of a configuration with one engine, from the options or from answers at the terminal.

    If all settings are optional, the engine is tried without them before the user is asked.

    Raises:
        EngineUnavailable: the engine cannot list its workflows now, and no workflow is named.
    """
    asks = asks and not (engine and workflows)
    installed = installed_adapters()
    can = [name for name in installed if isinstance(load_adapter(name).tooling, Discovers)]
    if engine is None and len(can) == 1:
        engine = can[0]
    if engine is None and not asks:
        raise typer.BadParameter(f"which engine? one of: {', '.join(installed)}", param_hint="--engine")
    if engine is None:
        engine = str(typer.prompt(f"Engine ({', '.join(installed)})", default=[*can, *installed][0], err=True))
    given = dict(map(_setting, settings))
    adapter = next((name for name in installed if engine in _presets(name)), engine)
    given |= {"preset": engine} if adapter != engine else {}
    kind = load_adapter(adapter)
    head, found, trouble = list[str](), list[Discovered](), None
    rounds = (False, True) if asks and _can_be_left_out(kind, given) else (asks,)
    for asks_now in rounds:
        head = list(draft_engine(adapter, _settings(kind, given, asks=asks_now), name=engine))
        with _beside(path, head) as written:
            [loaded] = load_engines(written, os.environ)[0].values()
        say(f"listing the workflows of engine {loaded.name} ...", err=True)
        try:
            found, trouble = list(anyio.run(discover, loaded, workflows)), None
            break
        except WorkflowsError as error:
            if isinstance(error, EngineUnavailable) and not (asks or workflows):
                what = "nothing was written; correct the settings (--set NAME=VALUE), or name a workflow (--workflow)"
                raise EngineUnavailable(f"{error}\n{what}") from None
            trouble = error
            say(f"note: {error}", err=True)
            if isinstance(error, ConfigError):
                break
    if trouble is None and not found:
        say(f"note: engine {engine}: no workflow has run yet", err=True)
    sample = None if found or trouble is not None else _SAMPLE
    chosen = _chosen(found, workflows, sample, asks=asks, yes=yes)
    for each in chosen:
        if each.is_sampled:
            say(f"note: the input of {one_line(each.workflow)} is {SAMPLED}", err=True)
    seen = [*(each for each in chosen if each not in found), *found]
    return [*head, *draft(engine, seen, configured={}, taken=(), chosen=chosen)]


def _presets(adapter: str) -> Collection[str]:
    tooling = load_adapter(adapter).tooling
    return tooling.presets() if isinstance(tooling, HasPresets) else ()


def _first_settings(kind: type[Adapter], given: Mapping[str, JSON]) -> Mapping[str, str]:
    """Return the settings to ask for, with proposals; with another preset, the proposals do not apply."""
    if not isinstance(kind.tooling, Proposes):
        return {name: "" for name, field in kind.Settings.model_fields.items() if field.is_required()}
    proposals = kind.tooling.first_settings
    return dict.fromkeys(proposals, "") if "preset" in given else proposals


def _settings(kind: type[Adapter], given: Mapping[str, JSON], *, asks: bool) -> Mapping[str, JSON]:
    """Return the settings to write: the given ones, and those that a first configuration needs."""
    fields = kind.Settings.model_fields
    values: dict[str, JSON] = {}
    for name, proposed in _first_settings(kind, given).items():
        if name in given:
            values[name] = given[name]
            continue
        needed = fields[name].is_required() and not proposed and "preset" not in given
        if asks:
            about = " ".join([f"{name}:", fields[name].description or "", f"[{proposed or 'left out'}]" * (not needed)])
            proposed = typer.prompt(about, default=None if needed else proposed, show_default=False, err=True)
        elif needed:
            raise typer.BadParameter(f"the engine needs it: --set {name}=...", param_hint="--set")
        if proposed:
            values[name] = proposed
    return {**values, **given}


def _can_be_left_out(kind: type[Adapter], given: Mapping[str, JSON]) -> bool:
    """True if the settings to ask for that are not given are all optional, as the engine's client may know them."""
    fields = kind.Settings.model_fields
    return not any(fields[name].is_required() for name in _first_settings(kind, given) if name not in given)


def _setting(word: str) -> tuple[str, JSON]:
    """Parse `NAME=VALUE`; the value is JSON, or else text."""
    name, equals, text = word.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{word!r} is not NAME=VALUE", param_hint="--set")
    try:
        value: Any = json.loads(text)  # any JSON value
    except ValueError:
        return name, text
    return name, value


def _chosen(
    found: Sequence[Discovered], names: Sequence[str], sample: str | None, *, asks: bool, yes: bool
) -> Sequence[Discovered]:
    """Return the workflows that become tools, at least one: a configuration without tools offers nothing."""
    listed = found[:MOST_LISTED]
    by_name = {each.workflow: each for each in reversed(found)}
    by_number = {str(number): each for number, each in enumerate(listed, 1)} if asks else {}

    def read(typed: str) -> Sequence[str]:
        words = [word.strip() for word in typed.split(",")]
        if wrong := [word for word in words if listed and word.isdecimal() and word not in {*by_number, *by_name}]:
            raise typer.BadParameter(f"there is no number {wrong[0]}")
        return words

    first = listed[0].workflow if listed else sample
    if not names and asks:
        for number, each in enumerate(listed, 1):
            takes = "" if each.is_sampled else ", ".join(mapping_in((each.input or {}).get("properties")))
            say(f"  {number}. {one_line(each.workflow)}{f'({takes})' if takes else ''}: {summary(each)}", err=True)
        what = "Workflows to offer as tools, by number or name, with commas" if listed else "A workflow, by its name"
        names = typer.prompt(what, default="1" if listed else sample, err=True, value_proc=read)
    elif not names and first is not None and (yes or not listed):
        names = [first]
    names = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not names:
        seen = f" (there are: {', '.join(one_line(each.workflow) for each in listed)})" if listed else ""
        raise typer.BadParameter(f"which workflow should become a tool?{seen}", param_hint="--workflow")
    for name in names if found else ():
        if name not in by_name and name not in by_number:
            say(f"note: no execution of a workflow {name!r} was found{did_you_mean(name, by_name)}", err=True)
    return [by_number.get(name) or by_name.get(name) or Discovered(workflow=name) for name in names]


@contextmanager
def _beside(path: Path, lines: Sequence[str]) -> Generator[Path]:
    """Write the text to a temporary file in the same folder, to be loaded like the configuration.

    Raises:
        ConfigError: the text is invalid (reported with the final path), or cannot be written.
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


def _of_engine(config: Path, name: str, workflows: Collection[str]) -> Iterator[str]:
    """Yield tools for an engine's workflows that are not configured yet; comment out those that are not chosen."""
    engines, tools = load_engines(existing(config, is_yaml=True), os.environ)
    if name not in engines:
        raise ConfigError(f"{config}: {no_engine(name, engines)}")
    seen = anyio.run(discover, engines[name], workflows)
    if not seen:
        raise ConfigError(f"engine {name}: no workflow has run yet")
    configured = defaultdict[str, list[str]](list)
    for tool, written in tools.items():  # malformed ones are ignored
        entry = mapping_in(written)
        if entry.get("engine") == name:
            for each in seen:
                if one_workflow(engines[name].kind, str(entry.get("workflow")), each.workflow):
                    configured[each.workflow].append(tool)
    chosen = [each for each in seen if each.workflow in workflows]
    yield from draft(name, seen, configured=configured, taken=tools, chosen=chosen)


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


async def discover(engine: Engine, named: Collection[str]) -> Sequence[Discovered]:
    """Return the workflows seen on the engine.

    Raises:
        ConfigError: the adapter cannot list them.
        EngineError: the engine does not reply.
    """
    adapter = engine.kind(engine.settings)
    tooling = adapter.tooling
    if not isinstance(tooling, Discovers):
        raise ConfigError(f"engine {engine.name}: the adapter {engine.adapter!r} cannot list workflows")
    try:
        async with Engines({engine.name: adapter}) as engines, engines.calling(engine.name):
            return [described(each) for each in await tooling.discover(named)]
    except EngineError as error:
        raise EngineUnavailable(f"engine {engine.name}: {error}") from None
