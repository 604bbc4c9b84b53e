"""Doubles for tests of adapters: an engine without keys, the notes of an adapter, and a proxy that loses replies."""

from __future__ import annotations

import copy
import logging
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime, timedelta

import anyio
from anyio.abc import ByteStream, SocketAttribute
from pydantic import Field

from mcp_workflows.adapter import JSON, Notes, Ref, Start, StartGuarantee
from mcp_workflows.adapter.memory import MemoryAdapter, MemoryExecution, MemorySettings
from mcp_workflows.errors import EngineUnavailable, StartConflict

logger = logging.getLogger(__name__)

GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)


class FindableMemorySettings(MemorySettings):
    """The name of the engine in memory, and the time after which its list is complete."""

    settling_seconds: float = Field(default=30, gt=0, description="After an attempt, until it must have been found.")


class FindableMemoryAdapter(MemoryAdapter):
    """`MemoryAdapter` without keys: each start creates an execution; `faults.lag` hides new ones for a while."""

    Settings = FindableMemorySettings
    ActionSettings = None
    starts = StartGuarantee.FINDABLE

    def __init__(self, settings: FindableMemorySettings) -> None:
        """Join the engine of that name, or create it."""
        super().__init__(settings)
        self._settling = timedelta(seconds=settings.settling_seconds)

    @property
    def settling(self) -> timedelta:
        """The time from the settings; see `Finds`."""
        return self._settling

    async def start(self, start: Start) -> str:
        """Start another execution; the key is only its label."""
        await self._call("start")
        self._refuse(start)
        handle = f"memory-{uuid.uuid4().hex}"
        self._engine.executions[handle] = MemoryExecution(start=start)
        self._lose_reply()
        return handle

    async def find(self, start: Start) -> str | None:
        """Return the oldest visible execution with this key, and end the later ones."""
        await self._call("find")
        seen = [
            handle
            for handle, each in self._engine.executions.items()
            if each.start.key == start.key and each.age >= self.faults.lag
        ]
        if not seen:
            return None
        oldest, *later = seen
        known = self._engine.executions[oldest].start
        if (known.workflow, known.arguments) != (start.workflow, start.arguments):
            raise StartConflict("this key belongs to an execution with another workflow or input")
        for handle in later:
            ref = Ref(workflow=start.workflow, handle=handle)
            if not self._describe(ref).terminal:
                self._change(ref, terminated="started twice")
        return oldest


class MemoryNotes(Notes):
    """Notes in memory; `until` has the expiry of each, and `available = False` simulates a failing store."""

    def __init__(self) -> None:
        self._values: dict[str, JSON] = {}
        self.until: dict[str, datetime] = {}
        self.available = True

    async def get(self, key: str) -> JSON:
        """Return the value of this key; None if there is none."""
        return copy.deepcopy(self._there().get(key))

    async def under(self, beginning: str) -> Mapping[str, JSON]:
        """Return all values whose keys have this prefix, sorted by key."""
        found = self._there()
        return {key: copy.deepcopy(found[key]) for key in sorted(found) if key.startswith(beginning)}

    async def add(self, key: str, value: JSON, *, until: datetime) -> JSON:
        """Store the value unless the key has one; return the stored value."""
        if key not in self._there():
            await self.put(key, value, until=until)
        return await self.get(key)

    async def put(self, key: str, value: JSON, *, until: datetime) -> None:
        """Store this value, replacing any other."""
        self._there()[key] = copy.deepcopy(value)
        self.until[key] = until

    def _there(self) -> dict[str, JSON]:
        if not self.available:
            raise EngineUnavailable("what must be remembered of it cannot be read or written now")
        return self._values


class LossyProxy:
    """A proxy in front of one server on this machine; `port` is the proxy's."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._losing = False
        self._open: list[ByteStream] = []

    @asynccontextmanager
    async def losing(self) -> AsyncGenerator[None]:
        """Discard all data from the server; afterwards close the connections, and let new ones work."""
        self._losing = True
        try:
            yield
        finally:
            self._losing = False
            for stream in self._open:
                await stream.aclose()
            self._open.clear()

    async def serve(self, client: ByteStream) -> None:
        """Serve one connection; if the server is unreachable, log that and close it."""
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
    """Run a proxy on this port, or a free one, within this context."""
    proxy = LossyProxy(target)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port) as listener:
        proxy.port = listener.extra(SocketAttribute.local_port)  # noqa: S610  # unrelated to Django
        async with anyio.create_task_group() as group:
            group.start_soon(listener.serve, proxy.serve)
            yield proxy
            group.cancel_scope.cancel()
