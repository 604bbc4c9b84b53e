"""Audit events: one record for each event that matters to a security review; the recorder decides where it goes.

A record never holds answers, tokens or a task's id, as an id may be all that protects a task. Arguments and results
leave this process only if the operator asks for them (`audit.include`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

from mcp_workflows.access import Principal
from mcp_workflows.adapter import JSON
from mcp_workflows.task import Task
from mcp_workflows.telemetry import Telemetry


class Event(StrEnum):
    """The kind of an event."""

    CREATE = "create"  # a task was created, or found again under its idempotency key
    STATUS = "status"  # a change of its status was seen
    ANSWER = "answer"  # answers to its questions were delivered
    ACT = "act"  # a message was sent to its execution, as one of its actions
    RETRIEVE = "retrieve"  # its result was given out
    CANCEL = "cancel"  # a cancellation was requested, or the execution terminated
    DENY = "deny"  # a caller may not do that, or is not let in
    LIMIT = "limit"  # a caller reached a limit
    CHANGE = "change"  # an engine describes a tool in another way than before
    SUBSCRIPTION = "subscription"  # to events, by webhook: created, refreshed, ended, suspended or terminated
    DELIVERY = "delivery"  # an event was given up
    LOGIN = "login"  # somebody logged in to the pages, was refused, or logged out
    PAUSE = "pause"  # the operator paused new starts, or resumed them


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One event as it was when it happened. The recorder adds the time and the trace."""

    event: Event
    principal: str | None  # its id; None: no principal, as in maintenance
    subject: str | None = None
    client: str | None = None
    peer: str | None = None  # the address of an anonymous or refused caller: of denials and limits
    tool: str | None = None
    task: str | None = None  # see `task_hash`
    engine: str | None = None
    workflow: str | None = None
    execution: str | None = None  # the engine's own id of it
    outcome: str = "ok"  # a word: ok, refused, again (found under its key), or the status it went to
    reason: str | None = None  # for people; it holds nothing of a payload
    trace: str | None = None  # traceparent of the request, if the task's or the caller's is known
    arguments: JSON = field(default=None, repr=False)  # of a creation; only the operator gets them, if asked for
    result: JSON = field(default=None, repr=False)  # of a retrieval; likewise


Audit: TypeAlias = Callable[[Record], None]
"""Takes a record and returns at once; the request goes on even if recording fails."""


def task_hash(task_id: str) -> str:
    """Return a name for a task in records: 16 hexadecimal characters, with which nobody can ask for the task."""
    return hashlib.sha256(task_id.encode("utf-8", "replace")).hexdigest()[:16]


def silent(record: Record) -> None:
    """Keep no record."""


def counting(audit: Audit, telemetry: Telemetry) -> Audit:
    """Return a recorder that also counts refusals; a task that is not found is counted where requests are."""

    def counted(record: Record) -> None:
        if record.event is Event.LIMIT:
            telemetry.count("limits_reached", tool=record.tool or "")
        elif record.event is Event.DENY and (record.tool or record.task is None):
            telemetry.count("denials", tool=record.tool or "")
        audit(record)

    return counted


def answer_reason(answers: Mapping[str, Mapping[str, JSON]]) -> str:
    """Return the action on each question by its key, never the content: `approve.7: decline`."""
    return ", ".join(f"{key}: {answer.get('action', 'answered')}" for key, answer in answers.items())


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
    """Return the record of an action of a principal, with a task or before there is one."""
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
