"""A sidecar's inside with engines in memory that count, hide, hold back and tell: for tests of what is watched."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import anyio

from mcp_workflows.access import ANONYMOUS
from mcp_workflows.adapter import JSON, Execution, Ref, Status
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.polling.policy import PollingPolicy
from mcp_workflows.engines.registry import CALL_TIMEOUT, Engines
from mcp_workflows.store.protocol import Store, open_store
from mcp_workflows.task import Task
from mcp_workflows.tasks.executions import Executions
from mcp_workflows.tasks.service import TaskService
from mcp_workflows.tools.tool import AnyTool
from mcp_workflows.wire.commands import Call, Created, TaskView
from tests.support.served import memory_tools

RETENTION = timedelta(days=90)


class Counting(MemoryAdapter):
    """Remembers when it was asked how executions are."""

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__(settings)
        self.times: list[float] = []
        self.looked_at: Counter[str] = Counter()

    async def describe(self, ref: Ref) -> Execution:
        """One look, counted by execution."""
        self.times.append(time.monotonic())
        self.looked_at[ref.handle] += 1
        return await super().describe(ref)

    def busiest(self, seconds: float = 1.0) -> int:
        """The most calls in any such span."""
        return max(sum(1 for at in self.times if since <= at < since + seconds) for since in self.times)


class Swept(Counting):
    """Can be asked for many at once, but for those that are hidden."""

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__(settings)
        self.batches: list[int] = []
        self.hidden: set[str] = set()

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """A sweep."""
        self.times.append(time.monotonic())
        await self._call("describe_many")
        self.batches.append(len(refs))
        return {ref.handle: self._describe(ref) for ref in refs if ref.handle not in self.hidden}


class Slow(MemoryAdapter):
    """Looks, and tells only when it is told to; with `slow` handles, only of these."""

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__(settings)
        self.looking = anyio.Event()
        self.go_on = anyio.Event()
        self.slow: Set[str] = frozenset()

    async def describe(self, ref: Ref) -> Execution:
        """One look."""
        seen = await super().describe(ref)
        self.looking.set()
        if not self.slow or ref.handle in self.slow:
            await self.go_on.wait()
        return seen


class Frozen(MemoryAdapter):
    """Keeps the calls of some verbs waiting, as a process that was stopped does, until it is thawed."""

    def __init__(self, settings: MemorySettings) -> None:
        super().__init__(settings)
        self.waiting: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self._verbs: frozenset[str] = frozenset()
        self._thawed = anyio.Event()

    def freeze(self, *verbs: str) -> None:
        """These get no answer from now on."""
        self._verbs, self._thawed = frozenset(verbs), anyio.Event()

    def thaw(self) -> None:
        """All calls that wait are answered, and all that come."""
        self._verbs = frozenset()
        self._thawed.set()

    async def _call(self, verb: str) -> None:
        if verb in self._verbs:
            self.waiting[verb] += 1
            self.most[verb] = max(self.most[verb], self.waiting[verb])
            try:
                await self._thawed.wait()
            finally:
                self.waiting[verb] -= 1
        await super()._call(verb)


async def quiet(_: Execution) -> None:
    """Nobody asked for progress."""


@dataclass(frozen=True, slots=True)
class Place:
    """A sidecar's inside, and what was told to those who listen."""

    service: TaskService
    executions: Executions
    engines: Engines
    told: dict[str, list[TaskView]]

    async def start(self, tool: str, count: int, **arguments: JSON) -> list[str]:
        """So many tasks."""

        async def one() -> None:
            command = Call(tool=tool, arguments=arguments, takes_tasks=True, takes_questions=True)
            outcome = await self.service.call(command, ANONYMOUS, quiet)
            assert isinstance(outcome, Created)
            ids.append(outcome.task.task_id)

        ids: list[str] = []
        for _ in range(count):
            await one()
        return ids

    async def get(self, task_id: str) -> TaskView:
        """`tasks/get`."""
        return await self.service.get(task_id, ANONYMOUS)

    async def tasks(self, ids: Sequence[str]) -> Sequence[Task]:
        """Their rows."""
        return await self.service.listen(tuple(ids), ANONYMOUS)

    @asynccontextmanager
    async def listening(self, ids: Sequence[str]) -> AsyncGenerator[None]:
        """Somebody listens to each of them."""

        async def listen(task: Task) -> None:
            async def on_change(seen: TaskView) -> None:
                self.told.setdefault(task.id, []).append(seen)

            await self.service.follow(task, on_change, ANONYMOUS)

        async with anyio.create_task_group() as group:
            for task in await self.tasks(ids):
                group.start_soon(listen, task)
            yield
            group.cancel_scope.cancel()

    def ended(self, ids: Sequence[str]) -> int:
        """How many of them were told to have ended."""
        return sum(1 for name in ids if self.told.get(name) and self.told[name][-1].status is Status.SUCCEEDED)

    def asks(self, name: str) -> bool:
        """Whether it was told of this one that it waits for an answer."""
        return bool(self.told.get(name)) and self.told[name][-1].status is Status.INPUT_REQUIRED


@asynccontextmanager
async def place(
    folder: Path,
    engine: MemoryAdapter,
    polling: PollingPolicy,
    *more: AnyTool,
    call_timeout: float = CALL_TIMEOUT,
    store: Store | None = None,
) -> AsyncGenerator[Place]:
    """A repository with this engine."""
    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context(store or open_store(f"sqlite:///{folder}/tasks.db"))
        engines = await stack.enter_async_context(Engines({"memory": engine}, call_timeout=call_timeout))
        executions = await stack.enter_async_context(
            Executions(store=opened, engines=engines, retention=RETENTION, polling=polling)
        )
        tools = {tool.name: tool for tool in (*memory_tools(), *more)}
        yield Place(TaskService(tools=tools, executions=executions, retention=RETENTION), executions, engines, {})
