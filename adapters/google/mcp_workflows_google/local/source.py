"""YAML or JSON text -> Program, checked as at deployment."""

from __future__ import annotations

from mcp_workflows_google.local.checking import check
from mcp_workflows_google.local.outline import routines
from mcp_workflows_google.local.program import Program
from mcp_workflows_google.local.reading import read


def load(source: str) -> Program:
    """The program of this text.

    Raises:
        DeployError: it cannot be deployed, or needs what this engine lacks.
    """
    found = routines(read(source))
    check(found)
    return Program(source=source, routines=found)
