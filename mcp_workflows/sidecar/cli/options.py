"""Options that commands share, the configuration and the log level, and the command lines that messages recommend."""

from __future__ import annotations

import atexit
import glob
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from enum import StrEnum
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from mcp_workflows.adapter.redaction import mask
from mcp_workflows.errors import ConfigError, OperatorError
from mcp_workflows.receiver.log_limits import LINES, escaped
from mcp_workflows.sidecar import DISTRIBUTION
from mcp_workflows.sidecar.address import Address

if TYPE_CHECKING:  # half a second, which `dev` does not need
    from mcp_workflows.sidecar.config.models import Config

_LIMITED = frozenset({"mcp", "uvicorn", "sse_starlette", "asyncio"})  # they log what remote parties do
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8931
_ADDRESS = re.compile(r"(?:(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]*):)?(\d{1,5})")

DEFAULT_CONFIG = Path("workflows.yaml")
PYTHON_FILE = Path("app.py")
_HELP = f"The configuration. Default: {DEFAULT_CONFIG}, or else {PYTHON_FILE}."
_OPTION = typer.Option("--config", "-c", help=_HELP, show_default=False)
ConfigOption = Annotated[Path, _OPTION]
"""`-c CONFIG`, of every command that reads a configuration."""
ConfigArgument = Annotated[
    Path | None,
    typer.Argument(help="The configuration, as with -c; or a Python file with workflows.", show_default=False),
]
"""`[CONFIG]`, of commands that take no other argument; goes with `ConfigInstead`, and both through `either`."""
ConfigInstead = Annotated[Path | None, _OPTION]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


class LogLevel(StrEnum):
    """The least severity that a command logs on standard error."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def confirm(question: str, *, yes: bool) -> None:
    """Ask at the terminal before something is changed, unless `yes`; end the command if the answer is no.

    Raises:
        OperatorError: nobody can be asked.
    """
    if not (yes or sys.stdin.isatty()):
        raise OperatorError("nothing was changed: no terminal to ask for consent; add --yes")
    if not yes:
        typer.confirm(question, abort=True, err=True)


def read_address(text: str) -> Address:
    """Read `127.0.0.1:8931`, `[::1]:8931`, `:8931` or `8931`; the default host is loopback.

    Raises:
        typer.BadParameter: it is none of these.
    """
    match = _ADDRESS.fullmatch(text)
    if not match or int(match[2]) > 65535:
        raise typer.BadParameter(f"{text!r} is not HOST:PORT; for example 127.0.0.1:8931, [::1]:8931 or :8931")
    return Address(host=(match[1] or DEFAULT_HOST).strip("[]"), port=int(match[2]))


def is_python(path: Path) -> bool:
    """True if a path is that of a Python file, and not of a configuration."""
    return path.suffix == ".py"


def either(argument: Path | None, option: Path | None) -> Path:
    """Return the configuration of a command that takes it as `[CONFIG]` and as `-c CONFIG`.

    Raises:
        typer.BadParameter: there are two.
    """
    if argument and option and argument.resolve() != option.resolve():
        raise typer.BadParameter(f"two configurations were given, {argument} and -c {option}: give one of them")
    return option or argument or DEFAULT_CONFIG


def existing(config: Path, *, is_yaml: bool = False) -> Path:
    """Return the same path; for the default, if there is no such file, `app.py` beside it, unless YAML is needed.

    Raises:
        ConfigError: it is the default, and there is no such file.
    """
    if config == DEFAULT_CONFIG and not config.exists():
        if PYTHON_FILE.exists() and not is_yaml:
            return PYTHON_FILE
        raise ConfigError(
            f"{config}: no such file in this folder; create one with `{DISTRIBUTION} init`, or name yours: -c CONFIG"
        )
    return config


def load(config: Path) -> Config:
    """Load a configuration, or that of a Python file with workflows; modules beside it can be imported by name.

    Raises:
        ConfigError: it does not exist, or something in it is wrong.
    """
    config = existing(config)
    sys.path.insert(0, str(config.parent.resolve()))
    name, function = ("draft", "load_python") if is_python(config) else ("load", "load_config")
    with redirect_stdout(sys.stderr):  # what modules print, as the output of a command may be JSON
        loaded: Config = getattr(import_module(f"mcp_workflows.sidecar.config.{name}"), function)(config, os.environ)
    return loaded


def load_shared(config: Path) -> Config:
    """Load a configuration for a command about what its server has stored.

    Raises:
        ConfigError: see `load`.
        OperatorError: the store is in the memory of that server.
    """
    loaded = load(config)
    if loaded.store.url.endswith(":memory:"):
        raise OperatorError("store.url: only the server itself can read a store in memory; name a file or a database")
    return loaded


def names_in(section: str) -> Callable[[typer.Context], Sequence[str]]:
    """Return the completion of a name in a section of the configuration: `tools`, `engines`; never an error."""

    def names(context: typer.Context) -> Sequence[str]:
        path = Path(context.params.get("option") or context.params.get("config") or DEFAULT_CONFIG)
        data = _read(path)
        found = list(_mapping(data.get(section)))
        for entry in _several(data.get("include")) if section == "tools" else ():
            share = _mapping(entry) or {"files": entry}
            begin = f"{share['namespace']}_" if share.get("namespace") else ""
            for pattern in _several(share.get("files")):
                for file in sorted(glob.glob(str(path.parent / str(pattern)))):
                    found += [f"{begin}{name}" for name in _mapping(_read(Path(file)).get("tools"))]
        return found

    return names


def adapter_names() -> Sequence[str]:
    """Return the completion of an adapter's name."""
    return sorted({entry.name for entry in entry_points(group="mcp_workflows.adapters")})


def _read(path: Path) -> Mapping[str, Any]:  # Any: whatever somebody wrote
    try:
        yaml: Any = YAML(typ="safe")  # Any: it is typed in part only
        return _mapping(yaml.load(path.read_text("utf-8")))
    except (OSError, ValueError, YAMLError, RecursionError):
        return {}


def _mapping(value: Any) -> Mapping[str, Any]:  # Any: see above
    found = cast("Mapping[Any, Any]", value if isinstance(value, dict) else {})
    return {str(key): each for key, each in found.items()}


def _several(value: Any) -> Sequence[Any]:  # Any: see above
    return cast("Sequence[Any]", value) if isinstance(value, list) else [] if value is None else [value]


def command_line(*words: str, config: Path) -> str:
    """Return a command of this program, with `-c` where it is needed, that can be pasted into a shell."""
    return shlex.join([DISTRIBUTION, *words, *([] if config == DEFAULT_CONFIG else ["-c", str(config)])])


def log(level: LogLevel) -> None:
    """Log to standard error from this level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(_has_no_payload)
    handler.addFilter(_is_within_limits)
    logging.basicConfig(handlers=[handler], level=level.upper())
    if level != LogLevel.DEBUG:
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # it has a line for each request
    atexit.register(LINES.tell)


class LogLines(logging.Formatter):
    """Masks credentials, escapes control characters, and indents further lines, so that none looks like a record."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n  ".join(escaped(line) for line in mask(super().format(record)).split("\n"))


def _is_within_limits(record: logging.LogRecord) -> bool:
    """Limit the records of libraries about remote parties; our own loggers have limits, the user's lines have none."""
    library = record.name.partition(".")[0]
    return not (library in _LIMITED or library.startswith("mcp_workflows_")) or LINES.filter(record)


def _has_no_payload(record: logging.LogRecord) -> bool:
    """Drop the debug records of other libraries, which show whole requests and responses."""
    return record.levelno >= logging.INFO or record.name.startswith("mcp_workflows")
