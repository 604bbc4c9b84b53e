"""The record of who did what: one event per thing that matters to a security review; where it goes is elsewhere.

An event never holds answers or tokens, nor a task's id, which may be all that protects the task. Arguments and results
leave this process only if the operator asks for them (`audit.include`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

from mcp_workflows.access import Principal
from mcp_workflows.adapter import JSON
from mcp_workflows.task import Task
from mcp_workflows.telemetry import Telemetry


class Event(StrEnum):
    """What happened."""

    CREATE = "create"  # a task was created, or found again under its idempotency key
    STATUS = "status"  # a change of its status was seen
    ANSWER = "answer"  # answers to its questions were delivered
    RETRIEVE = "retrieve"  # its result was given out
    CANCEL = "cancel"  # it was asked to cancel, or terminated
    DENY = "deny"  # somebody may not do that, or is not let in
    LIMIT = "limit"  # somebody wanted too much


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One event, as it was when it happened. The time and the trace are the recorder's to add."""

    event: Event
    principal: str | None  # its id; None: nobody in particular, such as the housekeeping
    subject: str | None = None
    client: str | None = None
    peer: str | None = None  # where an anonymous caller, or who was not let in, came from: of denials and limits
    tool: str | None = None
    task: str | None = None  # see `task_hash`
    engine: str | None = None
    workflow: str | None = None
    execution: str | None = None  # the engine's own id of it
    outcome: str = "ok"  # a word: ok, refused, again (found under its key), or the status it went to
    reason: str | None = None  # for people; nothing of anybody's payload
    trace: str | None = None  # traceparent of the request, if the task's or the caller's is known
    arguments: JSON = field(default=None, repr=False)  # of a creation; only the operator gets them, if asked for
    result: JSON = field(default=None, repr=False)  # of a retrieval; likewise


Audit: TypeAlias = Callable[[Record], None]
"""Takes a record and returns at once; whatever becomes of it, the request goes on."""


def task_hash(task_id: str) -> str:
    """A name for a task in records: 16 hexadecimal characters, by which nobody can ask for it."""
    return hashlib.sha256(task_id.encode("utf-8", "replace")).hexdigest()[:16]


def silent(record: Record) -> None:
    """Keeps no record."""


def counting(audit: Audit, telemetry: Telemetry) -> Audit:
    """The same, and what was refused is counted; a task that is not found is counted as such, where requests are."""

    def counted(record: Record) -> None:
        if record.event is Event.LIMIT:
            telemetry.limited(record.tool or "")
        elif record.event is Event.DENY and (record.tool or record.task is None):
            telemetry.denied(record.tool or "")
        audit(record)

    return counted


def status_record(task: Task) -> Record:
    """Return the record of a status that was seen for the first time; its principal is the task's owner."""
    return replace(record_of(Event.STATUS, None, task, outcome=task.execution.status), principal=task.owner)


def record_of(
    event: Event,
    principal: Principal | None,
    task: Task | None = None,
    *,
    tool: str | None = None,
    outcome: str = "ok",
    reason: str | None = None,
    arguments: JSON = None,
) -> Record:
    """The record of what a principal did, with a task or before there is one."""
    return Record(
        event=event,
        principal=None if principal is None else principal.id,
        subject=None if principal is None else principal.subject,
        client=None if principal is None else principal.client,
        peer=None if principal is None else principal.peer,
        tool=tool if task is None else task.tool,
        task=None if task is None else task_hash(task.id),
        engine=None if task is None else task.engine,
        workflow=None if task is None else task.workflow,
        execution=None if task is None else task.execution.execution_id,
        outcome=outcome,
        reason=reason,
        trace=None if task is None else task.context.get("traceparent"),
        arguments=arguments,
        result=task.execution.output if task is not None and event is Event.RETRIEVE else None,
    )
