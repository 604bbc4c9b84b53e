"""Blocking calls in threads that block neither the event loop nor the exit of the process.

At exit, the interpreter waits for the threads of anyio and `concurrent.futures`, so one endpoint that never replies
would keep a stopped server alive. It does not wait for these daemon threads.
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

__all__ = ["BlockingCall", "begin_call"]

T = TypeVar("T")


class BlockingCall(Generic[T]):
    """A function that runs in a thread at once; any number of tasks can await its outcome."""

    def __init__(self, function: Callable[[], T], *, errors: tuple[type[Exception], ...] = (Exception,)) -> None:
        """Call the function with a copy of the current context, in an idle thread or in a new one.

        Waiting tasks get the exceptions of `errors`. Any other exception is a defect: it goes to
        `threading.excepthook`, and the waiting tasks get a `RuntimeError`.
        """
        self._function = function
        self._errors = errors
        self.places = ExitStack()  # released, on the event loop, when the function has ended
        self._token = anyio.lowlevel.current_token()
        self._ended = anyio.Event()
        self._results: list[T] = []
        self._error: Exception = RuntimeError("the thread of a blocking call broke; see the log")
        context = contextvars.copy_context()
        try:
            thread = _IDLE.pop()
        except IndexError:
            thread = _Thread()
        thread.todo.put(lambda: context.run(self._run))

    @property
    def ended(self) -> bool:
        """True once there is a result or an error."""
        return self._ended.is_set()

    async def outcome(self) -> T:
        """Wait until the function has ended; return its result or raise its error.

        If the caller is cancelled, the function continues.
        """
        await self._ended.wait()
        return self.result()

    def result(self) -> T:
        """Return the result of an ended call, or raise its error."""
        if self._results:
            return self._results[0]
        raise self._error

    def _run(self) -> None:
        """Run in the thread."""
        try:
            self._results.append(self._function())
        except self._errors as error:
            self._error = error
        finally:
            with suppress(anyio.RunFinishedError):  # the event loop has ended
                anyio.from_thread.run_sync(self._end, token=self._token)

    def _end(self) -> None:
        """Run on the event loop."""
        self.places.close()
        self._ended.set()


async def begin_call(
    function: Callable[[], T], *limiters: anyio.CapacityLimiter, errors: tuple[type[Exception], ...] = (Exception,)
) -> BlockingCall[T]:
    """Begin a blocking call as soon as each limiter has a free place.

    The call holds its places until the function has ended, even if its caller no longer waits.
    """
    borrower = object()
    with ExitStack() as places:
        for limiter in limiters:
            await limiter.acquire_on_behalf_of(borrower)
            places.callback(limiter.release_on_behalf_of, borrower)
        call = BlockingCall(function, errors=errors)
        call.places = places.pop_all()  # not too late: the function ends on this event loop
    return call


class _Thread:
    """A thread that runs one function after another until one has a defect."""

    def __init__(self) -> None:
        self.todo: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="mcp-workflows blocking call").start()

    def _work(self) -> None:
        while True:
            self.todo.get()()
            _IDLE.append(self)


_IDLE: Final[deque[_Thread]] = deque()
