"""The configuration file of a command: its option, its argument, and how it is loaded."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar import DISTRIBUTION
from mcp_workflows.sidecar.config.load import Config, load_config

DEFAULT_CONFIG = Path("workflows.yaml")
_OPTION = typer.Option("--config", "-c", help=f"The configuration. Default: {DEFAULT_CONFIG}.", show_default=False)
ConfigOption = Annotated[Path, _OPTION]
"""`-c CONFIG`, of every command that reads a configuration."""
ConfigArgument = Annotated[Path | None, typer.Argument(help="The configuration, as with -c.", show_default=False)]
"""`[CONFIG]`, of commands that take no other argument; goes with `ConfigInstead`, and both through `either`."""
ConfigInstead = Annotated[Path | None, _OPTION]


def either(argument: Path | None, option: Path | None) -> Path:
    """The configuration of a command that takes it as `[CONFIG]` and as `-c CONFIG`.

    Raises:
        typer.BadParameter: there are two.
    """
    if argument and option and argument.resolve() != option.resolve():
        raise typer.BadParameter(f"there are two configurations, {argument} and -c {option}: give one of them")
    return option or argument or DEFAULT_CONFIG


def existing(config: Path) -> Path:
    """The same path, if there is something.

    Raises:
        ConfigError: nobody named a file, and the one that is read then does not exist.
    """
    if config == DEFAULT_CONFIG and not config.exists():
        raise ConfigError(
            f"{config}: no such file in this folder; write a first one with `{DISTRIBUTION} init`, "
            "or say where yours is: -c CONFIG"
        )
    return config


def load(config: Path) -> Config:
    """Load it; workflows written as `module:attribute` may be beside it.

    Raises:
        ConfigError: it does not exist, or something in it is wrong.
    """
    existing(config)
    sys.path.insert(0, str(config.parent.resolve()))
    return load_config(config, os.environ)
