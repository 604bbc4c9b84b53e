"""The command `mcp-workflows iam`: the permissions that the configured tools need from an engine, and no more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import anyio
import typer

from mcp_workflows.adapter import GATE_WORDS
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import ConfigError, EngineError, EngineUnavailable
from mcp_workflows.kit.tooling import Permits, Use
from mcp_workflows.sidecar.cli.app import app
from mcp_workflows.sidecar.cli.options import ConfigArgument, ConfigInstead, LogLevel, either, load, log
from mcp_workflows.sidecar.config.models import Config, Engine
from mcp_workflows.sidecar.config.problems import no_engine
from mcp_workflows.tools.tool import AnyTool, Kind


@app.command()
def iam(
    config: ConfigArgument = None,
    option: ConfigInstead = None,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="ENGINE", help="The engine, if several have policies.")
    ] = None,
) -> None:
    """Print the least-privilege policy for what the configured tools use, as JSON."""
    log(LogLevel.WARNING)
    loaded = load(either(config, option))
    chosen = _chosen(loaded, engine)
    for other in _without_permissions(loaded) if engine is None else ():
        typer.echo(
            f"note: engine {other.name}: nothing for it, the adapter {other.adapter!r} has no policies", err=True
        )
    uses = [_use(tool) for tool in loaded.tools if tool.engine == chosen.name]
    typer.echo(json.dumps(anyio.run(_permissions, chosen, uses), indent=2))


def _chosen(config: Config, name: str | None) -> Engine:
    """Return the engine of this name; without a name, the only engine that has policies."""
    engines = config.engines
    if name is not None:
        if name not in engines:
            raise ConfigError(no_engine(name, engines))
        return _that_permits(engines[name])
    can = [engine.name for engine in engines.values() if _permits(engine)]
    if len(can) > 1:
        raise ConfigError(
            f"several engines have policies, and each is printed by itself: say --engine {' or '.join(can)}"
        )
    return _that_permits(engines[can[0]] if can else next(iter(engines.values())))


def _that_permits(engine: Engine) -> Engine:
    if not _permits(engine):
        raise ConfigError(
            f"engine {engine.name}: the adapter {engine.adapter!r} cannot tell which permissions it needs"
        )
    return engine


def _permits(engine: Engine) -> bool:
    return isinstance(engine.kind.tooling, Permits)


def _without_permissions(config: Config) -> Sequence[Engine]:
    return [engine for engine in config.engines.values() if not _permits(engine)]


def _use(tool: AnyTool) -> Use:
    watches = tool.kind is Kind.WATCH
    return Use(
        tool=tool.name,
        workflow=tool.workflow,
        options=tool.options,
        gates={name: gate.model_dump(include=set(GATE_WORDS)) for name, gate in tool.gates.items()},
        watches=watches,
        answers=tool.may_answer,
        cancels=tool.may_cancel,
    )


async def _permissions(engine: Engine, uses: Sequence[Use]) -> Mapping[str, Any]:  # Any: JSON
    """Return the policy.

    Raises:
        EngineError: the engine gives no answer.
    """
    adapter = engine.kind(engine.settings)
    tooling = adapter.tooling
    assert isinstance(tooling, Permits), "the class says so"
    try:
        async with Engines({engine.name: adapter}) as engines, engines.calling(engine.name):
            return await tooling.permissions(uses)
    except EngineError as error:
        raise EngineUnavailable(f"engine {engine.name}: {error}") from None
