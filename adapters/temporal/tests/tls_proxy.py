"""TLS in front of a real Temporal: a proxy that ends TLS and notes who came."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpack import Decoder

from tests.support.authority import Authority
from tests.support.child_processes import free_port

PREFACE = 24  # bytes that open an HTTP/2 connection (RFC 9113, section 3.4)
FRAME_HEAD = 9
HEADERS, PADDED, PRIORITY = 0x1, 0x8, 0x20


@dataclass(slots=True)
class TLSProxy:
    """Where it listens, and who came."""

    port: int
    target: int
    clients: list[str] = field(default_factory=list[str])  # the common names of client certificates
    tokens: list[str] = field(default_factory=list[str])  # the authorization headers of calls
    serving: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection that nobody waits for until the end."""
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self.serving.add(task)
        task.add_done_callback(self.serving.discard)

    async def hang_up(self) -> None:
        """End every connection, and wait until it is."""
        for task in self.serving:
            task.cancel()
        await asyncio.gather(*self.serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        certificate: Mapping[str, Any] = writer.get_extra_info("peercert") or {}  # Any: as `ssl` gives it
        self.clients += [value for part in certificate.get("subject", ()) for _, value in part]
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            await asyncio.gather(self._forth(reader, back_writer), _back(back_reader, writer))
        finally:
            for end in (writer, back_writer):
                end.transport.abort()
                with suppress(OSError, ssl.SSLError):
                    await end.wait_closed()

    async def _forth(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Frame by frame, noting the headers."""
        decoder = Decoder()
        with suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            sink.write(await source.readexactly(PREFACE))
            while True:
                head = await source.readexactly(FRAME_HEAD)
                content = await source.readexactly(int.from_bytes(head[:3]))
                if head[3] == HEADERS:
                    self._note(decoder, head[4], content)
                sink.write(head + content)
                await sink.drain()
        sink.close()

    def _note(self, decoder: Decoder, flags: int, content: bytes) -> None:
        start = (1 if flags & PADDED else 0) + (5 if flags & PRIORITY else 0)
        end = len(content) - (content[0] if flags & PADDED else 0)
        headers = {str(name): str(value) for name, value in decoder.decode(content[start:end])}
        self.tokens.append(headers.get("authorization", ""))


async def _back(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, ssl.SSLError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()


@asynccontextmanager
async def tls_proxy(
    target: int, authority: Authority, folder: Path, clients: Authority | None = None
) -> AsyncGenerator[TLSProxy]:
    """TLS on a free port, with a certificate of an authority; with `clients` it wants one of theirs (mTLS)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue_into(folder / "server", "the frontend"))
    context.set_alpn_protocols(["h2"])
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients.file)
    proxy = TLSProxy(free_port(), target)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", proxy.port, ssl=context)
    try:
        yield proxy
    finally:
        server.close()
        await proxy.hang_up()
