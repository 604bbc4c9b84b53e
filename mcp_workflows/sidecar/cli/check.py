"""The command `mcp-workflows check`: find out whether everything could run."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated

import anyio
import typer
from rich.console import Console

from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.checks import check as check_all
from mcp_workflows.sidecar.cli.app import app
from mcp_workflows.sidecar.cli.options import ConfigArgument, ConfigInstead, LogLevel, either, existing, load, log

UNBROKEN = 10_000  # columns


@app.command()
def check(
    config: ConfigArgument = None,
    option: ConfigInstead = None,
    store: Annotated[
        bool, typer.Option("--store", help="Also count live tasks whose tool or engine was removed.")
    ] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="Accept changed tools of upstream servers: offer them as they are now.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one JSON object.")] = False,
) -> None:
    """Check the configuration, the store, each engine and each workflow."""
    log(LogLevel.WARNING)
    path = either(config, option)
    try:
        path = existing(path)
        report = anyio.run(partial(check_all, load(path), tasks=store, accept=accept))
    except ConfigError as error:
        if not as_json:
            raise
        typer.echo(json.dumps({"ok": False, "errors": str(error).splitlines()}, indent=2))
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(report.as_json(), indent=2))
    else:
        _console().print(report.as_table())
        typer.echo(f"\n{path}: {report.summary}")
    raise typer.Exit(1 if report.problems else 0)


def _console() -> Console:
    """Return a console as wide as the terminal; lines that go elsewhere are never broken."""
    console = Console()
    return console if console.is_terminal else Console(width=UNBROKEN)
