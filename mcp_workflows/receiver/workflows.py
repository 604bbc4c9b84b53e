"""The workflows on a server: their lifetime, their tools and metrics, and the functions for the server's own code."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Container, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final, Self

import anyio
import mcp_types as types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.mcpserver import MCPServer
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import jsonrpc
from mcp_types.version import SUPPORTED_PROTOCOL_VERSIONS
from opentelemetry import trace
from pydantic import ValidationError

from mcp_workflows.access import Authorizer
from mcp_workflows.access.audit import Audit, counting, silent
from mcp_workflows.access.authn.settings import Owner
from mcp_workflows.access.limit_settings import UNLIMITED, Limits
from mcp_workflows.access.rate_limits import RateLimits
from mcp_workflows.adapter import JSON, Adapter, Notes
from mcp_workflows.adapter.memory import Script, ScriptedAdapter
from mcp_workflows.engines.polling.policy import PollingPolicy
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import ConfigError, EngineUnavailable, RequestError, StoreError, StoreUnusable, WorkflowsError
from mcp_workflows.events.delivery import Delivery
from mcp_workflows.events.endpoints import EventSettings
from mcp_workflows.events.notifications import Channels
from mcp_workflows.events.service import EventService
from mcp_workflows.receiver.context import AnyServer, Callers, Context, ProgressReports, client_of, host_of, name_of
from mcp_workflows.receiver.events import EventRequests
from mcp_workflows.receiver.http_limits import limit_requests
from mcp_workflows.receiver.middleware import Middleware, current_call
from mcp_workflows.receiver.task_tools.definitions import TAKEN, TASK_TOOL_NAMES, offered
from mcp_workflows.receiver.tool_list import Offer, Viewer
from mcp_workflows.receiver.webhooks import Webhooks, addresses
from mcp_workflows.store.key_value import notes_in
from mcp_workflows.store.protocol import Store, open_store
from mcp_workflows.task import engine_key
from mcp_workflows.tasks.executions import Executions
from mcp_workflows.tasks.gauges import TaskGauges
from mcp_workflows.tasks.maintenance import RetentionRound, retention_rounds
from mcp_workflows.tasks.pauses import Pause, Pauses
from mcp_workflows.tasks.service import NOT_FOUND, Authorization, TaskService
from mcp_workflows.telemetry import TOOL, Telemetry
from mcp_workflows.tools.tool import AnyTool
from mcp_workflows.units import utc_now
from mcp_workflows.wire import events as event_wire
from mcp_workflows.wire import v2025_11_25, v2026_07_28
from mcp_workflows.wire import v2026_07_28 as wire

logger = logging.getLogger(__name__)

DIALOGUE_SECONDS = 24 * 3600.0  # how long a person may take to answer the questions before a start
_SEALING_KEY = "request-state"  # its key in the store
_SETTINGS = "settings"  # the space of notes on the settings that a store depends on
_OWNER = "server.auth.owner"
_OWNERS_OF_PEOPLE: Final[Mapping[Owner, tuple[str, str]]] = {  # by setting: SQL patterns of ids, (like, not like)
    Owner.CLIENT: ('["%', "%,null]"),
    Owner.SUBJECT: ("[null,%", ""),
}
_EVERYBODY = [
    Viewer(identified=True, takes_tasks=takes, in_core=in_core, shows_cards=shows)
    for takes, in_core, shows in product((True, False), repeat=3)
]


class Workflows:
    """The workflows on a server; an async context manager that the server's lifespan enters."""

    def __init__(
        self,
        server: AnyServer,
        *,
        tools: Mapping[str, AnyTool],
        engines: Engines,
        store: Store,
        retention: timedelta,
        polling: PollingPolicy,
        my_tasks: bool,
        callers: Callers,
        limits: Limits = UNLIMITED,
        authorizer: Authorizer | None = None,
        audit: Audit = silent,
        events: EventSettings = EventSettings(),  # noqa: B008  # immutable
        notify: Channels | None = None,
    ) -> None:
        self._server = server
        self.channels: Channels = notify or {}  # of notifications
        self._event_settings = events
        self._events: EventService | None = None
        self.engines = engines
        self._store = store
        self._retention = retention
        self._polling = polling
        self.my_tasks = my_tasks  # clients with tasks get a tool that lists the caller's tasks
        self._audit = audit
        self._telemetry = engines.telemetry
        self._counted = counting(audit, self._telemetry)  # for refusals
        self._authorization = Authorization(tools, authorizer=authorizer, audit=self._counted)
        self.web_url: str | None = None  # of the pages for people, set before entering; None: no pages
        self._gauges: TaskGauges | None = None
        self._stack = AsyncExitStack()
        self._executions: Executions | None = None
        self.inbound = Webhooks(lambda: self.engines if self.alive else None)  # ASGI, to be mounted at `/engines`
        self._limits, self._meters = limits, RateLimits(limits, audit=self._counted)
        offer = Offer(tools=tools, my_tasks=my_tasks)
        self.middleware = Middleware(server, offer, callers, self._meters)
        self.measuring = RequestMetrics(self._telemetry, lambda: self.tools)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._refuse_taken_names(self.middleware.offer.tools)
            store = await stack.enter_async_context(self._store)
            if self.middleware.callers.owner is not None:
                await _check_owners(store, self.middleware.callers.owner)
            security = RequestStateSecurity(keys=[await store.secret(_SEALING_KEY)], ttl=DIALOGUE_SECONDS)
            self.middleware.boundary = RequestStateBoundary(security, default_audience=self._server.name)
            engines = await stack.enter_async_context(self.engines)
            executions = Executions(
                store=store,
                engines=engines,
                retention=self._retention,
                polling=self._polling,
                limits=self._limits,
                meters=self._meters,
                audit=self._audit,
                web_url=self.web_url,
            )
            self._executions = await stack.enter_async_context(executions)
            group = self.middleware.group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(group.cancel_scope.cancel)
            self._gauges = TaskGauges(self._store, self.engines, self._telemetry)
            group.start_soon(self._gauges.run)
            events = EventService(
                store=store,
                engines=engines,
                executions=executions,
                authorization=self._authorization,
                settings=self._event_settings,
                audit=self._audit,
            )
            self._events = await stack.enter_async_context(events)
            self.middleware.offer = self._new_offer(self.middleware.offer.tools)
            await events.begin_channels()
            for work in (events.log.run, events.interests.run, Delivery(store, events, self._telemetry).run):
                group.start_soon(work)
            self.middleware.events = EventRequests(events, self._meters)
            sender = self.middleware.callers.sender
            stack.enter_context(limit_requests(self._server, sender, self._meters, self._limits))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self.middleware.offer = replace(self.middleware.offer, service=None)
        return await self._stack.__aexit__(kind, error, trace)

    @property
    def service(self) -> TaskService:
        """The task service, while entered."""
        return self.middleware.offer.task_service

    @property
    def tools(self) -> Mapping[str, AnyTool]:
        """The tools currently offered."""
        return self.middleware.offer.tools

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        """The adapters in use, by engine."""
        return self.engines.adapters

    @property
    def called_at(self) -> Mapping[str, Sequence[str]]:
        """The URL paths at which workflows call their engine, by engine; engines without paths are omitted."""
        return {name: addresses(name, routes) for name, routes in self.engines.routes.items()}

    async def swap(
        self, tools: Mapping[str, AnyTool], adapters: Mapping[str, Adapter], channels: Channels | None = None
    ) -> bool:
        """Replace all tools and engines; return True if clients see a different list.

        Without `channels`, those of notifications stay. Calls in progress finish with their tools and engines; adapters
        in both sets stay open. Tasks keep the settings that they started with.

        Raises:
            ConfigError: the server has tools with these names, or an adapter cannot be opened; nothing has changed.
        """
        await self._refuse_taken_names(tools)
        opened = await self.engines.opened(adapters)
        before = self.middleware.offer
        self.engines.use(opened)
        self.channels = self.channels if channels is None else channels
        self.middleware.offer = self._new_offer(tools)
        if self._events is not None:
            with suppress(StoreError):  # a new channel then begins slightly later
                await self._events.begin_channels()
        ruled = [{name: tool.allow for name, tool in each.items()} for each in (before.tools, tools)]
        return ruled[0] != ruled[1] or any(
            self.middleware.offer.listed(viewer) != before.listed(viewer) for viewer in _EVERYBODY
        )

    def _new_offer(self, tools: Mapping[str, AnyTool]) -> Offer:
        executions = self._executions
        service: TaskService | None = None
        if executions is not None:
            self._authorization.use(tools)
            service = TaskService(
                tools=tools,
                executions=executions,
                retention=self._retention,
                authorization=self._authorization,
                audit=self._audit,
                limits=self._limits,
                meters=self._meters,
            )
        if service is not None and self._events is not None:
            self._events.use(tools, service, self.channels)
        return Offer(tools=tools, service=service, my_tasks=self.my_tasks)

    def stop(self) -> None:
        """End all waiting calls, so that the server can stop at once; the workflows continue."""
        if self._executions is not None:
            self._executions.stop()

    @property
    def audit(self) -> Audit:
        """The audit for refusals, which also counts them."""
        return self._counted

    @property
    def alive(self) -> bool:
        """True while the workflows are entered and their background work runs."""
        return self.middleware.offer.service is not None

    async def ready(self) -> None:
        """Raise an error if tasks cannot be created here now.

        Raises:
            StoreUnavailable: the store cannot be read and written.
            EngineUnavailable: an engine in this process does not run its workflows; the text omits the reason, as
                anybody may read it. A remote engine that is down does not count: tasks of other engines can be created.
        """
        await self._store.check()
        if stopped := self.engines.stopped:
            raise EngineUnavailable(f"{', '.join(stopped)} does not run its workflows: see /enginez, or the log")

    async def count(self) -> None:
        """Refresh the gauges of tasks, unless they were refreshed a few seconds ago."""
        if self.alive and self._gauges is not None:
            await self._gauges.take()

    async def retention_rounds(self) -> Mapping[str, RetentionRound]:
        """Return the last round over all tasks of each engine, by name; see `retention_rounds`."""
        return await retention_rounds(self._store, self.engines)

    async def pauses(self) -> Sequence[Pause]:
        """Return the operator's pauses, see `Pauses`."""
        return await Pauses(self._store, utc_now).every()

    @property
    def store(self) -> Store:
        """The store, open while the workflows are entered."""
        return self._store

    def notes(self, engine: str) -> Notes:
        """Return the notes of an engine in the store."""
        return notes_in(self._store)(engine_key(engine, self.engines.identity(engine)))

    @asynccontextmanager
    async def testing(self) -> AsyncGenerator[Script]:
        """Replace engines and store in unit tests of your server: workflows then follow the test's script.

        Enter it before the server runs; see `Script`.

        Raises:
            ConfigError: the workflows are already entered.
        """
        if self.alive:
            raise ConfigError("testing() comes first: enter it before the server enters the workflows")
        script, own = Script(), (self.engines, self._store)
        with TemporaryDirectory() as folder:
            self.engines = Engines({name: ScriptedAdapter(script) for name in self.engines.names})
            self._store = open_store(f"sqlite:///{folder}/tasks.db")
            try:
                yield script
            finally:
                self.engines, self._store = own

    async def hand_over(self, tool: str, arguments: Mapping[str, JSON]) -> types.CallToolResult:
        """Let the workflow of `tool` finish this call of your tool function; return the result from here.

        The client gets the reply of a call of `tool`: a task, or the plain result if the client does not take tasks.
        Questions of the workflow reach only clients with tasks.

        Raises:
            RequestError: called outside a tool function or twice in one call, or the tool does not exist.
        """
        state = current_call()
        if state is None or state.ctx is None:
            raise RequestError(jsonrpc.INTERNAL_ERROR, "hand_over() works inside a tool function of this server only")
        if tool not in state.offer.tools:
            raise RequestError(jsonrpc.INTERNAL_ERROR, f"hand_over(): there is no tool {tool!r}")
        if state.has_handed_over:
            raise RequestError(jsonrpc.INTERNAL_ERROR, "hand_over() works once per call: one workflow finishes it")
        params = {**(state.ctx.params or {}), "name": tool, "arguments": dict(arguments), "inputResponses": {}}
        parsed = wire.parse_call(params, client_of(state.ctx), self.middleware.callers.key_paths)
        call = replace(parsed, takes_questions=False, host=host_of(state.ctx), began=state.began)
        report, state.has_handed_over = ProgressReports(state.ctx.session.report_progress).report, True
        try:
            state.outcome = await state.offer.task_service.call(call, state.principal, report)
        except WorkflowsError:
            state.has_handed_over = False
            raise
        return types.CallToolResult(content=[])

    async def _refuse_taken_names(self, tools: Mapping[str, AnyTool]) -> None:
        if not isinstance(self._server, MCPServer):
            return
        own = {tool.name for tool in await self._server.list_tools()}
        if taken := own & tools.keys():
            raise ConfigError(f"the server already has tools named {', '.join(sorted(taken))}: rename one of each")
        if offered(tools.values(), my_tasks=self.my_tasks) and (taken := own & TASK_TOOL_NAMES):
            raise ConfigError(f"the server already has a tool named {', '.join(sorted(taken))}: {TAKEN}")


async def _check_owners(store: Store, owner: Owner) -> None:
    """Check that the tasks in the store were created with this setting, and store the setting.

    Raises:
        StoreUnusable: they were not, so their owners could no longer find them.
    """
    kept = await store.note(_SETTINGS, _OWNER)
    if kept == owner:
        return
    has = {each: await store.has_owner(*patterns) for each, patterns in _OWNERS_OF_PEOPLE.items()}
    if kept is None:  # a version that did not store the setting; its default was `client`
        kept = Owner.CLIENT if has[Owner.CLIENT] and not has[Owner.SUBJECT] else owner
        if all(has.values()):
            logger.warning("the store has tasks of both settings of owner; callers find only those of owner: %s", owner)
    if kept != owner and has[Owner(str(kept))]:
        raise StoreUnusable(
            f"the tasks in this store were created with owner: {kept}; with owner: {owner} their owners would no "
            f"longer find them: set owner: {kept} under server.auth (or pass it to attach), or use another store"
        )
    await store.put_note(_SETTINGS, _OWNER, owner.value, until=datetime.max.replace(tzinfo=UTC))


_OTHER: Final = "_OTHER"
_OURS: Final = frozenset(
    {*event_wire.Method, *v2026_07_28.TASK_METHODS, *v2026_07_28.REMOVED_METHODS, "tasks/list", "tasks/result"}
)
_KNOWN: Final = _OURS | {
    *("completion/complete", "initialize", "logging/setLevel", "ping", "server/discover", "subscriptions/listen"),
    *("notifications/cancelled", "notifications/initialized", "notifications/progress"),
    *("prompts/get", "prompts/list", "tools/call", "tools/list"),
    *("resources/list", "resources/read", "resources/subscribe", "resources/templates/list", "resources/unsubscribe"),
}
_ENDLESS: Final = {"subscriptions/listen", event_wire.Method.STREAM}  # they end when a client leaves, which is no error
_VERSIONS: Final = frozenset({*SUPPORTED_PROTOCOL_VERSIONS, v2025_11_25.PROTOCOL_VERSION, v2026_07_28.PROTOCOL_VERSION})


class RequestMetrics:
    """Metrics of every message by the OpenTelemetry semantic conventions for MCP; `tools` returns our current tools.

    The SDK creates the spans, and this class adds attributes. Source:
    https://github.com/open-telemetry/semantic-conventions-genai/blob/main/docs/gen-ai/mcp.md
    """

    def __init__(self, telemetry: Telemetry, tools: Callable[[], Container[object]]) -> None:
        self._telemetry = telemetry
        self._tools = tools

    @property
    def is_collected(self) -> bool:
        """True if metrics are collected; otherwise requests are not measured."""
        return self._telemetry.heard

    async def serve(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Measure a message and pass it on."""
        began, error = time.perf_counter(), _OTHER
        try:
            result = await call_next(ctx)
            error = _tool_error(ctx, result)
            if error and name_of(ctx) in TASK_TOOL_NAMES and NOT_FOUND in str(result):
                self._telemetry.count("failed_lookups", method=ctx.method)
        except MCPError as failed:
            error = str(failed.error.code)
            if ctx.method in _OURS and failed.error.message == NOT_FOUND:
                self._telemetry.count("failed_lookups", method=ctx.method)
            raise
        except ValidationError:
            error = str(jsonrpc.INVALID_PARAMS)
            raise
        except anyio.get_cancelled_exc_class():
            error = "" if ctx.method in _ENDLESS else "cancelled"
            raise
        finally:
            attributes = self._attributes(ctx, error)
            trace.get_current_span().set_attribute("network.transport", attributes["network.transport"])
            self._telemetry.operation(time.perf_counter() - began, attributes)
        return result

    def _attributes(self, ctx: Context, error: str) -> dict[str, str]:
        """Return the attributes; their values come from closed sets, with `_OTHER` for any other value."""
        found = {
            "mcp.method.name": ctx.method if ctx.method in _KNOWN else _OTHER,
            "mcp.protocol.version": ctx.protocol_version if ctx.protocol_version in _VERSIONS else _OTHER,
            "network.transport": "pipe" if ctx.request is None else "tcp",
        }
        if ctx.method == "tools/call":
            found["gen_ai.operation.name"] = "execute_tool"
            found[TOOL] = name if isinstance(name := name_of(ctx), str) and self._is_ours(name) else _OTHER
        return {**found, "error.type": error} if error else found

    def _is_ours(self, tool: str) -> bool:
        return tool in self._tools() or tool in TASK_TOOL_NAMES


def _tool_error(ctx: Context, result: HandlerResult) -> str:
    """Return `tool_error` for a call whose result is an error, else an empty string."""
    if ctx.method != "tools/call" or result is None:
        return ""
    wrong = result.get("isError") if isinstance(result, dict) else getattr(result, "is_error", None)
    return "tool_error" if wrong is True else ""
