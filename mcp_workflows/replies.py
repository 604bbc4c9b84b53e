"""What a call hears once there is a task: the task, or what comes of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import anyio.lowlevel

from mcp_workflows.access import Principal, Verb
from mcp_workflows.access.audit import Event
from mcp_workflows.access.rate_limits import Meters
from mcp_workflows.door import Door, as_seen
from mcp_workflows.errors import INTERNAL_ERROR, INVALID_PARAMS, EngineError, RequestError
from mcp_workflows.guard import NO_RIGHTS, NOT_FOUND, Guard
from mcp_workflows.ledger import Ledger
from mcp_workflows.plain import Caller, PlainCalls, Report, finished
from mcp_workflows.result import tool_error
from mcp_workflows.task import Task
from mcp_workflows.tools.dialogue import read_dialogue
from mcp_workflows.tools.tool import TaskSupport, Tool
from mcp_workflows.wire.commands import Call, Created, Finished, Outcome, Questions


class Replies:
    """Replies to calls of tools whose workflow runs."""

    def __init__(self, *, ledger: Ledger, guard: Guard, meters: Meters, door: Door) -> None:
        self._ledger = ledger
        self._guard = guard
        self._meters = meters
        self._door = door
        self._plain = PlainCalls(ledger)

    async def of_new(self, tool: Tool, row: Task, call: Call, principal: Principal, report: Report) -> Outcome:
        """What the client gets now that there is a task: that, or what comes of it."""
        self._meters.show(principal, row.id)
        caller = self._caller(principal)
        async with self._plain.attended(tool, row, caller):
            await anyio.lowlevel.checkpoint_if_cancelled()  # it may have left while this was started
        if not call.takes_tasks or tool.tasks is TaskSupport.FORBIDDEN:
            return await self._awaited(tool, row, call, principal, report)
        at_once = tool.adaptive is not None and not call.wants_task
        if at_once:
            with suppress(EngineError, _NotTheirs):
                row = await self._plain.patiently(tool, row, report, caller, within=tool.adaptive)
        rights = await self._guard.rights(row, principal)
        if at_once and row.ended and rights.see:
            self._door.record(Event.RETRIEVE, principal, row)
            return finished(row)
        return Created(task=self._door.view(row, rights, principal))

    async def of_answered(self, tool: Tool, task_id: str, call: Call, principal: Principal, report: Report) -> Outcome:
        """The next round of a plain call whose workflow asked a question."""
        task, _ = await self._door.found(task_id, principal, Verb.ANSWER)
        async with self._plain.attended(tool, task, self._caller(principal)):
            task = await self._door.answer(task, call.responses, principal)
        return await self._awaited(tool, task, call, principal, report)

    @asynccontextmanager
    async def asking(self, tool: Tool, asked: Questions, principal: Principal) -> AsyncGenerator[None]:
        """While a receiver puts these questions to the person at the client, which may leave, as may we.

        Raises:
            RequestError: the server is stopping, and nothing was started.
        """
        task_id = read_dialogue(asked.state).task_id
        if task_id is None:
            with self._ledger.until_stop():
                yield
            if self._ledger.stopping:
                raise RequestError(INTERNAL_ERROR, "the server is stopping; nothing was started: call again later")
            return
        task, _ = await self._door.found(task_id, principal)
        async with self._plain.attended(tool, task, self._caller(principal)):
            with self._ledger.until_stop():
                yield

    async def _awaited(self, tool: Tool, task: Task, call: Call, principal: Principal, report: Report) -> Outcome:
        """What comes of it, for who takes no task."""
        try:
            return await self._plain.outcome(tool, task, call, report, self._caller(principal))
        except _NotTheirs:
            text = f"{tool.name} was started and goes on by itself. What comes of it is for others to see: do not"
            return Finished(result=tool_error(f"{text} call it again, that would start it twice."))

    def _caller(self, principal: Principal) -> Caller:
        """Who waits for a task, and what they do with it put on record."""

        def given(task: Task) -> None:
            self._door.record(Event.RETRIEVE, principal, task)

        def left(task: Task) -> None:
            self._door.record(Event.CANCEL, principal, task, outcome="left")

        return Caller(lens=self._lens(principal), given=given, left=left)

    def _lens(self, principal: Principal) -> Callable[[Task], Awaitable[Task]]:
        """How a call that waits sees its task: by the rules of that moment, and while its token is not taken back."""

        async def seen(task: Task) -> Task:
            who = await principal.still(self._ledger.now())
            rights = NO_RIGHTS if who is None else await self._guard.rights(task, who)
            if not rights.reads(task) and (task.ended or not rights.answer):
                self._guard.denied(principal, task=task, reason="may not see what comes of it")
                raise _NotTheirs(INVALID_PARAMS, NOT_FOUND)
            return as_seen(rights, task)

        return seen


class _NotTheirs(RequestError):  # noqa: N818  # it is an answer
    """What comes of a call is not for its caller to see."""
