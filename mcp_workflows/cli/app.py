"""The application the commands hang on, and what they share: the configuration, the log."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from mcp_workflows.config import Config, load_config
from mcp_workflows.config_schema import DISTRIBUTION
from mcp_workflows.log_limits import LINES, escaped

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


ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="The configuration, workflows.yaml.")]
ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", metavar="CONFIG", help="The configuration. Default: ./workflows.yaml.")
]
DEFAULT_CONFIG = Path("workflows.yaml")


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


def load(config: Path) -> Config:
    """Load it; workflows written as `module:attribute` may be beside it."""
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
