"""The commands `mcp-workflows connect` and `schema`: a snippet for hosts, a JSON Schema for editors."""

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

from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar import DISTRIBUTION
from mcp_workflows.sidecar.app import PATH
from mcp_workflows.sidecar.cli.app import app
from mcp_workflows.sidecar.cli.options import DEFAULT_CONFIG, DEFAULT_HOST, DEFAULT_PORT, ConfigOption, load
from mcp_workflows.sidecar.config.json_schema import config_schema, team_schema
from mcp_workflows.sidecar.config.models import ServerSettings
from mcp_workflows.sidecar.config.yaml import variables_in
from mcp_workflows.sidecar.host_snippets import Host, OverHttp, OverStdio, Variable, login_of, snippet

_SAY_URL = f"say where it is served: --url http://{DEFAULT_HOST}:{DEFAULT_PORT}{PATH}"
_NOBODY_LOGS_IN = "nothing, as whoever starts the server is its user; server.auth is for HTTP, see --url"


@app.command()
def connect(
    host: Annotated[Host, typer.Argument(help="Which host to connect.")],
    config: ConfigOption = DEFAULT_CONFIG,
    url: Annotated[
        str | None, typer.Option(help="The sidecar is served there, over HTTP; else the host shall start it itself.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The server's name in the host. Default: that of CONFIG.")] = None,
    stdio: Annotated[
        bool, typer.Option("--stdio", help="The host shall start it itself, though CONFIG says where it is served.")
    ] = False,
) -> None:
    """Print what to put into a host's configuration; says on standard error where that is, and how to log in."""
    if stdio and url:
        raise typer.BadParameter("the host starts the server itself, so there is no --url", param_hint="--stdio")
    server = _server_in(config, needed=url is None or config != DEFAULT_CONFIG)
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", name or server.name).strip("-") or DISTRIBUTION
    if not url and not stdio and server.auth and server.public_url:
        url = f"{server.public_url}{PATH}"
        typer.echo(
            f"note: --stdio would have the host start it itself; {config} says that it is served at {url}", err=True
        )
    if url:
        made = snippet(host, OverHttp(name=name, url=url, login=login_of(server.auth)))
    else:
        made = snippet(host, _started(config, name))
    typer.echo(f"{made.place}:", err=True)
    typer.echo(made.text)
    if made.command:
        typer.echo(f"or run:\n{made.command}", err=True)
    if made.login or server.auth:
        typer.echo(f"to log in: {made.login or _NOBODY_LOGS_IN}", err=True)


def _started(config: Path, name: str) -> OverStdio:
    command = [_executable(), "serve", str(config.resolve())]
    variables = [
        Variable(name=variable, default=default, is_set=bool(os.environ.get(variable)))
        for variable, default in variables_in(config).items()
    ]
    return OverStdio(name=name, command=command, variables=variables)


def _server_in(config: Path, *, needed: bool) -> ServerSettings:
    """Return the server section of the configuration; mention other problems, which may not exist where it is served.

    Raises:
        ConfigError: there is no such file, and it is needed.
    """
    if not config.exists():
        if needed:
            raise ConfigError(f"{config}: no such file; name the configuration with --config, or {_SAY_URL}")
        return ServerSettings(name=DISTRIBUTION)
    try:
        return load(config).server
    except ConfigError as error:
        typer.echo(f"note: as it is here, the configuration is not complete:\n{error}", err=True)
        return ServerSettings(name=DISTRIBUTION)


def _executable() -> str:
    """Return the path of this command."""
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
