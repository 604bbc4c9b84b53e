"""The command `mcp-workflows helper`: a source file that authors copy into workflows in languages without a package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from mcp_workflows.adapter import installed_adapters, load_adapter
from mcp_workflows.errors import ConfigError
from mcp_workflows.kit.tooling import Embeds
from mcp_workflows.sidecar.cli.app import app


@app.command(name="helper")
def embed(
    language: Annotated[str, typer.Argument(help="The language of the workflows: go, typescript, asl, google.")],
    adapter: Annotated[
        str | None, typer.Option(help="The adapter that ships the file. Default: any that is installed.")
    ] = None,
) -> None:
    """Print the file that lets workflows in this language ask people and tell their progress: > mcpwf.go"""
    typer.echo(_file(language, _files([adapter] if adapter else installed_adapters())), nl=False)


def _files(adapters: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """Return the files of each adapter by language."""
    loaded = {name: load_adapter(name).tooling for name in adapters}
    return {name: found.embeds() for name, found in loaded.items() if isinstance(found, Embeds)}


def _file(language: str, files: Mapping[str, Mapping[str, str]]) -> str:
    """Return the only file for this language.

    Raises:
        ConfigError: there is none, or more than one; lists the existing ones.
    """
    having = [name for name, found in files.items() if language in found]
    if len(having) > 1:
        raise ConfigError(f"several adapters have a file for {language}: add --adapter {' or --adapter '.join(having)}")
    if not having:
        there = [f"{each} (--adapter {name})" for name, found in sorted(files.items()) for each in sorted(found)]
        raise ConfigError(f"there is no file for {language!r}; there is: {', '.join(there) or 'none'}")
    return files[having[0]][language]
