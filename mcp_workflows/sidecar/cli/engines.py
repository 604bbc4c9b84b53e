"""The commands `engines rebind`, for the engine identities in tasks, and `pause` and `resume`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import typer

from mcp_workflows.access.audit import Event, record_of
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import OperatorError
from mcp_workflows.sidecar.checks import counted
from mcp_workflows.sidecar.cli.app import COMMANDS, app, say
from mcp_workflows.sidecar.cli.options import DEFAULT_CONFIG, ConfigOption, LogLevel, Yes, confirm, load_shared, log
from mcp_workflows.sidecar.config.models import Config
from mcp_workflows.sidecar.operator import OPERATOR
from mcp_workflows.sidecar.telemetry.exporters import exporters_of
from mcp_workflows.store.protocol import TaskFilter
from mcp_workflows.task import Task, engine_key
from mcp_workflows.tasks.pauses import EVERYTHING, Pauses
from mcp_workflows.tools.json_schema import did_you_mean
from mcp_workflows.units import utc_now

_PAGE = 100  # rows
_ORIGIN = re.compile(r"\w+:(https?://[^/?#]+)")  # in an identity that is an address

engine_commands = typer.Typer(help=COMMANDS["engines"][1], no_args_is_help=True)
app.add_typer(engine_commands, name="engines")


@engine_commands.command()
def rebind(
    old: Annotated[str, typer.Argument(help="The identity stored with the tasks, as `check` prints it.")],
    new: Annotated[str, typer.Argument(help="The current identity of a configured engine.")],
    yes: Yes = False,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Assign an engine's tasks to its new identity, after its address or name has changed.

    It must be the same engine, with the same executions: on another engine tasks would start again or fail. OLD is the
    engine's name for tasks from versions that stored no identity.
    """
    log(LogLevel.ERROR)
    done = anyio.run(partial(_rebind, load_shared(config), old, new, yes=yes))
    say(f"changed, including ended tasks: {done}")


EngineOption = Annotated[str | None, typer.Option("--engine", help="Only starts on this engine.")]
ToolOption = Annotated[str | None, typer.Option("--tool", help="Only starts of this tool.")]
PrincipalOption = Annotated[
    str | None, typer.Option("--principal", help="Only starts of this subject or principal, as `tasks list` shows it.")
]


@app.command()
def pause(
    reason: Annotated[str, typer.Option(help="The reason, which callers read.")],
    engine: EngineOption = None,
    tool: ToolOption = None,
    principal: PrincipalOption = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Refuse new starts, on every replica. Reads, answers and cancellations continue to work."""

    async def do(pauses: Pauses, what: str) -> str:
        await pauses.begin(what, reason)
        return "paused"

    _change_pauses(config, {"engine": engine, "tool": tool, "principal": principal}, do, reason, is_checked=True)


@app.command()
def resume(
    engine: EngineOption = None,
    tool: ToolOption = None,
    principal: PrincipalOption = None,
    reason: Annotated[str | None, typer.Option(help="The reason, for the audit log.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Allow the new starts that a pause with the same options refused."""

    async def do(pauses: Pauses, what: str) -> str:
        if not await pauses.end(what):
            there = ", ".join(each.what for each in await pauses.every()) or "nothing"
            raise OperatorError(f"{what} is not paused; paused: {there}")
        return "resumed"

    _change_pauses(config, {"engine": engine, "tool": tool, "principal": principal}, do, reason)


def _change_pauses(
    config: Path,
    named: Mapping[str, str | None],
    do: Callable[[Pauses, str], Awaitable[str]],
    reason: str | None,
    *,
    is_checked: bool = False,
) -> None:
    """Change pauses. `is_checked`: only for configured names; a pause can outlive its entry in the configuration."""
    log(LogLevel.ERROR)
    loaded = load_shared(config)
    given = [f"{kind} {name}" for kind, name in named.items() if name is not None]
    if len(given) > 1:
        raise OperatorError("give one of --engine, --tool and --principal, or none for everything")
    known = {"engine": list(loaded.engines), "tool": [tool.name for tool in loaded.tools]}
    for kind, names in known.items():
        if is_checked and (name := named[kind]) is not None and name not in names:
            raise OperatorError(f"there is no {kind} {name!r}{did_you_mean(name, names)}")
    what, exporters = given[0] if given else EVERYTHING, exporters_of(loaded, printing=True)

    async def run() -> str:
        async with exporters, loaded.store.open() as store:
            done = await do(Pauses(store, utc_now), what)
            said = what if reason is None else f"{what}: {reason}"
            exporters.audit(record_of(Event.PAUSE, OPERATOR, outcome=done, reason=said))
            return done

    say(f"{anyio.run(run)}: starts of {what}")


async def _rebind(config: Config, old: str, new: str, *, yes: bool) -> int:
    """Change the identity of rows, including ended ones, whose keys still count; return their number.

    Raises:
        OperatorError: no engine has the new identity, or there is no terminal to ask.
    """
    adapters = {name: engine.kind(engine.settings) for name, engine in config.engines.items()}
    async with config.store.open() as store:
        async with Engines(adapters) as opened:
            known = {name: opened.identity(name) for name in opened.names}
        keys = [name if name == old else engine_key(name, old) for name in known if known[name] == new != old]
        if not keys:
            there = ", ".join(known.values())
            raise OperatorError(
                f"NEW must be the identity of a configured engine, not OLD; the configuration has: {there}"
            )
        live = sum([await store.count_all(TaskFilter(engine=key)) for key in keys])
        say(f"{counted(live)}: {old} -> {new}")
        confirm("Is it the same engine?", yes=yes)
        done = 0
        for key in keys:
            while page := await store.list_all(TaskFilter(engine=key, live_only=False), limit=_PAGE):
                for row in page:
                    await store.change(row.id, row.owner, partial(_moved, old=old, new=new))
                done += len(page)
    return done


def _moved(task: Task, old: str, new: str) -> Task:
    """Return the task with the new identity; in its handle, replace a URL's old host by the new one."""
    handle, hosts = task.handle, (_ORIGIN.match(old), _ORIGIN.match(new))
    if handle is not None and hosts[0] and hosts[1]:
        handle = re.sub(rf"{re.escape(hosts[0][1])}(?=[/?#\"]|$)", hosts[1][1], handle)
    return replace(task, identity=new, handle=handle)
