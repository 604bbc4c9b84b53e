"""The edge: every call to Temporal ends in time, and every foreign error becomes one of ours, by one table."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import temporalio.api.errordetails.v1 as details
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows_temporal.connection import Place

ERRORS: Mapping[RPCStatusCode, type[EngineError]] = {
    RPCStatusCode.CANCELLED: EngineUnavailable,  # how the SDK says that its own time-out passed
    RPCStatusCode.UNKNOWN: EngineUnavailable,
    RPCStatusCode.INVALID_ARGUMENT: EngineRefused,
    RPCStatusCode.DEADLINE_EXCEEDED: EngineUnavailable,
    RPCStatusCode.NOT_FOUND: ExecutionNotFound,
    RPCStatusCode.ALREADY_EXISTS: EngineRefused,
    RPCStatusCode.PERMISSION_DENIED: EngineRefused,
    RPCStatusCode.RESOURCE_EXHAUSTED: EngineUnavailable,
    RPCStatusCode.FAILED_PRECONDITION: EngineRefused,
    RPCStatusCode.ABORTED: EngineUnavailable,
    RPCStatusCode.OUT_OF_RANGE: EngineRefused,
    RPCStatusCode.UNIMPLEMENTED: EngineRefused,
    RPCStatusCode.INTERNAL: EngineUnavailable,
    RPCStatusCode.UNAVAILABLE: EngineUnavailable,
    RPCStatusCode.DATA_LOSS: EngineUnavailable,
    RPCStatusCode.UNAUTHENTICATED: EngineRefused,
}

OUR_WORDS: Mapping[RPCStatusCode, str] = {  # where the engine's own words are misleading, or may repeat a credential
    RPCStatusCode.CANCELLED: "no answer in time",
    RPCStatusCode.DEADLINE_EXCEEDED: "no answer in time",
    RPCStatusCode.NOT_FOUND: "it has no such execution: never had, or dropped it after its retention",
    RPCStatusCode.UNAUTHENTICATED: "it does not accept our credentials: check api_key and tls",
    RPCStatusCode.PERMISSION_DENIED: "our credentials do not allow this: check api_key, tls and the namespace",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unconnected:
    """One way in which connecting fails: the SDK gives only a text."""

    sign: str
    text: str
    error: type[EngineError]


REFUSED = "connection refused"
_TLS = "the TLS handshake failed: check tls"
_ITS = "its certificate"
_HUNG_UP = "it ends the connection at once; if it wants TLS with a client_cert, check tls"
UNCONNECTED = (
    Unconnected(sign="Unauthenticated", text=OUR_WORDS[RPCStatusCode.UNAUTHENTICATED], error=EngineRefused),
    Unconnected(sign="PermissionDenied", text=OUR_WORDS[RPCStatusCode.PERMISSION_DENIED], error=EngineRefused),
    Unconnected(sign="ConnectionRefused", text=REFUSED, error=EngineUnavailable),
    Unconnected(sign="dns error", text="unknown host", error=EngineUnavailable),
    Unconnected(sign="InvalidContentType", text="it does not speak TLS: check tls", error=EngineUnavailable),
    Unconnected(sign="UnknownIssuer", text=f"{_TLS}, we do not trust who signed {_ITS}", error=EngineUnavailable),
    Unconnected(sign="NotValidForName", text=f"{_TLS}, another name is in {_ITS}", error=EngineUnavailable),
    Unconnected(
        sign="InvalidCertificate", text=f"{_TLS}, there is something wrong with {_ITS}", error=EngineUnavailable
    ),
    Unconnected(sign="PrivateKeyParse", text=f"{_TLS}, client_key cannot be read", error=EngineUnavailable),
    Unconnected(sign="fatal alert", text=f"{_TLS}, it wants another client_cert, or one", error=EngineUnavailable),
    Unconnected(sign='"transport error"', text=_HUNG_UP, error=EngineUnavailable),
    Unconnected(sign="ConnectionReset", text=_HUNG_UP, error=EngineUnavailable),
    Unconnected(sign="BrokenPipe", text=_HUNG_UP, error=EngineUnavailable),
    Unconnected(sign='"connection closed"', text=_HUNG_UP, error=EngineUnavailable),
    Unconnected(sign="certificate", text=_TLS, error=EngineUnavailable),
    Unconnected(sign="", text="cannot connect", error=EngineUnavailable),
)
CONNECT_FAILED = "Failed client connect"  # how the SDK's RuntimeError of a lazy connection begins


@asynccontextmanager
async def call(place: Place, seconds: float) -> AsyncGenerator[None]:
    """Calls to the engine: `seconds` in total, whatever the SDK retries; only an `EngineError` comes out.

    Raises:
        EngineError: see the table.
    """
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError:
        raise EngineUnavailable(f"{_who(place)}: no answer within {seconds:g} s") from None
    except OSError as error:  # the SDK raises none: it is a codec of the user's own that asks a key server
        raise EngineUnavailable(f"the payload codec gives no answer ({type(error).__name__})") from error
    except RPCError as error:
        raise translate(error, place) from error
    except RuntimeError as error:
        if not str(error).startswith(CONNECT_FAILED):
            raise
        raise _unconnected(str(error), place) from None


def translate(error: RPCError, place: Place) -> EngineError:
    """Ours for Temporal's."""
    kind = ERRORS[error.status]
    words = OUR_WORDS.get(error.status) or error.message.partition("\n")[0][:200]
    if has_detail(error, details.NamespaceNotFoundFailure):
        kind, words = EngineRefused, f"it has no namespace {place.namespace!r}"
    if error.status is RPCStatusCode.RESOURCE_EXHAUSTED and "larger than max" in error.message:
        kind = EngineRefused  # a gRPC message over 4 MiB: trying again will not help
    text = f"{_who(place)}: {words}"
    if kind is EngineUnavailable:
        return EngineUnavailable(text, throttled=error.status is RPCStatusCode.RESOURCE_EXHAUSTED)
    return kind(text)


def has_detail(error: RPCError, detail: type[details.NamespaceNotFoundFailure]) -> bool:
    """Whether the error carries this detail."""
    return any(found.Is(detail.DESCRIPTOR) for found in error.grpc_status.details)


def _unconnected(text: str, place: Place) -> EngineError:
    why = next(row for row in UNCONNECTED if row.sign in text)
    running = f"; {is_it_running(place)}" if why.text == REFUSED else ""
    message = f"{_who(place)}: {why.text}{running}"
    return EngineUnavailable(message, sent=False) if why.error is EngineUnavailable else why.error(message)


def is_it_running(place: Place) -> str:
    """What to look at first if nobody listens at the address."""
    start = " Start it: temporal server start-dev" if place.is_local else ""
    return f"is the Temporal server running at {place.address}?{start}"


def _who(place: Place) -> str:
    return f"Temporal at {place.address}"
