"""The configuration of a Python file with workflows, as `init` would write it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import anyio

from mcp_workflows.adapter import load_adapter
from mcp_workflows.errors import ConfigError
from mcp_workflows.kit.tooling import Drafts
from mcp_workflows.sidecar.config.draft import draft, draft_engine
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.config.models import Config

_ADAPTER: Final = "dbos"  # the only adapter whose workflows are functions in a Python file


def draft_python(path: Path) -> str:
    """Return the configuration of a Python file: one engine, and a tool for each of its workflows.

    Raises:
        ConfigError: the adapter is not installed, or the file cannot be used; the message has the file and the line.
    """
    tooling = load_adapter(_ADAPTER).tooling
    if not isinstance(tooling, Drafts):
        raise ConfigError(f"the adapter {_ADAPTER!r} that is installed cannot read Python files")
    drafted = anyio.run(tooling.draft, str(path), None)
    lines = [
        *draft_engine(_ADAPTER, drafted.settings, name=drafted.name),
        *draft(drafted.name, drafted.workflows, configured={}, taken=(), chosen=drafted.workflows),
    ]
    return "\n".join(lines) + "\n"


def load_python(path: Path, environ: Mapping[str, str]) -> Config:
    """Load the configuration of a Python file.

    Raises:
        ConfigError: see `draft_python` and `load_config`.
    """
    text = draft_python(path)
    try:
        return load_config(path, environ, text=text)
    except ConfigError as error:  # drop its line numbers: they are those of the draft, which is never written
        raise ConfigError(re.sub(rf"^({re.escape(str(path))}):\d+:", r"\1:", str(error), flags=re.MULTILINE)) from None
