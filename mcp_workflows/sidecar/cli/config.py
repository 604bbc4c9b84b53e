"""The command `mcp-workflows config show`: the composed configuration without its secrets."""

from __future__ import annotations

import json
import os
from enum import StrEnum
from typing import Annotated

import typer

from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.cli.app import app
from mcp_workflows.sidecar.cli.options import ConfigArgument, ConfigInstead, LogLevel, either, existing, load, log
from mcp_workflows.sidecar.config.redaction import redact_config

config_commands = typer.Typer(no_args_is_help=True, help="Look at the configuration.")
app.add_typer(config_commands, name="config")


class Format(StrEnum):
    """The format of the output."""

    YAML = "yaml"
    JSON = "json"


@config_commands.callback()
def looking() -> None:
    """Look at the configuration."""


@config_commands.command("show")
def show_config(
    config: ConfigArgument = None,
    option: ConfigInstead = None,
    as_format: Annotated[
        Format, typer.Option("--format", help="For people, with comments, or for programs.")
    ] = Format.YAML,
) -> None:
    """Print the configuration with all that it includes, and where each tool is from; no secrets."""
    log(LogLevel.WARNING)
    path = either(config, option)
    shown = redact_config(existing(path, is_yaml=True), os.environ)
    typer.echo(json.dumps(shown.as_json(), indent=2) if as_format is Format.JSON else shown.as_yaml().rstrip())
    try:
        load(path)
    except ConfigError as error:
        typer.echo(f"note: as it is here, the configuration cannot be used:\n{error}", err=True)
        raise typer.Exit(1) from None
