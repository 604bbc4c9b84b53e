"""In front of a real Temporal: lets everything through, or answers every call with PERMISSION_DENIED itself.

The dev server has no authorization to be refused by, so this speaks just enough HTTP/2 (RFC 9113) for a gRPC answer
that is nothing but a status.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream
from hpack import Encoder

GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, anyio.IncompleteRead)
PREFACE, HEAD = 24, 9  # bytes
DATA, HEADERS, SETTINGS, PING = 0x0, 0x1, 0x4, 0x6
ACK, END_STREAM, END_HEADERS = 0x1, 0x1, 0x4
DENIED = [
    (":status", "200"),
    ("content-type", "application/grpc"),
    ("grpc-status", "7"),
    ("grpc-message", "token hush-hush may not do this"),
]


class Turnstile:
    """On a port of its own; `turn` breaks all connections, and new ones are treated otherwise."""

    def __init__(self, target: int, port: int) -> None:
        self.port = port
        self._target = target
        self._denying = False
        self._open: list[ByteStream] = []

    async def turn(self, *, denying: bool) -> None:
        """From now on let nobody, or everybody, through."""
        self._denying = denying
        for stream in self._open:
            await stream.aclose()
        self._open.clear()

    async def serve(self, client: ByteStream) -> None:
        """One connection."""
        self._open.append(client)
        async with client:
            with suppress(*GONE):
                await (self._deny(client) if self._denying else self._pass(client))

    async def _pass(self, client: ByteStream) -> None:
        server = await anyio.connect_tcp("127.0.0.1", self._target)
        self._open.append(server)
        async with server, anyio.create_task_group() as group:
            group.start_soon(_pump, client, server)
            group.start_soon(_pump, server, client)

    async def _deny(self, client: ByteStream) -> None:
        encoder, received = Encoder(), BufferedByteReceiveStream(client)
        await received.receive_exactly(PREFACE)
        await client.send(_frame(SETTINGS, 0, 0))
        while True:
            head = await received.receive_exactly(HEAD)
            length, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
            stream = int.from_bytes(head[5:])
            content = await received.receive_exactly(length) if length else b""
            if kind in {SETTINGS, PING} and not flags & ACK:
                await client.send(_frame(kind, ACK, 0, content if kind == PING else b""))
            if kind in {DATA, HEADERS} and flags & END_STREAM:
                await client.send(_frame(HEADERS, END_STREAM | END_HEADERS, stream, encoder.encode(DENIED)))


def _frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return len(content).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + content


async def _pump(source: ByteStream, sink: ByteStream) -> None:
    with suppress(*GONE):
        async for data in source:
            await sink.send(data)
    await sink.aclose()


@asynccontextmanager
async def turnstile(target: int) -> AsyncGenerator[Turnstile]:
    """A turnstile in front of a port of this machine, letting everybody through at first."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        found = Turnstile(target, listener.extra(SocketAttribute.local_port))
        async with anyio.create_task_group() as group:
            group.start_soon(listener.serve, found.serve)
            yield found
            group.cancel_scope.cancel()
