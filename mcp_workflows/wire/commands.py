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
    takes_tasks: bool  # True if this very request may be answered with a task
    wants_task: bool = False  # the requestor itself asks for one (2025-11-25): it gets one, or an error
    host: str | None = None  # the name that the client program gives itself
    asked: bool = False  # a person was asked by the workflow within this request, and the host waited
    target: str | None = None  # of an action: the handle of the execution that it goes to
    began: float | None = None  # the arrival of its request, on the event loop's clock; None: unknown
    ttl_ms: int | None = None  # the requested time to live of the task, from its creation; None: not given
    takes_questions: bool  # True if this client can elicit
    takes_urls: bool = False  # True if it can also send people to a page
    shows_card: bool = False  # the client shows a card, which asks the workflow's questions
    idempotency_key: str | None = None  # made for us
    host_key: Sequence[str] | None = None  # of its host, which wins: its place in `_meta`, and the key
    unusable_keys: Sequence[str] = ()  # the places of a host's values that can be no key
    responses: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # to an earlier `Questions`
    state: str | None = None  # from an earlier `Questions`, already unsealed
    context: Mapping[str, str] = field(default_factory=dict[str, str])  # trace parent


class Part(StrEnum):
    """A part of a task that is a resource."""

    RESULT = "result"  # the whole, however large
    LOG = "log"  # the end of the log of its execution


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolError:
    """A JSON-RPC error as the outcome of a task, not of the request at hand."""

    code: int
    message: str
    data: JSON = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionView:
    """An action that can be taken on a task."""

    title: str | None
    description: str | None
    schema: Mapping[str, JSON]  # of its content


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A task as its owner may see it, in terms of no revision. Times are UTC, durations in ms."""

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
    result: Mapping[str, JSON] | None  # a CallToolResult, once it ended with one
    error: ProtocolError | None  # once it ended with one
    cancelled: bool  # a client of 2025-11-25 cancelled it: in that revision it has ended, even if its execution goes on
    meta: Mapping[str, JSON]
    started_by: str | None = None  # the subject of its owner, for others than the owner
    only_question: str | None = None  # the key of the open question, if it has never asked another one
    waits_for_others: bool = False  # it has a question that is somebody else's to answer
    actions: Mapping[str, ActionView] = field(default_factory=dict[str, ActionView])  # that its reader may take now
    for_people: Mapping[str, str] = field(default_factory=dict[str, str])
    """The open questions that no task tool answers, by key, with the address of their page; empty: there is none."""


def people_answer(url: str) -> str:
    """Return where a question is answered that no model answers; `url` is the address of its page, or empty."""
    return f"only a person answers this, {f'at {url}' if url else 'in a dialog of their client, or the operator'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionView:
    """A question of a task as its page shows it to one principal."""

    task_id: str
    key: str
    title: str  # of the tool
    requester: str  # the subject of the owner
    host: str | None  # the program through which the call came, as it calls itself
    since: datetime
    request: InputRequest | None = None  # None: this principal cannot answer it, or not any more
    arguments: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # of the call, for those who may read them
    steps: Sequence[ExecutionStep] = ()
    outcome: str = ""  # who decided, when and why; or why it is not open
    url: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """The open questions that a principal may answer."""

    questions: Sequence[QuestionView]
    is_cut: bool  # there may be more


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """A durable task now stands for the call."""

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
    started: bool = False  # the workflow asks; otherwise the tool does, and nothing was started yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One page of tasks, newest first, and the beginning of the next."""

    tasks: Sequence[TaskView]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A part of a task as a resource."""

    uri: str
    mime_type: str
    text: str
    meta: Mapping[str, JSON] | None = None
    ttl_ms: int = 0  # how long clients may keep it


class Capability(StrEnum):
    """A capability that a client must have for a call to be served."""

    TASKS = "tasks"
    ELICITATION = "elicitation"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapabilityNeeded:
    """The call cannot be served to this client, which did not declare the capability."""

    capability: Capability
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """The call ends before its workflow: a client without tasks is told in text how to follow this one."""

    task: TaskView


Outcome: TypeAlias = Created | Finished | Questions | Document | CapabilityNeeded
CallOutcome: TypeAlias = Outcome | Unfinished
