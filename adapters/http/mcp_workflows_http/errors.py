"""The meaning of failed connections and of replies without success: the error tables of this adapter.

Sources: RFC 9110, section 15; RFC 6585, section 4; RFC 8470, section 5.2.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import httpx2

from mcp_workflows.adapter import StartGuarantee
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable
from mcp_workflows.kit.http_errors import reason_in
from mcp_workflows_http.reply import Reply

_LATER: Final = frozenset({408, 425})
_NOT_OURS: Final = "it does not accept our credentials"
_CREDENTIALS: Final = {401: _NOT_OURS, 403: _NOT_OURS, 407: "the proxy does not accept our credentials (proxy)"}
_ABOUT_THE_INPUT: Final = frozenset({400, 404, 405, 413, 415, 422})
_NO_SUCH_PAGE: Final = frozenset({404, 405})  # possibly of a proxy in front of the API
_NOT_DONE_HERE: Final = frozenset({301, 307, 308})
_MOST: Final = 8192  # bytes of a body in which a reason is searched
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_CAUSES: Final[Mapping[type[BaseException], str]] = {
    httpx2.ProxyError: "the proxy refuses, or wants credentials (proxy)",
    httpx2.TimeoutException: "no connection in time",
    ssl.SSLCertVerificationError: "its certificate is not trusted (tls.ca_file), or is for another host ({url})",
    ssl.SSLError: "TLS fails; it may want a certificate of ours (tls.client_cert), or speak no TLS ({url})",
    socket.gaierror: "its name is not known ({url}), or that of the proxy (proxy)",
    ConnectionRefusedError: "nothing listens there ({url}), or where the proxy should be (proxy)",
}
"""Causes by the class of the exception, special classes first; each names the settings that may be wrong."""


class ReplyUndecodable(EngineUnavailable):
    """The content encoding of a reply is broken."""


def cause_of(error: BaseException, url: str = "url") -> str:
    """Return the cause, to end a sentence with. `url` is the setting with the address."""
    found: BaseException | None = error
    while found is not None:
        for kind, text in _CAUSES.items():
            if isinstance(found, kind):
                return f": {text.format(url=url)}"
        found = found.__cause__ or found.__context__
    return f" ({type(error).__name__})"


def connection_error(error: httpx2.RequestError) -> EngineUnavailable:
    """Return the meaning of a request without a reply."""
    if isinstance(error, _NOT_SENT):
        return EngineUnavailable(f"it cannot be connected to{cause_of(error)}", sent=False)
    if isinstance(error, httpx2.DecodingError):
        return ReplyUndecodable("its reply cannot be decoded")
    late = isinstance(error, httpx2.TimeoutException)
    return EngineUnavailable("no answer in time" if late else f"the connection was lost ({type(error).__name__})")


def said(reply: Reply) -> str:
    """Return the API's message on one line, without anything that could repeat our credentials."""
    if reply.status in _CREDENTIALS:
        return f"it answered {reply.status}: {_CREDENTIALS[reply.status]}"
    reason = reason_in(reply.content[:_MOST]) if not reply.is_server_error else ""
    return f"it answered {reply.status}{f': {reason}' if reason else ''}"


def throttled(reply: Reply) -> EngineUnavailable:
    """Return the error of a request that the API will accept later."""
    return EngineUnavailable(f"it answered {reply.status}: it throttles us", throttled=True)


def start_error(reply: Reply, starts: StartGuarantee) -> EngineError:
    """Return the error for an unsuccessful reply to a start."""
    if reply.is_throttled:
        not_accepted = not reply.is_server_error and starts is not StartGuarantee.KEYED
        return EngineUnavailable(said(reply), throttled=True, sent=not not_accepted)
    if reply.status in _NOT_DONE_HERE:
        there = urlsplit(reply.headers.get("location", "")).netloc
        return EngineRefused(
            f"it answered {reply.status}: it redirects{f' to {there}' if there else ''}; set url to that"
        )
    if reply.status in _CREDENTIALS:
        return EngineRefused(said(reply))
    if reply.status in _NO_SUCH_PAGE and not reply.is_json:
        return EngineUnavailable(f"it answered {reply.status} with a page that is not JSON", silent=False)
    if reply.status in _ABOUT_THE_INPUT:
        return EngineRefused(said(reply), final=True)
    if not reply.is_client_error or reply.status in _LATER:
        return EngineUnavailable(said(reply))
    return EngineRefused(said(reply))


def describe_error(reply: Reply) -> EngineUnavailable:
    """Return the error for an unsuccessful reply to a poll."""
    if reply.is_throttled:
        return throttled(reply)
    return EngineUnavailable(said(reply), silent=reply.is_server_error)


def change_error(reply: Reply) -> EngineError:
    """Return the error for an unsuccessful reply to an answer or a cancellation."""
    if reply.is_throttled:
        return throttled(reply)
    refused = reply.is_client_error and reply.status not in _LATER
    return EngineRefused(said(reply)) if refused else EngineUnavailable(said(reply))
