"""The command `mcp-workflows import`: a draft of tools for the workflows of an engine."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import anyio
import typer

from mcp_workflows.adapter import load_adapter
from mcp_workflows.adapter.display_text import cleaned
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import ConfigError, EngineError, EngineUnavailable
from mcp_workflows.kit.tooling import Discovered, Discovers, Drafts
from mcp_workflows.sidecar.cli.app import app, say
from mcp_workflows.sidecar.cli.options import DEFAULT_CONFIG, ConfigOption, LogLevel, existing, log
from mcp_workflows.sidecar.config.draft import draft, draft_engine, tool_name
from mcp_workflows.sidecar.config.load import load_engines
from mcp_workflows.sidecar.config.models import Engine
from mcp_workflows.sidecar.config.problems import no_engine
from mcp_workflows.sidecar.config.yaml import mapping_in
from mcp_workflows.sidecar.tooling import described, one_workflow

_MCP: Final = "mcp"  # the adapter for MCP servers


@app.command("import")
def import_tools(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="ENGINE",
            help="One of the engines in the configuration; with --mcp, a tool that starts something.",
        ),
    ] = None,
    mcp: Annotated[
        str | None,
        typer.Option(
            "--mcp",
            metavar="URL|COMMAND",
            help="An MCP server whose tools become an engine. The variables of a command stand before it: "
            "'TOKEN=x npx -y some-server'.",
        ),
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Print a draft: tools for the workflows of an engine, or an engine for the tools of an MCP server."""
    log(LogLevel.WARNING)
    if mcp is not None:
        lines = _of_server(mcp, name)
    elif name is not None:
        lines = _of_engine(config, name)
    else:
        raise typer.BadParameter("name an engine of the configuration, or an MCP server with --mcp")
    for line in lines:
        say(line)


def _of_engine(config: Path, engine: str) -> Iterator[str]:
    engines, tools = load_engines(existing(config, is_yaml=True), os.environ)
    if engine not in engines:
        raise ConfigError(f"{config}: {no_engine(engine, engines)}")
    seen = anyio.run(discover, engines[engine])
    if not seen:
        raise ConfigError(f"engine {engine}: no workflow has been seen there yet")
    yield from draft(engine, seen, configured=_configured(tools, engines[engine], seen), taken=tools)


def _of_server(address: str, start: str | None) -> Iterator[str]:
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


def _configured(tools: Mapping[str, object], engine: Engine, seen: Sequence[Discovered]) -> Mapping[str, Sequence[str]]:
    """Return the existing tools of the workflows that were seen, by workflow; malformed tools are ignored."""
    found = defaultdict[str, list[str]](list)
    for name, written in tools.items():
        entry = mapping_in(written)
        if entry.get("engine") == engine.name:
            mine = str(entry.get("workflow"))
            for workflow in (each.workflow for each in seen if one_workflow(engine.kind, mine, each.workflow)):
                found[workflow].append(name)
    return found
