"""The requests of clients and their outcomes, in terms that are the same in every revision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from mcp_workflows.adapter import JSON, ExecutionStep, InputRequest, Progress, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """`tools/call` of one of our tools."""

    tool: str
    arguments: Mapping[str, JSON]
    takes_tasks: bool  # this request may be answered with a task
    wants_task: bool = False  # the requestor asks for a task (2025-11-25): it gets one, or an error
    host: str | None = None  # the client program's own name
    asked: bool = False  # the workflow asked a person during this request, and the host waited
    target: str | None = None  # of an action: the handle of its execution
    began: float | None = None  # arrival of its request, on the event loop's clock; None: unknown
    ttl_ms: int | None = None  # the requested time to live of the task, from its creation; None: not given
    takes_questions: bool  # this client can elicit
    takes_urls: bool = False  # this client can also send people to a page
    shows_card: bool = False  # the client shows a card, which asks the workflow's questions
    idempotency_key: str | None = None  # made for this server
    host_key: Sequence[str] | None = None  # the host's place in `_meta` and key; takes precedence
    unusable_keys: Sequence[str] = ()  # places of host values that cannot be keys
    responses: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # to an earlier `Questions`
    state: str | None = None  # from an earlier `Questions`, already unsealed
    context: Mapping[str, str] = field(default_factory=dict[str, str])  # trace parent


class Part(StrEnum):
    """A part of a task that is a resource."""

    RESULT = "result"  # the full result, however large
    LOG = "log"  # the end of its execution's log


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolError:
    """A JSON-RPC error as the outcome of a task, not of the current request."""

    code: int
    message: str
    data: JSON = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionView:
    """An action that is available on a task."""

    title: str | None
    description: str | None
    schema: Mapping[str, JSON]  # of its content


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A task as its owner may see it, independent of the revision. Times are UTC, durations in ms."""

    task_id: str
    tool: str
    status: Status
    message: str | None
    progress: Progress | None
    created: datetime
    updated: datetime
    ttl_ms: int | None  # None: unlimited
    poll_interval_ms: int
    requests: Mapping[str, InputRequest]
    result: Mapping[str, JSON] | None  # a CallToolResult, if it ended with one
    error: ProtocolError | None  # if it ended with one
    cancelled: bool  # by a client of 2025-11-25: in that revision it has ended, even if its execution continues
    meta: Mapping[str, JSON]
    started_by: str | None = None  # the owner's subject, for readers other than the owner
    only_question: str | None = None  # key of the open question, if no other was ever asked
    waits_for_others: bool = False  # it has a question that another principal must answer
    actions: Mapping[str, ActionView] = field(default_factory=dict[str, ActionView])  # available to its reader now
    for_people: Mapping[str, str] = field(default_factory=dict[str, str])
    """The open questions that no task tool can answer, by key, with the address of their page (empty: none)."""


def people_answer(url: str) -> str:
    """Return where people answer a question that no model may answer; `url` is the address of its page, or empty."""
    return f"only a person answers this, {f'at {url}' if url else 'in a dialog of their client, or the operator'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionView:
    """A question of a task as its page shows it to one principal."""

    task_id: str
    key: str
    title: str  # of the tool
    requester: str  # the owner's subject
    host: str | None  # the calling program's own name
    since: datetime
    request: InputRequest | None = None  # None: this principal cannot answer it, or no longer
    arguments: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # of the call, for those who may read them
    steps: Sequence[ExecutionStep] = ()
    outcome: str = ""  # the decision, its time and reason; or why it is closed
    url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """The open questions that a principal may answer."""

    questions: Sequence[QuestionView]
    is_cut: bool  # there may be more


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """A durable task now represents the call."""

    task: TaskView


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The call has its result: a CallToolResult."""

    result: Mapping[str, JSON]


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """The client must answer these and call again, with the state."""

    requests: Mapping[str, InputRequest]
    state: str
    started: bool = False  # the workflow asks; otherwise the tool asks, and nothing was started yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One page of tasks, newest first, and the cursor of the next page."""

    tasks: Sequence[TaskView]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A part of a task as a resource."""

    uri: str
    mime_type: str
    text: str
    meta: Mapping[str, JSON] | None = None
    ttl_ms: int = 0  # how long clients may cache it


class Capability(StrEnum):
    """A capability that a client must have for a call to be served."""

    TASKS = "tasks"
    ELICITATION = "elicitation"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapabilityNeeded:
    """This client did not declare the capability that the call needs."""

    capability: Capability
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """The call ends before its workflow. A client without tasks gets a text that explains how to follow it."""

    task: TaskView


Outcome: TypeAlias = Created | Finished | Questions | Document | CapabilityNeeded
CallOutcome: TypeAlias = Outcome | Unfinished
