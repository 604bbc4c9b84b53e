"""What workflows tell us by themselves, as hints for who follows their executions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from mcp_workflows_google.names import ExecutionName

_REMEMBERED: Final = 20_000  # handles


class ChangeHints:
    """From an execution, as it calls itself, to who wants to hear of it by its handle."""

    def __init__(self) -> None:
        self._handles: OrderedDict[str, str] = OrderedDict()  # by `ExecutionName.note_prefix`
        self._listeners: list[Callable[[str], None]] = []

    def register(self, handle: str) -> None:
        """An execution is called so here: it may carry its project's number, and tell us the project's id."""
        note = ExecutionName.parse(handle).note_prefix
        self._handles[note] = handle
        self._handles.move_to_end(note)
        if len(self._handles) > _REMEMBERED:
            self._handles.popitem(last=False)

    def notify(self, name: ExecutionName) -> None:
        """Something about it has changed."""
        handle = self._handles.get(name.note_prefix)
        for listener in self._listeners if handle else ():
            listener(str(handle))

    @contextmanager
    def listen(self, changed: Callable[[str], None]) -> Generator[None]:
        """While somebody wants to hear."""
        self._listeners.append(changed)
        try:
            yield
        finally:
            self._listeners.remove(changed)
