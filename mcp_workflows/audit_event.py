"""An audit event as it is written: one JSON object per line, of a shape that stays.

`mcp-workflows docs audit-event.schema.json` prints its JSON Schema.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from mcp_workflows.access.audit import Event, Record
from mcp_workflows.adapter import JSON
from mcp_workflows.telemetry import trace_id

Payload = Literal["arguments", "results"]


class AuditEvent(BaseModel):
    """One event of the audit log of mcp-workflows. What is not known is null."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = Field(default=1, description="A field may be added without another number.")
    time: datetime = Field(description="When it happened: ISO 8601, UTC.")
    server: str = Field(description="The name of the server, as in `server.name`.")
    event: Event = Field(description="What happened.")
    outcome: str = Field(
        description="A word: `ok`, `refused`, `again` (found under its idempotency key), or the status it went to."
    )
    reason: str | None = Field(description="Why, for people; nothing of anybody's payload.")
    principal: str | None = Field(description="Who: the id of the principal; of a `status` the owner of the task.")
    subject: str | None = Field(description="The person, if the token names one.")
    client: str | None = Field(description="The OAuth client through which they asked.")
    peer: str | None = Field(
        description="The address it came from, of an anonymous caller or of who was not let in; a proxy's, behind one."
    )
    tool: str | None = Field(description="The tool.")
    task: str | None = Field(description="The first 16 hexadecimal characters of the SHA-256 of the task's id.")
    engine: str | None = Field(description="The engine, as it is named in the configuration.")
    workflow: str | None = Field(description="The workflow.")
    execution: str | None = Field(description="The engine's own id of the execution, once it is known.")
    trace_id: str | None = Field(description="The trace of the request; of a `status`, that of the creation.")
    arguments: JSON = Field(default=None, description="Of a `create`; only with `include: [arguments]`.")
    result: JSON = Field(default=None, description="Of a `retrieve`; only with `include: [results]`.")


_WITHOUT = frozenset({"arguments", "result"})


def event_of(record: Record, *, at: datetime, server: str, include: frozenset[Payload]) -> AuditEvent:
    """The event that a record is, as it happens; of payloads, what is asked for."""
    return AuditEvent(
        time=at,
        server=server,
        event=record.event,
        outcome=record.outcome,
        reason=record.reason,
        principal=record.principal,
        subject=record.subject,
        client=record.client,
        peer=record.peer,
        tool=record.tool,
        task=record.task,
        engine=record.engine,
        workflow=record.workflow,
        execution=record.execution,
        trace_id=trace_id(record.trace, at_hand=record.event is not Event.STATUS),
        arguments=record.arguments if "arguments" in include else None,
        result=record.result if "results" in include else None,
    )


def written(event: AuditEvent, include: frozenset[Payload]) -> str:
    """One line of JSON; payloads have their keys only where they are asked for."""
    out = {name for name in _WITHOUT if f"{name.removesuffix('s')}s" not in include}
    return event.model_dump_json(exclude=out)
