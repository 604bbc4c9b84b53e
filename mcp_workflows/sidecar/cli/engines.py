"""The command `mcp-workflows engines rebind`: the identities of engines that tasks belong to."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from functools import partial
from typing import Annotated

import anyio
import typer

from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import OperatorError
from mcp_workflows.sidecar.checks import counted
from mcp_workflows.sidecar.cli.app import COMMANDS, app, say
from mcp_workflows.sidecar.cli.options import DEFAULT_CONFIG, ConfigOption, LogLevel, Yes, load_shared, log
from mcp_workflows.sidecar.config.models import Config
from mcp_workflows.store.protocol import TaskFilter
from mcp_workflows.task import Task, engine_key

_PAGE = 100  # rows
_ORIGIN = re.compile(r"\w+:(https?://[^/?#]+)")  # in an identity that is an address

engine_commands = typer.Typer(help=COMMANDS["engines"][1], no_args_is_help=True)
app.add_typer(engine_commands, name="engines")


@engine_commands.command()
def rebind(
    old: Annotated[str, typer.Argument(help="The identity that tasks have, as `check` prints it.")],
    new: Annotated[str, typer.Argument(help="The identity that an engine of the configuration has now.")],
    yes: Yes = False,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Assign the tasks of an engine to its new identity, after its address or name has changed.

    It must be the same engine, with the same executions: on another one the tasks would start again or fail. OLD is the
    engine's name for tasks from versions that stored no identity.
    """
    log(LogLevel.ERROR)
    done = anyio.run(partial(_rebind, load_shared(config), old, new, yes=yes))
    say(f"changed, with those that have ended: {done}")


async def _rebind(config: Config, old: str, new: str, *, yes: bool) -> int:
    """Change the identity of rows, also of ended ones, as their keys still count; return their number.

    Raises:
        OperatorError: no engine has the new identity, or nobody can be asked.
    """
    adapters = {name: engine.kind(engine.settings) for name, engine in config.engines.items()}
    async with config.store.open() as store:
        async with Engines(adapters) as opened:
            known = {name: opened.identity(name) for name in opened.names}
        keys = [name if name == old else engine_key(name, old) for name in known if known[name] == new != old]
        if not keys:
            there = ", ".join(known.values())
            raise OperatorError(f"NEW must be the identity of an engine, and not OLD; the configuration has: {there}")
        live = sum([await store.count_all(TaskFilter(engine=key)) for key in keys])
        say(f"{counted(live)}: {old} -> {new}")
        if not (yes or sys.stdin.isatty()):
            raise OperatorError("nothing was changed, as nobody can be asked here: add --yes")
        if not yes:
            typer.confirm("Is it the same engine?", abort=True, err=True)
        done = 0
        for key in keys:
            while page := await store.list_all(TaskFilter(engine=key, live_only=False), limit=_PAGE):
                for row in page:
                    await store.change(row.id, row.owner, partial(_moved, old=old, new=new))
                done += len(page)
    return done


def _moved(task: Task, old: str, new: str) -> Task:
    """Return the task with the new identity; a URL of the old host in its handle gets the new host."""
    handle, hosts = task.handle, (_ORIGIN.match(old), _ORIGIN.match(new))
    if handle is not None and hosts[0] and hosts[1]:
        handle = re.sub(rf"{re.escape(hosts[0][1])}(?=[/?#\"]|$)", hosts[1][1], handle)
    return replace(task, identity=new, handle=handle)
