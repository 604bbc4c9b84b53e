"""Addresses to listen on."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from mcp_workflows.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A host and a port to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def bind(address: Address, option: str = "--http") -> socket.socket:
    """Return a socket that is bound to the address, and does not listen yet.

    Raises:
        ConfigError: the address is taken, or not of this machine; the message says to choose another with `option`.
    """
    try:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY by this
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address.host, address.port))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {address}: {reason}; choose another with {option} HOST:PORT") from None
    return bound
