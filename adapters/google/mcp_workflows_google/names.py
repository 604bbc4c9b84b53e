"""Resource names of workflows, executions and callbacks; labels of executions.

Source: https://cloud.google.com/workflows/docs/reference/executions/rest/v1/projects.locations.workflows.executions
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final, Self

from mcp_workflows.errors import EngineRefused

PROJECT: Final = r"(?:[a-z][a-z0-9.:-]{2,61}[a-z0-9]|[0-9]{1,19})"  # an id (`example.com:shop` too) or a number
LOCATION: Final = r"[a-z]+(?:-[a-z0-9]+)+"
WORKFLOW: Final = r"[A-Za-z](?:[A-Za-z0-9_-]{0,62}[A-Za-z0-9])?"
EXECUTION: Final = r"[A-Za-z0-9_-]{1,128}"
CALLBACK: Final = r"[A-Za-z0-9_-]{1,256}"

_PLACE = rf"projects/(?P<project>{PROJECT})/locations/(?P<location>{LOCATION})"
_WORKFLOW = re.compile(rf"{_PLACE}/workflows/(?P<workflow>{WORKFLOW})", re.ASCII)
_SHORT = re.compile(WORKFLOW, re.ASCII)
_EXECUTION = re.compile(rf"{_WORKFLOW.pattern}/executions/(?P<execution>{EXECUTION})", re.ASCII)
_LABEL = re.compile(r"[a-z0-9_-]{1,63}")

KEY_LABEL: Final = "mcp-workflows-key"  # the key of the start
TOOL_LABEL: Final = "mcp-workflows-tool"  # the name of the tool, for people
TRACE_LABEL: Final = "mcp-workflows-traceparent"  # the W3C traceparent of the call
OWNER_LABEL: Final = "mcp-workflows-owner"  # the owner of the task
MORE_LABEL: Final = "mcp-workflows-for-"  # prefix of the labels from `on_behalf_of` of a tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A project, by its id or number, and a location."""

    project: str
    location: str

    @property
    def name(self) -> str:
        """The resource name of the place."""
        return f"projects/{self.project}/locations/{self.location}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowName:
    """The name of a workflow in a place."""

    place: Place
    workflow: str

    @classmethod
    def parse(cls, text: str, place: Place) -> Self:
        """Parse a resource name, or the name of a workflow in this place.

        Raises:
            EngineRefused: the text is neither.
        """
        if _SHORT.fullmatch(text):
            return cls(place=place, workflow=text)
        if found := _WORKFLOW.fullmatch(text):
            return cls(place=Place(project=found["project"], location=found["location"]), workflow=found["workflow"])
        raise EngineRefused(
            f"{text!r} is no workflow: write its name, or projects/PROJECT/locations/LOCATION/workflows/NAME",
            final=True,
        )

    @property
    def name(self) -> str:
        """The resource name of the workflow, the parent of its executions."""
        return f"{self.place.name}/workflows/{self.workflow}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionName:
    """The name of an execution, as a handle contains it; Google may return the project's number for its id."""

    workflow: WorkflowName
    execution: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a resource name.

        Raises:
            EngineRefused: the text does not name an execution.
        """
        found = _execution(text)
        place = Place(project=found["project"], location=found["location"])
        return cls(workflow=WorkflowName(place=place, workflow=found["workflow"]), execution=found["execution"])

    @property
    def name(self) -> str:
        """The resource name of the execution."""
        return f"{self.workflow.name}/executions/{self.execution}"

    @property
    def note_prefix(self) -> str:
        """The prefix of the keys of our notes, without the project, which has two names."""
        return _note_prefix(self.workflow.place.location, self.workflow.workflow, self.execution)


def note_prefix_of(text: str) -> str:
    """Return `ExecutionName.parse(text).note_prefix` in less time, for lists of 10,000 names.

    Raises:
        EngineRefused: the text does not name an execution.
    """
    found = _execution(text)
    return _note_prefix(found["location"], found["workflow"], found["execution"])


def _note_prefix(location: str, workflow: str, execution: str) -> str:
    return f"{location}/{workflow}/{execution}/"


def _execution(text: str) -> re.Match[str]:
    found = _EXECUTION.fullmatch(text)
    if found is None:
        raise EngineRefused(
            f"{text!r} is no execution: write projects/PROJECT/locations/LOCATION/workflows/NAME/executions/ID",
            final=True,
        )
    return found


def label(key: str) -> str:
    """Return the value of the key's label: the key itself if it is a valid value, or else a digest."""
    return key if _LABEL.fullmatch(key) else hashlib.sha256(key.encode()).hexdigest()[:48]
