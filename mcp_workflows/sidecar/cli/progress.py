"""The progress of a call, on standard error; standard output contains only the result."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from mcp_workflows.adapter import Progress as Steps
from mcp_workflows.adapter import Status
from mcp_workflows.sidecar.cli.app import harmless
from mcp_workflows.wire.params import status_message

if TYPE_CHECKING:  # imported in a second, which commands without a client avoid
    from mcp_workflows.client import TaskState

MAX_WAITING = 20  # lines: after a long prompt, only the last ones are shown
INTERRUPTED = 130  # the exit code that shells report for Ctrl-C
_PAGE = "mcp-workflows/url"
_STEPS = "mcp-workflows/steps"


class Screen:
    """Shows each state once, as a line; on a terminal also a spinner and the elapsed time."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._live = self._console.is_terminal
        self._progress: Progress | None = None
        self._shown: set[str] = set()
        self._has_page = False  # the engine's page of the task was shown
        self._last = ""
        self._is_still = False
        self._waiting: deque[str] = deque(maxlen=MAX_WAITING)  # lines to show after the prompt is closed
        self.task_id: str | None = None
        self.followed = False  # a live task was seen
        self.heard_at = 0.0  # when the last state arrived, on the event loop's clock

    @property
    def asks(self) -> bool:
        """True if a person can read a question and type an answer."""
        return self._console.is_terminal and sys.stdin.isatty()

    async def state(self, state: TaskState) -> None:
        """Show the new state of a task."""
        self.task_id, self.followed = state.task_id, not state.ended
        self.heard_at = anyio.current_time()
        self._once(f"task {state.task_id}")
        meta = state.meta or {}
        for step in meta.get(_STEPS) or ():
            if step["status"] != Status.RUNNING:
                self._once(f"{'':<15} {step['name']}: {step['status']}")
        word = "failed" if (state.result or {}).get("isError") else state.status  # in MCP such a task is completed
        self._line(f"{word:<15} {state.status_message or ''}".rstrip())
        if (page := meta.get(_PAGE)) and not self._has_page:  # each run of a chain has its own page
            self._has_page = True
            self._note_later(f"{'see':<15} {page}")

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Show the progress of a call without a task."""
        steps = Steps(value=progress, total=total) if total is not None else None
        self._line(f"{'working':<15} {status_message(message, steps) or ''}".rstrip())

    def note(self, text: str) -> None:
        """Show a line of text."""
        self._console.print(harmless(text), markup=False)

    def lost(self) -> None:
        """Show that the connection is lost; repeat this only after another line."""
        self._line("connection lost, retrying")

    def _once(self, text: str) -> None:
        if text not in self._shown:
            self._shown.add(text)
            self._note_later(text)

    def _note_later(self, text: str) -> None:
        """Show a line, or after the prompt if one is open."""
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
        """Show the spinner."""
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
        """Show only notes while a person types."""
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

    async def line(self, prompt: str | Text) -> str | None:
        """Return a line that the person types; None at the end of input. Unlike `input()`, it can be cancelled."""
        self._console.print(harmless(prompt) if isinstance(prompt, str) else prompt, end="", markup=False)
        typed = ""
        try:
            if sys.platform == "win32":
                typed = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
            else:
                await anyio.wait_readable(sys.stdin)
                typed = sys.stdin.readline()  # a terminal is readable once a line is complete
        finally:
            if not typed:  # end the line of the prompt, where the cursor still is
                self._console.print()
        return typed.rstrip("\r\n") if typed else None
