"""The command `mcp-workflows import`: a draft of tools for the workflows of an engine."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated

import anyio
import typer

from mcp_workflows.adapter import Discovered, Discovers, one_workflow
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import ConfigError, EngineError, EngineUnavailable
from mcp_workflows.sidecar.cli.app import app, say
from mcp_workflows.sidecar.cli.options import DEFAULT_CONFIG, ConfigOption, LogLevel, existing, log
from mcp_workflows.sidecar.config.draft import draft
from mcp_workflows.sidecar.config.load import load_engines
from mcp_workflows.sidecar.config.models import Engine
from mcp_workflows.sidecar.config.problems import no_engine
from mcp_workflows.sidecar.config.yaml import mapping_in


@app.command("import")
def import_tools(
    engine: Annotated[str, typer.Argument(metavar="ENGINE", help="One of the engines in the configuration.")],
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Print a draft of tools, commented out, for the workflows seen on an engine lately."""
    log(LogLevel.WARNING)
    engines, tools = load_engines(existing(config), os.environ)
    if engine not in engines:
        raise ConfigError(f"{config}: {no_engine(engine, engines)}")
    seen = anyio.run(discover, engines[engine])
    if not seen:
        raise ConfigError(f"engine {engine}: no workflow has been seen there yet")
    for line in draft(engine, seen, configured=_configured(tools, engines[engine], seen), taken=tools):
        say(line)


async def discover(engine: Engine) -> Sequence[Discovered]:
    """Return the workflows that were seen on the engine.

    Raises:
        ConfigError: its adapter cannot list them.
        EngineError: the engine gives no answer.
    """
    adapter = engine.kind(engine.settings)
    if not isinstance(adapter, Discovers):
        raise ConfigError(f"engine {engine.name}: the adapter {engine.adapter!r} cannot list workflows")
    try:
        async with Engines({engine.name: adapter}) as engines, engines.calling(engine.name):
            return await adapter.discover()
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
