"""Why there is no connection, and which setting may be wrong."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import Final

import httpx2

_CAUSES: Final[Mapping[type[BaseException], str]] = {
    httpx2.ProxyError: "the proxy refuses, or wants credentials (proxy)",
    httpx2.TimeoutException: "no connection in time",
    ssl.SSLCertVerificationError: "its certificate is not trusted (tls.ca_file), or is for another host ({url})",
    ssl.SSLError: "TLS fails; it may want a certificate of ours (tls.client_cert), or speak no TLS ({url})",
    socket.gaierror: "its name is not known ({url}), or that of the proxy (proxy)",
    ConnectionRefusedError: "nothing listens there ({url}), or where the proxy should be (proxy)",
}
"""Causes by the class of the exception, the more special ones first; each names the settings that may be wrong."""


def cause_of(error: BaseException, url: str = "url") -> str:
    """Return what went wrong, to end a sentence with. `url`: the setting with the address."""
    found: BaseException | None = error
    while found is not None:
        for kind, text in _CAUSES.items():
            if isinstance(found, kind):
                return f": {text.format(url=url)}"
        found = found.__cause__ or found.__context__
    return f" ({type(error).__name__})"
