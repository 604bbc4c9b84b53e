"""Waiting calls: a client waits within one request for the result of a workflow, as long as the tool allows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import anyio

from mcp_workflows.access import Principal
from mcp_workflows.access.audit import Event
from mcp_workflows.adapter import Execution, Status, askable, asked
from mcp_workflows.errors import EngineError, ServerStopping, WorkflowsError
from mcp_workflows.task import Task
from mcp_workflows.tasks.authorization import TaskAccess
from mcp_workflows.tasks.repository import TaskRepository
from mcp_workflows.tasks.results import tool_error
from mcp_workflows.tasks.view import final_result, view
from mcp_workflows.tools.dialogue import Dialogue, write_dialogue
from mcp_workflows.tools.hosts import LONGEST_WAIT, call_wait
from mcp_workflows.tools.tool import Tool
from mcp_workflows.wire.commands import Call, CallOutcome, Finished, Questions, TaskView, Unfinished

CARD_WAIT = timedelta(seconds=2)  # a plain call waits no longer for what a card shows: it is empty until the reply
NO_ANSWER_LIMIT = 30.0  # seconds a plain call waits for an engine that gives no answer
ABANDONING = 5.0  # seconds to cancel what a client has left
Report = Callable[[Execution], Awaitable[None]]


class WaitingCalls:
    """Calls that return a result or a task id in text, and no task."""

    def __init__(self, repository: TaskRepository, access: TaskAccess) -> None:
        self._repository = repository
        self._access = access

    async def outcome(self, tool: Tool, task: Task, call: Call, report: Report, principal: Principal) -> CallOutcome:
        """Return the result to a client without tasks, or the unfinished task if the tool hands over in time.

        Raises:
            ResultHidden: the principal may not see it any more.
        """
        try:
            task = await self.patiently(tool, task, report, principal, within=time_left(tool, call))
        except EngineError as trouble:
            if tool.hands_over:
                said = f"engine {task.engine} gives no answer: {trouble}"
                return Unfinished(task=replace(self._view(await self._access.shown_now(task, principal)), message=said))
            text = f"Engine {task.engine} gives no answer, what was started there goes on: {trouble}"
            return Finished(result=tool_error(text))
        except ServerStopping:
            return Finished(result=tool_error(_left_behind(task)))
        task = await self._access.shown_now(task, principal)
        if task.ended:
            self._access.record(Event.RETRIEVE, principal, task)
            return finished(task)
        requests = askable(task.seen.requests if call.takes_questions else {}, takes_urls=call.takes_urls)
        if requests and task.seen.status is Status.INPUT_REQUIRED and not call.shows_card:
            return Questions(requests=requests, state=write_dialogue(Dialogue(task_id=task.id)), started=True)
        if tool.hands_over:
            return Unfinished(task=self._view(task))
        return _unanswerable(task)

    async def patiently(
        self, tool: Tool, task: Task, report: Report, principal: Principal, *, within: timedelta | None
    ) -> Task:
        """Return the task when it has ended or asks, or after `within`; None is no limit.

        The workflow goes on without the client, unless the tool says `cancel_on_disconnect`.
        """
        latest = task

        async def on_change(current: Task) -> bool:
            nonlocal latest
            latest = current
            seen = (await self._access.shown_now(current, principal)).seen
            if seen.status is Status.INPUT_REQUIRED:
                return True
            await report(seen)
            return False

        try:
            async with self.attended(tool, task, principal):
                with anyio.move_on_after(None if within is None else within.total_seconds()):
                    await self._repository.follow(task, on_change, patience=NO_ANSWER_LIMIT)
        except ServerStopping:
            if within is None:
                raise
        return latest

    @asynccontextmanager
    async def attended(self, tool: Tool, task: Task, principal: Principal) -> AsyncGenerator[None]:
        """Cancel the workflow if the client leaves during the body and the tool says so.

        A stopping server does not count as a client that leaves.
        """
        try:
            yield
        except anyio.get_cancelled_exc_class():
            if tool.cancel_on_disconnect and not self._repository.stopping and not task.ended:
                with anyio.move_on_after(ABANDONING, shield=True), suppress(WorkflowsError):
                    self._access.record(Event.CANCEL, principal, await self._repository.cancel(task), outcome="left")
            raise

    def _view(self, task: Task) -> TaskView:
        return view(task, self._repository.pace(task))


def finished(task: Task) -> Finished:
    """Return the result of a task that has ended."""
    return Finished(result=final_result(view(task, timedelta())))


def _unanswerable(task: Task) -> Finished:
    """Return the error for a question that the client can neither read from a task nor put to a person."""
    text = f"{_workflow(task)} waits for an answer this client cannot give: {asked(task.seen.requests)}"
    return Finished(result=tool_error(text))


def _left_behind(task: Task) -> str:
    """Return the text for a client that cannot come back to the task and must not start it again."""
    return (
        f"The server is stopping, so its result cannot be waited for. {_workflow(task)} goes on by itself: "
        f"do not call {task.tool} again, that would start it twice."
    )


def _workflow(task: Task) -> str:
    """Return words by which people find the execution in the engine."""
    return "The workflow" + (f" (execution {task.execution.execution_id})" if task.execution.execution_id else "")


def time_left(tool: Tool, call: Call) -> timedelta | None:
    """Return how long the call may go on waiting, counted from the arrival of its request; None is no limit."""
    if not tool.hands_over:
        return None
    longest = tool.wait or (LONGEST_WAIT if call.asked else call_wait(call.host))
    waited = timedelta() if call.began is None else timedelta(seconds=anyio.current_time() - call.began)
    return max((min(longest, CARD_WAIT) if call.shows_card else longest) - waited, timedelta())
