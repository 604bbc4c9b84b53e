"""The commands `mcp-workflows store ...`: encryption keys, tables, copies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import anyio
import typer

from mcp_workflows.errors import OperatorError
from mcp_workflows.sidecar.cli.app import COMMANDS, app
from mcp_workflows.sidecar.cli.options import ConfigArgument, ConfigInstead, LogLevel, either, load_shared, log
from mcp_workflows.sidecar.config.models import StoreSettings
from mcp_workflows.store.encryption import new_key
from mcp_workflows.store.protocol import CopySource, CopyTarget, Rekeyed, Seals, open_store

store_commands = typer.Typer(help=COMMANDS["store"][1], no_args_is_help=True)
app.add_typer(store_commands, name="store")


@store_commands.command()
def key() -> None:
    """Print a new encryption key for a store. Keep it apart from the store's backups."""
    typer.echo(new_key())


@store_commands.command()
def rekey(config: ConfigArgument = None, option: ConfigInstead = None) -> None:
    """Encrypt the whole store with its first key, so that you can remove the others.

    You can stop and repeat it at any time, while servers run.
    """
    log(LogLevel.ERROR)
    rewritten, done = anyio.run(_rekey, load_shared(either(config, option)).store)
    typer.echo(f"encrypted with the first key: {rewritten} tasks and notes that were not before")
    if done.left:
        raise OperatorError(
            f"{done.left} are not ({done.unreadable} of them cannot be read, see above): if a server still has another "
            "key first, restart it with this configuration and run this again; keep all keys until then"
        )
    if done.cleaned is None:
        typer.echo(
            "old content stays in the database's files until it vacuums its tables, in its write-ahead log and in "
            "backups: run VACUUM, and let old backups expire",
            err=True,
        )
    elif not done.cleaned:
        raise OperatorError("old content may be left in its files, as other processes were using it: run this again")
    typer.echo("the other keys are no longer needed")


async def _rekey(settings: StoreSettings) -> tuple[int, Rekeyed]:
    """Return the number of rewritten rows, and the last report with the total of unreadable ones."""
    if settings.encryption is None:
        raise OperatorError(
            "the store has no encryption keys: set them first, store: {url: ..., encryption: {keys: [...]}}"
        )
    rewritten, unreadable, last = 0, 0, Rekeyed()
    async with settings.open() as store:
        assert isinstance(store, Seals), "a store that cannot encrypt takes no cipher"
        async for last in store.rekey():
            rewritten, unreadable = rewritten + last.rewritten, unreadable + last.unreadable
            if last.rewritten:
                typer.echo(f"{rewritten} ...", err=True)
    return rewritten, replace(last, unreadable=unreadable)


@store_commands.command()
def migrate(config: ConfigArgument = None, option: ConfigInstead = None) -> None:
    """Create or upgrade the store's tables for this version. Running servers wait, then continue."""
    log(LogLevel.ERROR)
    settings = load_shared(either(config, option)).store

    async def run() -> None:
        async with settings.open(migrate=True):
            pass

    anyio.run(run)
    typer.echo("the store's tables match this version")


@store_commands.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="sqlite:///tasks.db; stop its servers first.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="postgresql://user@host/database, without tasks.")],
) -> None:
    """Move all tasks, notes and secrets to another store. The old store can no longer be opened afterwards.

    If it fails or is killed, nothing is lost: run it again. Encrypted content keeps its keys.
    """
    old, new = open_store(source), open_store(target)
    if not (isinstance(old, CopySource) and isinstance(new, CopyTarget)):
        raise OperatorError("FROM must be an SQLite store, TO a PostgreSQL one: sqlite:///tasks.db postgresql://...")
    with old.moving(new.place) as (rows, resumed):
        copied = anyio.run(lambda: new.take_over(rows, resumed=resumed))
    typer.echo(f"copied {copied} tasks, with all notes and secrets: now set the new store in the configuration")


@store_commands.command()
def backup(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; it must not exist.")],
    config: ConfigArgument = None,
    option: ConfigInstead = None,
) -> None:
    """Write a consistent copy of an SQLite store, while servers use it."""
    store = load_shared(either(config, option)).store.open()
    if not isinstance(store, CopySource):
        raise OperatorError("this backs up SQLite stores only: use pg_dump, or your provider's backups")
    store.backup(target)
    typer.echo(f"wrote {target}; keep the encryption keys elsewhere")
