"""The notes of an adapter in memory, for tests of adapters."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import datetime

from mcp_workflows.adapter import JSON, Notes
from mcp_workflows.errors import EngineUnavailable


class MemoryNotes(Notes):
    """Notes in memory; `until` has the end of each, and `available = False` is a store in trouble."""

    def __init__(self) -> None:
        self._values: dict[str, JSON] = {}
        self.until: dict[str, datetime] = {}
        self.available = True

    async def get(self, key: str) -> JSON:
        """Return the value of this key; None: there is none."""
        return copy.deepcopy(self._there().get(key))

    async def under(self, beginning: str) -> Mapping[str, JSON]:
        """Return all values whose keys have this beginning, by key, sorted by it."""
        found = self._there()
        return {key: copy.deepcopy(found[key]) for key in sorted(found) if key.startswith(beginning)}

    async def add(self, key: str, value: JSON, *, until: datetime) -> JSON:
        """Return the value of this key from now on: the one that is there already, or else this one."""
        if key not in self._there():
            await self.put(key, value, until=until)
        return await self.get(key)

    async def put(self, key: str, value: JSON, *, until: datetime) -> None:
        """Keep this value in place of any other."""
        self._there()[key] = copy.deepcopy(value)
        self.until[key] = until

    def _there(self) -> dict[str, JSON]:
        if not self.available:
            raise EngineUnavailable("what must be remembered of it cannot be read or written now")
        return self._values
