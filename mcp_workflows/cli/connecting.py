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
from mcp_workflows.config_schema import DISTRIBUTION, team_schema
from mcp_workflows.config_teams import variables_of
from mcp_workflows.connect import Host, OverHttp, OverStdio, snippet
from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar import PATH


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
            variables=variables_of(config, os.environ),
        )
        if config and not url
        else OverHttp(name=name, url=url or f"http://{DEFAULT_HOST}:{DEFAULT_PORT}{PATH}"),
    )
    typer.echo(f"{made.place}:", err=True)
    typer.echo(made.text)


def _name_in(config: Path) -> str:
    """The server's name; what else is wrong with the configuration, here where variables may be missing, is told."""
    try:
        return load(config).server.name
    except ConfigError as error:
        typer.echo(f"note: as it is here, the configuration is not complete:\n{error}", err=True)
        return DISTRIBUTION


def _executable() -> str:
    """Where this command is installed."""
    here = shutil.which(DISTRIBUTION, path=sysconfig.get_path("scripts")) or shutil.which(DISTRIBUTION)
    return str(Path(here or sys.argv[0]).absolute())


@app.command()
def schema(
    team: Annotated[bool, typer.Option("--team", help="Of the files that it includes, which have tools only.")] = False,
) -> None:
    """Print the JSON Schema of workflows.yaml, for editors."""
    typer.echo(json.dumps(team_schema() if team else config_schema(), indent=2))
