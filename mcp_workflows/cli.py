"""mcp-workflows serve | check | connect | schema.

Standard output belongs to what was asked for (MCP on stdio, a snippet, JSON); everything else goes to standard
error. Exit code 0: fine, 1: a clear message says what is wrong, 2: wrong usage.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console

from mcp_workflows.check import check as check_all
from mcp_workflows.config import Config, config_schema, load_config
from mcp_workflows.config_schema import DISTRIBUTION
from mcp_workflows.config_source import variables_in
from mcp_workflows.connect import Host, OverHttp, OverStdio, snippet
from mcp_workflows.errors import ConfigError, WorkflowsError
from mcp_workflows.sidecar import PATH, is_loopback, run_http, run_stdio

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8931

_ADDRESS = re.compile(r"(?:(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]*):)?(\d{1,5})")

app = typer.Typer(
    name=DISTRIBUTION,
    help="Your workflow engine's executions as MCP tasks, in every MCP host.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class LogLevel(StrEnum):
    """How much is said on standard error."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to listen."""

    host: str
    port: int


def read_address(text: str) -> Address:
    """`127.0.0.1:8931`, `[::1]:8931`, `:8931` or `8931`; without a host, this machine only.

    Raises:
        typer.BadParameter: it is none of these.
    """
    match = _ADDRESS.fullmatch(text)
    if not match or int(match[2]) > 65535:
        raise typer.BadParameter(f"{text!r} is not HOST:PORT; for example 127.0.0.1:8931, [::1]:8931 or :8931")
    return Address(host=(match[1] or DEFAULT_HOST).strip("[]"), port=int(match[2]))


ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="The configuration, workflows.yaml.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{DISTRIBUTION} {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Your workflow engine's executions as MCP tasks, in every MCP host."""


@app.command()
def serve(
    config: ConfigFile,
    http: Annotated[
        Address | None,
        typer.Option(parser=read_address, metavar="HOST:PORT", help="Serve Streamable HTTP at /mcp, not stdio."),
    ] = None,
    unsafe_no_auth: Annotated[
        bool, typer.Option("--unsafe-no-auth", help="Listen on other addresses than loopback, open to everybody.")
    ] = False,
    log_level: Annotated[LogLevel, typer.Option(help="How much to log, on standard error.")] = LogLevel.INFO,
) -> None:
    """Serve the configured tools, on stdio or over HTTP."""
    _log(log_level)
    if http and not is_loopback(http.host) and not unsafe_no_auth:
        raise ConfigError(
            f"{http.host} can be reached from other machines, and nothing here asks who is calling: "
            f"listen on 127.0.0.1:{http.port}, or say --unsafe-no-auth"
        )
    loaded = _load(config)
    with suppress(KeyboardInterrupt):  # the usual way to end it
        if http is None:
            anyio.run(run_stdio, loaded)
        else:
            run_http(loaded, host=http.host, port=http.port)


@app.command()
def check(
    config: ConfigFile,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one JSON object.")] = False,
) -> None:
    """Check the configuration, the store, each engine and each workflow."""
    _log(LogLevel.WARNING)
    try:
        checkup = anyio.run(check_all, _load(config))
    except ConfigError as error:
        if not as_json:
            raise
        typer.echo(json.dumps({"ok": False, "errors": str(error).splitlines()}, indent=2))
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps(checkup.as_json(), indent=2))
    else:
        Console().print(checkup.as_table())
        typer.echo(f"\n{config}: {_count(checkup.problems)}")
    raise typer.Exit(1 if checkup.problems else 0)


def _count(problems: int) -> str:
    return {0: "everything is fine", 1: "1 problem"}.get(problems, f"{problems} problems")


@app.command()
def connect(
    host: Annotated[Host, typer.Argument(help="Which host to connect.")],
    config: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG]", help="The host shall start the sidecar itself, with this workflows.yaml."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="The sidecar is served there, over HTTP.")] = None,
    name: Annotated[str | None, typer.Option(help="The server's name in the host. Default: that of CONFIG.")] = None,
) -> None:
    """Print what to put into a host's configuration; says on standard error where that is."""
    name = name or (_name_in(config) if config else DISTRIBUTION)
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or DISTRIBUTION
    made = snippet(
        host,
        OverStdio(
            name=name,
            command=[_executable(), "serve", str(config.resolve())],
            variables=variables_in(config),
        )
        if config and not url
        else OverHttp(name=name, url=url or f"http://{DEFAULT_HOST}:{DEFAULT_PORT}{PATH}"),
    )
    typer.echo(f"{made.place}:", err=True)
    typer.echo(made.text)


def _name_in(config: Path) -> str:
    """The server's name; what else is wrong with the configuration, here where variables may be missing, is told."""
    try:
        return _load(config).server.name
    except ConfigError as error:
        typer.echo(f"note: as it is here, the configuration is not complete:\n{error}", err=True)
        return DISTRIBUTION


def _executable() -> str:
    """Where this command is installed."""
    here = shutil.which(DISTRIBUTION, path=sysconfig.get_path("scripts")) or shutil.which(DISTRIBUTION)
    return str(Path(here or sys.argv[0]).absolute())


@app.command()
def schema() -> None:
    """Print the JSON Schema of workflows.yaml, for editors."""
    typer.echo(json.dumps(config_schema(), indent=2))


def _load(config: Path) -> Config:
    """Load it; workflows written as `module:attribute` may be beside it."""
    sys.path.insert(0, str(config.parent.resolve()))
    return load_config(config, os.environ)


def _log(level: LogLevel) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def main() -> None:
    """The entry point: what we raise on purpose is a message, and never a stack trace."""
    failures: list[str] = []
    try:
        app(prog_name=DISTRIBUTION)
    except* WorkflowsError as group:
        failures.extend(_messages(group))
    for failure in failures:
        typer.echo(failure, err=True)
    sys.exit(1 if failures else 0)


def _messages(group: BaseExceptionGroup[WorkflowsError]) -> Iterator[str]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _messages(error)
        else:
            yield str(error)
