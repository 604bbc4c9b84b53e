"""All that was sent and received in one run: some checks only look at this, when the others are done."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from mcp_workflows.conformance_2025.check import JSON

RELATED = "io.modelcontextprotocol/related-task"
ENDED = frozenset({"completed", "failed", "cancelled"})
STATUSES = ENDED | {"working", "input_required"}
HTTP_ERRORS = 400
SHOWN = 160  # characters of what a server sent, in a message for people


def as_object(value: object) -> Mapping[str, JSON]:
    """The value if it is a JSON object, otherwise an empty one."""
    return cast("Mapping[str, JSON]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[JSON]:
    """The value if it is a JSON array, otherwise an empty one."""
    return [*cast("Sequence[JSON]", value)] if isinstance(value, list) else []


def shown(value: object) -> str:
    """JSON, for people."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def related(message: object) -> JSON:
    """The id of the task that the `_meta` of a result or of params names; None if none."""
    return as_object(as_object(as_object(message).get("_meta")).get(RELATED)).get("taskId")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back for one request: a JSON-RPC response, or what the server sent instead of one."""

    http_status: int
    body: Mapping[str, JSON]
    sse: bool = False
    seconds: float = 0.0

    @property
    def result(self) -> Mapping[str, JSON]:
        """The result; empty if there is none."""
        return as_object(self.body.get("result"))

    @property
    def error(self) -> Mapping[str, JSON]:
        """The error; empty if there is none."""
        return as_object(self.body.get("error"))

    @property
    def code(self) -> JSON:
        """The code of the error; None if there is none."""
        return self.error.get("code")

    def __str__(self) -> str:
        """For people."""
        if "error" in self.body:
            http = "" if self.http_status < HTTP_ERRORS else f"HTTP {self.http_status}, "
            return f"{http}error {shown(self.body['error'])}"
        return f"result {shown(self.body['result'])}" if "result" in self.body else f"HTTP {self.http_status}, no reply"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and its reply."""

    method: str
    params: Mapping[str, JSON]
    reply: Reply
    sent: float  # of the monotonic clock
    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A request or a notification of the server."""

    body: Mapping[str, JSON]
    channel: str  # "GET", or the method of the request on whose stream it came
    at: float = field(default_factory=time.monotonic)

    @property
    def method(self) -> str:
        """What it is."""
        return str(self.body.get("method"))

    @property
    def params(self) -> Mapping[str, JSON]:
        """Its params; empty if there are none."""
        return as_object(self.body.get("params"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One task as a message showed it."""

    task: Mapping[str, JSON]
    source: str
    sent: float  # when the request was sent, or the notification came
    at: float  # when it came


@dataclass(frozen=True, slots=True)
class Traffic:
    """Both directions, in the order of arrival."""

    exchanges: list[Exchange] = field(default_factory=list[Exchange])
    messages: list[Message] = field(default_factory=list[Message])

    def replies(self, *methods: str) -> Iterator[Exchange]:
        """The exchanges of these methods that ended with a result."""
        return (one for one in self.exchanges if one.method in methods and "result" in one.reply.body)

    def sent_by_server(self, method: str) -> Iterator[Message]:
        """The requests or notifications of this method."""
        return (one for one in self.messages if one.method == method)

    def sightings(self, *, notified: bool = True) -> Iterator[Sighting]:
        """Every task that any message showed."""
        for one in self.replies("tools/call", "tasks/get", "tasks/cancel", "tasks/list"):
            for task in _tasks(one.method, one.reply.result):
                yield Sighting(task=task, source=one.method, sent=one.sent, at=one.at)
        if notified:
            for message in self.sent_by_server("notifications/tasks/status"):
                yield Sighting(task=message.params, source=message.method, sent=message.at, at=message.at)

    def created(self) -> list[str]:
        """The ids of all tasks that were created."""
        tasks = (as_object(one.reply.result.get("task")) for one in self.replies("tools/call"))
        return [task["taskId"] for task in tasks if "taskId" in task]


def _tasks(method: str, result: Mapping[str, JSON]) -> list[Mapping[str, JSON]]:
    if method == "tasks/list":
        return [as_object(task) for task in as_list(result.get("tasks"))]
    if method == "tools/call":
        return [as_object(result["task"])] if "task" in result else []
    return [result]
