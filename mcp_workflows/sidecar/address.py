"""Addresses to listen on, and the hosts and origins in callers' headers."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import Final

from mcp_workflows.errors import ConfigError

USUAL_PORTS: Final = {"http": ":80", "https": ":443"}  # browsers omit it
_PORT: Final = r"(?::(?:\d{1,5}|\*))?"
_HOST: Final = re.compile(rf"(?:[a-z0-9._-]+|\[[0-9a-f:.]+\]){_PORT}")
_ORIGIN: Final = re.compile(rf"[a-z][a-z0-9+.-]*://{_HOST.pattern}")
_IPV6: Final = re.compile(r"\[(.+)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A host and a port to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def bind(address: Address, option: str = "--http") -> socket.socket:
    """Return a socket that is bound to the address but does not listen yet.

    Raises:
        ConfigError: the address is in use, or not of this machine; the message suggests another with `option`.
    """
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio then sets TCP_NODELAY
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address.host, address.port))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {address}: {reason}; choose another with {option} HOST:PORT") from None
    return bound


def host(text: str) -> str:
    """Return the host in the form used for comparisons; `:*` means any port or none.

    Raises:
        ValueError: not a host.
    """
    if not _HOST.fullmatch(text.lower()):
        raise ValueError("must be a host: workflows.example.com, [::1], with :8443 or :* (any port) or no port")
    return _compressed(text.lower())


def origin(text: str) -> str:
    """Return the origin in the form that browsers send; `:*` means any port or none.

    Raises:
        ValueError: not an origin, or one that any page could have.
    """
    if text == "*" or text.lower() == "null":
        raise ValueError(f"{text} would allow pages of any site; name each origin: https://app.example.com")
    if not _ORIGIN.fullmatch(text.lower()):
        raise ValueError("must be an origin, without a path: https://app.example.com or http://localhost:6274")
    scheme, _, name = _compressed(text.lower()).partition("://")
    return f"{scheme}://{name.removesuffix(USUAL_PORTS.get(scheme, ':'))}"


def exact_origin(text: str) -> str:
    """Return the origin with a single port.

    Raises:
        ValueError: not an origin, or it allows any port.
    """
    if text.endswith(":*"):
        raise ValueError("must be one origin, with its port: http://localhost:6274")
    return origin(text)


def _compressed(text: str) -> str:
    return _IPV6.sub(lambda found: f"[{ipaddress.IPv6Address(found[1])}]", text)
