"""The page of an execution in the Google Cloud console."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from mcp_workflows_google.names import ExecutionName
from mcp_workflows_google.settings import GoogleSettings

GOOGLES: Final = "https://console.cloud.google.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """Where the console is; `root` None: there is none, as for a local engine."""

    root: str | None

    @classmethod
    def of(cls, settings: GoogleSettings) -> Console:
        """As set, or Google's own, unless the engine is a local one."""
        return cls(root=settings.console_url or (None if settings.emulator else GOOGLES))

    def page(self, execution: ExecutionName) -> str | None:
        """The page of an execution."""
        if self.root is None:
            return None
        workflow = execution.workflow
        of_workflow = f"{self.root}/workflows/workflow/{workflow.place.location}/{workflow.workflow}"
        project = quote(workflow.place.project, safe="")
        return f"{of_workflow}/execution/{execution.execution}/summary?project={project}"
