"""What a call shows while it is under way, on standard error; the result alone goes to standard output."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager

import anyio
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from mcp_workflows.adapter import Progress as Steps
from mcp_workflows.client import TaskState
from mcp_workflows.sidecar.cli.app import harmless
from mcp_workflows.wire.params import status_message

MAX_WAITING = 20  # lines: of what happens during a long prompt, the last are shown after it
INTERRUPTED = 130  # the exit code, as shells say of a command that Ctrl-C ended
_PAGE = "mcp-workflows/url"


class Screen:
    """Each state once, as a line; on a terminal with a spinner and the time below."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._live = self._console.is_terminal
        self._progress: Progress | None = None
        self._shown: set[str] = set()
        self._last = ""
        self._is_still = False
        self._waiting: deque[str] = deque(maxlen=MAX_WAITING)  # lines for when the prompt is closed
        self.task_id: str | None = None
        self.followed = False  # a task was seen that has not ended yet
        self.heard_at = 0.0  # when, by the clock of the event loop

    @property
    def asks(self) -> bool:
        """Whether somebody is there who can read a question and type an answer."""
        return self._console.is_terminal and sys.stdin.isatty()

    async def state(self, state: TaskState) -> None:
        """A task's new state."""
        self.task_id, self.followed = state.task_id, not state.ended
        self.heard_at = anyio.current_time()
        self._once(f"task {state.task_id}")
        self._line(f"{state.status:<15} {state.status_message or ''}".rstrip())
        if page := (state.meta or {}).get(_PAGE):
            self._once(f"{'see':<15} {page}")

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Progress of a call that is no task."""
        steps = Steps(value=progress, total=total) if total is not None else None
        self._line(f"{'working':<15} {status_message(message, steps) or ''}".rstrip())

    def note(self, text: str) -> None:
        """Anything else worth a line."""
        self._console.print(harmless(text), markup=False)

    def lost(self) -> None:
        """The connection is; told each time that something was seen in between."""
        self._line("connection lost, trying again")

    def _once(self, text: str) -> None:
        if text not in self._shown:
            self._shown.add(text)
            self._note_later(text)

    def _note_later(self, text: str) -> None:
        """Note it; while somebody types, as soon as they have finished."""
        if self._is_still:
            self._waiting.append(text)
        else:
            self.note(text)

    def _line(self, text: str) -> None:
        if text == self._last:
            return
        self._last = text
        self._note_later(text)
        if self._progress:
            self._progress.update(self._progress.task_ids[0], description=harmless(text))

    @contextmanager
    def running(self) -> Generator[None]:
        """Something is under way."""
        if not self._live:
            yield
            return
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        with Progress(*columns, console=self._console, transient=True) as self._progress:
            self._progress.add_task(self._last)
            try:
                yield
            finally:
                self._progress, _ = None, None

    @contextmanager
    def still(self) -> Generator[None]:
        """Nothing moves and nothing is printed while somebody types, but for notes."""
        moving = self._progress
        if moving:
            moving.stop()
        self._is_still = True
        try:
            yield
        finally:
            self._is_still = False
            while self._waiting:
                self.note(self._waiting.popleft())
            if moving:
                moving.start()

    async def line(self, prompt: str) -> str | None:
        """What the person types; None at the end of input. It can be cancelled, unlike `input()`."""
        self._console.print(harmless(prompt), end="", markup=False)
        typed = ""
        try:
            if sys.platform == "win32":
                typed = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
            else:
                await anyio.wait_readable(sys.stdin)
                typed = sys.stdin.readline()  # a terminal is readable when a line is there, and gives no more than that
        finally:
            if not typed:  # the cursor is behind the prompt still: what follows begins a line of its own
                self._console.print()
        return typed.rstrip("\r\n") if typed else None
