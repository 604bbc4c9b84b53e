"""The one middleware: serves what is ours, passes on the rest."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self, TypeAlias

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity, authenticated_principal
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import jsonrpc
from pydantic import BaseModel, ValidationError

from mcp_workflows.access import ANONYMOUS, Principal
from mcp_workflows.adapter import JSON, Adapter
from mcp_workflows.bridge import Bridge
from mcp_workflows.capabilities import Finding
from mcp_workflows.engines import Engines
from mcp_workflows.errors import ConfigError, RequestError, WorkflowsError
from mcp_workflows.ledger import Ledger, utc_now
from mcp_workflows.pacing import Pacing
from mcp_workflows.receiver.ended import Ended
from mcp_workflows.receiver.offer import Offer
from mcp_workflows.receiver.streams import Listening, Progress
from mcp_workflows.result import task_of
from mcp_workflows.store import Store, open_store
from mcp_workflows.tool import Tool
from mcp_workflows.trial import Trial
from mcp_workflows.wire import v2026_07_28 as wire
from mcp_workflows.wire.commands import Cancel, Described, Get, Outcome, Read, Update

logger = logging.getLogger(__name__)

DIALOGUE_SECONDS = 24 * 3600.0  # how long a person may take to answer the questions before a start
_SEALING_KEY = "request-state"  # its name in the store

Context: TypeAlias = ServerRequestContext[Any, Any]  # Any: the lifespan and the transport are the user's
AnyServer: TypeAlias = Server[Any] | MCPServer[Any]  # Any: likewise


@dataclass(slots=True)
class _State:
    """The call at hand: what was offered when it came, and its `requestState` in plain text, in and then out.

    While a tool function of the server's own runs, also its context, and what came of it if it handed over.
    """

    offer: Offer
    text: str | None = None
    ctx: Context | None = None
    handed: bool = False
    outcome: Outcome | None = None


_state: ContextVar[_State] = ContextVar("mcp_workflows_request_state")


class Workflows:
    """Our tools on a server; an async context manager that the server's lifespan enters."""

    def __init__(
        self,
        server: AnyServer,
        *,
        tools: Mapping[str, Tool],
        engines: Engines,
        store: Store,
        retention: timedelta,
        strict_headers: bool,
        pacing: Pacing,
    ) -> None:
        self._server = server
        self._offer = Offer.of(tools)
        self._engines = engines
        self._store = store
        self._retention = retention
        self._strict_headers = strict_headers
        self._pacing = pacing
        self._ended = Ended()
        self._stack = AsyncExitStack()
        self._ledger: Ledger | None = None
        self._boundary: RequestStateBoundary | None = None
        self._methods: Mapping[str, Callable[[Context, CallNext], Awaitable[HandlerResult]]] = {
            "server/discover": self._discover,
            "tools/list": self._list,
            "tools/call": self._call,
            "resources/read": self._read,
            "subscriptions/listen": self._listen,
            **dict.fromkeys(wire.TASK_METHODS, self._task_request),
            **dict.fromkeys(wire.REMOVED_METHODS, self._removed),
        }

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._refuse_taken_names(self._offer.tools)
            store = await stack.enter_async_context(self._store)
            security = RequestStateSecurity(keys=[await store.secret(_SEALING_KEY)], ttl=DIALOGUE_SECONDS)
            self._boundary = RequestStateBoundary(security, default_audience=self._server.name)
            engines = await stack.enter_async_context(self._engines)
            ledger = Ledger(store=store, engines=engines, retention=self._retention, pacing=self._pacing)
            self._ledger = await stack.enter_async_context(ledger)
            self._offer = self._new_offer(self._offer.tools)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._offer = replace(self._offer, bridge=None)
        return await self._stack.__aexit__(kind, error, trace)

    @property
    def bridge(self) -> Bridge:
        """What serves the commands, while entered."""
        return _entered(self._offer)

    @property
    def tools(self) -> Mapping[str, Tool]:
        """Those that are offered now."""
        return self._offer.tools

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        """The engines' adapters now, by engine."""
        return self._engines.adapters

    async def swap(self, tools: Mapping[str, Tool], adapters: Mapping[str, Adapter]) -> bool:
        """Offer these from now on, as a whole; whether that changes what clients see listed.

        Calls under way finish with what was offered when they came; adapters in both sets stay open. Tasks keep the
        settings they started with.

        Raises:
            ConfigError: the server has tools of these names, or an adapter cannot be opened; all is as it was.
        """
        await self._refuse_taken_names(tools)
        opened = await self._engines.opened(adapters)
        before = self._offer
        self._engines.use(opened)
        self._offer = self._new_offer(tools)
        return self._offer.listed != before.listed

    def _new_offer(self, tools: Mapping[str, Tool]) -> Offer:
        if self._ledger is None:
            return Offer.of(tools)
        return Offer.of(tools, Bridge(tools=tools, ledger=self._ledger, retention=self._retention))

    def stop(self) -> None:
        """End all waiting calls, so that the server can stop at once; the workflows go on."""
        if self._ledger is not None:
            self._ledger.stop()

    @property
    def alive(self) -> bool:
        """Whether they are entered, and what watches and heals in the background is there."""
        return self._offer.bridge is not None

    async def ready(self) -> None:
        """Raise `StoreUnavailable` if tasks cannot be read and written now."""
        await self._store.check()

    async def check_engines(self) -> Mapping[str, Finding]:
        """How each engine is, by name."""
        return await self._engines.check()

    @asynccontextmanager
    async def testing(self) -> AsyncGenerator[Trial]:
        """For unit tests of your own server: no engine and no store of yours, but workflows that do as the test says.

        Enter it before the server runs; see `Trial`.

        Raises:
            ConfigError: the workflows are entered already.
        """
        if self.alive:
            raise ConfigError("testing() comes first: enter it before the server enters the workflows")
        trial, own = Trial(), (self._engines, self._store)
        with TemporaryDirectory() as folder:
            self._engines = Engines({name: trial.adapter() for name in self._engines.names})
            self._store = open_store(f"sqlite:///{folder}/tasks.db")
            try:
                yield trial
            finally:
                self._engines, self._store = own

    async def hand_over(self, tool: str, arguments: Mapping[str, JSON]) -> types.CallToolResult:
        """From inside a tool function of your own: the workflow of `tool` finishes this call. Return what you get.

        The client hears what a call of `tool` would tell it: a task, or the plain result if it takes none. Questions
        of the workflow reach clients with tasks only.

        Raises:
            RequestError: not inside a tool function, a second time in one call, or there is no such tool.
        """
        state = _state.get(None)
        if state is None or state.ctx is None:
            raise RequestError(jsonrpc.INTERNAL_ERROR, "hand_over() works inside a tool function of this server only")
        if tool not in state.offer.tools:
            raise RequestError(jsonrpc.INTERNAL_ERROR, f"hand_over(): there is no tool {tool!r}")
        if state.handed:
            raise RequestError(jsonrpc.INTERNAL_ERROR, "hand_over() comes once in a call: one workflow finishes it")
        params = {**(state.ctx.params or {}), "name": tool, "arguments": dict(arguments), "inputResponses": {}}
        call = replace(wire.parse_call(params, _client(state.ctx)), takes_questions=False)
        report, state.handed = Progress(state.ctx.session).report, True
        try:
            state.outcome = await _entered(state.offer).call(call, _principal(state.ctx), report)
        except WorkflowsError:
            state.handed = False
            raise
        return types.CallToolResult(content=[])

    async def _refuse_taken_names(self, tools: Mapping[str, Tool]) -> None:
        if not isinstance(self._server, MCPServer):
            return
        taken = {tool.name for tool in await self._server.list_tools()} & tools.keys()
        if taken:
            raise ConfigError(f"the server has tools of its own named {', '.join(sorted(taken))}: rename one of each")

    # --- the middleware, in two parts around the server's own

    async def seal(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Our calls' `requestState`, sealed with a key that replicas and restarts share.

        It stands before the server's own boundary (whose key may be its process's own) and hides our state from it.
        """
        if ctx.method != "tools/call" or self._boundary is None:
            return await call_next(ctx)
        state = _State(offer=self._offer)
        if not state.offer.shows(_name(ctx)):
            with _at_hand(state):
                return await call_next(ctx)

        async def hide(ctx: Context) -> HandlerResult:
            params = dict(ctx.params or {})
            state.text = params.pop("requestState", None)
            with _at_hand(state):
                result = await call_next(replace(ctx, params=params))
            if isinstance(result, dict) and result.get("resultType") == "input_required":
                return {**result, "requestState": state.text}
            return result

        return await self._boundary(ctx, hide)

    async def serve(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Serve what is ours, pass on the rest; every error that leaves here is fit for a client."""
        method = self._methods.get(ctx.method)
        handshaken = ctx.protocol_version == wire.PROTOCOL_VERSION or ctx.session.client_params is not None
        if ctx.request_id is None or method is None or not handshaken:
            return await call_next(ctx)
        try:
            return await method(ctx, call_next)
        except RequestError as error:
            raise MCPError(error.code, error.message, error.data) from None
        except WorkflowsError as error:
            raise MCPError(jsonrpc.INTERNAL_ERROR, str(error)) from None
        except (MCPError, ValidationError):  # the SDK knows what to make of these
            raise
        except Exception:
            logger.exception("%s failed", ctx.method)
            raise MCPError(jsonrpc.INTERNAL_ERROR, "Internal error") from None

    # --- the methods

    async def _discover(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        result = _plain(await call_next(ctx))
        return wire.with_extension(result)

    async def _list(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """The server's own tools first, then ours in the order of the configuration, on the last page."""
        result = _plain(await call_next(ctx))
        if result.get("nextCursor"):
            return result
        return {**result, "tools": [*result["tools"], *self._offer.listed]}

    async def _call(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        state = _state.get(None) or _State(offer=self._offer)
        if not state.offer.shows(_name(ctx)):
            state.ctx = ctx
            try:
                result = await call_next(ctx)
            finally:
                state.ctx = None  # what the function left behind in the background cannot hand over any more
            if state.outcome is None or _plain(result).get("isError"):
                return result
            return self._finish(ctx, wire.render(state.outcome))
        params = ctx.params or {}
        client = _client(ctx)
        call = replace(wire.parse_call(params, client), state=state.text)
        outcome = await _entered(state.offer).call(call, _principal(ctx), Progress(ctx.session).report)
        rendered = wire.render(outcome)
        state.text = rendered.get("requestState")
        return self._finish(ctx, rendered)

    async def _task_request(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.protocol_version != wire.PROTOCOL_VERSION:
            return await call_next(ctx)
        command = wire.parse_task_request(ctx.method, ctx.params or {}, _client(ctx))
        wire.check_name_header(_name_header(ctx), command.task_id, strict=self._strict(ctx))
        principal = _principal(ctx)
        if isinstance(command, Get) and (kept := self._ended.find(command.task_id, principal.id, utc_now())):
            return kept
        outcome = await self._do(command, principal)
        result = self._finish(ctx, wire.render(outcome))
        if isinstance(outcome, Described):
            self._ended.keep(outcome.task, principal.id, result)
        return result

    async def _do(self, command: Get | Update | Cancel, principal: Principal) -> Outcome:
        match command:
            case Get():
                return await self.bridge.get(command, principal)
            case Update():
                return await self.bridge.update(command, principal)
            case Cancel():
                return await self.bridge.cancel(command, principal)

    async def _removed(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.protocol_version != wire.PROTOCOL_VERSION:
            return await call_next(ctx)
        raise MCPError(jsonrpc.METHOD_NOT_FOUND, "Method not found", ctx.method)

    async def _read(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        uri = (ctx.params or {}).get("uri")
        task_id = task_of(uri) if isinstance(uri, str) else None
        if task_id is None:
            return await call_next(ctx)
        document = await self.bridge.read(Read(task_id=task_id), _principal(ctx))
        return self._finish(ctx, wire.render(document))

    async def _listen(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        modern = ctx.protocol_version == wire.PROTOCOL_VERSION
        command = wire.parse_listen(ctx.params or {}, _client(ctx)) if modern else None
        if command is None:
            return await call_next(ctx)
        tasks = await self.bridge.listen(command, _principal(ctx))
        return await Listening(ctx, self.bridge, tasks).serve(call_next)

    # --- envelopes

    def _strict(self, ctx: Context) -> bool:
        return self._strict_headers and ctx.request is not None

    def _finish(self, ctx: Context, result: dict[str, Any]) -> dict[str, Any]:
        """A result that does not pass through the SDK's own envelope gets it here (2026-07-28, or none before)."""
        if ctx.protocol_version != wire.PROTOCOL_VERSION:
            return {key: value for key, value in result.items() if key not in {"resultType", "ttlMs", "cacheScope"}}
        meta: Mapping[str, JSON] = result.get("_meta", {})
        return {**result, "_meta": {types.SERVER_INFO_META_KEY: self._server_info(), **meta}}

    def _server_info(self) -> Mapping[str, JSON]:
        server = self._server
        if isinstance(server, Server):
            return server.server_info_stamp
        found = types.Implementation(
            name=server.name,
            version=server.version or "",
            title=server.title,
            description=server.description,
            website_url=server.website_url,
            icons=server.icons,
        )
        return found.model_dump(by_alias=True, mode="json", exclude_none=True)


@contextmanager
def _at_hand(state: _State) -> Generator[None]:
    token = _state.set(state)
    try:
        yield
    finally:
        _state.reset(token)


def _entered(offer: Offer) -> Bridge:
    if offer.bridge is None:
        raise RequestError(jsonrpc.INTERNAL_ERROR, "workflows are not entered: enter them in the server's lifespan")
    return offer.bridge


def _plain(result: HandlerResult) -> dict[str, Any]:
    if isinstance(result, BaseModel):
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return dict(result or {})


def _name(ctx: Context) -> JSON:
    name = (ctx.params or {}).get("name")
    return name if isinstance(name, str) else None


def _client(ctx: Context) -> wire.Client:
    """What the client declared on this request; an older protocol knows no tasks of this kind and no rounds."""
    if ctx.protocol_version != wire.PROTOCOL_VERSION:
        return wire.Client(takes_tasks=False, takes_questions=False)
    return wire.client_of(ctx.params or {})


def _principal(ctx: Context) -> Principal:
    owner = authenticated_principal(ctx)
    return ANONYMOUS if owner is None else Principal(id=owner)


def _name_header(ctx: Context) -> str | None:
    """The `Mcp-Name` header; None on stdio or when it was not sent, empty when it cannot be decoded."""
    if ctx.request is None:
        return None
    raw = ctx.request.headers.get(MCP_NAME_HEADER)
    return None if raw is None else decode_header_value(raw) or ""
