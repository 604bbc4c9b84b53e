"""The commands `print` and `skills`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import anyio
import typer

from mcp_workflows.adapter import GATE_WORDS, JSON, installed_adapters, load_adapter
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import ConfigError, EngineError, EngineUnavailable, OperatorError
from mcp_workflows.kit.tooling import Embeds, HasPresets, Permits, Preset, Use
from mcp_workflows.receiver.skills import skills_of
from mcp_workflows.sidecar.cli.app import COMMANDS, app, say
from mcp_workflows.sidecar.cli.options import (
    ConfigArgument,
    ConfigInstead,
    LogLevel,
    Yes,
    adapter_names,
    confirm,
    either,
    existing,
    load,
    log,
    names_in,
)
from mcp_workflows.sidecar.config.json_schema import config_schema, team_schema
from mcp_workflows.sidecar.config.models import Config, Engine
from mcp_workflows.sidecar.config.problems import names, no_engine
from mcp_workflows.sidecar.config.redaction import redact_config
from mcp_workflows.tools.json_schema import did_you_mean
from mcp_workflows.tools.tool import AnyTool, Kind

printers = typer.Typer(help=COMMANDS["print"][1], no_args_is_help=True)
app.add_typer(printers, name="print")

_PRESETS_OF = "http"  # the adapter whose presets users write themselves


class Format(StrEnum):
    """The format of the output."""

    YAML = "yaml"
    JSON = "json"


@printers.command()
def schema(
    team: Annotated[bool, typer.Option("--team", help="The schema of included files, which have tools only.")] = False,
    preset: Annotated[bool, typer.Option("--preset", help="The schema of a preset for job APIs.")] = False,
) -> None:
    """Print the JSON Schema of workflows.yaml, for editors."""
    if preset:
        tooling = load_adapter(_PRESETS_OF).tooling
        assert isinstance(tooling, HasPresets), "this adapter has presets"
        printed = tooling.preset_schema()
    else:
        printed = team_schema() if team else config_schema()
    typer.echo(json.dumps(printed, indent=2))


@printers.command("config")
def print_config(
    config: ConfigArgument = None,
    option: ConfigInstead = None,
    as_format: Annotated[
        Format, typer.Option("--format", help="For people, with comments, or for programs.")
    ] = Format.YAML,
) -> None:
    """Print the configuration with its included files and the source of each tool, without secrets."""
    log(LogLevel.WARNING)
    path = either(config, option)
    shown = redact_config(existing(path, is_yaml=True), os.environ)
    typer.echo(json.dumps(shown.as_json(), indent=2) if as_format is Format.JSON else shown.as_yaml().rstrip())
    try:
        load(path)
    except ConfigError as error:
        typer.echo(f"note: the configuration has errors and cannot be served:\n{error}", err=True)
        raise typer.Exit(1) from None


@printers.command("presets")
def print_presets(
    name: Annotated[str | None, typer.Argument(help="The preset to print. Default: a list of all.")] = None,
) -> None:
    """Print a preset for a known engine, or list all presets. An engine's own settings override its preset."""
    tools = {adapter: load_adapter(adapter).tooling for adapter in installed_adapters()}
    found: Mapping[str, tuple[str, Preset]] = {
        name: (adapter, preset)
        for adapter, tooling in tools.items()
        if isinstance(tooling, HasPresets)
        for name, preset in tooling.presets().items()
    }
    if name is None:
        rows = [("PRESET", "ADAPTER", "VERIFIED", "ENGINE")]
        rows += [(each, by, preset.verified, f"{preset.title}, {preset.since}") for each, (by, preset) in found.items()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            say("  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip())
    elif name in found:
        say(found[name][1].text.rstrip())
    else:
        raise OperatorError(f"there is no preset {name!r}{did_you_mean(name, found)}; there are: {names(found)}")


@printers.command()
def helper(
    language: Annotated[str, typer.Argument(help="The language of the workflows: go, typescript, asl, google.")],
    adapter: Annotated[
        str | None,
        typer.Option(
            help="The adapter that ships the file. Default: any that is installed.",
            autocompletion=adapter_names,
        ),
    ] = None,
) -> None:
    """Print the file with which workflows in this language ask people and report progress: > mcpwf.go"""
    tools = {name: load_adapter(name).tooling for name in ([adapter] if adapter else installed_adapters())}
    files = {name: tooling.embeds() for name, tooling in tools.items() if isinstance(tooling, Embeds)}
    having = [name for name, found in files.items() if language in found]
    if len(having) > 1:
        raise ConfigError(f"several adapters have a file for {language}: add --adapter {' or --adapter '.join(having)}")
    if not having:
        there = [f"{each} (--adapter {name})" for name, found in sorted(files.items()) for each in sorted(found)]
        raise ConfigError(f"there is no file for {language!r}; there is: {', '.join(there) or 'none'}")
    typer.echo(files[having[0]][language], nl=False)


@printers.command()
def iam(
    config: ConfigArgument = None,
    option: ConfigInstead = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE", help="The engine, if several have policies.", autocompletion=names_in("engines")
        ),
    ] = None,
) -> None:
    """Print the least-privilege policy that the configured tools need, as JSON."""
    log(LogLevel.WARNING)
    loaded = load(either(config, option))
    chosen = _chosen(loaded, engine)
    for other in loaded.engines.values() if engine is None else ():
        if not isinstance(other.kind.tooling, Permits):
            said = f"nothing to print: the adapter {other.adapter!r} has no policies"
            typer.echo(f"note: engine {other.name}: {said}", err=True)
    uses = [_use(tool) for tool in loaded.tools if tool.engine == chosen.name]

    async def ask() -> Mapping[str, JSON]:
        adapter = chosen.kind(chosen.settings)
        assert isinstance(adapter.tooling, Permits), "the class says so"
        async with Engines({chosen.name: adapter}) as engines, engines.calling(chosen.name):
            return await adapter.tooling.permissions(uses)

    try:
        typer.echo(json.dumps(anyio.run(ask), indent=2))
    except EngineError as error:
        raise EngineUnavailable(f"engine {chosen.name}: {error}") from None


@app.command("skills")
def write_skills(
    folder: Annotated[Path, typer.Argument(help="The folder of skills, such as .claude/skills.")],
    option: ConfigInstead = None,
    expose_workflow: Annotated[
        bool,
        typer.Option("--expose-workflow", help="Write the skill that teaches a coding agent to write workflows.yaml."),
    ] = False,
    yes: Yes = False,
) -> None:
    """Write an Agent Skill for each tool: what it does, what it asks, and what to do while it runs.

    `server.skills: true` serves the same skills over MCP.
    """
    if expose_workflow:
        packaged = Path(__file__).parent / "skills"
        texts = {each.name: (each / "SKILL.md").read_text(encoding="utf-8") for each in packaged.iterdir()}
    else:
        log(LogLevel.WARNING)
        texts = {skill.name: skill.text for skill in skills_of(load(either(None, option)).tools).values()}
    for name, text in texts.items():
        path = folder / name / "SKILL.md"
        try:
            if path.is_symlink() or path.parent.is_symlink():
                raise OperatorError(f"{path} is a link, or in a folder that is one: remove it first")
            if path.exists() and path.read_bytes() != text.encode():
                confirm(f"{path} exists. Replace it?", yes=yes)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise OperatorError(f"{path}: {error.strerror}") from None
        say(str(path))


def _chosen(config: Config, name: str | None) -> Engine:
    """Return the engine with this name; without a name, the only engine that has policies."""
    engines = config.engines
    if name is not None and name not in engines:
        raise ConfigError(no_engine(name, engines))
    can = [engine.name for engine in engines.values() if isinstance(engine.kind.tooling, Permits)]
    if name is None and len(can) > 1:
        raise ConfigError(f"several engines have policies: choose one with --engine {' or '.join(can)}")
    engine = engines[name or next(iter(can or engines))]
    if engine.name not in can:
        raise ConfigError(f"engine {engine.name}: the adapter {engine.adapter!r} cannot list the permissions it needs")
    return engine


def _use(tool: AnyTool) -> Use:
    return Use(
        tool=tool.name,
        workflow=tool.workflow,
        options=tool.options,
        gates={name: gate.model_dump(include=set(GATE_WORDS)) for name, gate in tool.gates.items()},
        watches=tool.kind is Kind.WATCH,
        answers=tool.may_answer,
        cancels=tool.may_cancel,
    )
