"""An engine in memory that dedupes nothing: what was started under a key can only be found, a little later."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from datetime import timedelta

from pydantic import Field

from mcp_workflows.adapter import Ref, Start, StartGuarantee
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings, Record
from mcp_workflows.errors import StartConflict


class FindableMemorySettings(MemorySettings):
    """Which engine in memory, and when its list is complete."""

    settling_seconds: float = Field(default=30, gt=0, description="After an attempt, until it must have been found.")


class FindableMemoryAdapter(MemoryAdapter):
    """`MemoryAdapter` without keys: each start is another execution; `faults.lag` hides the new ones for a while."""

    Settings = FindableMemorySettings
    starts = StartGuarantee.FINDABLE

    def __init__(self, settings: FindableMemorySettings) -> None:
        """Join the engine of that name, or found it."""
        super().__init__(settings)
        self._settling = timedelta(seconds=settings.settling_seconds)

    @property
    def settling(self) -> timedelta:
        """As its settings say; see `Finds`."""
        return self._settling

    async def start(self, start: Start) -> str:
        """Start another execution; its key is no more than a label of it."""
        await self._call("start")
        self._refuse(start)
        handle = f"memory-{uuid.uuid4().hex}"
        self._engine.records[handle] = Record(start=start, began=time.monotonic())
        self._lose_reply()
        return handle

    async def find(self, start: Start) -> str | None:
        """The oldest with this key that is seen by now; those that came later are ended."""
        await self._call("find")
        seen = [
            handle
            for handle, record in self._engine.records.items()
            if record.start.key == start.key and record.age >= self.faults.lag
        ]
        if not seen:
            return None
        oldest, *later = seen
        known = self._engine.records[oldest].start
        if (known.workflow, known.arguments) != (start.workflow, start.arguments):
            raise StartConflict("this key belongs to an execution with another workflow or input")
        for handle in later:
            if not self._look(Ref(workflow=start.workflow, handle=handle)).terminal:
                self._engine.records[handle] = replace(self._engine.records[handle], terminated="started twice")
        return oldest
