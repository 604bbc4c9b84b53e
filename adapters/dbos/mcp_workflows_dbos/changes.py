"""Change hints inside one process: a workflow tells the adapters beside it that it has changed.

DBOS is one per process, and so is this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["CHANGES", "Changes"]


class Changes:
    """The listeners of this process, called from the thread in which a workflow runs."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[str], None]] = []

    def add(self, listener: Callable[[str], None]) -> None:
        """Call this with the id of each workflow that has changed, from any thread."""
        self._listeners.append(listener)

    def remove(self, listener: Callable[[str], None]) -> None:
        """Call it no longer."""
        self._listeners.remove(listener)

    def tell(self, workflow_id: str | None) -> None:
        """Tell all listeners that this workflow has changed."""
        for listener in [*self._listeners] if workflow_id else ():
            listener(workflow_id or "")


CHANGES: Final = Changes()
