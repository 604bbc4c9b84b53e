"""The interests of this process in events: it observes their tasks and lists ended executions.

Clients need not poll a task whose events they subscribed to.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup
from pydantic import TypeAdapter, ValidationError

from mcp_workflows.adapter import JSON, MOST_ENDED, EndedExecution, ListsEnded
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import EngineError, StoreError, WorkflowsError
from mcp_workflows.store.protocol import EVENTS_KEPT, Store, TaskFilter
from mcp_workflows.task import CLOCKS_DIFFER, START_GATE, EventName, LoggedEvent, Task, event_id, event_of
from mcp_workflows.tasks.executions import Executions, ObservedTask
from mcp_workflows.tools.tool import AnyTool

logger = logging.getLogger(__name__)

SEARCH_EVERY: Final = 2.0  # seconds until a new task is observed
LIST_EVERY: Final = 15.0  # seconds, for each tool with kind watch
OVERLAP: Final = timedelta(minutes=2)  # an engine's list may lag
FORGET_AFTER: Final = timedelta(minutes=10)  # without a subscription, earlier ends are never reported
MOST_TASKS: Final = 10_000  # of one search: a principal has at most 1,000 by default
MOST_SEEN: Final = 10_000  # ended executions whose notes are known to be written
MOST_PAGES: Final = 20  # of one list
_ENDED: Final = "(ended executions)"  # space of notes
_EXECUTION: Final = TypeAdapter(EndedExecution)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interest:
    """Events that a subscription, stream or poll waits for; equal interests count once."""

    names: tuple[str, ...]  # of events; the first one selects the tasks to search
    arguments: Mapping[str, JSON] = field(compare=False)
    owner: str
    key: str  # of the subscription or stream, or the name and arguments of a poll
    shared_tools: Sequence[str] = field(default=(), compare=False)  # tools whose tasks of other owners also count

    @property
    def owners(self) -> Sequence[str]:
        """The owners whose events may match; an empty string stands for all others."""
        others = self.shared_tools or EventName.EXECUTION_ENDED in self.names
        return (self.owner, "") if others else (self.owner,)

    def matches(self, event: LoggedEvent) -> bool:
        """Return True if the event may match. Rules and the status filter are checked at delivery."""
        return (
            event.name in self.names
            and self.arguments.get("taskId", event.task_id) == event.task_id
            and self.arguments.get("tool", event.tool) == event.tool
            and (event.owner == self.owner or event.tool in self.shared_tools or not event.owner)
        )


class Interests:
    """The interests of this process; `run` them."""

    def __init__(self, *, store: Store, engines: Engines, executions: Executions) -> None:
        self._store = store
        self._engines = engines
        self._executions = executions
        self._clock = executions.clock
        self._tools: Mapping[str, AnyTool] = {}
        self._until: dict[Interest, float] = {}
        self._new: list[Interest] = []
        self._followed: dict[str, tuple[anyio.CancelScope, set[Interest]]] = {}
        self._searched: datetime | None = None
        self._examined: dict[str, datetime] = {}  # tasks of the last search, and when they were created
        self._listed: dict[str, float] = {}
        self._seen: set[str] = set()

    def use(self, tools: Mapping[str, AnyTool]) -> None:
        """Replace the tools. Tasks that may need an approval midway are always observed, so that it opens in time."""
        self._tools = tools
        waiting = [name for name, tool in tools.items() if tool.approvals.keys() - {START_GATE}]
        names = (EventName.INPUT_REQUIRED,)
        interest = Interest(names=names, arguments={}, owner="", key=START_GATE, shared_tools=waiting)
        self.remove(interest)
        if waiting:
            self.add(interest)

    def add(self, interest: Interest, *, lasting: float = float("inf")) -> None:
        """Observe the matching executions for `lasting` seconds."""
        if interest not in self._until:
            self._new.append(interest)
        self._until[interest] = max(self._until.get(interest, 0.0), anyio.current_time() + lasting)

    def remove(self, interest: Interest) -> None:
        """Stop observing them, unless another interest matches."""
        if self._until.pop(interest, None) is None:
            return
        for task_id, (scope, interests) in list(self._followed.items()):
            interests.discard(interest)
            if not interests:
                scope.cancel()
                del self._followed[task_id]

    async def run(self) -> None:
        """Observe executions, until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._repeat, self._list)
            await self._repeat(partial(self._search, group))

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await anyio.sleep(SEARCH_EVERY)
            try:
                await work()
            except (StoreError, EngineError) as error:
                logger.info("the search for executions of events is retried: %s", error)
            except Exception:  # no error may end the server: docs/decisions/0002
                logger.exception("the search for executions of events failed")

    # --- tasks

    async def _search(self, group: TaskGroup) -> None:
        """Follow the tasks of new interests, and new tasks."""
        for interest in [each for each, until in self._until.items() if until < anyio.current_time()]:
            self.remove(interest)
        if not self._until:
            self._searched = None
            return
        now = self._clock()
        while self._new:
            interest = self._new.pop(0)
            try:
                tasks = await self._tasks_of(interest, now)
            except StoreError:
                self._new.append(interest)  # try the others first
                raise
            for task in tasks:
                if not task.pending(now):
                    self._follow(group, task, interest)
        since = (self._searched or now) - CLOCKS_DIFFER
        self._searched = now
        self._examined = {name: created for name, created in self._examined.items() if created >= since}
        for task in await self._store.list_all(TaskFilter(created_from=since), limit=MOST_TASKS):
            if task.id in self._examined or task.pending(now):
                continue
            self._examined[task.id] = task.created
            for interest in self._until:
                if "taskId" not in interest.arguments and interest.matches(
                    replace(event_of(task), name=interest.names[0])
                ):
                    self._follow(group, task, interest)

    async def _tasks_of(self, interest: Interest, now: datetime) -> Sequence[Task]:
        task_id, tool = (interest.arguments.get(name) for name in ("taskId", "tool"))
        if EventName.EXECUTION_ENDED in interest.names:
            return []
        if isinstance(task_id, str):
            task = await self._executions.find(task_id, interest.owner, interest.shared_tools)
            return [] if task is None or task.ended else [task]
        named = tool if isinstance(tool, str) else None
        found = list(await self._store.longest_live(owner=interest.owner, tool=named, now=now, limit=MOST_TASKS))
        for each in interest.shared_tools:
            if named in {None, each}:
                found += await self._store.longest_live(owner=None, tool=each, now=now, limit=MOST_TASKS)
        return found

    def _follow(self, group: TaskGroup, task: Task, interest: Interest) -> None:
        if interest not in self._until:
            return  # it was removed meanwhile
        if task.id in self._followed:
            self._followed[task.id][1].add(interest)
            return
        scope = anyio.CancelScope()
        self._followed[task.id] = scope, {interest}
        group.start_soon(self._until_ended, task, scope)

    async def _until_ended(self, task: Task, scope: anyio.CancelScope) -> None:
        async def observe(_: ObservedTask) -> None:
            """Do nothing: the poll itself stores its observations."""

        with scope:
            try:
                await self._executions.follow(task, observe)
            except WorkflowsError as error:
                logger.info("a task is no longer observed for events: %s", error)
        if self._followed.get(task.id, (None,))[0] is scope:
            del self._followed[task.id]

    # --- executions that others started

    async def _list(self) -> None:
        """List ended executions for the tools that an interest names."""
        wanted = {str(each.arguments["tool"]) for each in self._until if EventName.EXECUTION_ENDED in each.names}
        for name in wanted:
            tool, now = self._tools.get(name), anyio.current_time()
            if tool is None or now - self._listed.get(name, float("-inf")) < LIST_EVERY:
                continue
            if self._engines.silence(tool.engine) or not self._engines.has(tool.engine, ListsEnded):
                continue
            self._listed[name] = now
            await self._list_ended(tool)

    async def _list_ended(self, tool: AnyTool) -> None:
        now, identity = self._clock(), self._engines.identity(tool.engine)
        since = latest = datetime.fromisoformat(await self.begin(tool))
        for each in await self._all_ended(tool, since - OVERLAP):
            latest = max(latest, each.ended)
            name = event_id(EventName.EXECUTION_ENDED, identity, tool.name, each.handle, str(each.ended))
            if name in self._seen:
                continue
            value = _EXECUTION.dump_python(each, mode="json")
            await self._store.put_note(_ENDED, name, value, until=now + EVENTS_KEPT)
            event = LoggedEvent(id=name, name=EventName.EXECUTION_ENDED, at=each.ended, tool=tool.name, key=name)
            await self._store.add_event(event)
            self._seen = self._seen if len(self._seen) < MOST_SEEN else set()
            self._seen.add(name)
        await self._store.put_note(_ENDED, self._place(tool), latest.isoformat(), until=now + EVENTS_KEPT)

    async def begin(self, tool: AnyTool, is_waited_for: Callable[[], Awaitable[bool]] | None = None) -> str:
        """Return the time, as ISO 8601, from which ends of this tool's workflow count; a new tool starts now.

        `is_waited_for` returns True if a subscription in the store waits for them. Without one, executions that ended
        while no client asked are never reported.
        """
        now, place = self._clock(), self._place(tool)
        begin = (now + OVERLAP).isoformat()  # lists are read from `OVERLAP` earlier
        found = str(await self._store.add_note(_ENDED, place, begin, until=now + EVENTS_KEPT))
        is_recent = now - datetime.fromisoformat(found) < FORGET_AFTER
        if is_waited_for is None or is_recent or await is_waited_for():
            return found
        await self._store.put_note(_ENDED, place, begin, until=now + EVENTS_KEPT)
        return begin

    def _place(self, tool: AnyTool) -> str:
        """Return the note key of that time; two tools with the same workflow have separate ones."""
        return event_id(EventName.EXECUTION_ENDED, self._engines.identity(tool.engine), tool.name, tool.workflow)

    async def _all_ended(self, tool: AnyTool, since: datetime) -> Sequence[EndedExecution]:
        found: dict[str, EndedExecution] = {}
        for _ in range(MOST_PAGES):
            page = await self._engines.list_ended(tool.engine, tool.workflow, since)
            found |= {each.handle: each for each in page}
            if len(page) < MOST_ENDED or page[-1].ended <= since:
                break
            since = page[-1].ended
        return list(found.values())

    async def ended(self, key: str) -> EndedExecution | None:
        """Return the execution of an event; None: it has expired."""
        try:
            return _EXECUTION.validate_python(await self._store.note(_ENDED, key))
        except ValidationError:
            return None
