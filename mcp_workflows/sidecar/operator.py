"""Commands of the operator on tasks of any owner: show, explain, answer, cancel, terminate, track.

They use the store and the engines, whether or not a sidecar uses the same store. If an engine does not reply, they show
the last known state. They start no execution; only the sidecar does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import anyio

from mcp_workflows.access import Principal
from mcp_workflows.access.audit import Audit, Event, answer_reason, record_of, silent
from mcp_workflows.adapter import JSON, Status, Terminates, asked
from mcp_workflows.engines.registry import Engines, ref_of
from mcp_workflows.errors import EngineError, OperatorError, RequestError
from mcp_workflows.kit.tooling import ExplainedGate, Explains, Explanation, GateState, open_gates
from mcp_workflows.store.protocol import Store, TaskFilter
from mcp_workflows.task import Task
from mcp_workflows.tasks.adopt import watched_arguments
from mcp_workflows.tasks.executions import NOT_STARTED, Executions, ObservedTask
from mcp_workflows.tools.dialogue import AnswerWay
from mcp_workflows.tools.tool import AnyTool
from mcp_workflows.units import utc_now

MAX_CALLS = 16  # to engines at once
PAGE = 100  # rows
MAX_PAGES = 100  # a search for something rarer needs a narrower filter
MAX_SHOWN = 5  # ids in a message

OPERATOR = Principal(id="operator")
"""The principal of these commands, in templates of gates and in the audit log."""


async def find_task(store: Store, name: str) -> Task:
    """Return the stored task with this id, or the only one whose id begins with it.

    Raises:
        OperatorError: no task or several match.
    """
    if not name:
        raise OperatorError("give the id of a task, or its beginning")
    found = await store.find(name, MAX_SHOWN + 1)
    exact = [task for task in found if task.id == name] or found
    if not exact:
        raise OperatorError(f"no task's id begins with {name!r}, or it has expired")
    if len(exact) > 1:
        shown = ", ".join(task.id for task in exact[:MAX_SHOWN]) + (", ..." if len(exact) > MAX_SHOWN else "")
        raise OperatorError(f"more than one task's id begins with {name!r}: {shown}")
    return exact[0]


class Operator:
    """Reads and changes tasks of any owner; must not be reachable by requests."""

    def __init__(
        self,
        *,
        store: Store,
        engines: Engines,
        tools: Sequence[AnyTool] = (),
        clock: Callable[[], datetime] = utc_now,
        audit: Audit = silent,
    ) -> None:
        self._store = store
        self._audit = audit
        self._engines = engines
        self._gates = {tool.name: tuple(tool.gates) for tool in tools}
        self._executions = Executions(store=store, engines=engines, clock=clock, audit=audit)
        self._turns = anyio.Semaphore(MAX_CALLS)

    async def tasks(
        self, where: TaskFilter, statuses: frozenset[Status] = frozenset(), limit: int = 50
    ) -> Sequence[ObservedTask]:
        """Return the newest tasks that match, after a poll of each; `statuses` apply after the poll (empty: any)."""
        found: list[ObservedTask] = []
        before: tuple[datetime, str] | None = None
        for _ in range(MAX_PAGES):
            page = await self._store.list_all(where, limit=max(PAGE, limit), before=before)
            observed = [each for each in await self._observe_all(page) if not (where.live_only and each.task.ended)]
            found += [each for each in observed if not statuses or each.task.seen.status in statuses]
            if not page or len(found) >= limit:
                break
            before = page[-1].created, page[-1].id
        return found[:limit]

    async def find(self, name: str) -> ObservedTask:
        """Return the task with this id, or the only one whose id begins with it, after a poll.

        Raises:
            OperatorError: no task or several match.
        """
        return await self._executions.observe_once(await find_task(self._store, name))

    async def read(self, name: str) -> ObservedTask:
        """Return the task like `find`; record the retrieval if it has a result.

        Raises:
            OperatorError: see `find`.
        """
        observed = await self.find(name)
        if observed.task.ended:
            self._record(Event.RETRIEVE, observed.task)
        return observed

    async def why(self, name: str) -> tuple[ObservedTask, Explanation]:
        """Return the engine's explanation of the task's state, with the state of every gate of its tool.

        Raises:
            OperatorError: see `find`.
        """
        observed = await self.find(name)
        task, found = observed.task, None
        adapter = self._engines.get(task.engine)
        tooling = None if adapter is None else adapter.tooling
        if isinstance(tooling, Explains) and task.handle and not (task.ended or observed.warning):
            try:
                async with self._engines.calling(task):
                    found = await tooling.explain(ref_of(task, task.handle))
            except EngineError as error:
                observed = ObservedTask(task, f"engine {task.engine}: {error}")
        found = found or _from_the_store(observed)
        return observed, replace(found, gates=_gates(observed, found.gates, self._gates.get(task.tool, ())))

    async def answer(self, name: str, key: str, response: JSON) -> ObservedTask:
        """Answer an open question like a client (`ElicitResult`), without the rules about who may answer.

        Raises:
            OperatorError: see `find`; the question is not open, or the response does not fit or was not delivered.
        """
        observed = await self.find(name)
        task = observed.task
        if observed.warning or (task.handle is None and task.held is None):
            raise OperatorError(f"nothing was answered: {observed.warning or NOT_STARTED}")
        if not task.may_answer:
            raise OperatorError(f"nothing was answered: tool {task.tool} only watches")
        if key not in task.seen.requests:
            raise OperatorError("nothing was answered: that question is no longer open")
        try:
            task, answers = await self._executions.answer(task, {key: response}, OPERATOR, AnswerWay.PAGE)
        except RequestError as error:
            raise OperatorError(error.message.removeprefix(f"inputResponses[{key!r}]: ")) from None
        if not answers:
            return ObservedTask(task)
        self._record(Event.ANSWER, task, reason=answer_reason(answers))
        return await self._executions.observe_once(task)

    async def cancel(self, name: str) -> ObservedTask:
        """Request cancellation; if the engine does not accept it now, the sidecar delivers it later.

        Raises:
            OperatorError: see `find`.
        """
        asked = await self._executions.cancel(await find_task(self._store, name))
        self._record(Event.CANCEL, asked.task, "ended" if asked.task.ended else "ok")
        return asked if asked.warning else await self._executions.observe_once(asked.task)

    async def terminate(self, name: str, reason: str) -> ObservedTask:
        """Terminate the execution, without a request to it.

        Raises:
            OperatorError: see `find`; the engine cannot terminate, or failed to.
        """
        task = await find_task(self._store, name)
        if task.ended:
            return ObservedTask(task)
        if task.handle is None:
            raise OperatorError(f"task {task.id}: {NOT_STARTED}; nothing was done")
        adapter = self._engines.get(task.engine)
        if adapter is not None and not isinstance(adapter, Terminates):
            raise OperatorError(f"engine {task.engine} cannot terminate: omit --terminate to request a cancellation")
        try:
            task = await self._executions.terminate(task, task.handle, reason)
        except EngineError as error:
            raise OperatorError(f"not terminated: engine {task.engine}: {error}") from None
        self._record(Event.CANCEL, task, "terminated", reason)
        return await self._executions.observe_once(task)

    async def adopt(
        self, tool: AnyTool, execution_id: str, owner: Principal, arguments: Mapping[str, JSON], retention: timedelta
    ) -> ObservedTask:
        """Create a task for an execution that was started elsewhere; a second call returns the same task.

        Raises:
            OperatorError: the engine has no such execution, or it runs another workflow, or cannot be a task.
            MappingError: the tool's templates do not work on these arguments.
        """
        try:
            ref = await self._executions.adoption.find(tool, execution_id)
        except EngineError as error:
            raise OperatorError(f"engine {tool.engine}: {error}") from None
        if not self._executions.adoption.runs(tool, ref):
            raise OperatorError(f"{execution_id} runs workflow {ref.workflow}, and tool {tool.name} {tool.workflow}")
        ttl, known = tool.ttl or retention, watched_arguments(tool, execution_id, arguments)
        task = await self._executions.adopt(self._executions.adoption.new_task(tool, ref, owner, known, ttl=ttl))
        self._record(Event.CREATE, task, "watched")
        return await self._executions.observe_once(task)

    async def _observe_all(self, tasks: Sequence[Task]) -> Sequence[ObservedTask]:
        observed: dict[str, ObservedTask] = {}

        async def observe(task: Task) -> None:
            async with self._turns:
                observed[task.id] = await self._executions.observe_once(task)

        async with anyio.create_task_group() as group:
            for task in tasks:
                group.start_soon(observe, task)
        return [observed[task.id] for task in tasks]

    def _record(self, event: Event, task: Task, outcome: str = "ok", reason: str | None = None) -> None:
        self._audit(record_of(event, OPERATOR, task, outcome=outcome, reason=reason))


def _gates(
    observed: ObservedTask, explained: Mapping[str, ExplainedGate], configured: Iterable[str]
) -> Mapping[str, ExplainedGate]:
    """Return the state of each gate of the task and its tool, from the adapter or else from the poll."""
    task = observed.task
    if task.ended:  # the store drops the gates of ended tasks
        return dict.fromkeys(configured, ExplainedGate.closed("the execution has ended"))
    answered = {key: request for key, request in task.execution.requests.items() if key in task.answered}
    taken = {str(request.gate): ExplainedGate.closed(f"answered already ({key})") for key, request in answered.items()}
    found = {**open_gates(task.seen.requests), **explained, **taken}
    other = ExplainedGate.closed(f"it asks nothing now; the adapter of engine {task.engine} cannot explain why")
    if observed.warning:
        other = ExplainedGate(state=GateState.UNKNOWN, why=observed.warning)
    later = ExplainedGate.closed(
        "the task was started without it: a task keeps the gates that its tool had at the start"
    )
    return dict.fromkeys(configured, later) | {name: found.get(name, other) for name in task.gates}


def _from_the_store(observed: ObservedTask) -> Explanation:
    """Return the explanation for an engine that cannot explain or does not reply."""
    task = observed.task
    if task.ended:
        why = task.execution.failure.text if task.execution.failure else task.execution.message
        said = "" if why in (None, "", task.execution.status) else f", {why}"
        return Explanation(reason=f"it has ended: {task.execution.status}{said}")
    if observed.warning:
        advice = "mcp-workflows check shows what is wrong with the engine; the execution continues without this server"
        return Explanation(reason=observed.warning, advice=advice)
    if task.seen.status is Status.INPUT_REQUIRED:
        advice = "answer it in the MCP host, or with mcp-workflows tasks answer"
        return Explanation(reason=f"it waits for an answer: {asked(task.seen.requests)}", advice=advice)
    reason = task.seen.message or f"engine {task.engine} reports only {task.seen.status}"
    page = task.execution.url
    return Explanation(reason=reason, advice=f"see it in the engine: {page}" if page else None)
