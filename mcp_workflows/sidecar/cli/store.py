"""The command `mcp-workflows store`: print and change the keys that encrypt a store."""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import typer

from mcp_workflows.errors import OperatorError
from mcp_workflows.sidecar.cli.app import app
from mcp_workflows.sidecar.cli.options import ConfigArgument, ConfigInstead, LogLevel, either, load, log
from mcp_workflows.sidecar.config.models import StoreSettings
from mcp_workflows.store.encryption import new_key
from mcp_workflows.store.protocol import Rekeyed, Seals

stores = typer.Typer(name="store", help="The store's encryption: print a key, change keys.", no_args_is_help=True)
app.add_typer(stores)


@stores.command()
def key() -> None:
    """Print a fresh key to encrypt a store with; keep it where the store's backups are not."""
    typer.echo(new_key())


@stores.command()
def rekey(config: ConfigArgument = None, option: ConfigInstead = None) -> None:
    """Encrypt the whole store with the first of its keys; then the others can be left out.

    It can be stopped and done again at any time, and servers go on meanwhile.
    """
    log(LogLevel.ERROR)
    done = anyio.run(_rekey, load(either(config, option)).store)
    typer.echo(f"encrypted with the first key: {done.rewritten} tasks and notes that were not yet")
    if done.left:
        raise OperatorError(
            f"{done.left} are not ({done.unreadable} of them cannot be read, see above): if a server still has another "
            "key first, restart it with this configuration and do this again; all keys are needed until then"
        )
    if not done.cleaned:
        raise OperatorError("traces of before may be left in its files, as others were using it: do this again")
    typer.echo("no other key is needed any more")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum:
    rewritten: int
    unreadable: int
    left: int
    cleaned: bool


async def _rekey(settings: StoreSettings) -> _Sum:
    if settings.encryption is None:
        raise OperatorError(
            "the store is not to be encrypted: give it keys first, store: {url: ..., encryption: {keys: [...]}}"
        )
    rewritten, unreadable, last = 0, 0, Rekeyed()
    async with settings.open() as store:
        assert isinstance(store, Seals), "who cannot encrypt takes no cipher"
        async for last in store.rekey():
            rewritten, unreadable = rewritten + last.rewritten, unreadable + last.unreadable
            if last.rewritten:
                typer.echo(f"{rewritten} ...", err=True)
    return _Sum(rewritten=rewritten, unreadable=unreadable, left=last.left, cleaned=last.cleaned)
