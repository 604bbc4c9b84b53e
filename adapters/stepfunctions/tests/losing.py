"""In front of the local engine: passes every request on, and loses the replies to one operation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress

import anyio
from anyio.abc import ByteStream, SocketAttribute

GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)


class Losing:
    """On a port of its own."""

    def __init__(self, target: int, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.lost = 0  # replies
        self._target = target
        self._operation: str | None = None

    @contextmanager
    def replies_to(self, operation: str) -> Generator[None]:
        """What the engine answers to `StartExecution` (or another) is lost meanwhile, and the connection with it."""
        self._operation = operation
        try:
            yield
        finally:
            self._operation = None

    async def serve(self, client: ByteStream) -> None:
        """One connection."""
        async with client, await anyio.connect_tcp("127.0.0.1", self._target) as server:
            with suppress(*GONE):
                while True:  # botocore sends a request when it has the answer to the one before
                    request = await self._request(client, server)
                    reply = await _message(server)
                    if self._operation and f".{self._operation}\r\n".encode() in request:
                        self.lost += 1
                        return
                    await client.send(reply)

    async def _request(self, client: ByteStream, server: ByteStream) -> bytes:
        request = await _message(client)
        await server.send(request)
        return request


async def _message(stream: ByteStream) -> bytes:
    """One message of HTTP/1.1 that says how long it is."""
    read = b""
    while b"\r\n\r\n" not in read:
        read += await stream.receive()
    head, _, body = read.partition(b"\r\n\r\n")
    lengths = [line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = int(lengths[0]) - len(body) if lengths else 0
    while missing > 0:
        more = await stream.receive()
        read, missing = read + more, missing - len(more)
    return read


@asynccontextmanager
async def losing(target: int) -> AsyncGenerator[Losing]:
    """In front of a port of this machine, as long as this is entered."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        found = Losing(target, listener.extra(SocketAttribute.local_port))
        async with anyio.create_task_group() as group:
            group.start_soon(listener.serve, found.serve)
            yield found
            group.cancel_scope.cancel()
