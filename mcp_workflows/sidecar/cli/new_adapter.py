"""The command `mcp-workflows new-adapter`: a package for another engine, with contract tests that guide its author."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from mcp_workflows.adapter import installed_adapters
from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar import DISTRIBUTION
from mcp_workflows.sidecar.cli.app import app

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 40
_FILES = "new_adapter_files"  # templates in Python and TOML with $placeholders, so their names end in .txt
_MODULE = "module"  # the folder that gets the package's name

NEXT_STEPS = """\
{path}: written

next:
  cd {path}
  pip install -e '.[dev]'
  pytest                      # each failing test states a law of the boundary and what to write
then:
  {module}/adapter.py: the settings, the client and the functions
  tests/test_contract.py: your workflows that the tests use
  docs/extend/write-an-adapter.md explains each law
"""


@app.command("new-adapter")
def new_adapter(
    name: Annotated[str, typer.Argument(help="The name of the adapter in workflows.yaml: acme, print-shop.")],
    path: Annotated[
        Path | None, typer.Option(help="The new folder. Default: mcp-workflows-NAME, here.", show_default=False)
    ] = None,
) -> None:
    """Create a package for your own adapter, with contract tests that fail until it is complete."""
    _check_name(name)
    folder = path or Path(f"{DISTRIBUTION}-{name}")
    values = _values(name)
    write_package(folder, values)
    typer.echo(NEXT_STEPS.format(path=folder, module=values["module"]), nl=False)


def write_package(folder: Path, values: Mapping[str, str]) -> None:
    """Fill in the templates and write the files.

    Raises:
        ConfigError: the folder is not empty, or cannot be written.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder}: already exists and was left unchanged; name another folder with --path")
        for place, text in _filled(files("mcp_workflows.sidecar.cli") / _FILES, Path(), values).items():
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        (folder / values["module"] / "py.typed").touch()
    except OSError as error:
        raise ConfigError(f"{error.filename or folder}: cannot be written: {error.strerror}") from None


def _filled(source: Traversable, place: Path, values: Mapping[str, str]) -> Mapping[Path, str]:
    """Return the files in a folder of templates, by their paths in the package."""
    found: dict[Path, str] = {}
    for entry in source.iterdir():
        if entry.is_dir():
            found |= _filled(entry, place / (values["module"] if entry.name == _MODULE else entry.name), values)
        elif entry.name.endswith(".txt"):
            found[place / entry.name.removesuffix(".txt")] = Template(entry.read_text("utf-8")).substitute(values)
    return found


def _values(name: str) -> Mapping[str, str]:
    words = name.split("-")
    major, minor = version(DISTRIBUTION).split(".")[:2]
    return {
        "name": name,
        "module": f"mcp_workflows_{'_'.join(words)}",
        "class_name": "".join(word.capitalize() for word in words),
        "title": " ".join(word.capitalize() for word in words),
        "version": version(DISTRIBUTION),
        "next": f"{major}.{int(minor) + 1}" if major == "0" else f"{int(major) + 1}",
    }


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        wanted = f"lowercase letters, digits and single hyphens, starting with a letter, at most {_LONGEST} characters"
        raise ConfigError(f"{name!r} cannot be the name of an adapter: {wanted} (acme, print-shop)")
    if name in installed_adapters():
        raise ConfigError(f"an adapter named {name!r} is already installed: choose another name")
