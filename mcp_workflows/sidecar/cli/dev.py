"""The command `mcp-workflows dev`: the sidecar, reloaded whenever its configuration is saved.

With a Python file it is another process for each version of the file: code cannot be reloaded in place.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import typer
from watchfiles import PythonFilter, run_process

from mcp_workflows.sidecar.app import Address, run_http, run_stdio
from mcp_workflows.sidecar.cli.app import app
from mcp_workflows.sidecar.cli.options import ConfigArgument, ConfigInstead, LogLevel, either, existing, load, log
from mcp_workflows.sidecar.cli.serve import DEFAULT_HOST, DEFAULT_PORT, check_exposure, read_address
from mcp_workflows.sidecar.config.python_file import is_python
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
    """Serve, and reload on save: a bad edit keeps the last good configuration. A Python file is started again."""
    log(log_level)
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    path = either(config, option)
    if is_python(existing(path)) and not stdio:
        _start_again_on_save(path, http, log_level, unsafe_no_auth=unsafe_no_auth)
        return
    loaded = load(path)
    listening = None if stdio else http
    check_exposure(listening, loaded, unsafe_no_auth=unsafe_no_auth)
    background = None if is_python(path) else Reloader(path, loaded, os.environ).run
    with suppress(KeyboardInterrupt):  # Ctrl-C ends the command
        if stdio:
            anyio.run(partial(run_stdio, loaded, background))
        else:
            run_http(loaded, host=http.host, port=http.port, background=background)


def _start_again_on_save(path: Path, http: Address, log_level: LogLevel, *, unsafe_no_auth: bool) -> None:
    """Serve in a process of its own, and start another one whenever a Python file in the folder is saved.

    A process that ends by a mistake has said why; the next save starts another one.
    """
    host = f"[{http.host}]" if ":" in http.host else http.host
    command = [sys.executable, "-m", "mcp_workflows", "serve", str(path), "--http", f"{host}:{http.port}"]
    command += ["--log-level", log_level.value, *(["--unsafe-no-auth"] if unsafe_no_auth else [])]
    folder = path.resolve().parent
    run_process(folder, target=shlex.join(command), target_type="command", watch_filter=PythonFilter())
