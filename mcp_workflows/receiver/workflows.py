"""The workflows on a server: their lifetime, their tools, and the functions for the server's own code."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import product
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

import anyio
import mcp_types as types
from mcp.server.mcpserver import MCPServer
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp_types import jsonrpc

from mcp_workflows.access import Authorizer
from mcp_workflows.access.audit import Audit, counting, silent
from mcp_workflows.access.limit_settings import UNLIMITED, Limits
from mcp_workflows.access.rate_limits import RateLimits
from mcp_workflows.adapter import JSON, Adapter, Exposed, Exposes, Finding, Notes
from mcp_workflows.adapter.memory import Script, ScriptedAdapter
from mcp_workflows.engines.polling.policy import PollingPolicy
from mcp_workflows.engines.registry import Engines, described
from mcp_workflows.errors import ConfigError, EngineUnavailable, RequestError, WorkflowsError
from mcp_workflows.receiver.companions.definitions import COMPANION_NAMES, TAKEN, offered
from mcp_workflows.receiver.context import Callers, client_of, host_of
from mcp_workflows.receiver.current_call import current_call
from mcp_workflows.receiver.envelope import AnyServer
from mcp_workflows.receiver.http_limits import limit_requests
from mcp_workflows.receiver.metrics import RequestMetrics
from mcp_workflows.receiver.middleware import Middleware
from mcp_workflows.receiver.subscriptions import ProgressReports
from mcp_workflows.receiver.tool_list import Offer, Viewer
from mcp_workflows.receiver.webhooks import Webhooks, addresses
from mcp_workflows.store.key_value import notes_in
from mcp_workflows.store.protocol import Store, open_store
from mcp_workflows.task import engine_key
from mcp_workflows.tasks.authorization import Authorization
from mcp_workflows.tasks.gauges import TaskGauges
from mcp_workflows.tasks.maintenance import RetentionRound, retention_rounds
from mcp_workflows.tasks.repository import TaskRepository
from mcp_workflows.tasks.service import TaskService
from mcp_workflows.tools.tool import Tool
from mcp_workflows.wire import v2026_07_28 as wire

LONGEST_LOOK = 120.0  # seconds for all marked workflows of an engine: page by page, within its quotas
DIALOGUE_SECONDS = 24 * 3600.0  # how long a person may take to answer the questions before a start
_SEALING_KEY = "request-state"  # its name in the store
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
        tools: Mapping[str, Tool],
        engines: Engines,
        store: Store,
        retention: timedelta,
        strict_headers: bool,
        polling: PollingPolicy,
        my_tasks: bool,
        callers: Callers,
        limits: Limits = UNLIMITED,
        authorizer: Authorizer | None = None,
        audit: Audit = silent,
    ) -> None:
        self._server = server
        self._engines = engines
        self._store = store
        self._retention = retention
        self._polling = polling
        self._my_tasks = my_tasks
        self._audit = audit
        self._telemetry = engines.telemetry
        self._counted = counting(audit, self._telemetry)  # for refusals
        self._authorization = Authorization(tools, authorizer=authorizer, audit=self._counted)
        self._gauges: TaskGauges | None = None
        self._stack = AsyncExitStack()
        self._repository: TaskRepository | None = None
        self.inbound = Webhooks(lambda: self._engines if self.alive else None)  # ASGI, to be mounted at `/engines`
        self._limits, self._meters = limits, RateLimits(limits, audit=self._counted)
        offer = Offer(tools=tools, my_tasks=my_tasks)
        self.middleware = Middleware(server, offer, callers, self._meters, strict_headers=strict_headers)
        self.measuring = RequestMetrics(self._telemetry, lambda: self.tools)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._refuse_taken_names(self.middleware.offer.tools)
            store = await stack.enter_async_context(self._store)
            security = RequestStateSecurity(keys=[await store.secret(_SEALING_KEY)], ttl=DIALOGUE_SECONDS)
            self.middleware.boundary = RequestStateBoundary(security, default_audience=self._server.name)
            engines = await stack.enter_async_context(self._engines)
            repository = TaskRepository(
                store=store,
                engines=engines,
                retention=self._retention,
                polling=self._polling,
                limits=self._limits,
                audit=self._audit,
            )
            self._repository = await stack.enter_async_context(repository)
            group = self.middleware.group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(group.cancel_scope.cancel)
            self._gauges = TaskGauges(self._store, self._engines, self._telemetry)
            group.start_soon(self._gauges.run)
            self.middleware.offer = self._new_offer(self.middleware.offer.tools)
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
    def tools(self) -> Mapping[str, Tool]:
        """The tools on offer now."""
        return self.middleware.offer.tools

    @property
    def my_tasks(self) -> bool:
        """True if clients with tasks get a tool that lists theirs."""
        return self._my_tasks

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        """The adapters in use, by engine."""
        return self._engines.adapters

    @property
    def called_at(self) -> Mapping[str, Sequence[str]]:
        """The URL paths at which workflows call their engine, by engine; engines without any are left out."""
        return {name: addresses(name, routes) for name, routes in self._engines.routes.items()}

    async def swap(self, tools: Mapping[str, Tool], adapters: Mapping[str, Adapter]) -> bool:
        """Replace all tools and engines; return True if clients see a different list.

        Calls in progress finish with the tools and engines that they began with; adapters in both sets stay open. Tasks
        keep the settings that they started with.

        Raises:
            ConfigError: the server has tools of these names, or an adapter cannot be opened; nothing has changed.
        """
        await self._refuse_taken_names(tools)
        opened = await self._engines.opened(adapters)
        before = self.middleware.offer
        self._engines.use(opened)
        self.middleware.offer = self._new_offer(tools)
        ruled = [{name: tool.allow for name, tool in each.items()} for each in (before.tools, tools)]
        return ruled[0] != ruled[1] or any(
            self.middleware.offer.listed(viewer) != before.listed(viewer) for viewer in _EVERYBODY
        )

    def _new_offer(self, tools: Mapping[str, Tool]) -> Offer:
        repository = self._repository
        service: TaskService | None = None
        if repository is not None:
            self._authorization.use(tools)
            service = TaskService(
                tools=tools,
                repository=repository,
                retention=self._retention,
                authorization=self._authorization,
                audit=self._audit,
                limits=self._limits,
                meters=self._meters,
            )
        return Offer(tools=tools, service=service, my_tasks=self._my_tasks)

    def stop(self) -> None:
        """End all waiting calls, so that the server can stop at once; the workflows go on."""
        if self._repository is not None:
            self._repository.stop()

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
            StoreUnavailable: they cannot be read and written.
            EngineUnavailable: an engine in this process does not run its workflows; the text does not say why, as
                anybody may read it. An engine elsewhere that is down does not count: tasks of others can be created.
        """
        await self._store.check()
        if stopped := self._engines.stopped:
            raise EngineUnavailable(f"{', '.join(stopped)} does not run its workflows: see /enginez, or the log")

    async def count(self) -> None:
        """Refresh the gauges of tasks, unless they were refreshed a few seconds ago."""
        if self.alive and self._gauges is not None:
            await self._gauges.take()

    async def check_engines(self) -> Mapping[str, Finding]:
        """Return the health of each engine, by name."""
        return await self._engines.check()

    async def retention_rounds(self) -> Mapping[str, RetentionRound]:
        """Return the last round over all tasks of each engine, by name; see `retention_rounds`."""
        return await retention_rounds(self._store, self._engines)

    async def exposed(self, engine: str) -> Sequence[Exposed]:
        """Return the workflows of an engine that are marked as tools there; none if its adapter cannot discover any.

        Raises:
            EngineError: the engine did not answer.
        """
        try:
            with anyio.fail_after(LONGEST_LOOK):
                async with self._engines.calling(engine, api="exposed", bounded=False) as adapter:
                    return [described(each) for each in await adapter.exposed()] if isinstance(adapter, Exposes) else []
        except TimeoutError:
            raise EngineUnavailable(f"no answer within {LONGEST_LOOK:g} s") from None

    def notes(self, engine: str) -> Notes:
        """Return the notes of an engine in the store."""
        return notes_in(self._store)(engine_key(engine, self._engines.identity(engine)))

    @asynccontextmanager
    async def testing(self) -> AsyncGenerator[Script]:
        """Replace engines and store for unit tests of your own server: workflows then do as the test's script says.

        Enter it before the server runs; see `Script`.

        Raises:
            ConfigError: the workflows are entered already.
        """
        if self.alive:
            raise ConfigError("testing() comes first: enter it before the server enters the workflows")
        script, own = Script(), (self._engines, self._store)
        with TemporaryDirectory() as folder:
            self._engines = Engines({name: ScriptedAdapter(script) for name in self._engines.names})
            self._store = open_store(f"sqlite:///{folder}/tasks.db")
            try:
                yield script
            finally:
                self._engines, self._store = own

    async def hand_over(self, tool: str, arguments: Mapping[str, JSON]) -> types.CallToolResult:
        """Let the workflow of `tool` finish this call of your own tool function; return the result you get.

        The client gets the reply of a call of `tool`: a task, or the plain result if it takes none. Questions of the
        workflow reach clients with tasks only.

        Raises:
            RequestError: not inside a tool function, a second time in one call, or there is no such tool.
        """
        state = current_call()
        if state is None or state.ctx is None:
            raise RequestError(jsonrpc.INTERNAL_ERROR, "hand_over() works inside a tool function of this server only")
        if tool not in state.offer.tools:
            raise RequestError(jsonrpc.INTERNAL_ERROR, f"hand_over(): there is no tool {tool!r}")
        if state.has_handed_over:
            raise RequestError(jsonrpc.INTERNAL_ERROR, "hand_over() comes once in a call: one workflow finishes it")
        params = {**(state.ctx.params or {}), "name": tool, "arguments": dict(arguments), "inputResponses": {}}
        parsed = wire.parse_call(params, client_of(state.ctx), self.middleware.callers.key_paths)
        call = replace(parsed, takes_questions=False, host=host_of(state.ctx), began=state.began)
        report, state.has_handed_over = ProgressReports(state.ctx.session.report_progress).report, True
        try:
            state.outcome = await state.offer.task_service.calls.call(call, state.principal, report)
        except WorkflowsError:
            state.has_handed_over = False
            raise
        return types.CallToolResult(content=[])

    async def _refuse_taken_names(self, tools: Mapping[str, Tool]) -> None:
        if not isinstance(self._server, MCPServer):
            return
        own = {tool.name for tool in await self._server.list_tools()}
        if taken := own & tools.keys():
            raise ConfigError(f"the server has tools of its own named {', '.join(sorted(taken))}: rename one of each")
        if offered(tools.values(), my_tasks=self._my_tasks) and (taken := own & COMPANION_NAMES):
            raise ConfigError(f"the server has a tool of its own named {', '.join(sorted(taken))}: {TAKEN}")
