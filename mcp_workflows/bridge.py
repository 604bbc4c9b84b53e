"""command -> access -> store -> adapter -> outcome: what each command does."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import anyio
import anyio.lowlevel

from mcp_workflows.access import Principal, Verb, person_of
from mcp_workflows.adapter import JSON, Execution, InputRequest, Status
from mcp_workflows.adoption import Adopted
from mcp_workflows.ask import Declined, Dialogue, questions, read_dialogue, still_to_ask, take, write_dialogue
from mcp_workflows.audit import Audit, Event, Record, record_of, silent, task_hash
from mcp_workflows.behalf import told
from mcp_workflows.capping import caps_of
from mcp_workflows.confirming import confirmation
from mcp_workflows.creation import digest
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
from mcp_workflows.guard import NO_RIGHTS, NOT_FOUND, Guard, Rights, not_found
from mcp_workflows.ledger import Ledger, expired
from mcp_workflows.limits import UNLIMITED, Limits
from mcp_workflows.metering import Meters
from mcp_workflows.plain import Lens, PlainCalls, Report, finished
from mcp_workflows.result import limit_result, tool_error
from mcp_workflows.sameness import Same, key_of, opened, sameness
from mcp_workflows.sizing import check_size
from mcp_workflows.task import Task
from mcp_workflows.telemetry import carried
from mcp_workflows.tool import CONFIRM, EXECUTION_ID, Kind, TaskSupport, Tool
from mcp_workflows.view import META_PREFIX, protocol_error, view, whole_result
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

_MAY_NOT: Mapping[Verb, str] = {
    Verb.ANSWER: "Not allowed: what this task asks is for somebody else to answer; nothing was applied",
    Verb.CANCEL: "Not allowed: you may not cancel this task; it goes on",
}
PAGE = 50  # tasks of one `tasks/list`
OnView = Callable[[TaskView], Awaitable[bool | None]]


class Bridge:
    """The commands of every era, on behalf of a principal."""

    def __init__(
        self,
        *,
        tools: Mapping[str, Tool],
        ledger: Ledger,
        retention: timedelta,
        guard: Guard | None = None,
        audit: Audit = silent,
        limits: Limits = UNLIMITED,
        meters: Meters | None = None,
    ) -> None:
        self._tools = tools
        self._ledger = ledger
        self._retention = retention
        self._guard = guard or Guard(tools, audit=audit)
        self._audit = audit
        self._limits = limits
        self._meters = meters or Meters(limits, audit=audit)
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
        dialogue = read_dialogue(call.state) if call.state else Dialogue(key=key_of(call, principal))
        if dialogue.task_id is not None:
            return await self._resume(tool, dialogue.task_id, call, principal, report)
        try:
            return await self._call(tool, call, dialogue, principal, report)
        except MappingError as error:
            return Finished(result=tool_error(f"Wrong arguments for {tool.name}: {error}; nothing was started"))
        except LimitReached as reached:  # not an error of the protocol: hosts keep those from the model
            self._meters.refused(principal, tool.name, reached)
            return Finished(result=limit_result(reached))

    async def _call(self, tool: Tool, call: Call, dialogue: Dialogue, principal: Principal, report: Report) -> Outcome:
        taken = take(tool, call.responses, dialogue)
        if isinstance(taken, Declined):
            return Finished(result=tool_error(f"{taken.name}: answered with {taken.action}; nothing was started"))
        arguments = {**call.arguments, **taken.arguments}
        check_size(f"Arguments of {tool.name}", arguments, self._limits.max_arguments)
        asking = still_to_ask(tool, arguments, taken)
        to_come = frozenset(name for question in asking for name in tool.ask[question].answers(question))
        if wrong := tool.complaints(arguments, to_be_asked=to_come):
            return Finished(result=tool_error(f"Wrong arguments for {tool.name}: " + "; ".join(wrong)))
        scope = {"args": arguments, **principal.scope}
        if asking:
            missing = ", ".join(sorted(to_come))
            return self._ask(tool, questions(tool, asking, scope), missing, taken, call, principal)
        if not await self._guard.starts(tool, arguments, principal):
            return Finished(result=tool_error(f"Not allowed: {tool.name} with these arguments; nothing was started"))
        if sought := confirmation(tool, scope):
            verdict = sought.taken(call.responses, taken)
            if isinstance(verdict, Declined):
                text = f"{tool.name} was not confirmed ({verdict.action}); nothing was started"
                return Finished(result=tool_error(text))
            if not verdict:
                requests = {CONFIRM: sought.request}
                return self._ask(tool, requests, "a confirmation", sought.asked(taken), call, principal)
        if tool.kind is Kind.WATCH:
            return await self._watch(tool, call, principal, report)
        same = sameness(tool, taken, arguments, principal)
        task = self._new_task(tool, call, same, scope, principal)
        return await self._begin(tool, task, same, call, principal, report)

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
        state = write_dialogue(opened(dialogue, tool, principal, self._ledger.now()))
        return Questions(requests=requests, state=state)

    async def _begin(
        self, tool: Tool, task: Task, same: Same, call: Call, principal: Principal, report: Report
    ) -> Outcome:
        try:
            caps = caps_of(self._limits, tool, self._ledger.now())
            row = await self._ledger.create(task, caps, window=same.window)
        except EngineRefused as error:
            return Finished(result=tool_error(f"Engine {tool.engine} refused to start {tool.workflow}: {error}"))
        except EngineUnavailable as error:
            text = f"Engine {tool.engine} cannot be reached, nothing was started; try again later: {error}"
            return Finished(result=tool_error(text))
        outcome = "ok" if row.id == task.id else "again"
        self._record(Event.CREATE, principal, row, outcome=outcome, arguments=call.arguments)
        return await self._go_on(tool, row, call, principal, report)

    async def _watch(self, tool: Tool, call: Call, principal: Principal, report: Report) -> Outcome:
        """A task of an execution that runs already; from there on as if it had been started here."""
        self._meters.poll(principal)
        try:
            ref = await self._ledger.adoption.find_own(tool, call.arguments[EXECUTION_ID])
        except EngineUnavailable as error:
            text = f"Engine {tool.engine} gives no answer, nothing is watched; try again later: {error}"
            return Finished(result=tool_error(text))
        except ExecutionNotFound as error:
            self._meters.missed(principal)
            return Finished(result=tool_error(str(error)))
        ttl = self._ttl(call, tool, principal)
        row = await self._ledger.adopt(
            Adopted(tool=tool, ref=ref, owner=principal, arguments=call.arguments, ttl=ttl, context=call.context),
            caps_of(self._limits, tool, self._ledger.now()),
        )
        self._record(Event.CREATE, principal, row, outcome="watched")
        return await self._go_on(tool, row, call, principal, report)

    async def _go_on(self, tool: Tool, row: Task, call: Call, principal: Principal, report: Report) -> Outcome:
        """What the client gets now that there is a task: that, or what comes of it."""
        self._meters.show(principal, row.id)
        async with self._plain.attended(tool, row):
            await anyio.lowlevel.checkpoint_if_cancelled()  # it may have left while this was started
        if not call.takes_tasks or tool.tasks is TaskSupport.FORBIDDEN:
            return await self._awaited(tool, row, call, principal, report)
        at_once = tool.adaptive is not None and not call.wants_task
        if at_once:
            with suppress(EngineError, _NotTheirs):
                lens = self._lens(principal)
                row = await self._plain.patiently(tool, row, report, lens, within=tool.adaptive)
        rights = await self._guard.rights(row, principal)
        if at_once and row.ended and rights.see:
            self._record(Event.RETRIEVE, principal, row)
            return finished(row)
        return Created(task=self._view(row, rights, principal))

    async def _awaited(self, tool: Tool, task: Task, call: Call, principal: Principal, report: Report) -> Outcome:
        """What comes of it, for who takes no task."""

        def over(ended: Task) -> None:
            self._record(Event.RETRIEVE, principal, ended)

        try:
            return await self._plain.outcome(tool, task, call, report, self._lens(principal), over)
        except _NotTheirs:
            text = f"{tool.name} was started and goes on by itself. What comes of it is for others to see: do not"
            return Finished(result=tool_error(f"{text} call it again, that would start it twice."))

    def _lens(self, principal: Principal) -> Lens:
        """How a call that waits sees its task: by the rules of that moment, and while its token is not taken back.

        That the token has expired meanwhile is nothing: the request had come before, and there is no way to renew it.
        """

        async def seen(task: Task) -> Task:
            now = self._ledger.now()
            elapsed = principal.expires is not None and principal.expires <= now
            who = principal if elapsed else await principal.renewed(now)
            rights = NO_RIGHTS if who is None else await self._guard.rights(task, who)
            if not rights.reads(task) and (task.ended or not rights.answer):
                self._guard.denied(principal, task=task, reason="may not see what comes of it")
                raise _NotTheirs(INVALID_PARAMS, NOT_FOUND)
            return _as_seen(rights, task)

        return seen

    def _new_task(
        self,
        tool: Tool,
        call: Call,
        same: Same,
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
            key=self._ledger.start_key(task_id, tool.name, principal.id, same.start_key),
            arguments=tool.map(scope),
            options=tool.frozen_options(scope),
            gates=tool.frozen_gates(scope),
            given=scope["args"] if tool.gates else None,
            context={**told(tool, principal, scope), **carried(call.context)},
            created=now,
            updated=now,
            expires=now + self._ttl(call, tool, principal),
            max_result=tool.max_result,
            output_schema=tool.output,
            idempotency_key=same.key,
            fingerprint=digest(scope["args"]),
            guarded=tool.allow is not None,
            grace=tool.grace,
            cancel_on_expiry=tool.cancels_on_expiry,
        )

    def _ttl(self, call: Call, tool: Tool, principal: Principal) -> timedelta:
        """As long as the client wants to read the task, if that is sensible."""
        known = principal.identified
        return self._limits.ttl(asked_ms=call.ttl_ms, tool=tool.ttl, retention=self._retention, identified=known)

    async def _resume(self, tool: Tool, task_id: str, call: Call, principal: Principal, report: Report) -> Outcome:
        """The next round of a plain call whose workflow asked a question."""
        task, _ = await self._found(task_id, principal, Verb.ANSWER)
        async with self._plain.attended(tool, task):
            task = await self._answered(task, call.responses, principal)
        return await self._awaited(tool, task, call, principal, report)

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
        task, _ = await self._found(task_id, principal)
        async with self._plain.attended(self._tools[call.tool], task):
            with self._ledger.until_stop():
                yield

    def _view(self, task: Task, rights: Rights, principal: Principal) -> TaskView:
        seen = view(_as_seen(rights, task), self._ledger.pace(task))
        return seen if principal.id == task.owner else replace(seen, started_by=person_of(task.owner)[1])

    def _record(
        self, event: Event, principal: Principal, task: Task, *, outcome: str = "ok", arguments: JSON = None
    ) -> None:
        if self._audit is not silent:
            self._audit(record_of(event, principal, task, outcome=outcome, arguments=arguments))

    # --- whose it is

    async def _found(self, task_id: str, principal: Principal, verb: Verb = Verb.SEE) -> tuple[Task, Rights]:
        """The task and what this principal may do with it, that verb among it: the only way from an id to a task.

        Raises:
            RequestError: it is unknown, or not theirs to see (these look alike), or expired; or they may see it, and no
                more.
        """
        self._meters.guess(principal, task_id)
        task = await self._ledger.found(task_id, principal.id, self._guard.beyond(principal))
        if task is None:
            self._guard.denied(principal, task_id=task_id, reason="there is no such task for them")
            self._meters.missed(principal)
            raise not_found()
        rights = await self._guard.rights(task, principal)
        if not rights.see and principal.id != task.owner:
            task, _ = await self._ledger.current(task)  # they see it while it asks: perhaps since a moment ago
        if not rights.reads(task):
            self._guard.denied(principal, task=task, reason="may not see it")
            self._meters.missed(principal)
            raise not_found()
        self._meters.show(principal, task.id)
        if self._ledger.over(task):
            raise expired()
        if (verb is Verb.ANSWER and not rights.answer) or (verb is Verb.CANCEL and not rights.cancel):
            self._guard.denied(principal, task=task, reason=f"may not {verb} it")
            raise RequestError(INVALID_PARAMS, _MAY_NOT[verb])
        return task, rights

    async def offers(self, name: str, principal: Principal) -> bool:
        """Whether a tool of this name is there for them."""
        return await self._guard.offers(name, principal)

    async def offered(self, principal: Principal) -> frozenset[str]:
        """The tools that are."""
        return await self._guard.offered(principal)

    def approves(self, principal: Principal) -> bool:
        """Whether tasks of others may be waiting for this principal's answer."""
        return bool(self._guard.beyond(principal))

    # --- tasks/*

    async def get(self, command: Get, principal: Principal) -> Described:
        """`tasks/get`: the task after a look, or as it was known last when the engine gives no answer."""
        task, rights = await self._found(command.task_id, principal)
        found = await self._described(task, rights, principal)
        if found is None:
            raise not_found()
        return found

    async def answered(self, command: Get, principal: Principal) -> Described | None:
        """The task after an answer of theirs; None: it asked them, and is none of theirs otherwise.

        Unlike `get` that is no denial: somebody who approved has done nothing wrong.
        """
        task = await self._ledger.found(command.task_id, principal.id, self._guard.beyond(principal))
        if task is None or self._ledger.over(task):
            return None
        return await self._described(task, await self._guard.rights(task, principal), principal)

    async def _described(self, task: Task, rights: Rights, principal: Principal) -> Described | None:
        task, trouble = await self._ledger.current(task)
        if not rights.reads(task):
            return None
        seen = self._view(task, rights, principal)
        if task.ended:
            self._record(Event.RETRIEVE, principal, task)
        if trouble is None:
            return Described(task=seen)
        return Described(task=replace(seen, message=f"{trouble}; last known: {seen.message or seen.status}"))

    async def may_answer(self, command: Get, principal: Principal) -> None:
        """Whether they may answer what this task asks, now or later.

        Raises:
            RequestError: they may not.
        """
        await self._found(command.task_id, principal, Verb.ANSWER)

    async def update(self, command: Update, principal: Principal) -> Acknowledged:
        """`tasks/update`: deliver answers; all of them fit their questions, or none is applied."""
        task, _ = await self._found(command.task_id, principal, Verb.ANSWER)
        await self._answered(task, command.responses, principal)
        return Acknowledged()

    async def _answered(self, task: Task, responses: Mapping[str, JSON], principal: Principal) -> Task:
        check_size("Answers", responses, self._limits.max_answer)
        after = await self._ledger.answer(task, responses, principal)
        if after.answered != task.answered:
            self._record(Event.ANSWER, principal, after)
        return after

    async def cancel(self, command: Cancel, principal: Principal) -> Acknowledged:
        """`tasks/cancel`: ask the engine to; what comes of it shows in the status."""
        task, _ = await self._found(command.task_id, principal, Verb.CANCEL)
        await self._ledger.cancel(task)
        self._record(Event.CANCEL, principal, task)
        return Acknowledged()

    async def withdraw(self, command: Cancel, principal: Principal) -> Described:
        """`tasks/cancel` of 2025-11-25: cancelled before the reply and for ever, whatever the engine makes of it.

        Raises:
            RequestError: it has ended already.
        """
        found, rights = await self._found(command.task_id, principal, Verb.CANCEL)
        task, _ = await self._ledger.current(found)
        heard = task.cancelled is None and (task := await self._ledger.cancel(task, told=True)).cancelled is not None
        if not heard:
            raise RequestError(INVALID_PARAMS, "Cannot cancel task: it has ended already")
        self._record(Event.CANCEL, principal, task)
        return Described(task=self._view(task, rights, principal))

    async def tasks(self, command: List, principal: Principal) -> Listed:
        """`tasks/list`: the caller's own tasks, all that `get` finds, newest first.

        Raises:
            RequestError: nobody knows who is calling, or the cursor is not one of ours.
        """
        if not principal.identified:
            raise RequestError(METHOD_NOT_FOUND, "tasks are listed for identified callers only")
        rows, following = await self._ledger.page(principal.id, command.cursor, PAGE)
        seen = [(row, await self._guard.rights(row, principal)) for row in rows]
        shown = [self._view(row, rights, principal) for row, rights in seen if rights.reads(row)]
        return Listed(tasks=shown, next_cursor=following)

    async def questions(self, command: List, principal: Principal) -> Listed:
        """What tasks of others ask that this principal may answer, newest first; perhaps nothing on a page.

        Raises:
            RequestError: the cursor is not one of ours.
        """
        tools = self._guard.beyond(principal)
        rows, following = await self._ledger.page_of(tools, principal.id, command.cursor, PAGE) if tools else ((), None)
        open_rows = [row for row in rows if row.seen.status is Status.INPUT_REQUIRED]
        seen = [(row, await self._guard.rights(row, principal)) for row in open_rows]
        shown = [self._view(row, rights, principal) for row, rights in seen if rights.answer]
        return Listed(tasks=shown, next_cursor=following)

    async def listen(self, command: Listen, principal: Principal) -> Sequence[Task]:
        """The tasks of `subscriptions/listen` that this principal may see; the others are left out silently."""
        found: list[Task] = []
        for task_id in command.task_ids:
            with suppress(RequestError):
                task, _ = await self._found(task_id, principal)
                found.append(task)
        return found

    async def follow(self, task: Task, on_change: OnView, principal: Principal) -> None:
        """Call `on_change` with each state of the task, until it has ended or `on_change` returned True.

        Before each it is asked again whether this principal may see it, and would still be let in.

        Raises:
            RequestError: its time to live is over, or it is not to be seen by them any more.
            ServerStopping: it is.
        """

        async def tell(current: Task) -> bool | None:
            now = await principal.renewed(self._ledger.now())
            rights = NO_RIGHTS if now is None else await self._guard.rights(current, now)
            if not rights.reads(current):
                self._guard.denied(principal, task=current, reason="may not see it any more")
                raise not_found()
            if current.ended:
                self._record(Event.RETRIEVE, principal, current)
            return await on_change(self._view(current, rights, principal))

        left = self._ledger.left(task)
        admitted = left if principal.expires is None else (principal.expires - self._ledger.now()).total_seconds()
        with anyio.move_on_after(min(left, admitted)):
            await self._ledger.follow(task, tell)
            return
        raise expired() if left <= admitted else not_found()

    async def owned(self, task_id: str, principal: Principal) -> Task:
        """The task, to be followed.

        Raises:
            RequestError: it is not this principal's to see, or not to be read any more.
        """
        return (await self._found(task_id, principal))[0]

    async def read(self, command: Read, principal: Principal) -> Document:
        """`resources/read` of a task's whole result, with the same check of ownership."""
        task, _ = await self._found(command.task_id, principal)
        if task.execution.status not in {Status.SUCCEEDED, Status.FAILED} or protocol_error(task.execution):
            raise RequestError(INVALID_PARAMS, "Resource not found: the task has no result (yet)")
        self._record(Event.RETRIEVE, principal, task)
        return whole_result(task)

    async def rereads(self, task: TaskView, principal: Principal) -> bool:
        """Whether the owner of an ended task may be given again what was rendered for them before; put on record."""
        if task.tool not in self._tools or not await self._guard.sees_own(task.tool, task.task_id, principal):
            return False
        if self._audit is not silent:
            self._audit(_given_again(principal, task))
        return True


def _given_again(principal: Principal, task: TaskView) -> Record:
    """The record of a result that was rendered before; its row is not read again."""
    engine, workflow, execution = (task.meta.get(META_PREFIX + name) for name in ("engine", "workflow", "executionId"))
    return replace(
        record_of(Event.RETRIEVE, principal, tool=task.tool),
        task=task_hash(task.task_id),
        engine=engine,
        workflow=workflow,
        execution=execution,
        result=(task.result or {}).get("structuredContent"),
    )


def _as_seen(rights: Rights, task: Task) -> Task:
    """The task as those see it who may answer what it asks, or who may not; nothing of it, while they may not look."""
    if not rights.reads(task):
        return replace(task, execution=Execution(status=Status.RUNNING), ended=None)
    return task if rights.answer else replace(task, may_answer=False)


class _NotTheirs(RequestError):  # noqa: N818  # it is an answer
    """What comes of a call is not for its caller to see."""
