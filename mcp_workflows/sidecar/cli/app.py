"""The application the commands hang on, and what they share: the configuration, the log."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption
from typer.main import get_command

from mcp_workflows.errors import ConfigError
from mcp_workflows.receiver.log_limits import LINES, escaped
from mcp_workflows.sidecar.config.load import Config, load_config
from mcp_workflows.sidecar.config.models import DISTRIBUTION

app = typer.Typer(
    name=DISTRIBUTION,
    help="Your workflow engine's executions as MCP tasks, in every MCP host.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class LogLevel(StrEnum):
    """How much is said on standard error."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


DEFAULT_CONFIG = Path("workflows.yaml")
_OPTION = typer.Option("--config", "-c", help=f"The configuration. Default: {DEFAULT_CONFIG}.", show_default=False)
ConfigOption = Annotated[Path, _OPTION]
"""`-c CONFIG`, of every command that reads a configuration."""
ConfigArgument = Annotated[Path | None, typer.Argument(help="The configuration, as with -c.", show_default=False)]
"""`[CONFIG]`, of commands that take no other argument; goes with `ConfigInstead`, and both through `either`."""
ConfigInstead = Annotated[Path | None, _OPTION]


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


def command_line() -> TyperGroup:
    """All commands, with one style of help."""
    root = get_command(app)
    assert isinstance(root, TyperGroup), "there are several commands"
    commands = [*root.commands.values(), root]
    for command in commands:
        if isinstance(command, TyperGroup):
            commands.extend(command.commands.values())
        context = typer.Context(command)
        for param in command.get_params(context):
            if isinstance(param, TyperArgument):
                param.metavar = param.metavar or param.name.upper()
                param.__class__ = _Argument
            elif isinstance(param, TyperOption) and _TYPES_ARE_SHOWN:
                param.metavar = _placeholder(param, context)
    return root


_TYPES_ARE_SHOWN = hasattr(TyperArgument, "display_type_rich")  # by Typers that show `<bool>` and `<str>`


class _Argument(TyperArgument):
    """An argument in the help: `TOOL`, or `[CONFIG]` if it is optional, without its Python type."""

    def get_usage_pieces(self, ctx: Any) -> list[str]:  # Any: Click's context, or Typer's copy of it
        name = f"{self.metavar}..." if self.nargs != 1 else str(self.metavar)
        return [name if self.required else f"[{name}]"]

    def display_type_rich(self, ctx: Any) -> str | None:  # Any: see above
        shown = super().display_type_rich(ctx)
        return shown if shown and "|" in shown else None


def _placeholder(option: TyperOption, context: typer.Context) -> str:
    """The value of an option in the help: nothing for a flag, `<a|b>` for a choice, else `TOOL` for `--tool`."""
    if option.is_flag:
        return ""
    choices = option.display_type(context).replace("list[", "").replace("]", "")
    return option.metavar or (choices if "|" in choices else option.opts[0].lstrip("-").upper())


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


def log(level: LogLevel) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(_says_no_payload)
    handler.addFilter(_limits_others)
    logging.basicConfig(handlers=[handler], level=level.upper())
    atexit.register(LINES.tell)


class _Lines(logging.Formatter):
    """Further lines of a record (a trace) are indented, so that none looks like a record of its own."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n  ".join(escaped(line) for line in super().format(record).split("\n"))


def _limits_others(record: logging.LogRecord) -> bool:
    """Bound what other libraries log of remote parties; our own loggers bound what they must: see `log_limits`."""
    return record.name.startswith("mcp_workflows.") or LINES.filter(record)


def _says_no_payload(record: logging.LogRecord) -> bool:
    """At debug, libraries tell what they send and receive, whole: only we are heard there."""
    return record.levelno >= logging.INFO or record.name.startswith("mcp_workflows")
