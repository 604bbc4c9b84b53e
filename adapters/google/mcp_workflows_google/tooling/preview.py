"""The CreateExecution request of a start, without sending it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from mcp_workflows.adapter import JSON, Start
from mcp_workflows_google.names import Place
from mcp_workflows_google.settings import DEMO, GoogleSettings
from mcp_workflows_google.start import build_request

UNKNOWN: Final = "PROJECT"


def preview(start: Start, settings: GoogleSettings) -> Mapping[str, JSON]:
    """Return the request as JSON, the argument not encoded; a project that only the credentials name is a placeholder.

    Raises:
        EngineRefused: the start would be refused before anything is sent.
    """
    project = settings.project or (DEMO if settings.emulator else "unknown-project")
    ready = build_request(start, Place(project=project, location=settings.location))
    parent = ready.workflow.name.replace("projects/unknown-project/", f"projects/{UNKNOWN}/", 1)
    execution: dict[str, JSON] = {"labels": dict(ready.labels), "argument": json.loads(ready.argument)}
    return {"operation": "CreateExecution", "parent": parent, "execution": execution}
