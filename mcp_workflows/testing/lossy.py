"""A TCP proxy that can lose replies after requests took effect."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import anyio
from anyio.abc import ByteStream, SocketAttribute

logger = logging.getLogger(__name__)

GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)


class LossyProxy:
    """A proxy in front of one server on this machine; `port` is its own."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._losing = False
        self._open: list[ByteStream] = []

    @asynccontextmanager
    async def losing(self) -> AsyncGenerator[None]:
        """Lose all that the server sends; afterwards break the connections, and let new ones work."""
        self._losing = True
        try:
            yield
        finally:
            self._losing = False
            for stream in self._open:
                await stream.aclose()
            self._open.clear()

    async def serve(self, client: ByteStream) -> None:
        """Serve one connection; close it at once, with a log entry, if the server is not there."""
        try:
            server = await anyio.connect_tcp("127.0.0.1", self._target)
        except OSError:
            logger.error("nothing listens on 127.0.0.1:%d: is your engine running?", self._target)
            await client.aclose()
            return
        self._open += [client, server]
        async with client, server, anyio.create_task_group() as group:
            group.start_soon(self._pump, client, server, False)
            group.start_soon(self._pump, server, client, True)

    async def _pump(self, source: ByteStream, sink: ByteStream, is_reply: bool) -> None:
        async with AsyncExitStack() as both:
            both.push_async_callback(source.aclose)
            both.push_async_callback(sink.aclose)
            with suppress(*GONE):
                async for data in source:
                    if not (is_reply and self._losing):
                        await sink.send(data)


@asynccontextmanager
async def lossy_proxy(target: int, *, port: int = 0) -> AsyncGenerator[LossyProxy]:
    """Run a proxy on this port, or a free one, while this is entered."""
    proxy = LossyProxy(target)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port) as listener:
        proxy.port = listener.extra(SocketAttribute.local_port)  # noqa: S610  # no Django in sight
        async with anyio.create_task_group() as group:
            group.start_soon(listener.serve, proxy.serve)
            yield proxy
            group.cancel_scope.cancel()
