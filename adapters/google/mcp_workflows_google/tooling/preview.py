"""What a start would send, without sending it: CreateExecution in the words of the API."""

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
    """The request as JSON, the argument not yet as text; a project that only the credentials can tell is left open.

    Raises:
        EngineRefused: it would be refused before anything is sent.
    """
    project = settings.project or (DEMO if settings.emulator else "unknown-project")
    ready = build_request(start, Place(project=project, location=settings.location))
    parent = ready.workflow.name.replace("projects/unknown-project/", f"projects/{UNKNOWN}/", 1)
    execution: dict[str, JSON] = {"labels": dict(ready.labels)}
    if ready.argument is not None:
        execution["argument"] = json.loads(ready.argument)
    return {"operation": "CreateExecution", "parent": parent, "execution": execution}
