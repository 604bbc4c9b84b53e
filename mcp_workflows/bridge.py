"""command -> access -> store -> adapter -> outcome: what each command does."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from mcp_workflows.access import Principal
from mcp_workflows.adapter import JSON, Execution, Status
from mcp_workflows.ask import Declined, Dialogue, questions, read_dialogue, still_to_ask, take, write_dialogue
from mcp_workflows.creation import digest
from mcp_workflows.errors import (
    INVALID_PARAMS,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    MappingError,
    RequestError,
)
from mcp_workflows.ledger import Ledger
from mcp_workflows.result import tool_error
from mcp_workflows.task import Task
from mcp_workflows.tool import TaskSupport, Tool
from mcp_workflows.view import cancelled_result, protocol_error, result, view, whole_result
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
    Listen,
    Outcome,
    Questions,
    Read,
    TaskView,
    Update,
)

PATIENCE = 30.0  # seconds a plain call waits for an engine that gives no answer
Report = Callable[[Execution], Awaitable[None]]


class Bridge:
    """The commands of every era, on behalf of a principal."""

    def __init__(self, *, tools: Mapping[str, Tool], ledger: Ledger, retention: timedelta) -> None:
        self._tools = tools
        self._ledger = ledger
        self._retention = retention

    # --- tools/call

    async def call(self, call: Call, principal: Principal, report: Report) -> Outcome:
        """`tools/call`: questions first, then a task or, for who takes none, the plain result.

        `report` hears each change while the call waits.
        """
        tool = self._tools[call.tool]
        if tool.tasks is TaskSupport.REQUIRED and not call.takes_tasks:
            return CapabilityNeeded(
                capability=Capability.TASKS, message=f"tool {tool.name} takes long: it needs a client with tasks"
            )
        dialogue = read_dialogue(call.state)
        if dialogue.task_id is not None:
            return await self._resume(dialogue.task_id, call, principal, report)
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
        task = self._new_task(tool, call.idempotency_key or taken.key, scope, principal, call.context)
        return await self._begin(tool, task, call, report)

    async def _begin(self, tool: Tool, task: Task, call: Call, report: Report) -> Outcome:
        try:
            row = await self._ledger.create(task)
        except EngineRefused as error:
            return Finished(result=tool_error(f"Engine {tool.engine} refused to start {tool.workflow}: {error}"))
        except EngineUnavailable as error:
            text = f"Engine {tool.engine} cannot be reached, nothing was started; try again later: {error}"
            return Finished(result=tool_error(text))
        if call.takes_tasks and tool.tasks is not TaskSupport.FORBIDDEN:
            return Created(task=view(row, self._ledger.pace(row)))
        return await self._wait(row, call, report)

    def _new_task(
        self,
        tool: Tool,
        idempotency_key: str | None,
        scope: Mapping[str, JSON],
        principal: Principal,
        context: Mapping[str, str],
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
            context={"tool": tool.name, "owner": principal.subject or principal.id, **context},
            created=now,
            updated=now,
            expires=now + (tool.ttl or self._retention),
            max_result=tool.max_result,
            output_schema=tool.output,
            idempotency_key=idempotency_key,
            fingerprint=digest(scope["args"]),
        )

    async def _wait(self, task: Task, call: Call, report: Report) -> Outcome:
        """The plain result, for a client without tasks; whatever becomes of the client, the workflow goes on."""

        async def on_change(current: Task) -> bool:
            if current.seen.status is Status.INPUT_REQUIRED:
                return True
            await report(current.seen)
            return False

        try:
            task = await self._ledger.follow(task, on_change, patience=PATIENCE)
        except EngineError as trouble:
            text = f"Engine {task.engine} gives no answer, what was started there goes on: {trouble}"
            return Finished(result=tool_error(text))
        if not task.ended:
            return _ask_for_task(task, call)
        if error := protocol_error(task.execution):
            raise RequestError(error.code, error.message, error.data)
        return Finished(result=result(task) or cancelled_result(task))

    async def _resume(self, task_id: str, call: Call, principal: Principal, report: Report) -> Outcome:
        """The next round of a plain call whose workflow asked a question."""
        task = await self._ledger.owned(task_id, principal.id)
        task = await self._ledger.answer(task, call.responses, principal)
        return await self._wait(task, call, report)

    # --- tasks/*

    async def get(self, command: Get, principal: Principal) -> Described:
        """`tasks/get`: the task after a look, or as it was known last when the engine gives no answer."""
        task, trouble = await self._ledger.current(await self._ledger.owned(command.task_id, principal.id))
        seen = view(task, self._ledger.pace(task))
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

    async def listen(self, command: Listen, principal: Principal) -> Sequence[Task]:
        """The tasks of `subscriptions/listen` that are this principal's; the others are left out silently."""
        return await self._ledger.owned_among(command.task_ids, principal.id)

    async def follow(self, task: Task, on_change: Callable[[TaskView], Awaitable[None]]) -> None:
        """Call `on_change` with each state of the task, until it has ended."""

        async def tell(current: Task) -> None:
            await on_change(view(current, self._ledger.pace(current)))

        await self._ledger.follow(task, tell)

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


def _ask_for_task(task: Task, call: Call) -> Outcome:
    """A workflow asks, and the client has no task to read the question from: ask in another round of the call."""
    if call.takes_questions:
        return Questions(requests=task.seen.requests, state=write_dialogue(Dialogue(task_id=task.id)))
    asked = "; ".join(str(request.params.get("message", key)) for key, request in task.seen.requests.items())
    where = f" (execution {task.execution.execution_id})" if task.execution.execution_id else ""
    return Finished(result=tool_error(f"The workflow{where} waits for an answer this client cannot give: {asked}"))
