"""Google's errors as ours: one table by gRPC status, by reason, by parts of the message.

The messages are ours, because Google's may repeat the input; only names are copied from it. `sent` is False only if the
error certainly occurred before Google accepted the request; otherwise an execution may exist.

Sources: https://grpc.io/docs/guides/status-codes/, https://cloud.google.com/apis/design/errors (google.rpc.ErrorInfo).
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# Reason: google-api-core is partly typed, and JSON is Any; both are converted to our types at once.

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from google.api_core import exceptions as api

from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, ExecutionNotFound


class PermissionDenied(EngineRefused):
    """Google knows the caller and denies a permission."""


class CallKind(StrEnum):
    """The kind of a call."""

    CREATE = "create"
    DESCRIBE = "describe"  # an execution
    READ = "read"  # anything else
    CANCEL = "cancel"
    SEND = "send"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRow:
    """Our error for one of Google's; `text` has the placeholders of `errors`: {permission}, {resource}, ..."""

    kind: type[EngineError]
    text: str
    final: bool = False  # of EngineRefused
    sent: bool = True  # of EngineUnavailable
    throttled: bool = False  # of EngineUnavailable


def refused_row(text: str, *, final: bool = False) -> ErrorRow:
    """Return the row of a definite refusal."""
    return ErrorRow(kind=EngineRefused, text=text, final=final)


def unavailable_row(text: str, *, sent: bool = True, throttled: bool = False) -> ErrorRow:
    """Return the row of an unknown outcome."""
    return ErrorRow(kind=EngineUnavailable, text=text, sent=sent, throttled=throttled)


_DOWN: Final = unavailable_row("Google has an internal error, or is overloaded ({detail})")
_LATE: Final = unavailable_row("no answer in time")
_INVALID: Final = refused_row("the request is not valid{field}", final=True)
_NO_WORKFLOW: Final = refused_row("there is no {resource}: check its name, the project and the location")
_NO_EXECUTION: Final = ErrorRow(
    kind=ExecutionNotFound, text="it has no such execution: never had, or dropped it after its retention"
)
_DENIED: Final = ErrorRow(
    kind=PermissionDenied,
    text="no permission: {permission} on {resource} is not allowed, or that does not exist; grant it",
)
_THROTTLED: Final = unavailable_row(
    "Google throttles us: the quota of the project in {location} is used up", sent=False, throttled=True
)
_STATE: Final = refused_row("{resource} is in no state for this{field}")
NOT_IT: Final = refused_row("what answers at {endpoint} is not this API: check endpoint (or emulator)")
_TOKEN: Final = refused_row(
    "Google does not accept our credentials: `gcloud auth application-default login`, or check them"
)


STATUSES: Final[Mapping[str, ErrorRow]] = {
    "CANCELLED": unavailable_row("the call was broken off"),
    "UNKNOWN": _DOWN,
    "INVALID_ARGUMENT": _INVALID,
    "DEADLINE_EXCEEDED": _LATE,
    "NOT_FOUND": _NO_WORKFLOW,  # of an execution: `_NO_EXECUTION`
    "ALREADY_EXISTS": refused_row("{resource} exists already"),
    "PERMISSION_DENIED": _DENIED,
    "RESOURCE_EXHAUSTED": _THROTTLED,
    "FAILED_PRECONDITION": _STATE,
    "ABORTED": unavailable_row("somebody else changed it at the same time"),
    "OUT_OF_RANGE": _INVALID,
    "UNIMPLEMENTED": NOT_IT,
    "INTERNAL": _DOWN,
    "UNAVAILABLE": _DOWN,
    "DATA_LOSS": _DOWN,
    "UNAUTHENTICATED": _TOKEN,
}
"""Rows by gRPC status. `Client.cancel` treats FAILED_PRECONDITION as success: the execution has ended."""

RETRYABLE: Final = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "ABORTED", "INTERNAL", "UNAVAILABLE", "CANCELLED"})
"""Statuses after which a read is repeated."""

_DISABLED: Final = "the API {service} is not enabled in project {consumer}"
REASONS: Final[Mapping[str, ErrorRow]] = {
    "SERVICE_DISABLED": refused_row(_DISABLED + ": `gcloud services enable {service} --project {consumer}`"),
    "API_DISABLED": refused_row(_DISABLED),
    "BILLING_DISABLED": refused_row("billing is not enabled in project {consumer}"),
    "CONSUMER_INVALID": refused_row("there is no project {consumer}: check project"),
    "RESOURCE_PROJECT_INVALID": refused_row("there is no project {consumer}: check project"),
    "GCP_SUSPENDED": refused_row("Google has suspended project {consumer}"),
    "CONSUMER_SUSPENDED": refused_row("Google has suspended project {consumer}"),
    "USER_PROJECT_DENIED": refused_row(
        "no permission to use project {consumer} for quota: grant roles/serviceusage.serviceUsageConsumer on it"
    ),
    "ACCESS_TOKEN_EXPIRED": refused_row("our access token has expired; the next call gets a new one"),
    "ACCESS_TOKEN_SCOPE_INSUFFICIENT": refused_row(
        "our access token lacks the scope cloud-platform: give it to the machine, or log in again with it"
    ),
    "ACCESS_TOKEN_TYPE_UNSUPPORTED": _TOKEN,
    "CREDENTIALS_MISSING": _TOKEN,
    "JWT_TOKEN_INVALID": _TOKEN,
    "ACCOUNT_STATE_INVALID": refused_row("the account that we are is disabled or deleted"),
    "SECURITY_POLICY_VIOLATED": refused_row("a VPC Service Controls perimeter forbids this{violation}"),
    "LOCATION_POLICY_VIOLATED": refused_row("an organization policy forbids {location}"),
    "LOCATION_ORG_POLICY_VIOLATED": refused_row("an organization policy forbids {location}"),
    "RESOURCE_USAGE_RESTRICTION_VIOLATED": refused_row(
        "an organization policy forbids {service} in project {consumer}"
    ),
    "ENDPOINT_USAGE_RESTRICTION_VIOLATED": refused_row(
        "an organization policy forbids {endpoint}: set endpoint to that of the location"
    ),
    "ORG_RESTRICTION_VIOLATION": refused_row("an organization policy forbids this"),
}
"""Rows by the reason of an ErrorInfo, which is more precise than the status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSign:
    """A part of a message that is more precise than the status."""

    sign: str
    row: ErrorRow
    local: bool = True  # counts only without a connection, when nothing was sent
    custom: bool = False  # counts only for endpoints from the settings: Google's own name is right, so DNS fails


_NO_HOST: Final = refused_row("there is no host {endpoint}: check endpoint (or emulator)")
_UNRESOLVED: Final = unavailable_row("cannot resolve the name of {endpoint}: is there a network?", sent=False)

MESSAGE_SIGNS: Final[tuple[MessageSign, ...]] = (
    MessageSign(
        sign="WRONG_VERSION_NUMBER",
        row=refused_row(
            "{endpoint} does not speak TLS, so it is not Google: check endpoint; a local engine is emulator:"
        ),
    ),
    MessageSign(
        sign="CERTIFICATE_VERIFY_FAILED",
        row=refused_row(
            "we do not trust the certificate of {endpoint}: check endpoint, or set GRPC_DEFAULT_SSL_ROOTS_FILE_PATH "
            "and SSL_CERT_FILE to the file of its CA"
        ),
    ),
    MessageSign(
        sign="is not in peer certificate",
        row=refused_row("the certificate at {endpoint} is for another host: check it"),
    ),
    MessageSign(
        sign="TSI_PROTOCOL_FAILURE", row=refused_row("the TLS handshake with {endpoint} failed: check endpoint")
    ),
    MessageSign(sign="Domain name not found", row=_NO_HOST, custom=True),
    MessageSign(sign="Name or service not known", row=_NO_HOST, custom=True),
    MessageSign(sign="Misformatted domain name", row=_NO_HOST),
    MessageSign(sign="http1.x server", row=NOT_IT),
    MessageSign(sign="Expected SETTINGS frame", row=NOT_IT),
    *(
        MessageSign(sign=sign, row=_UNRESOLVED)
        for sign in ("errors resolving", "DNS resolution failed", "name resolution", "Name or service not known")
    ),
    MessageSign(
        sign="Connection refused",
        row=unavailable_row("cannot connect to {endpoint}: connection refused{running}", sent=False),
    ),
    MessageSign(sign="failed to connect", row=unavailable_row("cannot connect to {endpoint}", sent=False)),
    MessageSign(sign="message larger than max", row=unavailable_row("its answer is too large for us"), local=False),
    MessageSign(
        sign="is not found or access is unauthorized",
        row=refused_row("there is no location {location} for Workflows, or we may not use it: check location"),
        local=False,
    ),
)
"""In order of precedence: messages of gRPC (as of 1.85), OpenSSL and the C library. Other errors count as `sent`."""


ERROR_INFO: Final = "type.googleapis.com/google.rpc.ErrorInfo"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_BAD_REQUEST: Final = "type.googleapis.com/google.rpc.BadRequest"
_PERMISSION = re.compile(r"[Pp]ermission '?(?P<permission>workflows\.[A-Za-z.]+)'?")
_ON = re.compile(r"on (?:resource )?'?(?P<resource>(?://[a-z.]+/)?projects/[\w/.:-]+)")
_WORD = re.compile(r"[A-Za-z0-9_.:/\[\]-]{1,200}", re.ASCII)
_CONSUMER = re.compile(r"projects/(?P<project>[a-z0-9.:-]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """The failed call: its kind, permission, resource and endpoint."""

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
    """A gRPC status, its text and its details, in the form for the tables."""

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
    """Read an error reply over HTTP; one in another format than Google's counts by its HTTP status."""
    error: Any = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return ErrorReply(status=_HTTP.get(status, "UNKNOWN" if status >= 500 else "UNIMPLEMENTED"))
    content: Mapping[str, Any] = error
    listed: Any = content.get("details")
    details: list[Any] = [each for each in (listed if isinstance(listed, list) else []) if isinstance(each, Mapping)]
    info: Mapping[str, Any] = next((each for each in details if each.get("@type") == ERROR_INFO), {})
    found = str(content.get("status"))
    metadata: Any = info.get("metadata")
    return ErrorReply(
        status=found if found in STATUSES else _HTTP.get(status, "UNKNOWN"),
        text=str(content.get("message", "")),
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
    if (row := REASONS.get(reply.reason) or _signed(reply, context)) is not None:
        return row
    if reply.status == "NOT_FOUND" and context.kind not in {CallKind.CREATE, CallKind.READ}:
        return _NO_EXECUTION
    return STATUSES.get(reply.status, STATUSES["UNKNOWN"])


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
