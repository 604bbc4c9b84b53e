"""Blocking calls off the event loop, in threads that never delay an exit.

The interpreter waits for threads of anyio and concurrent.futures when it ends: an endpoint that does not answer, or
sends one byte now and then, would keep a stopped server from ending.
"""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel

T = TypeVar("T")


async def run_in_thread(
    work: Callable[[], T], errors: tuple[type[Exception], ...], *limiters: anyio.CapacityLimiter
) -> T:
    """Return the result of `work`, or raise its exception, which may be one of `errors`.

    A cancelled call is abandoned: its thread ends by itself, and keeps its places of the limiters until then.
    """
    call = _Call(work, errors)
    with ExitStack() as held:
        for limiter in limiters:
            await limiter.acquire_on_behalf_of(call)
            held.callback(limiter.release_on_behalf_of, call)
        call.begin()
        call.held = held.pop_all()  # the call ends on this event loop, so not before this line
    return await call.outcome()


async def run_in_long_thread(
    work: Callable[[], T], errors: tuple[type[Exception], ...], limiter: anyio.CapacityLimiter
) -> T:
    """Run `work` that may take minutes; a cancelled call gives its place back at once."""
    call = _Call(work, errors)
    async with limiter:
        call.begin()
        return await call.outcome()


class _Thread:
    """A thread that runs one function after the other."""

    def __init__(self) -> None:
        self._todo: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="mcp-workflows call to AWS").start()

    def do(self, work: Callable[[], None]) -> None:
        """Run a function as soon as the thread is free."""
        self._todo.put(work)

    def _work(self) -> None:
        """Run functions for ever; an unexpected exception goes to `threading.excepthook` and ends the thread."""
        while True:
            self._todo.get()()
            _IDLE.append(self)


_IDLE: Final[deque[_Thread]] = deque()


class _Call(Generic[T]):
    """One call of a function in a thread, and its outcome."""

    def __init__(self, work: Callable[[], T], errors: tuple[type[Exception], ...]) -> None:
        self._work = work
        self._errors = errors
        self._token = anyio.lowlevel.current_token()
        self._done = anyio.Event()
        self._results: list[T] = []
        self._error: Exception | None = RuntimeError("the thread of a call broke; see the log")
        self.held = ExitStack()  # its places of the limiters

    def begin(self) -> None:
        """Begin in an idle thread, or in a new one."""
        try:
            thread = _IDLE.pop()
        except IndexError:
            thread = _Thread()
        context = contextvars.copy_context()
        thread.do(lambda: context.run(self._run))

    async def outcome(self) -> T:
        """Wait for the outcome."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        """Run the function; called in the thread."""
        try:
            self._results.append(self._work())
            self._error = None
        except self._errors as error:
            self._error = error
        finally:
            with suppress(anyio.RunFinishedError):  # the event loop has ended
                anyio.from_thread.run_sync(self._over, token=self._token)

    def _over(self) -> None:
        """Note the outcome; called on the event loop."""
        self.held.close()
        self._done.set()
