"""The translation of Temporal's errors: a table of gRPC statuses, and one of failed connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from types import TracebackType

import anyio
import temporalio.api.errordetails.v1 as details
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows_temporal.settings import Place

ERRORS: Mapping[RPCStatusCode, type[EngineError]] = {  # any other status is EngineUnavailable
    RPCStatusCode.INVALID_ARGUMENT: EngineRefused,
    RPCStatusCode.NOT_FOUND: ExecutionNotFound,
    RPCStatusCode.ALREADY_EXISTS: EngineRefused,
    RPCStatusCode.PERMISSION_DENIED: EngineRefused,
    RPCStatusCode.FAILED_PRECONDITION: EngineRefused,
    RPCStatusCode.OUT_OF_RANGE: EngineRefused,
    RPCStatusCode.UNIMPLEMENTED: EngineRefused,
    RPCStatusCode.UNAUTHENTICATED: EngineRefused,
}

TEXTS: Mapping[RPCStatusCode, str] = {  # instead of Temporal's texts, which mislead or may repeat a credential
    RPCStatusCode.CANCELLED: "no answer in time",
    RPCStatusCode.DEADLINE_EXCEEDED: "no answer in time",
    RPCStatusCode.NOT_FOUND: "it has no such execution: never had, or dropped it after its retention",
    RPCStatusCode.UNAUTHENTICATED: "it does not accept our credentials: check api_key and tls",
    RPCStatusCode.PERMISSION_DENIED: "our credentials do not allow this: check api_key, tls and the namespace",
}


REFUSED = "connection refused"
_TLS = "the TLS handshake failed: check tls"
_CERT = "its certificate"
_ENDED = "it ends the connection at once; if it wants TLS with a client_cert, check tls"
CONNECT_FAILURES: Mapping[str, str] = {  # the first sign in the text applies: the SDK provides nothing else
    "Unauthenticated": TEXTS[RPCStatusCode.UNAUTHENTICATED],
    "PermissionDenied": TEXTS[RPCStatusCode.PERMISSION_DENIED],
    "ConnectionRefused": REFUSED,
    "dns error": "unknown host",
    "InvalidContentType": "it does not speak TLS: check tls",
    "UnknownIssuer": f"{_TLS}, we do not trust who signed {_CERT}",
    "NotValidForName": f"{_TLS}, another name is in {_CERT}",
    "InvalidCertificate": f"{_TLS}, there is something wrong with {_CERT}",
    "PrivateKeyParse": f"{_TLS}, client_key cannot be read",
    "fatal alert": f"{_TLS}, it wants another client_cert, or one",
    '"transport error"': _ENDED,
    "ConnectionReset": _ENDED,
    "BrokenPipe": _ENDED,
    '"connection closed"': _ENDED,
    "certificate": _TLS,
    "": "cannot connect",
}
_CREDENTIALS = frozenset({"Unauthenticated", "PermissionDenied"})  # signs of a refusal
CONNECT_FAILED = "Failed client connect"  # the start of the SDK's RuntimeError for a lazy connection


class Call:
    """An async context manager that limits the total time of all calls made inside, including the SDK's retries.

    One class with one cancel scope, as each poll creates one.

    Raises:
        EngineError: see `ERRORS` and `CONNECT_FAILURES`; Temporal's other errors do not escape.
    """

    __slots__ = ("_place", "_prepare", "_scope", "_seconds")

    def __init__(self, place: Place, seconds: float, prepare: Callable[[], Awaitable[None]] | None = None) -> None:
        """`prepare` is awaited first, outside the time limit."""
        self._place = place
        self._seconds = seconds
        self._prepare = prepare
        self._scope = anyio.CancelScope()

    async def __aenter__(self) -> None:
        if self._prepare is not None:
            await self._prepare()
        self._scope.deadline = anyio.current_time() + self._seconds
        self._scope.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._scope.__exit__(kind, error, trace) or isinstance(error, TimeoutError):
            raise EngineUnavailable(f"{self._place}: no answer within {self._seconds:g} s") from None
        if isinstance(error, OSError):  # the SDK raises none: it comes from a user's codec that calls a key server
            raise EngineUnavailable(f"the payload codec does not answer ({type(error).__name__})") from error
        if isinstance(error, RPCError):
            raise translate(error, self._place) from error
        if isinstance(error, RuntimeError) and str(error).startswith(CONNECT_FAILED):
            raise _connect_error(str(error), self._place) from None


@contextmanager
def unless_ended() -> Generator[None]:
    """Ignore that an execution has just ended, which Temporal reports as not found."""
    try:
        yield
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise


def translate(error: RPCError, place: Place) -> EngineError:
    """Return the error of `mcp_workflows.errors` for an error of Temporal."""
    kind = ERRORS.get(error.status, EngineUnavailable)
    reason = TEXTS.get(error.status) or error.message.partition("\n")[0][:200]
    if any(found.Is(details.NamespaceNotFoundFailure.DESCRIPTOR) for found in error.grpc_status.details):
        kind, reason = EngineRefused, f"it has no namespace {place.namespace!r}"
    if error.status is RPCStatusCode.RESOURCE_EXHAUSTED and "larger than max" in error.message:
        kind = EngineRefused  # a gRPC message over 4 MiB: a retry cannot help
    text = f"{place}: {reason}"
    if kind is EngineUnavailable:
        return EngineUnavailable(text, throttled=error.status is RPCStatusCode.RESOURCE_EXHAUSTED)
    return kind(text)


def _connect_error(text: str, place: Place) -> EngineError:
    sign = next(sign for sign in CONNECT_FAILURES if sign in text)
    message = f"{place}: {CONNECT_FAILURES[sign]}"
    if sign in _CREDENTIALS:
        return EngineRefused(message)
    if CONNECT_FAILURES[sign] == REFUSED:
        start = " Start it: temporal server start-dev" if place.is_local else ""
        message += f"; is the Temporal server running at {place.address}?{start}"
    return EngineUnavailable(message, sent=False)
