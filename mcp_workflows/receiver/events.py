"""Client requests about events, in every revision; see `wire.events`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

import mcp_types as types
from mcp.server.context import HandlerResult

from mcp_workflows.access import Principal
from mcp_workflows.access.rate_limits import RateLimits
from mcp_workflows.adapter import JSON
from mcp_workflows.errors import INVALID_PARAMS, LimitReached, RequestError, ServerStopping
from mcp_workflows.events.service import MOST_EVENTS, EventService
from mcp_workflows.events.subscriptions import owner_key, trouble
from mcp_workflows.receiver.context import Context
from mcp_workflows.wire import events as wire


class _EventNotification(types.Notification[dict[str, Any], str]):
    method: str
    params: dict[str, Any]


class EventRequests:
    """Serves the methods of events."""

    def __init__(self, events: EventService, meters: RateLimits) -> None:
        self._events = events
        self._meters = meters

    async def serve(self, ctx: Context, principal: Principal) -> HandlerResult:
        """Return the result of a request.

        Raises:
            RequestError: its JSON-RPC error.
        """
        try:
            return await self._serve(ctx, principal)
        except LimitReached as reached:
            data: dict[str, JSON] = {"limit": "streams" if ctx.method == wire.Method.STREAM else "requests"}
            raise RequestError(wire.Code.EXHAUSTED, reached.message, {**data, **(reached.data or {})}) from None

    async def _serve(self, ctx: Context, principal: Principal) -> HandlerResult:
        self._meters.count_poll(principal)
        params = ctx.params or {}
        if ctx.method == wire.Method.LIST:
            if params.get("cursor") is not None:
                raise RequestError(INVALID_PARAMS, "unknown cursor: all events are on the first page")
            found = await self._events.types(principal)
            return {"events": [kind.listed(tools) for kind, tools in found.values()]}
        wanted = wire.parse_wanted(params)
        match ctx.method:
            case wire.Method.POLL:
                most = wire.parse_most(params, MOST_EVENTS)
                return wire.polled(await self._events.poll(wanted, most, principal))
            case wire.Method.SUBSCRIBE:
                return wire.subscribed(await self._events.subscribe(wanted, wire.parse_webhook(params), principal))
            case wire.Method.UNSUBSCRIBE:
                await self._events.unsubscribe(wanted, wire.parse_webhook(params, has_secret=False), principal)
                return {}
            case _:
                with self._meters.listening(principal):
                    await self._stream(ctx, wanted, principal)
                return {"_meta": {wire.SUBSCRIPTION_ID: ctx.request_id}}

    async def lost(self, principal: Principal) -> Sequence[str]:
        """Return a text about each subscription of the caller that no longer gets events."""
        found = await self._events.subscriptions.states(owner_key(principal.id))
        return [
            f"The subscription to {each.name} {json.dumps(each.arguments)} is lost: {why}. Tell the user; subscribe "
            "again to restore it."
            for each, state in found
            if (why := trouble(each, state, self._events.clock()))
        ]

    async def _stream(self, ctx: Context, wanted: wire.Wanted, principal: Principal) -> None:
        """Send the events of a stream until it ends; raise an error before the first frame as the request's error."""

        async def send(notice: wire.Notice, params: Mapping[str, JSON]) -> None:
            content = {**params, "_meta": {wire.SUBSCRIPTION_ID: ctx.request_id}}
            notification = _EventNotification(method=notice.value, params=content)
            await ctx.session.send_notification(
                cast("types.ServerNotification", notification), related_request_id=ctx.request_id
            )

        is_active = False
        try:
            async with aclosing(self._events.stream(wanted, principal)) as notices:
                async for notice, params in notices:
                    await send(notice, params)
                    is_active = True
        except ServerStopping:
            return
        except RequestError as error:
            if not is_active:
                raise
            await send(wire.Notice.TERMINATED, wire.terminated(error))
