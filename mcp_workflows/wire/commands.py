"""What a client can ask, and what can come of it: the same words for every era."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeAlias

from mcp_workflows.adapter import JSON, InputRequest, Progress, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """`tools/call` of one of our tools."""

    tool: str
    arguments: Mapping[str, JSON]
    takes_tasks: bool  # whether this very request may be answered with a task
    wants_task: bool = False  # the requestor itself asks for one (2025-11-25): it gets one, or an error
    waited: timedelta = timedelta()  # in earlier rounds of the same request
    ttl_ms: int | None = None  # how long it wants to read the task, from its creation; None: does not say
    takes_questions: bool  # whether this client can elicit
    idempotency_key: str | None = None  # made for us
    host_key: Sequence[str] | None = None  # of its host, which wins: where in `_meta` it was found, and the key
    unusable_keys: Sequence[str] = ()  # where something of a host's was found that can be no key
    responses: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # to an earlier `Questions`
    state: str | None = None  # from an earlier `Questions`, already unsealed
    context: Mapping[str, str] = field(default_factory=dict[str, str])  # trace parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Get:
    """`tasks/get`."""

    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """`tasks/update`: responses (`{action, content}`) by input request key."""

    task_id: str
    responses: Mapping[str, JSON]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """`tasks/cancel`."""

    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`tasks/result`: wait for the end."""

    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class List:
    """`tasks/list`: one page of the caller's own tasks; no cursor: the first."""

    cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """`subscriptions/listen` with task ids."""

    task_ids: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """`resources/read` of the whole result of a task."""

    task_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolError:
    """A JSON-RPC error as the outcome of a task, not of the request at hand."""

    code: int
    message: str
    data: JSON = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A task as its owner may see it, in no era's words yet. Times are UTC, durations in ms."""

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
    cancelled: bool  # a client of 2025-11-25 cancelled it: to that era it has ended, whatever the engine says
    meta: Mapping[str, JSON]
    started_by: str | None = None  # the subject of its owner, for others than the owner
    only_question: str | None = None  # the key of the open question, if it has never asked another one


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
class Described:
    """The task, whole."""

    task: TaskView
    is_saved: bool = True  # False: the store could not take this state, so that it must not be kept for ever elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One page of tasks, newest first, and where the next begins."""

    tasks: Sequence[TaskView]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """Taken; the state may follow later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The whole result of a task as a resource."""

    uri: str
    mime_type: str
    text: str


class Capability(StrEnum):
    """What a client must be able to do for a call to be served."""

    TASKS = "tasks"
    ELICITATION = "elicitation"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapabilityNeeded:
    """The call cannot be served to this client: it did not declare what is needed."""

    capability: Capability
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """The call ends before its workflow: a client without tasks is told in text how to follow this one."""

    task: TaskView


Outcome: TypeAlias = Created | Finished | Questions | Described | Acknowledged | Document | CapabilityNeeded
CallOutcome: TypeAlias = Outcome | Unfinished
