"""Translation of Google's errors by the tables of `error_table`; only names are copied from its text."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# Reason: google-api-core is typed in parts, and JSON is Any; both are read into types of our own at once.

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from google.api_core import exceptions as api

from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable
from mcp_workflows_google.error_table import MESSAGE_SIGNS, REASONS, RETRYABLE, STATUSES, CallKind, ErrorRow

ERROR_INFO: Final = "type.googleapis.com/google.rpc.ErrorInfo"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_BAD_REQUEST: Final = "type.googleapis.com/google.rpc.BadRequest"
_PERMISSION = re.compile(r"[Pp]ermission '?(?P<permission>workflows\.[A-Za-z.]+)'?")
_ON = re.compile(r"on (?:resource )?'?(?P<resource>(?://[a-z.]+/)?projects/[\w/.:-]+)")
_WORD = re.compile(r"[A-Za-z0-9_.:/\[\]-]{1,200}", re.ASCII)
_CONSUMER = re.compile(r"projects/(?P<project>[a-z0-9.:-]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """The call that failed: its kind, permission, resource and endpoint."""

    kind: CallKind
    permission: str
    resource: str  # a resource name; never the rest of the request
    location: str
    endpoint: str
    custom: bool  # the endpoint is not Google's global one
    service: str = "workflowexecutions.googleapis.com"

    @property
    def who(self) -> str:
        """The name of the engine in messages."""
        return f"Google Workflows at {self.endpoint}" if self.custom else f"Google Workflows in {self.location}"


class ReplyError(Exception):
    """An error reply over gRPC or HTTP."""

    def __init__(self, reply: ErrorReply) -> None:
        super().__init__(reply.status)
        self.reply = reply


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReply:
    """A gRPC status, its text and its details, as the tables need them."""

    status: str
    text: str = field(default="", repr=False)  # may repeat the input
    local: bool = False  # there is no connection: the error comes from the client library
    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    fields: tuple[str, ...] = ()  # invalid fields of the request


def read_grpc_error(error: api.GoogleAPICallError, *, connected: bool) -> ErrorReply:
    """Read an error of the official client; it is local if there is no connection."""
    status: Any = error.grpc_status_code  # Any: grpc has no types
    reply: Any = next(iter(error.errors), None)
    violations = [each for detail in error.details for each in getattr(detail, "field_violations", ())]
    return ErrorReply(
        status=status.name if status is not None else "UNKNOWN",
        text=str(getattr(reply, "details", lambda: None)() or error.message),
        local=not connected,
        reason=error.reason or "",
        metadata=dict(error.metadata or {}),
        fields=tuple(str(each.field) for each in violations),
    )


_HTTP: Final[Mapping[int, str]] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def read_http_error(status: int, body: Any) -> ErrorReply:  # JSON or None
    """Read an error reply over HTTP; one that is not in Google's format counts by its HTTP status."""
    error: Any = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return ErrorReply(status=_HTTP.get(status, "UNKNOWN" if status >= 500 else "UNIMPLEMENTED"))
    told: Mapping[str, Any] = error
    listed: Any = told.get("details")
    details: list[Any] = [each for each in (listed if isinstance(listed, list) else []) if isinstance(each, Mapping)]
    info: Mapping[str, Any] = next((each for each in details if each.get("@type") == ERROR_INFO), {})
    found = str(told.get("status"))
    metadata: Any = info.get("metadata")
    return ErrorReply(
        status=found if found in STATUSES else _HTTP.get(status, "UNKNOWN"),
        text=str(told.get("message", "")),
        reason=str(info.get("reason", "")),
        metadata={str(key): str(value) for key, value in metadata.items()} if isinstance(metadata, Mapping) else {},
        fields=tuple(
            str(each.get("field"))
            for detail in details
            if detail.get("@type") == _BAD_REQUEST
            for each in detail.get("fieldViolations", ())
        ),
    )


def translate(reply: ErrorReply, context: CallContext) -> EngineError:
    """Translate an error reply."""
    row = _row(reply, context)
    text = f"{context.who}: {row.text.format_map(_words(reply, context))}"
    if row.kind is EngineUnavailable:
        return EngineUnavailable(text, sent=row.sent, throttled=row.throttled)
    if row.kind is EngineRefused:
        return EngineRefused(text, final=row.final)
    return row.kind(text)


def is_transient(reply: ErrorReply, context: CallContext) -> bool:
    """Return whether an immediate repetition may succeed, unlike after a refusal, a quota or a missing connection."""
    return reply.status in RETRYABLE and _signed(reply, context) is None


def _row(reply: ErrorReply, context: CallContext) -> ErrorRow:
    told = REASONS.get(reply.reason) or _signed(reply, context)
    return told or STATUSES.get(reply.status, STATUSES["UNKNOWN"]).row(context.kind)


def _signed(reply: ErrorReply, context: CallContext) -> ErrorRow | None:
    """Return the row of the first of `MESSAGE_SIGNS` that the text contains and that applies here."""
    for each in MESSAGE_SIGNS:
        if each.sign in reply.text and (reply.local or not each.local) and (context.custom or not each.custom):
            return each.row
    return None


def _words(reply: ErrorReply, context: CallContext) -> Mapping[str, str]:
    named, placed = _PERMISSION.search(reply.text), _ON.search(reply.text)
    consumer = _CONSUMER.fullmatch(reply.metadata.get("consumer", "")) or _CONSUMER.match(context.resource)
    fields = ", ".join(each for each in reply.fields if _WORD.fullmatch(each))
    violation = _word(reply.metadata.get("uid"))
    return {
        "permission": _word(reply.metadata.get("permission")) or (named["permission"] if named else context.permission),
        "resource": _word(reply.metadata.get("resource"))
        or (placed["resource"] if placed and named else context.resource),
        "location": context.location,
        "endpoint": context.endpoint,
        "service": _word(reply.metadata.get("service")) or context.service,
        "consumer": consumer["project"] if consumer else "?",
        "field": f" ({fields})" if fields else "",
        "violation": f" (vpcServiceControlsUniqueIdentifier {violation})" if violation else "",
        "detail": reply.status,
        "running": _running(context.endpoint),
    }


def _running(endpoint: str) -> str:
    """Return advice for a local engine that does not listen; only its address has a port."""
    host, has_port, port = endpoint.rpartition(":")
    if not has_port:
        return ""
    start = f" Start it: python -m mcp_workflows_google_local --port {port}" if host.strip("[]") in _LOOPBACK else ""
    return f"; is the local engine running there?{start}"


def _word(text: str | None) -> str | None:
    """Return the text if it is a plain name."""
    return text if text and _WORD.fullmatch(text) else None
