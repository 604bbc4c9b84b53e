"""Names, executions, workflows and callbacks of Google's APIs as frozen data, without the client library's messages.

Source: https://cloud.google.com/workflows/docs/reference/executions/rest/v1/projects.locations.workflows.executions
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Self

from google.cloud.workflows.executions_v1 import Execution
from google.cloud.workflows_v1 import Workflow

from mcp_workflows.errors import EngineRefused

PROJECT: Final = r"(?:[a-z][a-z0-9.:-]{2,61}[a-z0-9]|[0-9]{1,19})"  # an id (also `example.com:shop`) or a number
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
MORE_LABEL: Final = "mcp-workflows-for-"  # prefix of the labels from `labels` of a tool


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
    """The name of an execution, as in a handle; Google may return the project's number for its id."""

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

    def in_project(self, project: str) -> Self:
        """Return the name of this execution with another name of its project."""
        place = replace(self.workflow.place, project=project)
        return replace(self, workflow=replace(self.workflow, place=place))

    @property
    def note_prefix(self) -> str:
        """The prefix of the keys of our notes, without the project, which has two names."""
        return _note_prefix(self.workflow.place.location, self.workflow.workflow, self.execution)


def note_prefix_of(text: str) -> str:
    """Return `ExecutionName.parse(text).note_prefix` faster, for lists of 10,000 names.

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
    """Return the value of the key's label: the key itself if it is valid, otherwise a digest."""
    return key if _LABEL.fullmatch(key) else hashlib.sha256(key.encode()).hexdigest()[:48]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The position of an execution: a step of its main workflow, or of a subworkflow."""

    routine: str
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResource:
    """One execution; some fields are set only with the view FULL, see `Client.get`."""

    name: str  # it may contain the project's number
    state: int  # of `Execution.State`, or an unknown number
    start_time: datetime | None = None
    end_time: datetime | None = None
    revision: str = ""  # of the workflow
    # only with the view FULL:
    argument: str = ""  # JSON; empty without one
    result: str = ""  # JSON, after success; may be "null"
    payload: str | None = None  # of its error: JSON, text or nothing
    context: str | None = None  # of its error: place and reason, as text
    steps: Sequence[Step] = ()
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    state_error: str | None = None  # the reason of UNAVAILABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """An open endpoint of an execution."""

    name: str
    method: str
    waiters: int  # steps that wait for it
    payloads: int  # requests that have arrived and were not processed

    @property
    def id(self) -> str:
        """The last part of its name."""
        return self.name.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowResource:
    """A deployed workflow."""

    name: str
    state: int  # of `Workflow.State`, or an unknown number
    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    revision: str = ""
    source: str | None = None  # a list may omit it
    env: Mapping[str, str] = field(default_factory=dict[str, str])  # `user_env_vars`
    service_account: str = ""  # the account that it runs as
    state_error: str | None = None  # the reason of UNAVAILABLE


def unanswered_ids(callbacks: Sequence[Callback]) -> frozenset[str]:
    """Return the ids of callbacks without a request."""
    return frozenset(callback.id for callback in callbacks if not callback.payloads)


def awaited_ids(callbacks: Sequence[Callback]) -> frozenset[str]:
    """Return the ids of callbacks that a step awaits and that have no request; one in use may stay in the list."""
    return frozenset(callback.id for callback in callbacks if callback.waiters and not callback.payloads)


def read_execution(row: Execution) -> ExecutionResource:
    """Read a message of the official client, without proto-plus, which takes 0.3 ms per row."""
    found = _plain(row)
    failed = found.state in {Execution.State.FAILED, Execution.State.CANCELLED}
    return ExecutionResource(
        name=found.name,
        state=int(found.state),
        start_time=_plain_time(found, "start_time"),
        end_time=_plain_time(found, "end_time"),
        revision=found.workflow_revision_id,
        argument=found.argument,
        result=found.result,
        payload=found.error.payload or None if failed else None,
        context=found.error.context or None if failed else None,
        steps=tuple(Step(routine=step.routine, step=step.step) for step in found.status.current_steps),
        labels=dict(found.labels),
        state_error=found.state_error.details or None,
    )


def read_workflow(row: Workflow) -> WorkflowResource:
    """Read a message of the official client."""
    return WorkflowResource(
        name=row.name,
        state=int(_plain(row).state),  # proto-plus would warn about each unknown one
        description=row.description,
        labels=dict(row.labels),
        revision=row.revision_id,
        source=row.source_contents or None,
        env=dict(row.user_env_vars),
        service_account=row.service_account,
        state_error=row.state_error.details or None,
    )


def read_callback(row: Any) -> Callback | None:  # Any: JSON
    """Read a callback from JSON, where 64-bit numbers are texts; None if it is invalid."""
    fields: Mapping[str, Any] = row if isinstance(row, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]
    name, method = fields.get("name"), fields.get("method")
    if not isinstance(name, str) or not isinstance(method, str):
        return None
    payloads: Any = fields.get("availablePayloads")
    return Callback(
        name=name,
        method=method,
        waiters=_number(fields.get("waiters")),
        payloads=len(payloads) if isinstance(payloads, list) else 0,  # pyright: ignore[reportUnknownArgumentType]
    )


def _plain(row: Any) -> Any:
    """Return the protobuf message inside the proto-plus wrapper."""
    return type(row).pb(row)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _number(written: object) -> int:
    return int(written) if isinstance(written, str | int) and str(written).isdecimal() else 0


def _plain_time(found: Any, name: str) -> datetime | None:  # Any: a message
    """Return a time without Google's nanoseconds."""
    return getattr(found, name).ToDatetime(UTC) if found.HasField(name) else None
