"""The command `mcp-workflows init`: write a first workflows.yaml, from options or from answers at a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer

from mcp_workflows.adapter import JSON, Adapter, installed_adapters, load_adapter
from mcp_workflows.errors import ConfigError, WorkflowsError
from mcp_workflows.kit.tooling import Discovered, Discovers, Proposes
from mcp_workflows.sidecar.cli.app import app, say
from mcp_workflows.sidecar.cli.import_ import discover
from mcp_workflows.sidecar.cli.options import (
    DEFAULT_CONFIG,
    ConfigArgument,
    ConfigInstead,
    LogLevel,
    command_line,
    either,
    existing,
    is_python,
    load,
    log,
)
from mcp_workflows.sidecar.config.draft import draft, draft_engine, draft_python
from mcp_workflows.sidecar.config.load import load_engines
from mcp_workflows.sidecar.config.models import Engine
from mcp_workflows.tools.json_schema import did_you_mean

MOST_LISTED = 20  # workflows that are listed to choose from

NEXT_STEPS = """\
{path}: written
next:
  {change}
  {check}
"""


@app.command()
def init(
    config: ConfigArgument = None,
    option: ConfigInstead = None,
    engine: Annotated[
        str | None, typer.Option(metavar="ADAPTER", help="The engine, by the name of its adapter: temporal.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the engine; can be repeated.")
    ] = None,
    workflows: Annotated[
        list[str] | None,
        typer.Option("--workflow", metavar="WORKFLOW", help="A workflow that becomes a tool; can be repeated."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if there is one.")] = False,
) -> None:
    """Write a first configuration: asks at a terminal for what the options leave open."""
    log(LogLevel.WARNING)
    path = either(config, option)
    if is_python(path):
        _init_python(path, force=force)
        return
    if path.exists() and not force:
        raise ConfigError(f"{path}: exists already; name another with -c CONFIG, or overwrite it with --force")
    asks = sys.stdin.isatty() and sys.stderr.isatty() and not (engine and workflows)
    adapter = _adapter(engine, asks=asks)
    head = list(draft_engine(adapter, _settings(load_adapter(adapter), settings or [], asks=asks)))
    with _beside(path, head) as written:
        [loaded] = load_engines(written, os.environ)[0].values()
    found = _found(loaded)
    chosen = _chosen(found, workflows or [], asks=asks)
    seen = [*(each for each in chosen if each not in found), *found]
    text = [*head, *draft(adapter, seen, configured={}, taken=(), chosen=chosen)]
    _write_checked(path, text, force=force)
    _tell_next_steps(path, "complete the lines with TODO: what each tool does, and what goes in")


def _init_python(file: Path, *, force: bool) -> None:
    """Write the configuration beside a Python file that its tools have without one."""
    path = file.with_name(DEFAULT_CONFIG.name)
    if path.exists() and not force:
        raise ConfigError(f"{path}: exists already; overwrite it with --force")
    text = draft_python(existing(file)).splitlines()
    _write_checked(path, text, force=force)
    shown = DEFAULT_CONFIG if path.resolve() == DEFAULT_CONFIG.resolve() else path
    _tell_next_steps(shown, "add rules, limits, gates and other engines")


def _tell_next_steps(path: Path, change: str) -> None:
    typer.echo(NEXT_STEPS.format(path=path, change=change, check=command_line("check", config=path)), nl=False)


def _adapter(given: str | None, *, asks: bool) -> str:
    """Return the name of the adapter."""
    installed = installed_adapters()
    if given is not None:
        return given
    if not asks:
        raise typer.BadParameter(f"which engine? one of: {', '.join(installed)}", param_hint="--engine")
    can = [name for name in installed if isinstance(load_adapter(name).tooling, Discovers)]
    return str(typer.prompt(f"Engine ({', '.join(installed)})", default=[*can, *installed][0], err=True))


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


def _found(engine: Engine) -> Sequence[Discovered]:
    """Return the workflows that `import` would draft; none if the engine cannot list them now."""
    say(f"asking engine {engine.name} which workflows there are ...", err=True)
    try:
        return anyio.run(discover, engine)
    except WorkflowsError as error:
        say(f"note: {error}", err=True)
        return []


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


def _write_checked(path: Path, lines: Sequence[str], *, force: bool) -> None:
    """Write a configuration that is valid.

    Raises:
        ConfigError: it is not valid, or it cannot be written.
    """
    with _beside(path, lines) as written:
        load(written)
    _write(path, lines, force=force)


def _write(path: Path, lines: Sequence[str], *, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
