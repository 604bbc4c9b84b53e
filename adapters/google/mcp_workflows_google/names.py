"""Resource names of workflows, executions and callbacks, taken apart and put together; labels made of keys.

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

KEY_LABEL: Final = "mcp-workflows-key"  # of an execution: the key it was started under
TOOL_LABEL: Final = "mcp-workflows-tool"  # likewise: the tool, for people
TRACE_LABEL: Final = "mcp-workflows-traceparent"  # likewise: the trace of the call, as W3C writes it
OWNER_LABEL: Final = "mcp-workflows-owner"  # likewise: on whose behalf
MORE_LABEL: Final = "mcp-workflows-for-"  # begins those of what `on_behalf_of` of a tool says


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an engine's workflows are: a project, by its id or number, and a location."""

    project: str
    location: str

    @property
    def name(self) -> str:
        """Its resource name."""
        return f"projects/{self.project}/locations/{self.location}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowName:
    """A workflow."""

    place: Place
    workflow: str

    @classmethod
    def parse(cls, text: str, place: Place) -> Self:
        """A resource name, or the name of a workflow in this place.

        Raises:
            EngineRefused: it is neither.
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
        """Its resource name: what executions are created in."""
        return f"{self.place.name}/workflows/{self.workflow}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionName:
    """An execution, as a handle names it; Google may have put the project's number where we wrote its id."""

    workflow: WorkflowName
    execution: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """A resource name.

        Raises:
            EngineRefused: it is not one of an execution.
        """
        found = _execution(text)
        place = Place(project=found["project"], location=found["location"])
        return cls(workflow=WorkflowName(place=place, workflow=found["workflow"]), execution=found["execution"])

    @property
    def name(self) -> str:
        """Its resource name."""
        return f"{self.workflow.name}/executions/{self.execution}"

    @property
    def note_prefix(self) -> str:
        """What begins the keys of our notes about it: without the project, which has two names."""
        return _note_prefix(self.workflow.place.location, self.workflow.workflow, self.execution)


def note_prefix_of(text: str) -> str:
    """`ExecutionName.parse(text).note_prefix`, and no more: sweeps need it of 10,000.

    Raises:
        EngineRefused: likewise.
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
    """The value of a label for a key: the key itself if it can be one, or a digest of it."""
    return key if _LABEL.fullmatch(key) else hashlib.sha256(key.encode()).hexdigest()[:48]
