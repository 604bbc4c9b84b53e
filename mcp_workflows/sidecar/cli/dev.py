"""The command `mcp-workflows dev`: the sidecar, reloaded whenever its configuration is saved."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import partial
from typing import Annotated

import anyio
import typer

from mcp_workflows.sidecar.app import Address, run_http, run_stdio
from mcp_workflows.sidecar.cli.app import app
from mcp_workflows.sidecar.cli.options import ConfigArgument, ConfigInstead, LogLevel, either, load, log
from mcp_workflows.sidecar.cli.serve import DEFAULT_HOST, DEFAULT_PORT, check_exposure, read_address
from mcp_workflows.sidecar.reload import Reloader

_HERE = f"{DEFAULT_HOST}:{DEFAULT_PORT}"


@app.command()
def dev(
    config: ConfigArgument = None,
    option: ConfigInstead = None,
    http: Annotated[
        Address,
        typer.Option(parser=read_address, metavar="HOST:PORT", help="Where to serve Streamable HTTP, at /mcp."),
    ] = _HERE,  # type: ignore[assignment]  # typer parses the default, too
    stdio: Annotated[bool, typer.Option("--stdio", help="Serve stdio, for a host that starts this itself.")] = False,
    unsafe_no_auth: Annotated[
        bool, typer.Option("--unsafe-no-auth", help="Listen on other addresses than loopback, open to everybody.")
    ] = False,
    log_level: Annotated[LogLevel, typer.Option(help="How much to log, on standard error.")] = LogLevel.INFO,
) -> None:
    """Serve, and reload on save: a bad edit keeps the last good configuration."""
    log(log_level)
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    path = either(config, option)
    loaded = load(path)
    listening = None if stdio else http
    check_exposure(listening, loaded, unsafe_no_auth=unsafe_no_auth)
    background = Reloader(path, loaded, os.environ).run
    with suppress(KeyboardInterrupt):  # Ctrl-C ends the command
        if stdio:
            anyio.run(partial(run_stdio, loaded, background))
        else:
            run_http(loaded, host=http.host, port=http.port, background=background)
