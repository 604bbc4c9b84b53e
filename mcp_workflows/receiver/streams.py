"""Streams to clients: ended by a disconnect or an invalid token, and `subscriptions/listen`."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from math import ceil
from typing import Any, Final, TypeVar, cast

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.session import ServerSession
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcp_workflows.access import Principal
from mcp_workflows.errors import INTERNAL_ERROR, LimitReached, RequestError, WorkflowsError
from mcp_workflows.task import Task
from mcp_workflows.tasks.service import TaskService
from mcp_workflows.units import utc_now
from mcp_workflows.wire import v2026_07_28 as wire
from mcp_workflows.wire.commands import TaskView

RECHECK_SECONDS: Final = 60.0  # between two checks of an open stream's token, which may have been revoked
_PRESENCE = "mcp_workflows.presence"  # its key in the ASGI scope

T = TypeVar("T")


class ClientStream:
    """The client of one HTTP request, with callbacks for its disconnect."""

    def __init__(self) -> None:
        self._on_end: set[Callable[[], None]] = set()
        self.retry_after: float | None = None  # seconds, for the response's header

    def end(self) -> None:
        """Note that the client has disconnected."""
        for act in tuple(self._on_end):
            act()

    @contextmanager
    def on_end(self, act: Callable[[], None]) -> Generator[None]:
        """Call `act` if the client disconnects within this context."""
        self._on_end.add(act)
        try:
            yield
        finally:
            self._on_end.discard(act)


class DisconnectMiddleware:
    """ASGI middleware that detects when a client closes its connection.

    It also adds `Retry-After` to responses about a limit that resets with time.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its `ClientStream`."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        presence = ClientStream()

        async def received() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                presence.end()
            return message

        def sent(message: Message) -> Awaitable[None]:
            if presence.retry_after is not None and message["type"] == "http.response.start":
                after = (b"retry-after", str(ceil(presence.retry_after)).encode())
                message = {**message, "headers": [*message.get("headers", ()), after]}
            return send(message)

        with suppress(ClientDisconnect):  # the client left before the end of its request, which is no error
            await self._app({**scope, _PRESENCE: presence}, received, sent)


def note_retry_after(ctx: ServerRequestContext[Any, Any], error: RequestError) -> None:
    """Add the wait of a reached limit to the response's headers, for proxies and clients that only know HTTP.

    The status stays that of other JSON-RPC errors: a client that treats 429 as a transport error would not read the
    body.
    """
    if isinstance(error, LimitReached) and (stream := _stream_of(ctx)):
        stream.retry_after = error.retry_after


def _stream_of(ctx: ServerRequestContext[Any, Any]) -> ClientStream | None:
    """Return the client of an HTTP request that passed `DisconnectMiddleware`."""
    return None if ctx.request is None else ctx.request.scope.get(_PRESENCE)


async def until_disconnected(
    ctx: ServerRequestContext[Any, Any],  # Any: the lifespan and the transport are the user's
    serve: Callable[[], Awaitable[T]],
    *,
    needed: bool,
    on_left: Callable[[], None] | None = None,
) -> T:
    """Return the result of `serve`, and detect a disconnect of the client (see `DisconnectMiddleware`).

    If `needed`, a disconnect cancels it. Otherwise it calls `on_left`, unless the client can resume the stream.
    """
    stream = _stream_of(ctx)
    if stream is not None and needed:
        with anyio.CancelScope() as scope, stream.on_end(scope.cancel):
            return await serve()
        raise RequestError(INTERNAL_ERROR, "the client has left")  # never read
    if stream is None or on_left is None or ctx.close_sse_stream is not None:
        return await serve()
    with stream.on_end(on_left):
        return await serve()


logger = logging.getLogger(__name__)


class _TaskNotification(types.Notification[dict[str, Any], str]):
    method: str = wire.NOTIFICATION
    params: dict[str, Any]


class TaskSubscription:
    """One `subscriptions/listen` stream: the SDK's handler sends its own events, and this class adds the tasks."""

    def __init__(
        self, ctx: ServerRequestContext[Any, Any], service: TaskService, tasks: Sequence[Task], principal: Principal
    ) -> None:
        self._ctx = ctx
        self._service = service
        self._tasks = tasks
        self._principal = principal
        self._acknowledged = anyio.Event()

    async def serve(self, call_next: CallNext) -> HandlerResult:
        """Serve the stream until the client closes it."""
        session = cast("ServerSession", _AcknowledgingSession(self._ctx.session, self))
        async with _background_group() as group:
            for task in self._tasks:
                group.start_soon(self._pump, task)
            return await call_next(replace(self._ctx, session=session))
        return None  # unreachable: nothing else ends the group

    async def acknowledge(
        self, session: ServerSession, notification: types.SubscriptionsAcknowledgedNotification
    ) -> None:
        """Send the first frame of the stream, with the accepted task ids."""
        honored = notification.params.notifications.model_dump(by_alias=True, exclude_none=True)
        honored["taskIds"] = [task.id for task in self._tasks]
        params = notification.params.model_copy(update={"notifications": types.SubscriptionFilter(**honored)})
        await session.send_notification(
            notification.model_copy(update={"params": params}), related_request_id=self._ctx.request_id
        )
        self._acknowledged.set()

    async def _pump(self, task: Task) -> None:
        await self._acknowledged.wait()
        try:
            await self._service.follow(task, self._notify, self._principal)
        except WorkflowsError as error:
            logger.info("a subscription to a task ended: %s", error)

    async def _notify(self, task: TaskView) -> None:
        assert self._ctx.request_id is not None
        urls = wire.client_of(self._ctx.params or {}).takes_urls
        params = wire.notification(task, self._ctx.request_id, takes_urls=urls)
        await self._ctx.session.send_notification(
            cast("types.ServerNotification", _TaskNotification(params=params)), related_request_id=self._ctx.request_id
        )


class _AcknowledgingSession:
    """The session for the SDK's listen handler, which routes the acknowledgement through us."""

    def __init__(self, session: ServerSession, listening: TaskSubscription) -> None:
        self._session = session
        self._listening = listening

    def __getattr__(self, name: str) -> Any:  # Any: all other attributes of the session
        return getattr(self._session, name)

    async def send_notification(
        self, notification: types.ServerNotification, related_request_id: types.RequestId | None = None
    ) -> None:
        """Pass a notification on; add our task ids to the acknowledgement."""
        if isinstance(notification, types.SubscriptionsAcknowledgedNotification):
            await self._listening.acknowledge(self._session, notification)
        else:
            await self._session.send_notification(notification, related_request_id)


async def while_admitted(principal: Principal, serve: Callable[[], Awaitable[T]]) -> T | None:
    """Return the result of `serve`; None if it was cancelled because the principal is no longer admitted.

    That is when the token has expired, or is refused at a check every `RECHECK_SECONDS`.
    """
    if principal.expires is None and principal.recheck is None:
        return await serve()
    async with _background_group() as group:
        group.start_soon(_cancel_once_refused, principal, group.cancel_scope)
        return await serve()
    return None


async def _cancel_once_refused(principal: Principal, stream: anyio.CancelScope) -> None:
    while True:
        left = RECHECK_SECONDS if principal.expires is None else (principal.expires - utc_now()).total_seconds()
        await anyio.sleep(min(left, RECHECK_SECONDS))
        if await principal.revalidated(utc_now()) is None:
            logger.info("a stream was closed: its token is no longer valid")
            stream.cancel()
            return


@asynccontextmanager
async def _background_group() -> AsyncGenerator[TaskGroup]:
    """Yield a task group that ends with its body; raise errors without a group around them."""
    try:
        async with anyio.create_task_group() as group:
            yield group
            group.cancel_scope.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
