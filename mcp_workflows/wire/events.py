"""MCP Events, `io.modelcontextprotocol/events` (SEP-3415): dict in, dict out, the same in every revision.

The methods, notifications, codes and limits are in the tables at the top, because the final text of the extension may
differ from its draft. Sources: github.com/modelcontextprotocol/experimental-ext-triggers-events, its
design-sketch-proposal.md, and https://www.standardwebhooks.com for signatures.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from mcp_workflows.adapter import JSON, InputRequest, Status
from mcp_workflows.adapter.capabilities import standard_signature
from mcp_workflows.errors import INVALID_PARAMS, RequestError
from mcp_workflows.wire.commands import TaskView, people_answer
from mcp_workflows.wire.params import STATUS, Params, mapping_of, object_of, status_message, text_of, time_of

EXTENSION: Final = "io.modelcontextprotocol/events"
SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"  # in `_meta` of each notification of a stream
SUBSCRIPTION_HEADER: Final = "X-MCP-Subscription-Id"  # of each delivery
MAX_BODY: Final = 256 * 1024  # bytes of a delivery
MAX_URL: Final = 2048  # characters
SECRET_BYTES: Final = range(24, 65)
SECRET_PREFIX: Final = "whsec_"  # noqa: S105  # the prefix of secrets
FRESH: Final = timedelta(minutes=5)  # receivers refuse older deliveries
_MOST_MS: Final = 2**53
_SHOWN_RESULT: Final = 64 * 1024  # bytes of JSON of a result in an event


class Method(StrEnum):
    """The requests of clients."""

    LIST = "events/list"
    POLL = "events/poll"
    STREAM = "events/stream"
    SUBSCRIBE = "events/subscribe"
    UNSUBSCRIBE = "events/unsubscribe"


class Notice(StrEnum):
    """The notifications of a stream, and the one for new event types."""

    ACTIVE = "notifications/events/active"
    EVENT = "notifications/events/event"
    ERROR = "notifications/events/error"
    HEARTBEAT = "notifications/events/heartbeat"
    TERMINATED = "notifications/events/terminated"
    LIST_CHANGED = "notifications/events/list_changed"


class Mode(StrEnum):
    """The ways in which events reach a client."""

    WEBHOOK = "webhook"
    POLL = "poll"
    PUSH = "push"


class Code(IntEnum):
    """The error codes other than -32602 for invalid params."""

    NOT_FOUND = -32011
    FORBIDDEN = -32012
    EXHAUSTED = -32013
    UNSUPPORTED = -32014
    ENDPOINT = -32015


class Trouble(StrEnum):
    """Everything a caller learns about an endpoint that does not accept deliveries."""

    REFUSED = "connection_refused"
    TIMEOUT = "timeout"
    TLS = "tls_error"
    HTTP_4XX = "http_4xx"
    HTTP_5XX = "http_5xx"
    CHALLENGE = "challenge_failed"
    MAIL = "smtp_error"  # only for operators: no subscription is served by mail


# --- the types of events

_TEXT: Final[Mapping[str, JSON]] = {"type": "string"}
_TASK_ID: Final[Mapping[str, JSON]] = {"type": "string", "minLength": 1, "description": "Only of this task."}
_TOOL: Final[Mapping[str, JSON]] = {"type": "string", "minLength": 1, "description": "Only of tasks of this tool."}
_ENDS: Final = ("completed", "failed", "cancelled")
_STATUS: Final[Mapping[str, JSON]] = {"type": "string", "enum": list(_ENDS), "description": "Only with this outcome."}
_FILTERS: Final[Mapping[str, Mapping[str, JSON]]] = {"taskId": _TASK_ID, "tool": _TOOL, "status": _STATUS}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventType:
    """One type of event: its description, filters and delivery modes."""

    name: str
    description: str
    filters: Sequence[str]
    required: Sequence[str] = ()
    payload: Mapping[str, Mapping[str, JSON]]
    modes: Sequence[Mode] = tuple(Mode)

    def schema(self, tools: Sequence[str]) -> dict[str, Any]:
        """Return the JSON Schema of arguments, for a caller who may name these tools."""
        properties = {name: dict(_FILTERS[name]) for name in self.filters}
        if "tool" in properties:
            properties["tool"] = {**properties["tool"], "enum": sorted(tools)}
        found = {"type": "object", "properties": properties, "additionalProperties": False}
        return {**found, "required": list(self.required)} if self.required else found

    def listed(self, tools: Sequence[str]) -> dict[str, Any]:
        """Render the type for `events/list`."""
        return {
            "name": self.name,
            "description": self.description,
            "delivery": list(self.modes),
            "inputSchema": self.schema(tools),
            "payloadSchema": {"type": "object", "properties": dict(self.payload)},
        }


TASK_ENDED: Final = EventType(
    name="task.ended",
    description="A task has ended: it completed, failed or was cancelled. Give `taskId` for one task; without it, all "
    "tasks that you may see. The data has the outcome and, if it is short, the result. If you do not see the data, "
    "call `task_status` with the `taskId`.",
    filters=("taskId", "tool", "status"),
    payload={"taskId": _TEXT, "tool": _TEXT, "status": _STATUS, "message": _TEXT, "result": {"type": "object"}},
)
INPUT_REQUIRED: Final = EventType(
    name="task.input_required",
    description="A workflow waits for the user's answer. Ask the user, never answer yourself; then call `task_answer` "
    "with the `taskId` and the question's `key`. If you do not see the data, call `task_status` with the `taskId`.",
    filters=("taskId", "tool"),
    payload={"taskId": _TEXT, "tool": _TEXT, "key": _TEXT, "message": _TEXT, "url": _TEXT, "askTheUser": _TEXT},
)
PROGRESS: Final = EventType(
    name="task.progress",
    description="The progress of one task has changed: its message, its numbers or its steps. At most once a second.",
    filters=("taskId",),
    required=("taskId",),
    payload={"taskId": _TEXT, "tool": _TEXT, "status": _TEXT, "message": _TEXT},
    modes=(Mode.POLL, Mode.PUSH),  # a webhook may run the user's instruction each time
)
EXECUTION_ENDED: Final = EventType(
    name="execution.ended",
    description="An execution that somebody else started has ended, such as a nightly run. `tool` names the tool that "
    "watches its workflow: call it with the `executionId` for the result.",
    filters=("tool", "status"),
    required=("tool",),
    payload={"tool": _TEXT, "executionId": _TEXT, "status": _STATUS, "endedAt": {**_TEXT, "format": "date-time"}},
)
TYPES: Final[Mapping[str, EventType]] = {
    each.name: each for each in (TASK_ENDED, INPUT_REQUIRED, PROGRESS, EXECUTION_ENDED)
}


# --- requests: params -> data


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The events that a client asks for, and where they begin."""

    name: str
    arguments: Mapping[str, JSON]
    cursor: str | None = None  # None: from now on
    max_age: timedelta | None = None

    @property
    def key(self) -> str:
        """The name and the arguments as one text, equal for equal ones."""
        return json.dumps([self.name, self.arguments], sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """An endpoint of a client."""

    url: str
    secret: str = field(default="", repr=False)  # empty: only to unsubscribe
    ttl: timedelta | None = None  # None: the server decides


def parse_wanted(params: Params) -> Wanted:
    """Parse the params of all requests but `events/list`."""
    age = _milliseconds(params, "maxAgeMs")
    cursor = None if params.get("cursor") is None else text_of(params, "cursor")
    arguments = {
        name: value for name, value in mapping_of(params, "arguments", default={}).items() if value is not None
    }
    return Wanted(name=text_of(params, "name"), arguments=arguments, cursor=cursor, max_age=age)


def parse_most(params: Params, most: int) -> int:
    """Return `maxEvents` of `events/poll`, at most `most`."""
    value = params.get("maxEvents", most)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError(INVALID_PARAMS, "params.maxEvents must be a whole number, at least 1")
    return min(value, most)


def parse_webhook(params: Params, *, has_secret: bool = True) -> Webhook:
    """Parse `delivery` and `ttlMs`; `has_secret` is False for `events/unsubscribe`."""
    delivery = mapping_of(params, "delivery")
    mode = delivery.get("mode", Mode.WEBHOOK.value)
    if mode != Mode.WEBHOOK:
        data: JSON = {"feature": "deliveryMode", "value": mode if isinstance(mode, str) else None}
        raise RequestError(Code.UNSUPPORTED, "only delivery.mode webhook is subscribed to", data)
    url = _url(delivery)
    if not has_secret:
        return Webhook(url=url)
    secret = delivery.get("secret")
    if not isinstance(secret, str) or secret_bytes(secret) is None:
        text = f"delivery.secret must be {SECRET_PREFIX} and base64 of {SECRET_BYTES[0]} to {SECRET_BYTES[-1]} bytes"
        raise RequestError(INVALID_PARAMS, text)
    return Webhook(url=url, secret=secret, ttl=_milliseconds(params, "ttlMs"))


def _url(delivery: Params) -> str:
    url = delivery.get("url")
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    fits = isinstance(url, str) and len(url) <= MAX_URL and url.isascii() and url.isprintable() and " " not in url
    if not (fits and host) or parts.username is not None or parts.fragment or parts.scheme not in {"https", "http"}:
        text = f"delivery.url must be an https:// URL of at most {MAX_URL} characters, without user and #fragment"
        raise RequestError(INVALID_PARAMS, text)
    return str(url)


def _milliseconds(params: Params, name: str) -> timedelta | None:
    value = params.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise RequestError(INVALID_PARAMS, f"params.{name} must be a number of milliseconds, at least 0")
    return timedelta(milliseconds=min(value, _MOST_MS))


def unknown_event(name: str) -> RequestError:
    """Return the error for a type that is not available to the caller."""
    return RequestError(Code.NOT_FOUND, f"there is no event {name[:100]}", {"kind": "event"})


# --- results


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One event as one subscriber may see it."""

    event_id: str
    name: str
    at: datetime
    data: Mapping[str, JSON]


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """The result of `events/poll`."""

    events: Sequence[Occurrence]
    cursor: str
    truncated: bool
    has_more: bool
    next_poll: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryStatus:
    """The state of deliveries to an endpoint."""

    active: bool
    last_delivery: datetime | None
    last_error: Trouble | None
    failed_since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """The result of `events/subscribe`."""

    id: str
    refresh_before: datetime
    cursor: str
    truncated: bool
    status: DeliveryStatus | None = None  # None: the subscription is new


def with_events(declared: Params, *, tells: bool) -> dict[str, Any]:
    """Render the result of `initialize` or `server/discover` with the capability, where clients expect it.

    `tells`: this client is notified of changes to the list of tools, which also change the filters of events.
    """
    capabilities = object_of(declared.get("capabilities"))
    changes = tells and object_of(capabilities.get("tools")).get("listChanged") is True
    events: dict[str, JSON] = {"listChanged": changes}
    extensions: dict[str, JSON] = {**object_of(capabilities.get("extensions")), EXTENSION: {**events}}
    return {**declared, "capabilities": {**capabilities, "events": events, "extensions": extensions}}


def declares_events(capabilities: Params) -> bool:
    """Return True if a client with these capabilities can subscribe to events."""
    return "events" in capabilities or EXTENSION in object_of(capabilities.get("extensions"))


def advice(task_id: str) -> str:
    """Return a sentence for the model of such a client, about the event at the end of a task."""
    wanted = json.dumps({"taskId": task_id})
    return f"If you can subscribe to events, {TASK_ENDED.name} with {wanted} tells you when it has ended."


def occurrence(event: Occurrence, *, cursor: str | None = None) -> dict[str, JSON]:
    """Render `EventOccurrence`; without a cursor in a poll."""
    found: dict[str, JSON] = {
        "eventId": event.event_id,
        "name": event.name,
        "timestamp": time_of(event.at),
        "data": dict(event.data),
    }
    return found if cursor is None else {**found, "cursor": cursor}


def polled(found: Polled) -> dict[str, Any]:
    """Render the result of `events/poll`."""
    return {
        "events": [occurrence(each) for each in found.events],
        "cursor": found.cursor,
        "truncated": found.truncated,
        "hasMore": found.has_more,
        "nextPollMs": found.next_poll // timedelta(milliseconds=1),
    }


def subscribed(found: Subscribed) -> dict[str, Any]:
    """Render the result of `events/subscribe`."""
    result: dict[str, Any] = {
        "id": found.id,
        "refreshBefore": time_of(found.refresh_before),
        "cursor": found.cursor,
        "truncated": found.truncated,
    }
    if (status := found.status) is None:
        return result
    delivery = {
        "active": status.active,
        "lastDeliveryAt": None if status.last_delivery is None else time_of(status.last_delivery),
        "lastError": status.last_error,
    }
    if status.failed_since is not None:
        delivery["failedSince"] = time_of(status.failed_since)
    return {**result, "deliveryStatus": delivery}


def terminated(error: RequestError) -> dict[str, JSON]:
    """Render the end of a subscription, for a stream and for a webhook."""
    return {"error": {"code": error.code, "message": error.message, "data": error.data}}


# --- the data of events


def task_ended(task: TaskView) -> dict[str, JSON]:
    """Render the data of `task.ended` for a subscriber who may see the result."""
    result = dict(task.result) if task.result is not None else None
    if task.error is not None:
        result = {"isError": True, "content": [{"type": "text", "text": task.error.message}]}
    hint = None
    if result is not None and len(json.dumps(result, ensure_ascii=False).encode()) > _SHOWN_RESULT:
        result, hint = None, "The result is too long for an event: call `task_status` with this taskId."
    return _without_none({**_task(task), "result": result, "note": hint})


def input_required(task: TaskView, key: str, request: InputRequest) -> dict[str, JSON]:
    """Render the data of `task.input_required`."""
    asked = {name: request.params.get(name) for name in ("message", "requestedSchema", "url")}
    advice = f"Ask the user, and pass on only what the user decides: `task_answer` with this taskId and key {key!r}."
    if key in task.for_people:
        asked |= {"requestedSchema": None, "url": task.for_people[key] or None}
        advice = f"Tell the user that {people_answer(task.for_people[key])}; `task_answer` does not accept it."
    return _without_none({**_task(task), **asked, "key": key, "askTheUser": advice})


def task_progress(task: TaskView) -> dict[str, JSON]:
    """Render the data of `task.progress`."""
    done = task.progress
    numbers: JSON = None if done is None else _without_none({"value": done.value, "total": done.total})
    return _without_none({**_task(task), "progress": numbers, "steps": task.meta.get("mcp-workflows/steps")})


def execution_ended(tool: str, execution_id: str, status: Status, ended: datetime) -> dict[str, JSON]:
    """Render the data of `execution.ended`."""
    return {"tool": tool, "executionId": execution_id, "status": STATUS[status], "endedAt": time_of(ended)}


def outcome(task: TaskView) -> str:
    """Return the status of an ended task, in the terms of the filter."""
    failed = task.error is not None or (task.result or {}).get("isError")
    return "failed" if failed else STATUS[task.status]


def _task(task: TaskView) -> dict[str, JSON]:
    return {
        "taskId": task.task_id,
        "tool": task.tool,
        "status": outcome(task),
        "message": status_message(task.message, task.progress),
        "startedBy": task.started_by,
    }


def _without_none(found: Mapping[str, JSON]) -> dict[str, JSON]:
    return {name: value for name, value in found.items() if value is not None}


# --- deliveries


def shortened(event: Occurrence) -> Occurrence:
    """Return an event that is too large for a delivery, reduced to what a client needs to request the rest."""
    kept = {name: event.data[name] for name in ("taskId", "tool", "status", "key") if name in event.data}
    return replace(event, data={**kept, "note": "The event is too long: call `task_status` with this taskId."})


def body_of(content: Mapping[str, JSON]) -> bytes:
    """Return the body of a delivery. Signatures cover exactly these bytes."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def verification(challenge: str) -> dict[str, JSON]:
    """Render the body that asks an endpoint to confirm deliveries."""
    return {"type": "verification", "challenge": challenge}


def is_echo(reply: JSON, challenge: str) -> bool:
    """Return True if the endpoint's reply proves that it wants deliveries; compared in constant time."""
    given = object_of(reply).get("challenge")
    return isinstance(given, str) and hmac.compare_digest(given.encode("utf-8", "replace"), challenge.encode())


def headers_of(
    secrets: Sequence[str], *, message_id: str, subscription_id: str, sent: datetime, body: bytes
) -> dict[str, str]:
    """Return the headers of a delivery, signed with each of the secrets."""
    seconds = str(int(sent.timestamp()))
    return {
        "content-type": "application/json",
        "webhook-id": message_id,
        "webhook-timestamp": seconds,
        "webhook-signature": " ".join(signature(each, message_id, seconds, body) for each in secrets),
        SUBSCRIPTION_HEADER: subscription_id,
    }


def signature(secret: str, message_id: str, seconds: str, body: bytes) -> str:
    """Return the signature of a delivery."""
    return standard_signature(secret_bytes(secret) or b"", message_id, seconds, body)


def secret_bytes(secret: str) -> bytes | None:
    """Return the key in a `whsec_...`, or None if it is invalid."""
    if not secret.startswith(SECRET_PREFIX):
        return None
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        return None
    return key if len(key) in SECRET_BYTES else None
