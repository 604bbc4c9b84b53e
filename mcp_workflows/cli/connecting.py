"""mcp-workflows connect, schema: what other programs are given: hosts a snippet, editors a schema."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Annotated

import typer

from mcp_workflows.cli.app import app, load
from mcp_workflows.cli.serving import DEFAULT_HOST, DEFAULT_PORT
from mcp_workflows.config import config_schema
from mcp_workflows.config_schema import DISTRIBUTION, ServerSettings, team_schema
from mcp_workflows.config_teams import variables_of
from mcp_workflows.connect import Host, OverHttp, OverStdio, login_of, snippet
from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar import PATH

_NOBODY_LOGS_IN = "nothing, as whoever starts the server is its user; server.auth is for HTTP, see --url"


@app.command()
def connect(
    host: Annotated[Host, typer.Argument(help="Which host to connect.")],
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="The host shall start the sidecar itself, with this workflows.yaml."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="The sidecar is served there, over HTTP.")] = None,
    name: Annotated[str | None, typer.Option(help="The server's name in the host. Default: that of CONFIG.")] = None,
    stdio: Annotated[
        bool, typer.Option("--stdio", help="The host shall start it itself, though CONFIG says where it is served.")
    ] = False,
) -> None:
    """Print what to put into a host's configuration; says on standard error where that is, and how to log in."""
    if stdio and (url or not config):
        raise typer.BadParameter("it takes a CONFIG, and no --url", param_hint="--stdio")
    server = _server_in(config) if config else ServerSettings()
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", name or server.name).strip("-") or DISTRIBUTION
    if config and not url and not stdio and server.auth and server.public_url:
        typer.echo(f"note: by {config}, it is served at {server.public_url}; to have it started: --stdio", err=True)
        url = f"{server.public_url}{PATH}"
    if config and not url:
        made = snippet(host, _started(config, name))
    else:
        served = url or f"http://{DEFAULT_HOST}:{DEFAULT_PORT}{PATH}"
        made = snippet(host, OverHttp(name=name, url=served, login=login_of(server.auth)))
    typer.echo(f"{made.place}:", err=True)
    typer.echo(made.text)
    if made.login or server.auth:
        typer.echo(f"to log in: {made.login or _NOBODY_LOGS_IN}", err=True)


def _started(config: Path, name: str) -> OverStdio:
    command = [_executable(), "serve", str(config.resolve())]
    return OverStdio(name=name, command=command, variables=variables_of(config, os.environ))


def _server_in(config: Path) -> ServerSettings:
    """What it says of the server; what else is wrong with it, here where variables may be missing, is told."""
    try:
        return load(config).server
    except ConfigError as error:
        typer.echo(f"note: as it is here, the configuration is not complete:\n{error}", err=True)
        return ServerSettings(name=DISTRIBUTION)


def _executable() -> str:
    """Where this command is installed."""
    here = shutil.which(DISTRIBUTION, path=sysconfig.get_path("scripts")) or shutil.which(DISTRIBUTION)
    return str(Path(here or sys.argv[0]).absolute())


@app.command()
def schema(
    team: Annotated[
        bool, typer.Option("--team", help="The schema of the files that it includes, which have tools only.")
    ] = False,
) -> None:
    """Print the JSON Schema of workflows.yaml, for editors."""
    typer.echo(json.dumps(team_schema() if team else config_schema(), indent=2))
