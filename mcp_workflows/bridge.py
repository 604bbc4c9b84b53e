"""command -> access -> store -> adapter -> outcome: what each command does."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import anyio
import anyio.lowlevel

from mcp_workflows.access import Principal
from mcp_workflows.adapter import JSON, Status
from mcp_workflows.adoption import Adopted
from mcp_workflows.ask import Declined, Dialogue, questions, read_dialogue, still_to_ask, take, write_dialogue
from mcp_workflows.creation import digest
from mcp_workflows.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    ExecutionNotFound,
    MappingError,
    RequestError,
)
from mcp_workflows.ledger import Ledger, expired
from mcp_workflows.plain import PlainCalls, Report, finished
from mcp_workflows.result import tool_error
from mcp_workflows.task import Task
from mcp_workflows.tool import EXECUTION_ID, Kind, TaskSupport, Tool
from mcp_workflows.view import protocol_error, view, whole_result
from mcp_workflows.wire.commands import (
    Acknowledged,
    Call,
    Cancel,
    Capability,
    CapabilityNeeded,
    Created,
    Described,
    Document,
    Finished,
    Get,
    List,
    Listed,
    Listen,
    Outcome,
    Questions,
    Read,
    TaskView,
    Update,
)

PAGE = 50  # tasks of one `tasks/list`
SHORTEST_TTL = timedelta(minutes=1)  # whatever a client asks for
OnView = Callable[[TaskView], Awaitable[bool | None]]


class Bridge:
    """The commands of every era, on behalf of a principal."""

    def __init__(self, *, tools: Mapping[str, Tool], ledger: Ledger, retention: timedelta) -> None:
        self._tools = tools
        self._ledger = ledger
        self._retention = retention
        self._plain = PlainCalls(ledger)

    # --- tools/call

    async def call(self, call: Call, principal: Principal, report: Report) -> Outcome:
        """`tools/call`: questions first, then a task or, for who takes none, the plain result.

        `report` hears each change while the call waits.
        """
        tool = self._tools[call.tool]
        if tool.kind is Kind.WATCH and not principal.identified:
            text = f"tool {tool.name} is for identified callers only, and this server does not know who is calling"
            raise RequestError(INVALID_PARAMS, text)
        if tool.needs_tasks and not call.takes_tasks:
            return CapabilityNeeded(
                capability=Capability.TASKS, message=f"tool {tool.name} takes long: it needs a client with tasks"
            )
        if call.wants_task and tool.tasks is TaskSupport.FORBIDDEN:
            raise RequestError(METHOD_NOT_FOUND, f"tool {tool.name} makes no tasks: call it without params.task")
        dialogue = read_dialogue(call.state)
        if dialogue.task_id is not None:
            return await self._resume(tool, dialogue.task_id, call, principal, report)
        try:
            return await self._call(tool, call, dialogue, principal, report)
        except MappingError as error:
            return Finished(result=tool_error(f"Wrong arguments for {tool.name}: {error}; nothing was started"))

    async def _call(self, tool: Tool, call: Call, dialogue: Dialogue, principal: Principal, report: Report) -> Outcome:
        taken = take(tool, call.responses, dialogue)
        if isinstance(taken, Declined):
            return Finished(result=tool_error(f"{taken.name}: answered with {taken.action}; nothing was started"))
        arguments = {**call.arguments, **taken.arguments}
        asking = still_to_ask(tool, arguments, taken)
        to_come = frozenset(name for question in asking for name in tool.ask[question].answers(question))
        if wrong := tool.complaints(arguments, to_be_asked=to_come):
            return Finished(result=tool_error(f"Wrong arguments for {tool.name}: " + "; ".join(wrong)))
        scope = {"args": arguments, **principal.scope}
        if asking:
            return _ask(tool, asking, taken, call, scope)
        if tool.kind is Kind.WATCH:
            return await self._watch(tool, call, principal, report)
        task = self._new_task(tool, call, call.idempotency_key or taken.key, scope, principal)
        return await self._begin(tool, task, call, report)

    async def _begin(self, tool: Tool, task: Task, call: Call, report: Report) -> Outcome:
        try:
            row = await self._ledger.create(task)
        except EngineRefused as error:
            return Finished(result=tool_error(f"Engine {tool.engine} refused to start {tool.workflow}: {error}"))
        except EngineUnavailable as error:
            text = f"Engine {tool.engine} cannot be reached, nothing was started; try again later: {error}"
            return Finished(result=tool_error(text))
        return await self._go_on(tool, row, call, report)

    async def _watch(self, tool: Tool, call: Call, principal: Principal, report: Report) -> Outcome:
        """A task of an execution that runs already; from there on as if it had been started here."""
        adoption = self._ledger.adoption
        try:
            ref = await adoption.find_own(tool, call.arguments[EXECUTION_ID])
        except EngineUnavailable as error:
            text = f"Engine {tool.engine} gives no answer, nothing is watched; try again later: {error}"
            return Finished(result=tool_error(text))
        except ExecutionNotFound as error:
            return Finished(result=tool_error(str(error)))
        ttl = _ttl(call, tool.ttl or self._retention)
        row = await adoption.take(
            Adopted(tool=tool, ref=ref, owner=principal, arguments=call.arguments, ttl=ttl, context=call.context)
        )
        return await self._go_on(tool, row, call, report)

    async def _go_on(self, tool: Tool, row: Task, call: Call, report: Report) -> Outcome:
        """What the client gets now that there is a task: that, or what comes of it."""
        async with self._plain.attended(tool, row):
            await anyio.lowlevel.checkpoint_if_cancelled()  # it may have left while this was started
        if not call.takes_tasks or tool.tasks is TaskSupport.FORBIDDEN:
            return await self._plain.outcome(tool, row, call, report)
        if tool.adaptive is not None and not call.wants_task:
            with suppress(EngineError):
                row = await self._plain.patiently(tool, row, report, within=tool.adaptive)
            if row.ended:
                return finished(row)
        return Created(task=self._view(row))

    def _new_task(
        self,
        tool: Tool,
        call: Call,
        idempotency_key: str | None,
        scope: Mapping[str, JSON],
        principal: Principal,
    ) -> Task:
        now, task_id = self._ledger.now(), secrets.token_hex(20)
        scope = {**scope, "task": {"id": task_id}}
        return Task(
            id=task_id,
            owner=principal.id,
            tool=tool.name,
            engine=tool.engine,
            workflow=tool.workflow,
            key=self._ledger.start_key(task_id, tool.name, principal.id, idempotency_key),
            arguments=tool.map(scope),
            options=tool.frozen_options(scope),
            gates=tool.frozen_gates(scope),
            given=scope["args"] if tool.gates else None,
            context={"tool": tool.name, "owner": principal.subject or principal.id, **call.context},
            created=now,
            updated=now,
            expires=now + _ttl(call, tool.ttl or self._retention),
            max_result=tool.max_result,
            output_schema=tool.output,
            idempotency_key=idempotency_key,
            fingerprint=digest(scope["args"]),
        )

    async def _resume(self, tool: Tool, task_id: str, call: Call, principal: Principal, report: Report) -> Outcome:
        """The next round of a plain call whose workflow asked a question."""
        task = await self._ledger.owned(task_id, principal.id)
        async with self._plain.attended(tool, task):
            task = await self._ledger.answer(task, call.responses, principal)
        return await self._plain.outcome(tool, task, call, report)

    @asynccontextmanager
    async def asking(self, call: Call, asked: Questions, principal: Principal) -> AsyncGenerator[None]:
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
        async with self._plain.attended(self._tools[call.tool], await self._ledger.owned(task_id, principal.id)):
            with self._ledger.until_stop():
                yield

    def _view(self, task: Task) -> TaskView:
        return view(task, self._ledger.pace(task))

    # --- tasks/*

    async def get(self, command: Get, principal: Principal) -> Described:
        """`tasks/get`: the task after a look, or as it was known last when the engine gives no answer."""
        task, trouble = await self._ledger.current(await self._ledger.owned(command.task_id, principal.id))
        seen = self._view(task)
        if trouble is None:
            return Described(task=seen)
        return Described(task=replace(seen, message=f"{trouble}; last known: {seen.message or seen.status}"))

    async def update(self, command: Update, principal: Principal) -> Acknowledged:
        """`tasks/update`: deliver answers; all of them fit their questions, or none is applied."""
        task = await self._ledger.owned(command.task_id, principal.id)
        await self._ledger.answer(task, command.responses, principal)
        return Acknowledged()

    async def cancel(self, command: Cancel, principal: Principal) -> Acknowledged:
        """`tasks/cancel`: ask the engine to; what comes of it shows in the status."""
        await self._ledger.cancel(await self._ledger.owned(command.task_id, principal.id))
        return Acknowledged()

    async def withdraw(self, command: Cancel, principal: Principal) -> Described:
        """`tasks/cancel` of 2025-11-25: cancelled before the reply and for ever, whatever the engine makes of it.

        Raises:
            RequestError: it has ended already.
        """
        task, _ = await self._ledger.current(await self._ledger.owned(command.task_id, principal.id))
        told = task.cancelled is None and (task := await self._ledger.cancel(task, told=True)).cancelled is not None
        if not told:
            raise RequestError(INVALID_PARAMS, "Cannot cancel task: it has ended already")
        return Described(task=self._view(task))

    async def tasks(self, command: List, principal: Principal) -> Listed:
        """`tasks/list`: the caller's own tasks, all that `get` finds, newest first.

        Raises:
            RequestError: nobody knows who is calling, or the cursor is not one of ours.
        """
        if not principal.identified:
            raise RequestError(METHOD_NOT_FOUND, "tasks are listed for identified callers only")
        rows, following = await self._ledger.page(principal.id, command.cursor, PAGE)
        return Listed(tasks=[self._view(row) for row in rows], next_cursor=following)

    async def listen(self, command: Listen, principal: Principal) -> Sequence[Task]:
        """The tasks of `subscriptions/listen` that are this principal's; the others are left out silently."""
        return await self._ledger.owned_among(command.task_ids, principal.id)

    async def follow(self, task: Task, on_change: OnView) -> None:
        """Call `on_change` with each state of the task, until it has ended or `on_change` returned True.

        Raises:
            RequestError: its time to live is over, and it cannot be read any more.
            ServerStopping: it is.
        """

        async def tell(current: Task) -> bool | None:
            return await on_change(self._view(current))

        with anyio.move_on_after(self._ledger.left(task)):
            await self._ledger.follow(task, tell)
            return
        raise expired()

    async def owned(self, task_id: str, principal: Principal) -> Task:
        """The task, to be followed.

        Raises:
            RequestError: it is not this principal's, or not to be read any more.
        """
        return await self._ledger.owned(task_id, principal.id)

    async def read(self, command: Read, principal: Principal) -> Document:
        """`resources/read` of a task's whole result, with the same check of ownership."""
        task = await self._ledger.owned(command.task_id, principal.id)
        if task.execution.status not in {Status.SUCCEEDED, Status.FAILED} or protocol_error(task.execution):
            raise RequestError(INVALID_PARAMS, "Resource not found: the task has no result (yet)")
        return whole_result(task)


def _ask(
    tool: Tool, names: tuple[str, ...], dialogue: Dialogue, call: Call, scope: Mapping[str, JSON]
) -> Questions | CapabilityNeeded:
    if not call.takes_questions:
        missing = ", ".join(sorted(name for question in names for name in tool.ask[question].answers(question)))
        text = f"tool {tool.name} has to ask a person for: {missing}; it needs a client with elicitation"
        return CapabilityNeeded(capability=Capability.ELICITATION, message=text)
    state = write_dialogue(replace(dialogue, key=dialogue.key or secrets.token_hex(16)))
    return Questions(requests=questions(tool, names, scope), state=state)


def _ttl(call: Call, longest: timedelta) -> timedelta:
    """As long as the client wants to read the task, if that is sensible."""
    if call.ttl_ms is None:
        return longest
    wanted = timedelta(milliseconds=min(call.ttl_ms, longest // timedelta(milliseconds=1)))
    return min(max(wanted, SHORTEST_TTL), longest)
