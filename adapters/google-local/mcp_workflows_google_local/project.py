"""The simulated project and location, and the meaning of names in requests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from mcp_workflows_google_local.refusals import denied, invalid, not_found

WORKFLOW: Final = r"[A-Za-z](?:[A-Za-z0-9_-]{0,62}[A-Za-z0-9])?"
EXECUTION: Final = r"[A-Za-z0-9_-]{1,128}"

_PLACE = r"projects/(?P<project>[^/]+)/locations/(?P<location>[^/]+)"
_PATTERNS = {  # by the kind of name in errors
    "projects/PROJECT/locations/LOCATION": re.compile(_PLACE),
    "projects/PROJECT/locations/LOCATION/workflows/NAME": re.compile(rf"{_PLACE}/workflows/({WORKFLOW})", re.ASCII),
    "projects/PROJECT/locations/LOCATION/workflows/NAME/executions/ID": re.compile(
        rf"{_PLACE}/workflows/({WORKFLOW})/executions/({EXECUTION})", re.ASCII
    ),
}
_PLACE_NAME, _WORKFLOW_NAME, _EXECUTION_NAME = _PATTERNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """One project, by id and number, and one location; requests may use either name."""

    project: str
    number: str
    location: str

    @property
    def service_account(self) -> str:
        """The default account of workflows."""
        return f"local@{self.project}.iam.gserviceaccount.com"

    def workflow_name(self, workflow: str) -> str:
        """Return the resource name of a workflow, with the project's id."""
        return f"projects/{self.project}/locations/{self.location}/workflows/{workflow}"

    def execution_name(self, workflow: str, execution: str) -> str:
        """Return the resource name of an execution, with the project's number."""
        return f"projects/{self.number}/locations/{self.location}/workflows/{workflow}/executions/{execution}"

    def check_place(self, name: str, permission: str) -> None:
        """Refuse any other project or location."""
        self._ours(_PLACE_NAME, name, permission)

    def workflow(self, name: str, permission: str) -> str:
        """Return the id in the name of a workflow, which need not exist."""
        return self._ours(_WORKFLOW_NAME, name, permission)[3]

    def execution(self, name: str, permission: str) -> tuple[str, str]:
        """Return the ids in the name of an execution, of the workflow and the execution, which need not exist."""
        found = self._ours(_EXECUTION_NAME, name, permission)
        return found[3], found[4]

    def _ours(self, kind: str, name: str, permission: str) -> re.Match[str]:
        found = _PATTERNS[kind].fullmatch(name)
        if found is None:
            raise invalid(f"invalid name {name!r}: write {kind}")
        if found["project"] not in (self.project, self.number):
            raise denied(permission, name)
        if found["location"] != self.location:
            raise not_found(f"projects/{found['project']}/locations/{found['location']}")
        return found
