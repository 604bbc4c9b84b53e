"""The command `mcp-workflows dev`: the sidecar, reloaded whenever its configuration is saved.

Python code cannot be reloaded in place, so each version of a Python file gets its own process. The process of `dev`
only starts the others, and has few imports, as each would delay the first start.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Final

import typer
from watchfiles import PythonFilter, watch

from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.address import Address, bind
from mcp_workflows.sidecar.cli.app import app, say
from mcp_workflows.sidecar.cli.options import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    ConfigArgument,
    ConfigInstead,
    LogLevel,
    either,
    existing,
    is_python,
    log,
    read_address,
)

_DEFAULT_ADDRESS = f"{DEFAULT_HOST}:{DEFAULT_PORT}"
_POLL_MS: Final = 200  # between two checks that the process still runs
_STOP_WITHIN: Final = 2.0  # seconds; then the process is killed, and the next one continues its executions


@app.command()
def dev(
    config: ConfigArgument = None,
    option: ConfigInstead = None,
    http: Annotated[
        Address,
        typer.Option(parser=read_address, metavar="HOST:PORT", help="The address for Streamable HTTP, at /mcp."),
    ] = _DEFAULT_ADDRESS,  # type: ignore[assignment]  # typer parses the default, too
    stdio: Annotated[bool, typer.Option("--stdio", help="Serve stdio, for a host that starts the server.")] = False,
    unsafe_no_auth: Annotated[
        bool, typer.Option("--unsafe-no-auth", help="Listen beyond loopback without login, open to everybody.")
    ] = False,
    log_level: Annotated[LogLevel, typer.Option(help="The log level, on standard error.")] = LogLevel.INFO,
) -> None:
    """Serve, and reload on save. A bad edit keeps the last good configuration; a Python file is restarted."""
    path = existing(either(config, option))
    if is_python(path) and not stdio:
        if not path.is_file():
            raise ConfigError(f"{path}: no such file")
        bind(http).close()  # if the address is in use, no restart helps
        words = ["serve", str(path), "--http", str(http), "--log-level", log_level.value]
        words += ["--parent", str(os.getpid()), *(["--unsafe-no-auth"] if unsafe_no_auth else [])]
        _restart_on_save(path.resolve().parent, [sys.executable, "-m", "mcp_workflows", *words])
        return
    log(log_level)
    serve = import_module("mcp_workflows.sidecar.cli.serve")
    serve.serve_reloading(path, None if stdio else http, unsafe_no_auth=unsafe_no_auth)


def _restart_on_save(folder: Path, command: Sequence[str]) -> None:
    """Run the command, and restart it whenever a Python file in the folder is saved, until a signal ends `dev`."""
    logging.getLogger("watchfiles").setLevel(logging.ERROR)  # it warns about Ctrl-C
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.default_int_handler)
    process, is_reported = _start(command), False
    try:
        for changes in watch(
            folder, watch_filter=PythonFilter(), raise_interrupt=False, rust_timeout=_POLL_MS, yield_on_timeout=True
        ):
            if changes:
                names = sorted({str(Path(name).relative_to(folder)) for _, name in changes})
                say(f"saved: {', '.join(names[:3])}; restarting", err=True)
                _stop(process)
                process, is_reported = _start(command), False
            elif process.poll() is not None and not is_reported:
                is_reported = True
                code = process.returncode
                say(f"exited with code {code}; restarts when a Python file here is saved", err=True)
    except KeyboardInterrupt:
        pass
    finally:
        _stop(process)


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process that Ctrl-C does not reach; a second SIGINT, after that of `_stop`, would end it abruptly."""
    return subprocess.Popen(command, start_new_session=True)  # noqa: S603  # the command is ours


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process as Ctrl-C does; after `_STOP_WITHIN`, or at a second Ctrl-C, kill it with its children.

    A process that a workflow forked would keep the port open.
    """
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        process.wait(_STOP_WITHIN)
    with suppress(ProcessLookupError, PermissionError):  # already ended; macOS raises the latter for zombies
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
