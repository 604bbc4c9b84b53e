"""Plain calls: a client waits within one request for what comes of a workflow, for as long as the tool says."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import anyio

from mcp_workflows.adapter import Execution, Status, asked
from mcp_workflows.errors import EngineError, ServerStopping, WorkflowsError
from mcp_workflows.task import Task
from mcp_workflows.tasks.refresh import TaskRepository
from mcp_workflows.tasks.results import tool_error
from mcp_workflows.tasks.view import final_result, view
from mcp_workflows.tools.dialogue import Dialogue, write_dialogue
from mcp_workflows.tools.tool import Tool
from mcp_workflows.wire.commands import Call, CallOutcome, Finished, Questions, TaskView, Unfinished

PATIENCE = 30.0  # seconds a plain call waits for an engine that gives no answer
ABANDONING = 5.0  # seconds to cancel what a client has left
Report = Callable[[Execution], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallObserver:
    """Who waits, as far as a plain call has to know."""

    lens: Callable[[Task], Awaitable[Task]]  # the task as they may see it now; raises `RequestError` if not at all
    given: Callable[[Task], None]  # hears that its result is given out
    left: Callable[[Task], None]  # hears that it was cancelled because they left


class BlockingCalls:
    """ToolCalls that are answered with a result, or with a handle, and with no task."""

    def __init__(self, repository: TaskRepository) -> None:
        self._repository = repository

    async def outcome(self, tool: Tool, task: Task, call: Call, report: Report, caller: CallObserver) -> CallOutcome:
        """The plain result, for a client without tasks; a handle, if the tool hands over and it takes too long.

        Raises:
            RequestError: what the caller's `lens` raises.
        """
        try:
            task = await self.patiently(tool, task, report, caller, within=_within(tool, call))
        except EngineError as trouble:
            if tool.hands_over:
                said = f"engine {task.engine} gives no answer: {trouble}"
                return Unfinished(task=replace(self._view(await caller.lens(task)), message=said))
            text = f"Engine {task.engine} gives no answer, what was started there goes on: {trouble}"
            return Finished(result=tool_error(text))
        except ServerStopping:
            return Finished(result=tool_error(_left_behind(task)))
        task = await caller.lens(task)
        if task.ended:
            caller.given(task)
            return finished(task)
        asks = task.seen.status is Status.INPUT_REQUIRED
        if asks and call.takes_questions:
            return Questions(requests=task.seen.requests, state=write_dialogue(Dialogue(task_id=task.id)), started=True)
        if tool.hands_over:
            return Unfinished(task=self._view(task))
        return _unanswerable(task)

    async def patiently(
        self, tool: Tool, task: Task, report: Report, caller: CallObserver, *, within: timedelta | None
    ) -> Task:
        """The task when it has ended or asks, or after that time; no time: however long it takes.

        Whatever becomes of the client, the workflow goes on; unless the tool says `cancel_on_disconnect`.
        """
        latest = task

        async def on_change(current: Task) -> bool:
            nonlocal latest
            latest = current
            seen = (await caller.lens(current)).seen
            if seen.status is Status.INPUT_REQUIRED:
                return True
            await report(seen)
            return False

        try:
            async with self.attended(tool, task, caller):
                with anyio.move_on_after(None if within is None else within.total_seconds()):
                    await self._repository.follow(task, on_change, patience=PATIENCE)
        except ServerStopping:
            if within is None:
                raise
        return latest

    @asynccontextmanager
    async def attended(self, tool: Tool, task: Task, caller: CallObserver) -> AsyncGenerator[None]:
        """A client that leaves in here leaves the workflow alone, or cancels it if the tool says so.

        A server that stops is no client that leaves.
        """
        try:
            yield
        except anyio.get_cancelled_exc_class():
            if tool.cancel_on_disconnect and not self._repository.stopping and not task.ended:
                with anyio.move_on_after(ABANDONING, shield=True), suppress(WorkflowsError):
                    caller.left(await self._repository.cancel(task))
            raise

    def _view(self, task: Task) -> TaskView:
        return view(task, self._repository.pace(task))


def finished(task: Task) -> Finished:
    """What a plain call of a task that has ended returns."""
    return Finished(result=final_result(view(task, timedelta())))


def _unanswerable(task: Task) -> Finished:
    """A workflow asks, and the client has neither a task to read the question from nor a way to ask a person."""
    text = f"{_workflow(task)} waits for an answer this client cannot give: {asked(task.seen.requests)}"
    return Finished(result=tool_error(text))


def _left_behind(task: Task) -> str:
    """For who has no way back to it, and must not start it again."""
    return (
        f"The server is stopping, so its result cannot be waited for. {_workflow(task)} goes on by itself: "
        f"do not call {task.tool} again, that would start it twice."
    )


def _workflow(task: Task) -> str:
    """How people find it again."""
    return "The workflow" + (f" (execution {task.execution.execution_id})" if task.execution.execution_id else "")


def _within(tool: Tool, call: Call) -> timedelta | None:
    """How much longer a plain call may take; None: as long as it does."""
    return max(tool.wait - call.waited, timedelta()) if tool.hands_over else None
