"""The command `mcp-workflows serve`: the sidecar, on stdio or over HTTP."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import anyio
import typer

from mcp_workflows.access import is_loopback
from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.address import Address
from mcp_workflows.sidecar.app import private_stdout, run_http, run_stdio
from mcp_workflows.sidecar.cli.app import app
from mcp_workflows.sidecar.cli.options import (
    ConfigArgument,
    ConfigInstead,
    LogLevel,
    either,
    is_python,
    load,
    log,
    read_address,
)
from mcp_workflows.sidecar.config.models import Config
from mcp_workflows.sidecar.reload import Reloader
from mcp_workflows.tools.tool import Kind

logger = logging.getLogger(__name__)

_CHECK_PARENT_EVERY: Final = 0.5  # seconds
_COLLECTIONS: Final = (10_000, 20, 100)
"""The thresholds of `gc.set_threshold`: collecting a young generation of this size takes at most about 20 ms."""


def check_exposure(http: Address | None, config: Config, *, unsafe_no_auth: bool) -> None:
    """Refuse or warn if the address is reachable by more people than the configuration allows."""
    refuse_remote_callers(http, config, unsafe_no_auth)
    refuse_shared_single_user(http, config)
    warn_of_remote_callers(http, config)
    warn_of_hidden_tools(http, config)


def refuse_remote_callers(http: Address | None, config: Config, unsafe_no_auth: bool) -> None:
    """Raise `ConfigError` if other machines can reach a server without authentication, unless that is intended."""
    auth = config.server.auth
    if http and auth is not None and unsafe_no_auth:
        raise ConfigError("--unsafe-no-auth turns authentication off, and server.auth turns it on: remove one")
    if http is None or is_loopback(http.host):
        return
    if auth is None and not unsafe_no_auth:
        raise ConfigError(
            f"{http.host} is reachable from other machines, and callers are not authenticated: set server.auth (see: "
            f"docs/secure/authentication.md), listen on 127.0.0.1:{http.port}, or pass --unsafe-no-auth"
        )
    if auth is not None and (auth.issuers or auth.introspection) and config.server.public_url is None:
        raise ConfigError(
            f"tokens must name the URL that clients use for this server, which {http.host} does not show: set "
            "server.public_url, for example https://workflows.example.com"
        )


def warn_of_remote_callers(http: Address | None, config: Config) -> None:
    """Warn about open access and unencrypted tokens."""
    if http is None or is_loopback(http.host):
        return
    if config.server.auth is None:
        logger.warning(
            "UNSAFE: CALLERS ARE NOT AUTHENTICATED (--unsafe-no-auth). Anybody who reaches %s:%d can call every tool, "
            "start workflows with any arguments, and read, answer and cancel every task whose id they know; records "
            "will not show who it was. Set server.auth, or block access to this address",
            http.host,
            http.port,
        )
    elif config.server.public_url is None or not config.server.public_url.startswith("https:"):
        logger.warning(
            "tokens reach %s:%d unencrypted unless a proxy in front of it does TLS: if one does, set server.public_url",
            http.host,
            http.port,
        )


def log_protection(http: Address | None, config: Config) -> None:
    """Log in one line how callers are authenticated, and whether data is encrypted and calls are audited."""
    logger.info(
        "callers: %s; the store is %s; audit: %s",
        _who_is_let_in(http, config),
        "encrypted" if config.store.encryption else "not encrypted",
        config.audit.to if config.audit else "none",
    )


def _who_is_let_in(http: Address | None, config: Config) -> str:
    if http is None or config.server.single_user:
        return "the local user"
    auth = config.server.auth
    if auth is None:
        return "anonymous"
    ways = [
        *(f"tokens of {each.issuer}" for each in auth.issuers),
        *(f"tokens of {each.issuer}" for each in auth.introspection),
        *([f"tokens by hash ({len(auth.tokens)})"] if auth.tokens else []),
        *(["users that a trusted proxy names"] if auth.proxy else []),
    ]
    return ", ".join(ways)


def refuse_shared_single_user(http: Address | None, config: Config) -> None:
    """Raise `ConfigError` if other machines can reach a server that treats all callers as one user."""
    if http and config.server.single_user and not is_loopback(http.host):
        raise ConfigError(
            f"server.single_user makes everybody one user, and {http.host} is reachable from other machines: listen on "
            f"127.0.0.1:{http.port}, or remove server.single_user"
        )


def warn_of_hidden_tools(http: Address | None, config: Config) -> None:
    """Warn about tools that no client sees: they are invalid, or need identified callers where all are anonymous."""
    for problem in config.not_offered:
        logger.warning("not offered: %s", problem)
    watching = [tool.name for tool in config.tools if tool.kind is Kind.WATCH]
    if http and watching and not config.server.single_user and config.server.auth is None:
        logger.warning(
            "not offered over HTTP, where all callers are anonymous: %s; if you are the only caller, set server: "
            "{single_user: true}; otherwise set server.auth",
            ", ".join(watching),
        )


def collect_rarely() -> None:
    """Make garbage collections interrupt the event loop rarely and briefly.

    10,000 listeners keep half a million objects. A full collection scans all of them in 0.3 s, and Python's default
    thresholds run one every few seconds. The objects loaded so far are never garbage, so they are frozen.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)


def serve_reloading(config: Path, http: Address | None, *, unsafe_no_auth: bool) -> None:
    """Serve, and reload the configuration whenever it is saved; a Python file is never reloaded in place."""
    out = private_stdout() if http is None else None
    loaded = load(config)
    check_exposure(http, loaded, unsafe_no_auth=unsafe_no_auth)
    background = None if is_python(config) else Reloader(config, loaded, os.environ).run
    with suppress(KeyboardInterrupt):  # Ctrl-C ends the command
        if http is None:
            anyio.run(partial(run_stdio, loaded, background, out=out))
        else:
            run_http(loaded, host=http.host, port=http.port, background=background)


def _end_with(parent: int) -> None:
    """End this process, as Ctrl-C does, once its parent has ended: `dev` may be killed, and the port must become
    free."""
    while os.getppid() == parent:
        time.sleep(_CHECK_PARENT_EVERY)
    os.kill(os.getpid(), signal.SIGINT)


@app.command()
def serve(
    config: ConfigArgument = None,
    option: ConfigInstead = None,
    http: Annotated[
        Address | None,
        typer.Option(parser=read_address, metavar="HOST:PORT", help="Serve Streamable HTTP at /mcp, not stdio."),
    ] = None,
    unsafe_no_auth: Annotated[
        bool, typer.Option("--unsafe-no-auth", help="Listen beyond loopback without login, open to everybody.")
    ] = False,
    ops: Annotated[
        Address | None,
        typer.Option(
            parser=read_address,
            metavar="HOST:PORT",
            help="Also serve /metrics, /healthz, /readyz and /enginez there, for operators.",
        ),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="The log level, on standard error.")] = LogLevel.INFO,
    parent: Annotated[int | None, typer.Option(hidden=True, help="Exit when this process exits.")] = None,
) -> None:
    """Serve the configured tools over stdio or HTTP."""
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True, name="watch of the parent").start()
    log(log_level)
    out = private_stdout() if http is None else None  # before the user's modules print
    gc.disable()  # imports of adapters and the user's modules leave no garbage
    try:
        loaded = load(either(config, option))
    finally:
        gc.enable()
    check_exposure(http, loaded, unsafe_no_auth=unsafe_no_auth)
    log_protection(http, loaded)
    if ops and not is_loopback(ops.host):
        logger.warning("--ops: anybody who reaches %s:%d can read the metrics, without login", ops.host, ops.port)
    collect_rarely()
    with suppress(KeyboardInterrupt):  # Ctrl-C ends the command
        if http is None:
            anyio.run(partial(run_stdio, loaded, ops=ops, out=out))
        else:
            run_http(loaded, host=http.host, port=http.port, ops=ops)
