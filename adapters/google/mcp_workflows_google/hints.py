"""Change hints: a request from a workflow shows that its execution has changed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from mcp_workflows_google.names import ExecutionName

_REMEMBERED: Final = 20_000  # handles


class ChangeHints:
    """Maps the names that executions give themselves to handles, and notifies listeners of changes."""

    def __init__(self) -> None:
        self._handles: OrderedDict[str, str] = OrderedDict()  # by `ExecutionName.note_prefix`
        self._listeners: list[Callable[[str], None]] = []

    def register(self, handle: str) -> None:
        """Remember a handle: it may contain the project's number where a request from the workflow contains the id."""
        note = ExecutionName.parse(handle).note_prefix
        self._handles[note] = handle
        self._handles.move_to_end(note)
        if len(self._handles) > _REMEMBERED:
            self._handles.popitem(last=False)

    def notify(self, name: ExecutionName) -> None:
        """Notify the listeners that an execution has changed."""
        handle = self._handles.get(name.note_prefix)
        for listener in self._listeners if handle else ():
            listener(str(handle))

    @contextmanager
    def listen(self, changed: Callable[[str], None]) -> Generator[None]:
        """Call the function for each change within this context."""
        self._listeners.append(changed)
        try:
            yield
        finally:
            self._listeners.remove(changed)
