"""States of executions that answer polls for a while, where the engine says when to poll again."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final

from mcp_workflows.adapter.boundary import Execution

_MOST: Final = 10_000  # states


class KeptStates:
    """The last known states of executions that the engine does not want to be asked about yet."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, Execution]] = OrderedDict()

    def keep(self, handle: str, seen: Execution, seconds: float) -> None:
        """Answer polls with this state for so many seconds."""
        self._kept[handle] = (time.monotonic() + seconds, seen)
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)

    def get(self, handle: str) -> Execution | None:
        """Return the state to answer with; None: ask the engine."""
        until, seen = self._kept.get(handle, (0.0, None))
        if until <= time.monotonic():
            self._kept.pop(handle, None)
            return None
        return seen

    def drop(self, handle: str) -> None:
        """Ask the engine at the next poll: something is done to the execution."""
        self._kept.pop(handle, None)
