"""Shutdown in steps: report not ready, end waiting calls, close connections."""

from __future__ import annotations

import logging
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

logger = logging.getLogger(__name__)

_ANSWER_WITHIN = 1.0  # seconds for the responses of waiting calls, before connections are closed
_FLUSH = 0.25  # seconds for the same on stdio, where delivery cannot be observed
_CHUNK = 65536  # bytes
MAX_LINE = 32 * 2**20  # bytes of a message on stdio

_CUT = JSONResponse(
    {"jsonrpc": "2.0", "id": None, "error": {"code": -32603, "message": str(ServerStopping())}}, status_code=503
)

Stop = Callable[[], None]


@dataclass(slots=True)
class ShutdownState:
    """The progress of the shutdown and the number of open requests; mutable."""

    stopping: bool = False
    answering: int = 0  # POST requests without a complete response


class StartupErrors:
    """ASGI middleware that keeps one of our errors during startup as `failure`.

    Its message is for the person who starts the server. Without this, uvicorn only logs a stack trace.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.failure: WorkflowsError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""

        async def tell(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed":  # Starlette sends this while it handles the exception
                error = sys.exception()
                if isinstance(error, WorkflowsError):
                    self.failure, message = error, {**message, "message": ""}
            await send(message)

        await self._app(scope, receive, tell if scope["type"] == "lifespan" else send)


class OpenRequests:
    """ASGI middleware that counts open requests, and completes the responses that a shutdown interrupts.

    Standalone streams do not count. uvicorn and sse-starlette would leave interrupted responses incomplete.
    """

    def __init__(self, app: ASGIApp, shutdown_state: ShutdownState) -> None:
        self._app = app
        self._state = shutdown_state

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

        self._state.answering += counts
        try:
            await self._app(scope, receive, sent)
        except anyio.get_cancelled_exc_class():  # uvicorn cancels requests that did not end in time
            if not self._state.stopping:
                raise
        finally:
            self._state.answering -= counts
        if begun and not whole and self._state.stopping:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif not begun and self._state.stopping:
            await _CUT(scope, receive, send)


class DrainingServer(uvicorn.Server):
    """Uvicorn that continues to serve after SIGTERM or SIGHUP, so that load balancers notice; the exit code is 0.

    Uvicorn waits for open requests before it stops. Ours can take days, so `stop` ends them first.
    """

    def __init__(
        self, settings: uvicorn.Config, *, shutdown_state: ShutdownState, drain: timedelta, stop: Stop
    ) -> None:
        super().__init__(settings)
        self._state = shutdown_state
        self._drain = drain.total_seconds()
        self._stop = stop
        self._end_at: float | None = None  # when waiting calls are ended, on the monotonic clock
        self._cut_at: float | None = None  # when connections are closed, with or without a response

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handle uvicorn's signals, and SIGHUP."""
        with super().capture_signals():
            before = {number: signal.signal(number, self.handle_exit) for number in _hangup_signals()}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain after SIGTERM and SIGHUP, not after Ctrl-C; a second signal ends the drain, a third closes connections.

        Uvicorn's own handler would raise the signal again at the end. The handler of sse-starlette would then close the
        streams of 2025-11-25 before the responses to their calls.
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
        self._state.stopping = True

    async def on_tick(self, counter: int) -> bool:
        """Return True to exit; uvicorn calls this ten times a second."""
        now = time.monotonic()
        if self._cut_at is None and self._end_at is not None and now >= self._end_at:
            self._stop()
            self._cut_at = now + _ANSWER_WITHIN
        elif self._cut_at is not None and (not self._state.answering or now >= self._cut_at):
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, and end waiting calls if that has not happened yet."""
        if self._cut_at is None:
            self._stop()
        await super().shutdown(sockets)


@asynccontextmanager
async def stop_on_signals(stop: Stop) -> AsyncGenerator[None]:
    """After SIGTERM, SIGHUP or SIGINT on stdio, `stop` waiting calls and close standard input, as a client does.

    A second signal has its usual effect.
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
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *_hangup_signals()) as signals:
        async for _ in signals:
            stop()
            await anyio.sleep(_FLUSH)
            with suppress(OSError):  # the client has closed it in the meantime
                stdin.shutdown(socket.SHUT_WR)
            return


def _hangup_signals() -> Sequence[signal.Signals]:
    """Return SIGHUP; nothing on Windows, which lacks it, or if the process ignores it (`nohup`)."""
    if sys.platform == "win32" or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return ()
    return (signal.SIGHUP,)


def _closable_stdin() -> socket.socket | None:
    """Replace standard input by a socket, because a thread that reads from a pipe cannot be interrupted.

    Return the other end; None on Windows, or without standard input.
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
    """Copy the input; end it if a line exceeds `MAX_LINE`, which would fill the memory."""
    length = 0  # bytes of the line that is being read
    with suppress(OSError):  # the reader has closed it
        while data := os.read(source, _CHUNK):
            end = data.rfind(b"\n")
            length = length + len(data) if end < 0 else len(data) - end - 1
            if length > MAX_LINE:
                logger.error("the client sent a line of more than %d bytes: the connection was closed", MAX_LINE)
                break
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
