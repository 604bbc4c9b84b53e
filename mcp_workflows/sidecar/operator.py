"""What the operator, at the machine, does with tasks of any owner: see, explain, answer, cancel, terminate, adopt.

From the store and the engines, whether or not a sidecar runs on the same store; with an engine that gives no answer,
what the store knows. It starts nothing: that is the sidecar's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import anyio

from mcp_workflows.access import Principal
from mcp_workflows.access.audit import Audit, Event, record_of, silent, status_record
from mcp_workflows.adapter import (
    JSON,
    Execution,
    ExplainedGate,
    Explains,
    Explanation,
    GateState,
    Status,
    Terminates,
    asked,
    open_gates,
    same_workflow,
)
from mcp_workflows.engines.registry import Engines, ref_of, validated
from mcp_workflows.errors import EngineError, ExecutionNotFound, OperatorError, RequestError
from mcp_workflows.store.protocol import Store
from mcp_workflows.task import Task, deliver_cancel, mark_terminated, observe, request_cancel
from mcp_workflows.tasks.adopt import Adoption, AdoptionRequest, watched_arguments
from mcp_workflows.tasks.answer import deliver_answers, fitting_answers
from mcp_workflows.tools.tool import Tool

AT_ONCE = 16  # looks at engines
PAGE = 100  # rows
PAGES = 100  # at most: an operator who looks for something rare among more has to say more
AMBIGUOUS = 5  # ids shown

OPERATOR = Principal(id="operator")
"""The principal of what is done on this command line: to templates of gates, and in the audit log."""

NOT_STARTED = "not known to be started yet; the sidecar starts it under its key, again and again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A task after a look at its execution; as the store knows it, with the reason, when there was none."""

    task: Task
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which tasks to list."""

    tool: str | None = None
    statuses: frozenset[Status] = frozenset()  # none: all
    ended: bool = False  # those as well
    limit: int = 50


def utc_now() -> datetime:
    """The clock."""
    return datetime.now(UTC)


async def named_task(store: Store, name: str) -> Task:
    """Return the task with this id, or with the only id that begins so, as the store knows it.

    Raises:
        OperatorError: there is none, or more than one.
    """
    if not name:
        raise OperatorError("the id of a task is needed, or its beginning")
    found = await store.find(name, AMBIGUOUS + 1)
    exact = [task for task in found if task.id == name] or found
    if not exact:
        raise OperatorError(f"no task's id begins with {name!r}, or it has expired")
    if len(exact) > 1:
        shown = ", ".join(task.id for task in exact[:AMBIGUOUS]) + (", ..." if len(exact) > AMBIGUOUS else "")
        raise OperatorError(f"more than one task's id begins with {name!r}: {shown}")
    return exact[0]


class Operator:
    """Reads and changes tasks of any owner; never to be reached by a request."""

    def __init__(
        self,
        *,
        store: Store,
        engines: Engines,
        tools: Sequence[Tool] = (),
        clock: Callable[[], datetime] = utc_now,
        audit: Audit = silent,
    ) -> None:
        self._store = store
        self._audit = audit
        self._engines = engines
        self._gates = {tool.name: tuple(tool.gates) for tool in tools}
        self._clock = clock
        self._adoption = Adoption(store, engines, clock)
        self._silent: dict[str, str] = {}  # engines that gave no answer: not waited for twice
        self._turns = anyio.Semaphore(AT_ONCE)

    async def tasks(self, wanted: Wanted) -> Sequence[Look]:
        """The youngest tasks that are wanted, after a look at each."""
        found: list[Look] = []
        async for page in self._pages(wanted):
            fitting = (look for look in await self._looks(page) if _fits(look.task, wanted))
            found.extend(fitting)
            if len(found) >= wanted.limit:
                break
        return found[: wanted.limit]

    async def find(self, name: str) -> Look:
        """The task with this id, or with the only id that begins so, after a look.

        Raises:
            OperatorError: there is none, or more than one.
        """
        return await self._look(await named_task(self._store, name))

    async def read(self, name: str) -> Look:
        """Likewise, for its result: put on record if it has one.

        Raises:
            OperatorError: see `find`.
        """
        look = await self.find(name)
        if look.task.ended:
            self._record(Event.RETRIEVE, look.task)
        return look

    async def why(self, name: str) -> tuple[Look, Explanation]:
        """Why it is where it is, as far as its engine can tell, with the state of every gate of its tool.

        Raises:
            OperatorError: see `find`.
        """
        look, found = await self._explain(await self.find(name))
        configured = self._gates.get(look.task.tool, ())
        return look, replace(found, gates=_gates(look, found.gates, configured))

    async def _explain(self, look: Look) -> tuple[Look, Explanation]:
        task = look.task
        if task.ended or look.trouble or task.handle is None:
            return look, _from_the_store(look)
        adapter = self._engines.get(task.engine)
        if not isinstance(adapter, Explains):
            return look, _from_the_store(look)
        try:
            async with self._engines.calling(task.engine):
                return look, await adapter.explain(ref_of(task, task.handle))
        except EngineError as error:
            look = replace(look, trouble=f"engine {task.engine}: {error}")
            return look, _from_the_store(look)

    async def answer(self, name: str, key: str, response: JSON) -> Look:
        """Answer an open question as a client would (`ElicitResult`); rules about who may answer it do not count.

        Raises:
            OperatorError: see `find`; the question is not open, the response does not fit, or was not delivered.
        """
        look = await self.find(name)
        task = look.task
        if look.trouble or task.handle is None:
            raise OperatorError(f"nothing was answered: {look.trouble or NOT_STARTED}")
        if not task.may_answer:
            raise OperatorError(f"nothing was answered: tool {task.tool} only watches")
        if key not in task.seen.requests:
            raise OperatorError("nothing was answered: that question is not open any more")
        try:
            fitting = fitting_answers(task, {key: response}, OPERATOR)
            if not fitting:
                return look
            task = await deliver_answers(task, task.handle, fitting, self._store, self._engines, self._clock)
        except RequestError as error:
            raise OperatorError(error.message.removeprefix(f"inputResponses[{key!r}]: ")) from None
        self._record(Event.ANSWER, task)
        return await self._look(task)

    async def cancel(self, name: str) -> Look:
        """Ask to cancel; kept and delivered later by the sidecar if the engine does not take it now.

        Raises:
            OperatorError: see `find`.
        """
        task = await named_task(self._store, name)
        task = await self._change(task, lambda row: request_cancel(row, self._clock()))
        self._record(Event.CANCEL, task, "ended" if task.ended else "ok")
        if task.ended or task.handle is None:
            return await self._look(task)
        try:
            async with self._engines.calling(task.engine, api="cancel") as adapter:
                await adapter.cancel(ref_of(task, task.handle))
        except EngineError as error:
            return Look(task=task, trouble=f"engine {task.engine}: {error}")
        return await self._look(await self._change(task, lambda row: deliver_cancel(row, self._clock())))

    async def terminate(self, name: str, reason: str) -> Look:
        """End it without asking.

        Raises:
            OperatorError: see `find`; its engine cannot, or did not.
        """
        task = await named_task(self._store, name)
        if task.ended:
            return Look(task=task)
        if task.handle is None:
            raise OperatorError(f"task {task.id}: {NOT_STARTED}; nothing was done")
        adapter = self._engines.get(task.engine)
        if adapter is not None and not isinstance(adapter, Terminates):
            raise OperatorError(f"engine {task.engine} cannot terminate: leave out --terminate to ask it to cancel")
        try:
            async with self._engines.calling(task.engine, api="terminate"):
                if isinstance(adapter, Terminates):
                    await adapter.terminate(ref_of(task, task.handle), reason)
        except EngineError as error:
            raise OperatorError(f"not terminated, engine {task.engine}: {error}") from None
        task = await self._change(task, lambda row: mark_terminated(row, self._clock()))
        self._record(Event.CANCEL, task, "terminated", reason)
        return await self._look(task)

    async def adopt(
        self, tool: Tool, execution_id: str, owner: Principal, arguments: Mapping[str, JSON], retention: timedelta
    ) -> Look:
        """A task of an execution that somebody else started; adopting it again finds the same task.

        Raises:
            OperatorError: the engine has no such execution, or it is of another workflow, or cannot be a task.
            MappingError: what the tool fills in does not work on these arguments.
        """
        try:
            ref = await self._adoption.find(tool, execution_id)
        except EngineError as error:
            raise OperatorError(f"engine {tool.engine}: {error}") from None
        if not same_workflow(self._engines.get(tool.engine), tool.workflow, ref.workflow):
            raise OperatorError(f"{execution_id} runs workflow {ref.workflow}, and tool {tool.name} {tool.workflow}")
        ttl, known = tool.ttl or retention, watched_arguments(tool, execution_id, arguments)
        adopted = AdoptionRequest(tool=tool, ref=ref, owner=owner, arguments=known, ttl=ttl, context={})
        task = await self._adoption.create(adopted)
        self._record(Event.CREATE, task, "watched")
        return await self._look(task)

    async def _pages(self, wanted: Wanted) -> AsyncIterator[Sequence[Task]]:
        before: datetime | None = None
        for _ in range(PAGES):
            page = await self._store.everyones(
                tool=wanted.tool, live_only=not wanted.ended, limit=max(PAGE, wanted.limit), before=before
            )
            if not page:
                return
            yield page
            before = page[-1].created

    async def _looks(self, tasks: Sequence[Task]) -> Sequence[Look]:
        looks: dict[str, Look] = {}

        async def look(task: Task) -> None:
            async with self._turns:
                looks[task.id] = await self._look(task)

        async with anyio.create_task_group() as group:
            for task in tasks:
                group.start_soon(look, task)
        return [looks[task.id] for task in tasks]

    async def _look(self, task: Task) -> Look:
        """Ask the engine, and keep what it says as the sidecar does: the first end that anybody sees stays."""
        if task.ended:
            return Look(task=task)
        if task.handle is None:
            return Look(task=task, trouble=NOT_STARTED)
        if trouble := self._silent.get(task.engine):
            return Look(task=task, trouble=trouble)
        try:
            async with self._engines.calling(task.engine, api="describe") as adapter:
                seen = validated(await adapter.describe(ref_of(task, task.handle)))
        except ExecutionNotFound as error:
            return Look(task=task, trouble=f"engine {task.engine}: {error}")
        except EngineError as error:
            trouble = self._silent[task.engine] = f"engine {task.engine}: {error}"
            return Look(task=task, trouble=trouble)
        return Look(task=await self._observed(task, seen))

    async def _observed(self, task: Task, execution: Execution) -> Task:
        """The task with what was seen; a change of its status that is seen here first is put on record here."""
        is_change = False

        def see(row: Task) -> Task:
            nonlocal is_change
            after = observe(row, execution, self._clock())
            is_change = after.execution.status is not row.execution.status
            return after

        task = await self._change(task, see)
        if is_change:
            self._audit(status_record(task))
        return task

    def _record(self, event: Event, task: Task, outcome: str = "ok", reason: str | None = None) -> None:
        self._audit(record_of(event, OPERATOR, task, outcome=outcome, reason=reason))

    async def _change(self, task: Task, change: Callable[[Task], Task]) -> Task:
        return await self._store.change(task.id, task.owner, change) or task


def _fits(task: Task, wanted: Wanted) -> bool:
    return (not wanted.statuses or task.seen.status in wanted.statuses) and (wanted.ended or not task.ended)


def _gates(
    look: Look, explained: Mapping[str, ExplainedGate], configured: Iterable[str]
) -> Mapping[str, ExplainedGate]:
    """The state of each gate of the task and of its tool: as the adapter explains it, or else as the look shows it."""
    task = look.task
    if task.ended:  # its own gates are not kept any longer
        return dict.fromkeys(configured, _closed("the execution has ended"))
    answered = {key: request for key, request in task.execution.requests.items() if key in task.answered}
    taken = {str(request.gate): _closed(f"answered already ({key})") for key, request in answered.items()}
    found = {**open_gates(task.seen.requests), **explained, **taken}
    other = _closed(f"it asks nothing now; the adapter of engine {task.engine} does not say why")
    if look.trouble:
        other = ExplainedGate(state=GateState.UNKNOWN, why=look.trouble)
    later = _closed("the task was started without it: a task keeps the gates that its tool had at the start")
    return dict.fromkeys(configured, later) | {name: found.get(name, other) for name in task.gates}


def _closed(why: str) -> ExplainedGate:
    return ExplainedGate(state=GateState.CLOSED, why=why)


def _from_the_store(look: Look) -> Explanation:
    """For an engine that cannot explain, or does not answer."""
    task = look.task
    if task.ended:
        why = task.execution.failure.text if task.execution.failure else task.execution.message
        said = "" if why in (None, "", task.execution.status) else f", {why}"
        return Explanation(reason=f"it has ended: {task.execution.status}{said}")
    if look.trouble:
        advice = "mcp-workflows check says what is wrong with the engine; the execution goes on without us"
        return Explanation(reason=look.trouble, advice=advice)
    if task.seen.status is Status.INPUT_REQUIRED:
        advice = "answer it in the MCP host, or with mcp-workflows tasks answer"
        return Explanation(reason=f"it waits for an answer: {asked(task.seen.requests)}", advice=advice)
    reason = task.seen.message or f"engine {task.engine} says no more than {task.seen.status}"
    page = task.execution.url
    return Explanation(reason=reason, advice=f"see it in the engine: {page}" if page else None)
