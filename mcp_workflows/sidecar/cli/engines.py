"""The command `mcp-workflows engines`: the engines that tasks belong to."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import anyio
import typer

from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import OperatorError
from mcp_workflows.sidecar.checks import counted
from mcp_workflows.sidecar.cli.app import app, say
from mcp_workflows.sidecar.cli.options import DEFAULT_CONFIG, ConfigOption, LogLevel, load, log
from mcp_workflows.sidecar.config.models import Config, StoreSettings
from mcp_workflows.store.key_value import notes_in
from mcp_workflows.task import Task, engine_key

_PAGE = 100  # rows
_ORIGIN = re.compile(r"\w+:(https?://[^/?#]+)")  # in an identity that is an address

engines = typer.Typer(name="engines", help="The engines that tasks belong to: rebind tasks.", no_args_is_help=True)
app.add_typer(engines)


@engines.command()
def rebind(
    old: Annotated[str, typer.Argument(help="The identity that tasks have, as `check` prints it.")],
    new: Annotated[str, typer.Argument(help="The identity that an engine of the configuration has now.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before tasks are changed.")] = False,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Assign the tasks of an engine to its new identity, after its address or name has changed.

    It must be the same engine, with the same executions: on another one the tasks would start again or fail. OLD is the
    engine's name for tasks from versions that stored no identity.
    """
    log(LogLevel.ERROR)
    loaded = load(config)
    live = anyio.run(_count, loaded, old, new)
    say(f"{counted(sum(live.values()))} on {', '.join(key.partition(chr(10))[0] for key in live)}: {old} -> {new}")
    if not yes:
        if not sys.stdin.isatty():
            raise OperatorError("nothing was changed, as nobody can be asked here: add --yes")
        typer.confirm("Is it the same engine?", abort=True, err=True)
    say(f"changed, with those that have ended: {anyio.run(_assign, loaded.store, list(live), old, new)}")


async def _count(config: Config, old: str, new: str) -> Mapping[str, int]:
    """Return the numbers of live tasks by the key of their rows, of all engines that have the new identity.

    Raises:
        OperatorError: no engine has it.
    """
    adapters = {name: engine.kind(engine.settings) for name, engine in config.engines.items()}
    async with config.store.open() as store, Engines(adapters, notes=notes_in(store)) as opened:
        names = [name for name in opened.names if opened.identity(name) == new != old]
        if not names:
            there = ", ".join(f"{name}: {opened.identity(name)}" for name in opened.names)
            raise OperatorError(f"NEW must be the identity of an engine, and not OLD; the configuration has: {there}")
        tally = await store.live_counts(datetime.now(UTC))
    keys = [name if name == old else engine_key(name, old) for name in names]
    return {key: sum(count for (_, engine), count in tally.items() if engine == key) for key in keys}


async def _assign(settings: StoreSettings, keys: list[str], old: str, new: str) -> int:
    """Change the identity of all rows, also of ended ones, whose idempotency keys still count; return their number."""
    done = 0
    async with settings.open() as store:
        for key in keys:
            while page := await store.list_all(engine=key, live_only=False, limit=_PAGE):
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
