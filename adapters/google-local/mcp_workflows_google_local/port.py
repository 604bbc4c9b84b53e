"""One port for gRPC and plain HTTP: the first bytes of a connection determine its server."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Final

from mcp_workflows_google_local.refusals import LocalEngineError

_HTTP2: Final = b"PRI * HTTP/2.0"  # the first bytes of every HTTP/2 connection
_CHUNK: Final = 64 * 1024
LOOPBACK: Final = "127.0.0.1"


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at this address.

    Raises:
        LocalEngineError: the port is taken, or the address does not belong to this machine.
    """
    taken = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
        taken.listen(1024)
    except (OSError, OverflowError) as error:  # OverflowError: not a port number
        taken.close()
        raise LocalEngineError(
            f"cannot listen on {host}:{port} ({getattr(error, 'strerror', None) or error}): "
            "choose another with --port or --host"
        ) from error
    taken.setblocking(False)
    return taken


class Door:
    """Accepts connections and forwards them to the two servers, which listen on separate loopback ports."""

    def __init__(self, *, http2: int, http1: int) -> None:
        self._http2 = http2
        self._http1 = http1
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self, where: socket.socket) -> None:
        """Start to accept connections."""
        self._server = await asyncio.start_server(self._enter, sock=where)

    async def close(self) -> None:
        """Stop accepting connections, and close open ones."""
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):  # ended; or we close, which asyncio would report
                await self._hand_on(reader, writer)
        finally:
            self._open.discard(task)
            writer.close()

    async def _hand_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await _first_words(reader)
        if not said:
            return
        port = self._http2 if said.startswith(_HTTP2) else self._http1
        inner_reader, inner_writer = await asyncio.open_connection(LOOPBACK, port)
        inner_writer.write(said)
        pumps = [asyncio.create_task(_pump(*ends)) for ends in ((reader, inner_writer), (inner_reader, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            inner_writer.close()


async def _first_words(reader: asyncio.StreamReader) -> bytes:
    """Read enough to identify the protocol; return nothing if the connection ends earlier."""
    said = b""
    while _HTTP2.startswith(said) and said != _HTTP2:
        more = await reader.read(_CHUNK)
        if not more:
            return b""
        said += more
    return said


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while some := await reader.read(_CHUNK):
        writer.write(some)
        await writer.drain()
