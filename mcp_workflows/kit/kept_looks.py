"""Looks that are answered from memory for a while, where the engine says when it wants to be asked again."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final

from mcp_workflows.adapter.boundary import Execution

_MOST: Final = 10_000  # looks


class KeptLooks:
    """The last looks at executions that the engine does not want to be asked about again yet."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, Execution]] = OrderedDict()

    def keep(self, handle: str, seen: Execution, seconds: float) -> None:
        """Answer with this look for so long."""
        self._kept[handle] = (time.monotonic() + seconds, seen)
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)

    def get(self, handle: str) -> Execution | None:
        """Return the look to answer with; None: ask the engine."""
        until, seen = self._kept.get(handle, (0.0, None))
        if until <= time.monotonic():
            self._kept.pop(handle, None)
            return None
        return seen

    def drop(self, handle: str) -> None:
        """Ask the engine at the next look: something is done to the execution."""
        self._kept.pop(handle, None)
