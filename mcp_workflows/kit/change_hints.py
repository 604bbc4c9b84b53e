"""Change hints: an engine notifies us of an execution, which is then polled."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

_REMEMBERED: Final = 20_000  # handles


class ChangeHints:
    """Notifies listeners of changes; maps the engine's names of executions to our handles."""

    def __init__(self) -> None:
        self._handles: OrderedDict[str, str] = OrderedDict()
        self._listeners: list[Callable[[str], None]] = []

    def register(self, name: str, handle: str) -> None:
        """Remember the handle of an execution that was started or polled."""
        self._handles[name] = handle
        self._handles.move_to_end(name)
        if len(self._handles) > _REMEMBERED:
            self._handles.popitem(last=False)

    def notify_by_name(self, name: str) -> None:
        """Notify the listeners of the execution registered under this name; ignore unknown names."""
        if handle := self._handles.get(name):
            self.notify(handle)

    def notify(self, handle: str) -> None:
        """Notify the listeners, in the caller's thread, that an execution may have changed."""
        for listener in tuple(self._listeners):  # a copy, as another thread may change the list
            listener(handle)

    @contextmanager
    def listen(self, changed: Callable[[str], None]) -> Generator[None]:
        """Call the function with the handle for each change within this context."""
        self._listeners.append(changed)
        try:
            yield
        finally:
            self._listeners.remove(changed)
