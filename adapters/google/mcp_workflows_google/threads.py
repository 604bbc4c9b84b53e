"""Blocking work off the event loop, in a thread that never holds up an exit.

Google's libraries read files, run `gcloud` and ask the metadata server before they have a token, and may take long.
Threads of anyio are waited for when the interpreter ends; these are not.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel

T = TypeVar("T")


class Work(Generic[T]):
    """Something that a thread does from now on; `errors` are what it may raise, anything else is a defect."""

    def __init__(self, work: Callable[[], T], errors: tuple[type[Exception], ...]) -> None:
        self._work = work
        self._errors = errors
        self._token = anyio.lowlevel.current_token()
        self._done = anyio.Event()
        self._results: list[T] = []
        self._error: Exception = RuntimeError("the thread broke; see the log")
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run,), daemon=True, name="mcp-workflows google-auth").start()

    @property
    def over(self) -> bool:
        """Whether there is a result or an error."""
        return self._done.is_set()

    async def wait(self) -> None:
        """Until it is over; as many as like may wait."""
        await self._done.wait()

    def result(self) -> T:
        """What came of it; raises what it raised."""
        if self._results:
            return self._results[0]
        raise self._error

    def _run(self) -> None:
        """In the thread."""
        try:
            self._results.append(self._work())
        except self._errors as error:
            self._error = error
        finally:
            with suppress(anyio.RunFinishedError):  # nobody is there any more to be told
                anyio.from_thread.run_sync(self._done.set, token=self._token)
