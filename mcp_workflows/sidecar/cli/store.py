"""The commands `mcp-workflows store ...`: keys of encryption, tables, copies."""

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
    """Print a fresh key to encrypt a store with; keep it where the store's backups are not."""
    typer.echo(new_key())


@store_commands.command()
def rekey(config: ConfigArgument = None, option: ConfigInstead = None) -> None:
    """Encrypt the whole store with the first of its keys; then the others can be left out.

    It can be stopped and done again at any time, and servers go on meanwhile.
    """
    log(LogLevel.ERROR)
    rewritten, done = anyio.run(_rekey, load_shared(either(config, option)).store)
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


@store_commands.command()
def migrate(config: ConfigArgument = None, option: ConfigInstead = None) -> None:
    """Create or change the store's tables for this version; servers that run wait for it, and go on."""
    log(LogLevel.ERROR)
    settings = load_shared(either(config, option)).store

    async def run() -> None:
        async with settings.open(migrate=True):
            pass

    anyio.run(run)
    typer.echo("the store's tables are those of this version")


@store_commands.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="sqlite:///tasks.db; stop its servers before.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="postgresql://user@host/database, still without tasks.")],
) -> None:
    """Move all tasks, notes and secrets to another store; from then on the old one cannot be opened any more.

    Nothing is lost if it fails or is killed: do it again. What is encrypted stays so, with the same keys.
    """
    old, new = open_store(source), open_store(target)
    if not (isinstance(old, CopySource) and isinstance(new, CopyTarget)):
        raise OperatorError("FROM is an SQLite store and TO one on PostgreSQL: sqlite:///tasks.db postgresql://...")
    with old.moving(new.place) as (rows, resumed):
        copied = anyio.run(lambda: new.take_over(rows, resumed=resumed))
    typer.echo(f"copied {copied} tasks, with all notes and secrets: name the new store in the configuration now")


@store_commands.command()
def backup(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write, which is not there yet.")],
    config: ConfigArgument = None,
    option: ConfigInstead = None,
) -> None:
    """Write a copy of an SQLite store, as of one moment, while servers use it."""
    store = load_shared(either(config, option)).store.open()
    if not isinstance(store, CopySource):
        raise OperatorError("only an SQLite store is backed up here: use pg_dump, or your provider's backups")
    store.backup(target)
    typer.echo(f"wrote {target}; keep the keys of encryption elsewhere")
