"""What Google answers, in words of ours: plain frozen data, so that nobody else needs its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from google.cloud.workflows.executions_v1 import Execution
from google.cloud.workflows_v1 import Workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Where an execution is: a step of its main workflow, or of a subworkflow."""

    routine: str
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResource:
    """One execution, as Google shows it; `full` or not, see `Calls.get`."""

    name: str  # as Google gives it: it may have the project's number
    state: int  # of `Execution.State`, or a number that is not known yet
    start_time: datetime | None = None
    end_time: datetime | None = None
    revision: str = ""  # of the workflow
    # only when full:
    argument: str = ""  # JSON
    result: str = ""  # JSON, when it has succeeded; may be "null"
    payload: str | None = None  # of its error: JSON, text or nothing
    context: str | None = None  # of its error: where and why, a text
    steps: Sequence[Step] = ()
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    state_error: str | None = None  # why it is UNAVAILABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """An endpoint that an execution has open."""

    name: str
    method: str
    waiters: int  # steps that wait for it now
    payloads: int  # requests that it got and nobody has taken

    @property
    def id(self) -> str:
        """The last part of its name."""
        return self.name.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowResource:
    """A workflow."""

    name: str
    state: int  # of `Workflow.State`, or a number that is not known yet
    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    revision: str = ""
    source: str | None = None  # a list may leave it out
    env: Mapping[str, str] = field(default_factory=dict[str, str])  # `user_env_vars`
    service_account: str = ""  # what it runs as, as Google writes it
    state_error: str | None = None  # why it is UNAVAILABLE


def unanswered_ids(callbacks: Sequence[Callback]) -> frozenset[str]:
    """The ids of those that nothing has come to, or that have taken what came."""
    return frozenset(callback.id for callback in callbacks if not callback.payloads)


def awaited_ids(callbacks: Sequence[Callback]) -> frozenset[str]:
    """The ids of those that a step waits for now: one that has taken what came may stay in the list."""
    return frozenset(callback.id for callback in callbacks if callback.waiters and not callback.payloads)


def read_execution(row: Execution) -> ExecutionResource:
    """Of a message of the official client; read without proto-plus, which takes 0.3 ms, a thousand times a page."""
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
    """Of a message of the official client."""
    return WorkflowResource(
        name=row.name,
        state=_state(row),
        description=row.description,
        labels=dict(row.labels),
        revision=row.revision_id,
        source=row.source_contents or None,
        env=dict(row.user_env_vars),
        service_account=row.service_account,
        state_error=row.state_error.details or None,
    )


def read_callback(row: Any) -> Callback | None:  # Any: JSON
    """Of JSON, where 64 bit numbers are texts; None: it is none."""
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


def _state(row: Any) -> int:  # Any: a message of proto-plus
    """Its state as it is: of one that is not known yet, proto-plus would warn at each look."""
    return int(_plain(row).state)


def _plain(row: Any) -> Any:
    """The message without proto-plus around it."""
    return type(row).pb(row)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _number(written: object) -> int:
    return int(written) if isinstance(written, str | int) and str(written).isdecimal() else 0


def _plain_time(found: Any, name: str) -> datetime | None:  # Any: a message
    """Without Google's nanoseconds."""
    return getattr(found, name).ToDatetime(UTC) if found.HasField(name) else None
