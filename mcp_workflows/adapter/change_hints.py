"""Change hints: an engine calls us about an execution, which is then worth a look."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

_REMEMBERED: Final = 20_000  # handles


class ChangeHints:
    """Maps the names that the engine's calls use for executions to handles, and notifies listeners of changes."""

    def __init__(self) -> None:
        self._handles: OrderedDict[str, str] = OrderedDict()
        self._listeners: list[Callable[[str], None]] = []

    def register(self, name: str, handle: str) -> None:
        """Remember the handle of an execution that was started or looked at."""
        self._handles[name] = handle
        self._handles.move_to_end(name)
        if len(self._handles) > _REMEMBERED:
            self._handles.popitem(last=False)

    def notify(self, name: str) -> None:
        """Notify the listeners that an execution may have changed; one that nobody here knows is ignored."""
        handle = self._handles.get(name)
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
