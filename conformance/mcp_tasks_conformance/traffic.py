"""A record of all messages of one run. Passive checks judge it after the other checks have run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from mcp_tasks_conformance.check import JSON

RELATED_TASK = "io.modelcontextprotocol/related-task"
TERMINAL = frozenset({"completed", "failed", "cancelled"})
STATUSES = TERMINAL | {"working", "input_required"}
HTTP_ERRORS = 400
MAX_FORMATTED = 160  # characters of a server's JSON in a message of ours


def as_object(value: object) -> Mapping[str, JSON]:
    """Return the value if it is a JSON object, otherwise an empty one."""
    return cast("Mapping[str, JSON]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[JSON]:
    """Return a copy of the value if it is a JSON array, otherwise an empty list."""
    return [*cast("Sequence[JSON]", value)] if isinstance(value, list) else []


def format_json(value: object) -> str:
    """Return the value as JSON text, cut to `MAX_FORMATTED` characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_FORMATTED else f"{text[:MAX_FORMATTED]}..."


def related_task_id(message: object) -> JSON:
    """Return the task id in the `_meta` of a result or of params, or None if there is none."""
    return as_object(as_object(as_object(message).get("_meta")).get(RELATED_TASK)).get("taskId")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The reply to one request: a JSON-RPC response, or an empty body if the server sent none."""

    http_status: int
    body: Mapping[str, JSON]
    is_event_stream: bool = False

    @property
    def result(self) -> Mapping[str, JSON]:
        """The JSON-RPC result; empty if there is none."""
        return as_object(self.body.get("result"))

    @property
    def error(self) -> Mapping[str, JSON]:
        """The JSON-RPC error; empty if there is none."""
        return as_object(self.body.get("error"))

    @property
    def code(self) -> JSON:
        """The code of the JSON-RPC error; None if there is none."""
        return self.error.get("code")

    def __str__(self) -> str:
        """Return a description for reports."""
        if "error" in self.body:
            http = "" if self.http_status < HTTP_ERRORS else f"HTTP {self.http_status}, "
            return f"{http}error {format_json(self.body['error'])}"
        if "result" in self.body:
            return f"result {format_json(self.body['result'])}"
        return f"HTTP {self.http_status}, no reply"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request and its reply; times are in seconds of the monotonic clock."""

    method: str
    params: Mapping[str, JSON]
    reply: Reply
    sent_at: float
    received_at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A request or notification from the server."""

    body: Mapping[str, JSON]
    channel: str  # "GET", or the method of the request whose stream carried the message
    received_at: float = field(default_factory=time.monotonic)

    @property
    def method(self) -> str:
        """The JSON-RPC method."""
        return str(self.body.get("method"))

    @property
    def params(self) -> Mapping[str, JSON]:
        """The JSON-RPC params; empty if there are none."""
        return as_object(self.body.get("params"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A task as one message described it; times are in seconds of the monotonic clock."""

    task: Mapping[str, JSON]
    source: str
    sent_at: float  # of the request; of a notification, the time of arrival
    received_at: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """The messages of both directions, in order of arrival."""

    exchanges: list[Exchange] = field(default_factory=list[Exchange])
    messages: list[Message] = field(default_factory=list[Message])

    def results(self, *methods: str) -> Iterator[Exchange]:
        """Yield the exchanges of these methods that ended with a result."""
        return (one for one in self.exchanges if one.method in methods and "result" in one.reply.body)

    def sent_by_server(self, method: str) -> Iterator[Message]:
        """Yield the server's requests or notifications of this method."""
        return (one for one in self.messages if one.method == method)

    def observations(self, *, notified: bool = True) -> Iterator[Observation]:
        """Yield each task in each message; those in notifications only if `notified`."""
        for one in self.results("tools/call", "tasks/get", "tasks/cancel", "tasks/list"):
            for task in _tasks(one.method, one.reply.result):
                yield Observation(task=task, source=one.method, sent_at=one.sent_at, received_at=one.received_at)
        if notified:
            for message in self.sent_by_server("notifications/tasks/status"):
                yield Observation(
                    task=message.params,
                    source=message.method,
                    sent_at=message.received_at,
                    received_at=message.received_at,
                )

    def created_ids(self) -> list[str]:
        """Return the ids of all tasks that were created."""
        tasks = (as_object(one.reply.result.get("task")) for one in self.results("tools/call"))
        return [task["taskId"] for task in tasks if "taskId" in task]


def _tasks(method: str, result: Mapping[str, JSON]) -> list[Mapping[str, JSON]]:
    if method == "tasks/list":
        return [as_object(task) for task in as_list(result.get("tasks"))]
    if method == "tools/call":
        return [as_object(result["task"])] if "task" in result else []
    return [result]
