"""An engine in memory without keys: an execution can only be found by its key, and only after a while."""

from __future__ import annotations

import uuid
from datetime import timedelta

from pydantic import Field

from mcp_workflows.adapter import Ref, Start, StartGuarantee
from mcp_workflows.adapter.memory import MemoryAdapter, MemoryExecution, MemorySettings
from mcp_workflows.errors import StartConflict


class FindableMemorySettings(MemorySettings):
    """The name of the engine in memory, and the time after which its list is complete."""

    settling_seconds: float = Field(default=30, gt=0, description="After an attempt, until it must have been found.")


class FindableMemoryAdapter(MemoryAdapter):
    """`MemoryAdapter` without keys: each start is another execution; `faults.lag` hides the new ones for a while."""

    Settings = FindableMemorySettings
    starts = StartGuarantee.FINDABLE

    def __init__(self, settings: FindableMemorySettings) -> None:
        """Join the engine of that name, or make a new one."""
        super().__init__(settings)
        self._settling = timedelta(seconds=settings.settling_seconds)

    @property
    def settling(self) -> timedelta:
        """The time that its settings give; see `Finds`."""
        return self._settling

    async def start(self, start: Start) -> str:
        """Start another execution; the key is only a label of it."""
        await self._call("start")
        self._refuse(start)
        handle = f"memory-{uuid.uuid4().hex}"
        self._engine.executions[handle] = MemoryExecution(start=start)
        self._lose_reply()
        return handle

    async def find(self, start: Start) -> str | None:
        """Return the oldest execution with this key that is seen by now, and end the later ones."""
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
            if not self._look(ref).terminal:
                self._change(ref, terminated="started twice")
        return oldest
