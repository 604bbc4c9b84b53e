"""Change hints within this process, from the thread that runs the workflows to the adapters.

DBOS is one per process, so one list of listeners serves them all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

__all__ = ["CHANGES", "ChangeListeners"]


class ChangeListeners:
    """The listeners of this process, each called in the thread that reports a change."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[str], None]] = []

    @contextmanager
    def listen(self, changed: Callable[[str], None]) -> Generator[None]:
        """Call the function with the id of each workflow that changes within this context."""
        self._listeners.append(changed)
        try:
            yield
        finally:
            self._listeners.remove(changed)

    def tell(self, workflow_id: str | None) -> None:
        """Tell all listeners that a workflow has changed; None, outside of workflows, is ignored."""
        if not workflow_id:
            return
        for changed in [*self._listeners]:
            changed(workflow_id)


CHANGES: Final = ChangeListeners()
