"""The commands `mcp-workflows token`, `store` and `engines`: tokens, keys of encryption, identities of engines."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import anyio
import typer

from mcp_workflows.access.authn.verifier import make_token, sha256_of
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import OperatorError
from mcp_workflows.sidecar.checks import counted
from mcp_workflows.sidecar.cli.app import COMMANDS, app, say
from mcp_workflows.sidecar.cli.options import (
    DEFAULT_CONFIG,
    ConfigArgument,
    ConfigInstead,
    ConfigOption,
    LogLevel,
    Yes,
    either,
    load,
    log,
)
from mcp_workflows.sidecar.config.models import Config, StoreSettings
from mcp_workflows.store.encryption import new_key
from mcp_workflows.store.protocol import Rekeyed, Seals
from mcp_workflows.task import Task, engine_key

_PAGE = 100  # rows
_ORIGIN = re.compile(r"\w+:(https?://[^/?#]+)")  # in an identity that is an address

store_commands = typer.Typer(help=COMMANDS["store"][1], no_args_is_help=True)
app.add_typer(store_commands, name="store")
engine_commands = typer.Typer(help=COMMANDS["engines"][1], no_args_is_help=True)
app.add_typer(engine_commands, name="engines")


@app.command()
def token(
    name: Annotated[str, typer.Argument(help="The client in rules and records that the token is for, such as ci.")],
    scope: Annotated[list[str] | None, typer.Option(help="A scope that it has; can be repeated.")] = None,
    subject: Annotated[str | None, typer.Option(help="The person, if it is one's own.")] = None,
) -> None:
    """Make a bearer token: prints it once, on standard output, and what goes into workflows.yaml beside it."""
    made = make_token()
    entry = {"name": name, "sha256": sha256_of(made)}
    entry |= {"subject": subject} if subject else {}
    line = json.dumps({**entry, **({"scopes": scope} if scope else {})}, ensure_ascii=False)  # JSON is YAML
    typer.echo("The token, which is kept nowhere and not shown again:", err=True)
    typer.echo(made)
    typer.echo("\nFor workflows.yaml, which needs its hash only:", err=True)
    typer.echo(f"\nserver:\n  auth:\n    tokens:\n      - {line}", err=True)


@store_commands.command()
def key() -> None:
    """Print a fresh key to encrypt a store with; keep it where the store's backups are not."""
    typer.echo(new_key())


@store_commands.command()
def rekey(config: ConfigArgument = None, option: ConfigInstead = None) -> None:
    """Encrypt the whole store with the first of its keys; then the others can be left out.

    It can be stopped and done again at any time, and servers go on meanwhile.
    """
    log(LogLevel.ERROR)
    rewritten, done = anyio.run(_rekey, load(either(config, option)).store)
    typer.echo(f"encrypted with the first key: {rewritten} tasks and notes that were not yet")
    if done.left:
        raise OperatorError(
            f"{done.left} are not ({done.unreadable} of them cannot be read, see above): if a server still has another "
            "key first, restart it with this configuration and do this again; all keys are needed until then"
        )
    if done.cleaned is None:
        typer.echo(
            "traces of before stay in the database's files until it vacuums its tables, in its write-ahead log, and in "
            "backups: run VACUUM, and let old backups expire",
            err=True,
        )
    elif not done.cleaned:
        raise OperatorError("traces of before may be left in its files, as others were using it: do this again")
    typer.echo("no other key is needed any more")


async def _rekey(settings: StoreSettings) -> tuple[int, Rekeyed]:
    """Return the number of rewritten rows, and the last report with the sum of the unreadable ones."""
    if settings.encryption is None:
        raise OperatorError(
            "the store is not to be encrypted: give it keys first, store: {url: ..., encryption: {keys: [...]}}"
        )
    rewritten, unreadable, last = 0, 0, Rekeyed()
    async with settings.open() as store:
        assert isinstance(store, Seals), "a store that cannot encrypt takes no cipher"
        async for last in store.rekey():
            rewritten, unreadable = rewritten + last.rewritten, unreadable + last.unreadable
            if last.rewritten:
                typer.echo(f"{rewritten} ...", err=True)
    return rewritten, replace(last, unreadable=unreadable)


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
    done = anyio.run(partial(_rebind, load(config), old, new, yes=yes))
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
        tally = await store.live_counts(datetime.now(UTC))
        say(f"{counted(sum(count for (_, key), count in tally.items() if key in keys))}: {old} -> {new}")
        if not (yes or sys.stdin.isatty()):
            raise OperatorError("nothing was changed, as nobody can be asked here: add --yes")
        if not yes:
            typer.confirm("Is it the same engine?", abort=True, err=True)
        done = 0
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
