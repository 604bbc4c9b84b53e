"""`tools/call`: questions and checks before a start, then a task or a plain result."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import anyio.lowlevel

from mcp_workflows.access import Principal, Verb
from mcp_workflows.access.audit import Event
from mcp_workflows.access.limit_settings import Limits
from mcp_workflows.access.rate_limits import RateLimits
from mcp_workflows.adapter import InputRequest
from mcp_workflows.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    ExecutionNotFound,
    LimitReached,
    MappingError,
    RequestError,
)
from mcp_workflows.task import Task
from mcp_workflows.tasks.adopt import AdoptionRequest
from mcp_workflows.tasks.authorization import Authorization, ResultHidden, TaskAccess
from mcp_workflows.tasks.quotas import NO_MORE, caps_of
from mcp_workflows.tasks.repository import TaskRepository
from mcp_workflows.tasks.results import limit_result, tool_error
from mcp_workflows.tasks.wait import Report, WaitingCalls, finished
from mcp_workflows.telemetry import propagated
from mcp_workflows.tools.dialogue import Declined, Dialogue, read_dialogue, write_dialogue
from mcp_workflows.tools.idempotency import Idempotency, key_of, with_key
from mcp_workflows.tools.prepare import NotReady, Prepared, prepare
from mcp_workflows.tools.tool import CONFIRM, EXECUTION_ID, Kind, TaskSupport, Tool
from mcp_workflows.wire.commands import Call, CallOutcome, Capability, CapabilityNeeded, Created, Finished, Questions

logger = logging.getLogger(__name__)


class ToolCalls:
    """Calls of these tools, from the first question to the task."""

    def __init__(
        self,
        *,
        tools: Mapping[str, Tool],
        repository: TaskRepository,
        retention: timedelta,
        authorization: Authorization,
        meters: RateLimits,
        limits: Limits,
        access: TaskAccess,
    ) -> None:
        self._tools = tools
        self._repository = repository
        self._retention = retention
        self._authorization = authorization
        self._meters = meters
        self._limits = limits
        self._access = access
        self._waiting = WaitingCalls(repository, access)

    async def call(self, call: Call, principal: Principal, report: Report) -> CallOutcome:
        """`tools/call`: ask the questions first, then return a task, or the plain result to a client without tasks.

        `report` is called with each change while the call waits.
        """
        tool = self._tools[call.tool]
        if tool.kind is Kind.WATCH and not principal.identified:
            text = f"tool {tool.name} is for identified callers only, and you are anonymous"
            raise RequestError(INVALID_PARAMS, text)
        if tool.needs_tasks and not call.takes_tasks:
            return CapabilityNeeded(
                capability=Capability.TASKS, message=f"tool {tool.name} takes long: it needs a client with tasks"
            )
        if call.wants_task and tool.tasks is TaskSupport.FORBIDDEN:
            raise RequestError(METHOD_NOT_FOUND, f"tool {tool.name} makes no tasks: call it without params.task")
        if call.unusable_keys:
            logger.debug("a call of %s: no key can be made of %s in _meta", call.tool, ", ".join(call.unusable_keys))
        call = replace(call, arguments=tool.checker.normalize(call.arguments))
        key = None if call.state else key_of(call.idempotency_key, call.host_key, call.arguments, principal)
        dialogue = read_dialogue(call.state) if call.state else Dialogue(key=key)
        if dialogue.task_id is not None:
            return await self._answered(tool, dialogue.task_id, call, principal, report)
        try:
            return await self._call(tool, call, dialogue, principal, report)
        except MappingError as error:
            return Finished(result=tool_error(f"Wrong arguments for {tool.name}: {error}; nothing was started"))
        except LimitReached as reached:  # no protocol error: hosts do not show those to the model
            self._meters.refused(principal, tool.name, reached)
            return Finished(result=limit_result(reached))

    @asynccontextmanager
    async def asking(self, call: Call, asked: Questions, principal: Principal) -> AsyncGenerator[None]:
        """Wrap the time in which a receiver puts these questions to a person; the client or the server may end it.

        Raises:
            RequestError: the server is stopping, and nothing was started.
        """
        task_id = read_dialogue(asked.state).task_id
        if task_id is None:
            with self._repository.until_stop():
                yield
            if self._repository.stopping:
                raise RequestError(INTERNAL_ERROR, "the server is stopping; nothing was started: call again later")
            return
        task, _ = await self._access.authorize(task_id, principal)
        async with self._waiting.attended(self._tools[call.tool], task, principal):
            with self._repository.until_stop():
                yield

    async def _call(
        self, tool: Tool, call: Call, dialogue: Dialogue, principal: Principal, report: Report
    ) -> CallOutcome:
        task_id = secrets.token_hex(20)
        ready = prepare(
            tool,
            call.arguments,
            call.responses,
            dialogue,
            principal=principal,
            limits=self._limits,
            task_id=task_id,
        )
        if isinstance(ready, NotReady):
            if ready.requests is None:
                return Finished(result=tool_error(ready.reason))
            return self._ask(tool, ready.requests, ready.reason, ready.dialogue, call, principal)
        if not await self._authorization.starts(tool, ready.arguments, principal):
            return Finished(result=tool_error(f"Not allowed: {tool.name} with these arguments; nothing was started"))
        if sought := ready.confirmation:
            verdict = sought.taken(call.responses, ready.dialogue)
            if isinstance(verdict, Declined):
                text = f"{tool.name} was not confirmed ({verdict.action}); nothing was started"
                return Finished(result=tool_error(text))
            if not verdict:
                requests = {CONFIRM: sought.request}
                return self._ask(tool, requests, "a confirmation", sought.asked(ready.dialogue), call, principal)
        if tool.kind is Kind.WATCH:
            return await self._watch(tool, call, principal, report)
        task = self._new_task(tool, call, ready, task_id, principal)
        return await self._begin(tool, task, ready.same, call, principal, report)

    def _ask(
        self,
        tool: Tool,
        requests: Mapping[str, InputRequest],
        missing: str,
        dialogue: Dialogue,
        call: Call,
        principal: Principal,
    ) -> Questions | CapabilityNeeded:
        if not call.takes_questions:
            text = f"tool {tool.name} has to ask a person for: {missing}; it needs a client with elicitation"
            return CapabilityNeeded(capability=Capability.ELICITATION, message=text)
        state = write_dialogue(with_key(dialogue, tool, principal, self._repository.now()))
        return Questions(requests=requests, state=state)

    async def _begin(
        self, tool: Tool, task: Task, same: Idempotency, call: Call, principal: Principal, report: Report
    ) -> CallOutcome:
        caps = caps_of(self._limits, tool, task.created)
        in_vain = self._meters.check_start(principal)
        try:
            row = await self._repository.create(task, NO_MORE if in_vain else caps, same)
        except LimitReached as reached:
            raise in_vain or reached from None
        except EngineRefused as error:
            text = f"Engine {tool.engine} refused to start {tool.workflow}: {error}"
            return self._started_nothing(principal, text)
        except EngineUnavailable as error:
            text = f"Engine {tool.engine} cannot be reached, nothing was started; try again later: {error}"
            return self._started_nothing(principal, text)
        outcome = "ok" if row.id == task.id else "again"
        self._access.record(Event.CREATE, principal, row, outcome=outcome, arguments=call.arguments)
        return await self._reply(tool, row, call, principal, report)

    def _started_nothing(self, principal: Principal, text: str) -> Finished:
        """Return the error of a call that started nothing, and count it, as no row does."""
        self._meters.started_nothing(principal)
        return Finished(result=tool_error(text))

    async def _watch(self, tool: Tool, call: Call, principal: Principal, report: Report) -> CallOutcome:
        """Return the reply with a task for an execution that was started elsewhere."""
        self._meters.count_poll(principal)
        try:
            ref = await self._repository.adoption.find_own(tool, call.arguments[EXECUTION_ID])
        except EngineUnavailable as error:
            text = f"Engine {tool.engine} gives no answer, nothing is watched; try again later: {error}"
            return Finished(result=tool_error(text))
        except ExecutionNotFound as error:
            self._authorization.denied(principal, tool=tool.name, reason="there is no such execution for them")
            self._meters.count_failed_lookup(principal)
            return Finished(result=tool_error(str(error)))
        ttl = self._ttl(call, tool, principal)
        row = await self._repository.adopt(
            AdoptionRequest(
                tool=tool, ref=ref, owner=principal, arguments=call.arguments, ttl=ttl, context=call.context
            ),
            caps_of(self._limits, tool, self._repository.now()),
        )
        self._access.record(Event.CREATE, principal, row, outcome="watched")
        return await self._reply(tool, row, call, principal, report)

    def _new_task(self, tool: Tool, call: Call, ready: Prepared, task_id: str, principal: Principal) -> Task:
        now, filled = self._repository.now(), ready.filled
        return Task(
            id=task_id,
            owner=principal.id,
            tool=tool.name,
            engine=tool.engine,
            workflow=tool.workflow,
            key=self._repository.start_key(task_id, tool.name, principal.id, ready.same),
            arguments=filled.input,
            options=filled.options,
            gates=filled.gates,
            given=ready.arguments if tool.gates else None,
            context={**filled.context, **propagated(call.context)},
            created=now,
            updated=now,
            expires=now + self._ttl(call, tool, principal),
            max_result=tool.max_result,
            output_schema=tool.output,
            idempotency_key=ready.same.key,
            fingerprint=ready.fingerprint,
            guarded=tool.allow is not None,
            grace=tool.grace,
            cancel_on_expiry=tool.cancels_on_expiry,
        )

    def _ttl(self, call: Call, tool: Tool, principal: Principal) -> timedelta:
        """Return the time to live: the client's wish within the limits."""
        known = principal.identified
        return self._limits.ttl(asked_ms=call.ttl_ms, tool=tool.ttl, retention=self._retention, identified=known)

    # --- replies, once there is a task

    async def _reply(self, tool: Tool, row: Task, call: Call, principal: Principal, report: Report) -> CallOutcome:
        """Return the reply to a call that has a new task: the task, or its result."""
        self._meters.remember_shown(principal, row.id)
        async with self._waiting.attended(tool, row, principal):
            await anyio.lowlevel.checkpoint_if_cancelled()  # the client may have left during the start
        if not call.takes_tasks or tool.tasks is TaskSupport.FORBIDDEN:
            return await self._awaited(tool, row, call, principal, report)
        at_once = tool.adaptive is not None and not call.wants_task
        if at_once:
            with suppress(EngineError, ResultHidden):
                row = await self._waiting.patiently(tool, row, report, principal, within=tool.adaptive)
        rights = await self._authorization.rights(row, principal)
        if at_once and row.ended and rights.see:
            self._access.record(Event.RETRIEVE, principal, row)
            return finished(row)
        return Created(task=self._access.view(row, rights, principal))

    async def _answered(
        self, tool: Tool, task_id: str, call: Call, principal: Principal, report: Report
    ) -> CallOutcome:
        """Continue a plain call whose workflow asked a question."""
        task, _ = await self._access.authorize(task_id, principal, Verb.ANSWER)
        async with self._waiting.attended(tool, task, principal):
            task = await self._access.answer(task, call.responses, principal)
        return await self._awaited(tool, task, call, principal, report)

    async def _awaited(self, tool: Tool, task: Task, call: Call, principal: Principal, report: Report) -> CallOutcome:
        """Return the result for a client that takes no task."""
        try:
            return await self._waiting.outcome(tool, task, call, report, principal)
        except ResultHidden:
            text = f"{tool.name} was started and goes on by itself. What comes of it is for others to see: do not"
            return Finished(result=tool_error(f"{text} call it again, that would start it twice."))
