"""Completion in shells: commands and options from a table, tools and engines from the configuration.

The table, `completion.json`, is written by `python -m scripts.completion` from the command line itself. Typer could
complete from that alone, but importing all commands takes seconds.
"""

from __future__ import annotations

import glob
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast

import typer
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from mcp_workflows.sidecar import DISTRIBUTION

Table: TypeAlias = Mapping[str, Any]  # Any: JSON, see `scripts/completion.py`


def complete() -> None:
    """Print what the words in the environment can be completed with.

    Raises:
        SystemExit: always, with the exit code that the shell's script expects.
    """
    _group(table())(prog_name=DISTRIBUTION)


@lru_cache
def table() -> Table:
    """Return the commands and their options."""
    found: Table = json.loads(Path(__file__).with_name("completion.json").read_text("utf-8"))
    return found


def _group(table: Table) -> typer.Typer:
    """A command line with the same commands and options, which does nothing."""
    app = typer.Typer(help=table["help"])
    app.callback()(_command(table["params"]))
    for name, entry in table["commands"].items():
        if "commands" in entry:
            app.add_typer(_group(entry), name=name, help=entry["help"])
        else:
            app.command(name, help=entry["help"])(_command(entry["params"]))
    return app


def _command(params: Sequence[Mapping[str, Any]]) -> Callable[..., None]:  # Any: JSON
    def run() -> None:
        pass

    taken = [_parameter(**param) for param in params]
    run.__annotations__ = {each.name: each.annotation for each in taken}
    vars(run)["__signature__"] = inspect.Signature(taken)
    return run


def _parameter(name: str, names: Sequence[str], value: str, many: bool) -> inspect.Parameter:
    """An option, by its names, or an argument, which has none; `value` as the help shows it, empty for a flag."""
    info = typer.Option(*names, autocompletion=_words(value)) if names else typer.Argument(autocompletion=_words(value))
    one: Any = Annotated[str | None, info] if value else Annotated[bool, info]  # Any: a form of type
    annotation = Annotated[list[str] | None, info] if many else one
    default = None if value else False
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _words(value: str) -> Callable[[typer.Context], Sequence[str]]:
    """The words that a value can be; none: the shell completes the names of files."""

    def words(context: typer.Context) -> Sequence[str]:
        path = Path(context.params.get("option") or context.params.get("config") or "workflows.yaml")
        if value == "TOOL":
            return list(tools_in(path))
        if value == "ENGINE":
            return list(_section(_read(path), "engines"))
        if value == "ADAPTER":
            return sorted({entry.name for entry in entry_points(group="mcp_workflows.adapters")})
        return value.strip("<>").split("|") if "|" in value else []

    return words


def tools_in(path: Path) -> Iterator[str]:
    """The names of the tools in a configuration and in what it includes; none if it cannot be read."""
    data = _read(path)
    yield from _section(data, "tools")
    for entry in _several(data.get("include")):
        share = _mapping(entry) or {"files": entry}
        begin = f"{share['namespace']}{share.get('separator', '_')}" if share.get("namespace") else ""
        for pattern in _several(share.get("files")):
            for found in sorted(glob.glob(str(path.parent / str(pattern)))):
                yield from (f"{begin}{name}" for name in _section(_read(Path(found)), "tools"))


def _section(data: Mapping[str, Any], name: str) -> Sequence[str]:  # Any: whatever somebody wrote
    return [str(key) for key in _mapping(data.get(name))]


def _several(value: Any) -> Sequence[Any]:  # Any: see above
    if isinstance(value, list):
        return cast("Sequence[Any]", value)
    return [] if value is None else [value]


def _mapping(value: Any) -> Mapping[str, Any]:  # Any: see above
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _read(path: Path) -> Mapping[str, Any]:  # Any: see above
    try:
        yaml: Any = YAML(typ="safe")  # Any: it is typed in part only
        return _mapping(yaml.load(path.read_text("utf-8")))
    except (OSError, ValueError, YAMLError, RecursionError):
        return {}
