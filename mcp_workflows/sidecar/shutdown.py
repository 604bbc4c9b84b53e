"""How the sidecar ends: not ready any more, then nothing waits any more, then it is gone."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType

import anyio
import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_workflows.errors import ServerStopping, WorkflowsError

_ANSWER_WITHIN = 1.0  # seconds for calls that waited to get their answers out, before connections are closed
_FLUSH = 0.25  # seconds for the same on stdio, where nobody tells when they are out
_CHUNK = 65536  # bytes

_CUT = JSONResponse(
    {"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": str(ServerStopping())}}, status_code=503
)

Stop = Callable[[], None]


@dataclass(slots=True)
class Ending:
    """How far the end has come, and what is under way; it changes as it goes, which is why this is not frozen."""

    stopping: bool = False
    answering: int = 0  # POST requests without their whole response


class Beginning:
    """ASGI middleware for an end before anything is served: what we raise on purpose then is kept as `failure`.

    It is a message for who starts the server; without this, uvicorn logs a stack trace and tells nobody.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.failure: WorkflowsError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""

        async def tell(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed":  # sent by Starlette while it handles the exception
                error = sys.exception()
                if isinstance(error, WorkflowsError):
                    self.failure, message = error, {**message, "message": ""}
            await send(message)

        await self._app(scope, receive, tell if scope["type"] == "lifespan" else send)


class Ended:
    """ASGI middleware for a good end.

    It counts the requests under way that get an answer, which are all but standalone streams, and ends what is cut by
    the end of the server in the way of HTTP: uvicorn and sse-starlette do not.
    """

    def __init__(self, app: ASGIApp, ending: Ending) -> None:
        self._app = app
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        counts, begun, whole = scope["method"] == "POST", False, False

        async def sent(message: Message) -> None:
            nonlocal begun, whole
            begun = True
            whole = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        self._ending.answering += counts
        try:
            await self._app(scope, receive, sent)
        except anyio.get_cancelled_exc_class():  # as uvicorn does with what has not ended by itself
            if not self._ending.stopping:
                raise
        finally:
            self._ending.answering -= counts
        if begun and not whole and self._ending.stopping:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif not begun and self._ending.stopping:
            await _CUT(scope, receive, send)


class DrainingServer(uvicorn.Server):
    """Uvicorn that goes on serving for a while after SIGTERM or SIGHUP, so that load balancers notice; exits with 0.

    It waits for requests under way before it stops; ours can take days, so `stop` ends them first.
    """

    def __init__(self, settings: uvicorn.Config, *, ending: Ending, drain: timedelta, stop: Stop) -> None:
        super().__init__(settings)
        self._ending = ending
        self._drain = drain.total_seconds()
        self._stop = stop
        self._end_at: float | None = None  # when nothing waits any more, of the monotonic clock
        self._cut_at: float | None = None  # when connections are closed, answered or not

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Those that uvicorn handles, and SIGHUP."""
        with super().capture_signals():
            before = {number: signal.signal(number, self.handle_exit) for number in _hanging_up()}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM and SIGHUP drain first, Ctrl-C does not; a second signal ends the drain, a third waits for nobody.

        Not uvicorn's own: it would raise the signal again at the end, and what sse-starlette has put in its place
        cuts the streams of 2025-11-25 before their calls have been answered.
        """
        now = time.monotonic()
        if not self.started:
            self.should_exit = True
        elif self._end_at is None:
            self._end_at = now + (0 if sig == signal.SIGINT else self._drain)
        elif now < self._end_at:
            self._end_at = now
        else:
            self.should_exit = self.force_exit = True
        self._ending.stopping = True

    async def on_tick(self, counter: int) -> bool:
        """Whether to exit; uvicorn asks ten times a second."""
        now = time.monotonic()
        if self._cut_at is None and self._end_at is not None and now >= self._end_at:
            self._stop()
            self._cut_at = now + _ANSWER_WITHIN
        elif self._cut_at is not None and (not self._ending.answering or now >= self._cut_at):
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; whichever way it came to that, nothing waits any more."""
        if self._cut_at is None:
            self._stop()
        await super().shutdown(sockets)


@asynccontextmanager
async def ending_on_signals(stop: Stop) -> AsyncGenerator[None]:
    """On stdio: SIGTERM, SIGHUP and SIGINT end standard input, as a client that closes it; `stop` what waits before.

    A second signal does what signals do.
    """
    stdin = _closable_stdin()
    if stdin is None:
        yield
        return
    async with anyio.create_task_group() as group:
        group.start_soon(_close_on_signal, stdin, stop)
        yield
        group.cancel_scope.cancel()


async def _close_on_signal(stdin: socket.socket, stop: Stop) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *_hanging_up()) as signals:
        async for _ in signals:
            stop()
            await anyio.sleep(_FLUSH)
            with suppress(OSError):  # its client has closed it meanwhile
                stdin.shutdown(socket.SHUT_WR)
            return


def _hanging_up() -> Sequence[signal.Signals]:
    """SIGHUP; not on Windows, which has none, nor where the process was started to ignore it (`nohup`)."""
    if sys.platform == "win32" or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return ()
    return (signal.SIGHUP,)


def _closable_stdin() -> socket.socket | None:
    """Put a socket in the place of standard input: what reads from a pipe in a thread cannot be interrupted.

    None where that cannot be done: on Windows, and without a standard input.
    """
    if sys.platform == "win32":
        return None
    try:
        source = os.dup(0)
    except OSError:
        return None
    inside, outside = socket.socketpair()
    with inside:
        os.dup2(inside.fileno(), 0)
    threading.Thread(target=_pump, args=(source, outside), name="stdin", daemon=True).start()
    return outside


def _pump(source: int, target: socket.socket) -> None:
    with suppress(OSError):  # whoever reads has gone
        while data := os.read(source, _CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
