"""The inside of a sidecar as far as it delivers events: a store, the services, and a clock that a test moves."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import anyio

from mcp_workflows import Tool
from mcp_workflows.access import Principal
from mcp_workflows.access.audit import Record
from mcp_workflows.adapter import Execution, InputRequest, Status
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.registry import Engines
from mcp_workflows.events.delivery import Delivery
from mcp_workflows.events.endpoints import EventSettings
from mcp_workflows.events.notifications import Channels
from mcp_workflows.events.service import EventService
from mcp_workflows.events.subscriptions import Deliveries, Pending, owner_key
from mcp_workflows.store.protocol import Store
from mcp_workflows.task import Task, observe
from mcp_workflows.tasks.executions import Executions
from mcp_workflows.tasks.service import Authorization, TaskService
from mcp_workflows.telemetry import Telemetry
from mcp_workflows.testing import make_task
from mcp_workflows.tools.tool import AnyTool
from mcp_workflows.units import utc_now
from mcp_workflows.wire import events as wire
from tests.support.endpoint import Endpoint

ANNA = Principal(id="anna")
RETENTION = timedelta(days=90)
QUESTION = InputRequest(method="elicitation/create", params={"message": "Sure?", "requestedSchema": {}})


@dataclass(slots=True)
class Clock:
    """A clock that is ahead of the machine's by as much as the test says."""

    ahead: timedelta = timedelta()

    def __call__(self) -> datetime:
        return utc_now() + self.ahead

    def advance(self, **by: float) -> None:
        """Move it forward."""
        self.ahead += timedelta(**by)


@dataclass(slots=True, kw_only=True)
class Replica:
    """One process with the store."""

    store: Store
    events: EventService
    delivery: Delivery
    rules: Authorization
    service: Callable[[Mapping[str, AnyTool]], TaskService]
    clock: Clock
    records: list[Record]
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    async def subscribe(
        self, receiver: Endpoint, name: str = "task.ended", by: Principal = ANNA, **more: Any
    ) -> wire.Subscribed:
        """Subscribe to events of this name; `more`: arguments, url, secret, cursor, max_age, ttl."""
        place = {"cursor": more.get("cursor"), "max_age": more.get("max_age")}
        wanted = wire.Wanted(name=name, arguments=more.get("arguments", {}), **place)
        url, secret = more.get("url", receiver.url), more.get("secret", receiver.secret)
        return await self.events.subscribe(wanted, wire.Webhook(url=url, secret=secret, ttl=more.get("ttl")), by)

    async def use(self, tool: AnyTool, channels: Channels | None = None) -> None:
        """Replace the tool, and its rules, and perhaps the channels."""
        named = {tool.name: tool}
        self.rules.use(named)
        self.events.use(named, self.service(named), channels)
        await self.events.begin_channels()

    async def task(self, **fields: Any) -> Task:
        """Store a task that works."""
        now = self.clock()
        return await self.store.create(make_task(**{"created": now, "updated": now, "expires": None, **fields}))

    async def end(self, task: Task, status: Status = Status.SUCCEEDED, **fields: Any) -> None:
        """End it."""
        ended = Execution(status=status, **fields)
        await self.store.change(task.id, task.owner, lambda row: observe(row, ended, self.clock()))

    async def ask(self, task: Task, *keys: str) -> None:
        """Have it ask these questions."""
        asking = Execution(status=Status.INPUT_REQUIRED, requests=dict.fromkeys(keys, QUESTION))
        await self.store.change(task.id, task.owner, lambda row: observe(row, asking, self.clock()))

    async def ended(self, many: int, **fields: Any) -> Sequence[str]:
        """Store and end so many tasks; return their ids."""
        tasks = [await self.task(**fields) for _ in range(many)]
        for task in tasks:
            await self.end(task)
        return [task.id for task in tasks]

    async def state(self, owner: str = "anna") -> Deliveries | None:
        """The state of the owner's only subscription, as it is in the store; None: there is none."""
        found = await self.events.subscriptions.under(owner_key(owner))
        return await self.events.subscriptions.deliveries(found[0]) if found else None

    @property
    def pending(self) -> Mapping[int, Pending]:
        """What is pending now, of all subscriptions."""
        every = self.delivery._targets.values()  # pyright: ignore[reportPrivateUsage]
        return {position: each for target in every for position, each in target.state.pending.items()}

    @property
    def is_sending(self) -> bool:
        """True while an attempt is in flight; one that fails later waits for the clock of the test."""
        return any(target.sending for target in self.delivery._targets.values())  # pyright: ignore[reportPrivateUsage]

    @property
    def is_delivering(self) -> bool:
        """True if this replica delivers."""
        return bool(self.delivery._targets)  # pyright: ignore[reportPrivateUsage]

    def outcomes(self, event: str = "subscription") -> Sequence[str]:
        """The outcomes of the audit events of this kind."""
        return [record.outcome for record in self.records if record.event == event]

    def kill(self) -> None:
        """End its work at once."""
        self.scope.cancel()


@asynccontextmanager
async def delivering(
    store: Store,
    *,
    clock: Clock | None = None,
    tools: Mapping[str, AnyTool] | None = None,
    settings: EventSettings = EventSettings(allow_private=True),  # noqa: B008  # it cannot be changed
    delivers: bool = True,
    channels: Channels | None = None,
    web_url: str | None = None,
) -> AsyncGenerator[Replica]:
    """Run one replica."""
    clock, records = clock or Clock(), list[Record]()
    named = tools or {"fulfil_order": Tool(name="fulfil_order", engine="orders", workflow="echo")}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(store)
        engines = await stack.enter_async_context(Engines({"orders": MemoryAdapter(MemorySettings(unreachable=True))}))
        executions = Executions(store=store, engines=engines, retention=RETENTION, clock=clock, web_url=web_url)
        await stack.enter_async_context(executions)
        rules = Authorization(named)
        events = EventService(
            store=store,
            engines=engines,
            executions=executions,
            authorization=rules,
            settings=settings,
            audit=records.append,
        )
        await stack.enter_async_context(events)

        def service(tools: Mapping[str, AnyTool]) -> TaskService:
            return TaskService(tools=tools, executions=executions, retention=RETENTION, authorization=rules)

        events.use(named, service(named), channels)
        await events.begin_channels()
        found = Replica(
            store=store,
            events=events,
            delivery=Delivery(store, events, Telemetry()),
            rules=rules,
            service=service,
            clock=clock,
            records=records,
        )
        group = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(group.cancel_scope.cancel)

        async def work() -> None:
            with found.scope:
                async with anyio.create_task_group() as own:
                    for each in (events.log.run, events.interests.run, found.delivery.run):
                        own.start_soon(each)

        if delivers:
            group.start_soon(work)
        yield found
