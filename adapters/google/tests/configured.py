"""A workflows.yaml over an engine of the tests, and what is looked up there; the rest as with every engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapters.google.tests.scene import INBOUND
from tests.support.configured import KEY, YES, asked, by_flags, called, client_of, operating, written
from tests.support.google_engine import LOCATION, PROJECT, GoogleEngine

__all__ = ["KEY", "YES", "asked", "by_flags", "called", "client_of", "configured", "executions", "operating"]


def configured(
    folder: Path,
    emulator: str,
    tools: Mapping[str, Mapping[str, Any]],
    server: Mapping[str, Any] | None = None,
    **engine: Any,
) -> Path:
    """These tools of the engine `google` at this address, with a store beside it; `engine` adds to its settings."""
    place = {"project": PROJECT, "location": LOCATION, "emulator": emulator}
    settings = {"adapter": "google-workflows", **place, "inbound": INBOUND, **engine}
    return written(folder, "google", settings, tools, server)


def executions(engine: GoogleEngine, workflow: str) -> list[str]:
    """The names of all executions of a workflow, the newest first."""
    return [each.name for each in engine.executions().list_executions(parent=workflow, timeout=60)]
