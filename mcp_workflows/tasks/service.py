"""The task service: the commands of MCP clients, each on behalf of a principal, and the rules that allow them.

A task that a principal may not see looks unknown, and so does a tool that it may not call. Only the audit log has the
reason. See docs/decisions/0017.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence, Set
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, cast

import anyio
import anyio.lowlevel

from mcp_workflows.access import (
    AccessRequest,
    Authorizer,
    Principal,
    Verb,
    permits,
    permits_message,
    person_of,
    reaches_others,
)
from mcp_workflows.access.audit import Audit, Event, record_of, silent, task_hash
from mcp_workflows.access.limit_settings import MAX_JSON_VALUES, UNLIMITED, Limits
from mcp_workflows.access.principal import Claims, claim_value
from mcp_workflows.access.rate_limits import RateLimits
from mcp_workflows.adapter import JSON, Execution, InputRequest, Status, askable, digest
from mcp_workflows.adapter.display_text import quoted
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
    ServerStopping,
    StoreError,
    WorkflowsError,
)
from mcp_workflows.task import START_KEY, Decision, Held, Task, hold, question_digest, waits_for
from mcp_workflows.tasks.adopt import task_of
from mcp_workflows.tasks.approvals import audited, decision_text, tool_digest
from mcp_workflows.tasks.executions import NO_MORE, Answers, Executions, ObservedTask, caps_of
from mcp_workflows.tasks.repeated_calls import OpenCall
from mcp_workflows.tasks.results import (
    abandoned_text,
    continued,
    finished,
    limit_result,
    log_document,
    protocol_error,
    tool_error,
    unanswerable_text,
    view,
    whole_result,
)
from mcp_workflows.telemetry import propagated
from mcp_workflows.tools.dialogue import Action, AnswerWay, Declined, Dialogue, read_dialogue, write_dialogue
from mcp_workflows.tools.hosts import LONGEST_WAIT, call_wait
from mcp_workflows.tools.json_schema import check_size, did_you_mean
from mcp_workflows.tools.prepare import NotReady, Prepared, key_of, prepare, with_key
from mcp_workflows.tools.tool import EXECUTION_ID, AnyTool, Kind, TaskSupport, action_name
from mcp_workflows.wire.commands import (
    ActionView,
    Call,
    CallOutcome,
    Capability,
    CapabilityNeeded,
    Created,
    Document,
    Finished,
    Inbox,
    Listed,
    Part,
    Questions,
    QuestionView,
    TaskView,
    Unfinished,
)

logger = logging.getLogger(__name__)

PAGE = 50  # tasks of one `tasks/list`
MOST_ASKING: Final = 100  # tasks of one inbox
PAGE_OF_ASKING: Final = 200  # tasks read at once; some may belong to other owners
MOST_PAGES: Final = 20
AUTHORIZER_TIMEOUT: Final = 5.0  # seconds for an authorizer to allow a request
CARD_WAIT = timedelta(seconds=2)  # of a plain call for the content of a card, which is empty until the reply
NO_ANSWER_LIMIT = 30.0  # seconds a plain call waits for an engine that does not answer
READ_LIMIT: Final = timedelta(seconds=10)  # for a call that only reads; one request to the engine may take that long
ABANDONING = 5.0  # seconds for cancelling an abandoned task
NOT_FOUND: Final = "Task not found"
EXPIRED: Final = "Task expired: its time to live is over"
_MAY_NOT: Mapping[Verb, str] = {
    Verb.ANSWER: "Not allowed: somebody else must answer what this task asks; nothing was applied",
    Verb.CANCEL: "Not allowed: you may not cancel this task; it continues",
    Verb.ACT: "Not allowed: you may not act on this task; nothing was sent",
}

Report = Callable[[Execution], Awaitable[None]]
OnView = Callable[[TaskView], Awaitable[bool | None]]


class ResultHidden(RequestError):  # noqa: N818  # an outcome, not a fault
    """The caller may not see the result of its call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """The rights of one principal on one task."""

    see: bool
    answer: bool
    cancel: bool
    act: bool
    for_others: frozenset[str] = frozenset()  # keys of open questions that only others may answer

    def reads(self, task: Task) -> bool:
        """Return True if the principal may read the task now; with only `answer`, while it waits for input."""
        return self.see or (self.answer and task.execution.status is Status.INPUT_REQUIRED)

    def within(self, task: Task) -> Task:
        """Return the task limited to these rights: without questions to answer, or without any content.

        A principal without `see` reads the question, the message and the steps, but not the log and the engine's page,
        which show the whole execution.
        """
        if not self.reads(task):
            return replace(task, execution=Execution(status=Status.RUNNING), ended=None)
        if not self.see:
            task = replace(task, execution=replace(task.execution, url=None, has_log=False))
        if not self.answer:
            return replace(task, may_answer=False)
        return replace(task, answered=task.answered | self.for_others) if self.for_others else task


_ALL: Final = Rights(see=True, answer=True, cancel=True, act=True)
_NONE: Final = Rights(see=False, answer=False, cancel=False, act=False)


class Authorization:
    """The rules of the tools, then the operator's authorizer; one object for the life of the server.

    New rules apply at once, even to streams opened earlier.
    """

    def __init__(
        self, tools: Mapping[str, AnyTool], *, authorizer: Authorizer | None = None, audit: Audit = silent
    ) -> None:
        self._authorizer = authorizer
        self._audit = audit
        self.use(tools)

    def use(self, tools: Mapping[str, AnyTool]) -> None:
        """Replace the tools, including their rules."""
        self._tools = tools
        self._ruled = self._authorizer is not None or any(tool.allow or tool.approvals for tool in tools.values())

    @property
    def has_authorizer(self) -> bool:
        """True if the operator's code also decides; it may use any claim."""
        return self._authorizer is not None

    async def permits(self, name: str, principal: Principal, arguments: Mapping[str, JSON] | None = None) -> bool:
        """Return True if the principal may call this tool, with these arguments if given."""
        wish = AccessRequest(principal=principal, verb=Verb.CALL, tool=name, arguments=arguments)
        return not self._ruled or await self._may(wish)

    async def may_watch(self, name: str, principal: Principal, arguments: Mapping[str, JSON] | None = None) -> bool:
        """Return True if the principal may call this tool and see the resulting task."""
        wish = AccessRequest(principal=principal, verb=Verb.SEE, tool=name, owner=principal.id)
        return await self.permits(name, principal, arguments) and (not self._ruled or await self._may(wish))

    async def offers(self, name: str, principal: Principal, arguments: Mapping[str, JSON] | None = None) -> bool:
        """Return True if the principal may call this tool, with these arguments if given; record a refusal."""
        if await self.permits(name, principal, arguments):
            return True
        self.denied(
            principal, tool=name, reason=f"may not call it{'' if arguments is None else ' with these arguments'}"
        )
        return False

    async def offered(self, principal: Principal) -> frozenset[str]:
        """Return the tools that the principal may call."""
        return frozenset([name for name in self._tools if await self.permits(name, principal)])

    def shared_tools(self, principal: Principal) -> Sequence[str]:
        """Return the tools whose rules may let this principal see or answer tasks of other owners."""
        if not self._ruled:
            return ()
        return [
            name
            for name, tool in self._tools.items()
            if reaches_others(tool.allow, principal) or any(rule.fits(principal) for rule in tool.approval_rules)
        ]

    async def rights(self, task: Task, principal: Principal) -> Rights:
        """Return the current rights of the principal on this task."""
        tool = self._tools.get(task.tool)
        mine = principal.id == task.owner
        if tool is None and task.guarded:  # its rules no longer exist: the owner may only see the task
            return replace(_NONE, see=mine)
        if self._authorizer is None and (tool is None or tool.allow is None):
            found = _ALL if mine else _NONE
        else:
            verbs = (Verb.SEE, Verb.ANSWER, Verb.CANCEL, Verb.ACT)
            see, answer, cancel, act = [await self._may(_wish(principal, verb, task)) for verb in verbs]
            found = Rights(see=see, answer=answer, cancel=cancel, act=act)
        asking = task.execution.requests.keys() - task.answered if task.may_answer else ()
        approving: dict[str, bool] = {}
        for key in asking:
            gate = task.execution.requests[key].gate
            if gate is not None and _needs_approval(task, gate, tool):
                waiting = task.waiting.get(key)
                escalated = waiting is not None and waiting.escalated is not None
                approving[key] = await self.may_decide(task, gate, principal, escalated=escalated)
        others = {key for key in asking if not approving.get(key, found.answer)}
        return replace(found, answer=len(others) < len(asking), for_others=frozenset(others)) if approving else found

    async def may_decide(self, task: Task, gate: str, principal: Principal, *, escalated: bool) -> bool:
        """Return True if the principal may decide on approvals of this gate, by the current rules."""
        tool = self._tools.get(task.tool)
        approval = None if tool is None else tool.approvals.get(gate)
        if approval is None:
            return False
        rules = approval.rules(escalated=escalated)
        fits = any(rule.fits(principal) and rule.fits_owner(principal, task.owner) for rule in rules)
        return fits and await self._agrees(_wish(principal, Verb.ANSWER, task))

    async def could_decide(self, task: Task, decision: Decision | None, principal: Principal) -> bool:
        """Return True if the principal made this decision or may decide on such approvals; None: on any of the tool."""
        if decision is not None and decision.by == principal.id:
            return True
        tool = self._tools.get(task.tool)
        every = tool.approvals if tool else ()
        gates = every if decision is None else (decision.gate,)
        return any([await self.may_decide(task, gate, principal, escalated=True) for gate in gates])

    def kept(self, principal: Principal) -> Principal:
        """Return the principal with only the claims that rules need later; an authorizer may need any claim."""
        claims: Claims = {name: claim_value(principal.claims, name) for name in self.needed_claims}
        if self._authorizer is not None:
            claims = principal.claims
        return replace(principal, claims=claims, expires=None, recheck=None, peer=None)

    @property
    def needed_claims(self) -> frozenset[str]:
        """The claims that rules use."""
        allowed = [tool.allow.claims for tool in self._tools.values() if tool.allow is not None]
        asked = [rule.claims.keys() for tool in self._tools.values() for rule in tool.approval_rules]
        return frozenset[str]().union(*allowed, *asked)

    async def _may(self, wish: AccessRequest) -> bool:
        tool = self._tools.get(wish.tool)
        allow = None if tool is None else tool.allow
        message = tool.message if tool is not None and wish.verb is Verb.CALL else None
        named = message.addressed_by if message is not None and wish.arguments is not None else frozenset[str]()
        if named and not permits_message(allow, wish.principal, wish.arguments or {}, named):
            return False
        return permits(allow, wish.verb, wish.principal, wish.owner) and await self._agrees(wish)

    async def _agrees(self, wish: AccessRequest) -> bool:
        """Return True if there is no authorizer or it allows the request."""
        if self._authorizer is None:
            return True
        try:
            with anyio.fail_after(AUTHORIZER_TIMEOUT):
                return await self._authorizer(wish) is True
        except Exception:  # third-party code; any error is a refusal: docs/decisions/0002
            logger.exception("the authorizer failed on %s of tool %r: denied", wish.verb, wish.tool)
            return False

    def denied(
        self,
        principal: Principal,
        *,
        task: Task | None = None,
        task_id: str | None = None,
        tool: str | None = None,
        reason: str,
    ) -> None:
        """Record a refusal in the audit log."""
        record = record_of(Event.DENY, principal, task, tool=tool, outcome="refused", reason=reason)
        self._audit(record if task_id is None else replace(record, task=task_hash(task_id)))


def _needs_approval(task: Task, gate: str, tool: AnyTool | None) -> bool:
    """Return True if a gate's question is for approvers by the current rules; for a removed gate, by the start's.

    A renamed gate must not lose its approval.
    """
    if tool is not None and (gate in tool.gates or gate in tool.approvals):
        return gate in tool.approvals
    return gate in task.terms


def _wish(principal: Principal, verb: Verb, task: Task) -> AccessRequest:
    return AccessRequest(principal=principal, verb=verb, tool=task.tool, owner=task.owner, task_id=task.id)


class TaskService:
    """The commands of every protocol version. `authorization` has the rules, and outlives the service."""

    def __init__(
        self,
        *,
        tools: Mapping[str, AnyTool],
        executions: Executions,
        retention: timedelta,
        authorization: Authorization | None = None,
        audit: Audit = silent,
        limits: Limits = UNLIMITED,
        meters: RateLimits | None = None,
    ) -> None:
        self.authorization = authorization or Authorization(tools, audit=audit)
        self._tools = tools
        self._executions = executions
        self._retention = retention
        self._audit = audit
        self._limits = limits
        self._meters = meters or RateLimits(limits, audit=audit)

    # --- tools/call

    def serve(self, call: Call) -> OpenCall:
        """Return the context of a call, from its first round to its reply."""
        arrived = anyio.current_time() if call.began is None else call.began
        calls, wait = self._executions.repeated_calls, self._tools[call.tool].wait
        return OpenCall(calls=calls, arrived=arrived, host=call.host, wait=wait)

    async def call(self, call: Call, principal: Principal, report: Report) -> CallOutcome:
        """`tools/call`: ask the questions first, then return a task, or the plain result to a client without tasks.

        `report` is called with each change while the call waits.
        """
        async with self.serve(call) as served:
            return await self.call_round(call, principal, report, served)

    async def act(self, call: Call, principal: Principal, report: Report) -> CallOutcome:
        """Take an action of a task's tool: `arguments` has `taskId`, `action` and optionally `content`.

        Raises:
            RequestError: the task has no such action, or cannot take it now; nothing was sent.
        """
        name, content = call.arguments["action"], call.arguments.get("content", {})
        task, _ = await self._authorize(call.arguments["taskId"], principal, Verb.ACT)
        starter, tool = self._tools.get(task.tool), self._tools.get(action_name(task.tool, name))
        if starter is None or tool is None:
            known = sorted(starter.actions) if starter else []
            text = f"{task.tool} has no action {quoted(name)}{did_you_mean(name, known)}"
            raise RequestError(INVALID_PARAMS, f"{text} (actions: {', '.join(known) or 'none'}); nothing was sent")
        is_over = task.ended or task.cancelled is not None
        if is_over or task.handle is None or self._executions.is_foreign(task):
            why = "has not started yet" if task.handle is None else f"belongs to an earlier engine named {task.engine}"
            raise RequestError(INVALID_PARAMS, f"The task {'has ended' if is_over else why}; nothing was sent")
        message = replace(call, tool=tool.name, arguments=content, target=task.handle)
        ended = "left"  # the client may leave while the engine handles the message
        try:
            outcome = await self.call(message, principal, report)
            ended = "failed" if isinstance(outcome, Finished) and outcome.result.get("isError") else "ok"
            return outcome
        except RequestError:
            ended = "failed"
            raise
        finally:
            self._record(Event.ACT, principal, task, outcome=ended, reason=name, arguments=content)

    async def call_round(self, call: Call, principal: Principal, report: Report, served: OpenCall) -> CallOutcome:
        """Serve one round of a call that may have several before its reply; see `call`."""
        outcome = await self._call(call, principal, report, served)
        return outcome if served.continues is None else continued(outcome, served.continues)

    async def _call(self, call: Call, principal: Principal, report: Report, served: OpenCall) -> CallOutcome:
        tool = self._tools[call.tool]
        if tool.kind is Kind.WATCH and not principal.identified:
            text = f"tool {tool.name} is for identified callers only, and you are anonymous"
            raise RequestError(INVALID_PARAMS, text)
        if tool.needs_tasks and not call.takes_tasks:
            text = f"tool {tool.name} runs long: it needs a client with tasks"
            return CapabilityNeeded(capability=Capability.TASKS, message=text)
        if call.wants_task and tool.tasks is TaskSupport.FORBIDDEN:
            raise RequestError(METHOD_NOT_FOUND, f"tool {tool.name} creates no tasks: call it without params.task")
        if call.unusable_keys:
            logger.debug("a call of %s has no usable key in %s of _meta", call.tool, ", ".join(call.unusable_keys))
        call = replace(call, arguments=tool.checker.normalize(call.arguments))
        if tool.continues_calls and principal.identified and call.idempotency_key is None and call.host_key is None:
            served.match = self._executions.repeated_calls.match(
                tool, [call.arguments, call.target], principal, call.host
            )
        dialogue = read_dialogue(call.state) if call.state else Dialogue()
        if dialogue.task_id is not None:  # a plain call continues after its workflow's question
            task, _ = await self._authorize(dialogue.task_id, principal, Verb.ANSWER)
            if task.owner == principal.id:
                served.about(task)
            async with self._cancelled_if_abandoned(tool, task, principal):
                way = AnswerWay.LINK if call.takes_urls else AnswerWay.CHAT
                task = await self._answer(task, call.responses, principal, way)
                served.opened |= self._executions.links(task).keys() & call.responses.keys()
            return await self._result(tool, task, call, principal, report, served)
        try:
            started = await self._start(tool, call, dialogue, principal, served)
        except MappingError as error:
            return Finished(result=tool_error(f"Wrong arguments for {tool.name}: {error}; {nothing_done(tool)}"))
        except LimitReached as reached:  # a result, because hosts do not show protocol errors to the model
            self._meters.refused(principal, tool.name, reached)
            return Finished(result=limit_result(reached))
        except EngineRefused as error:
            refused = "refused to start" if tool.message is None else "refused"
            return Finished(result=tool_error(f"Engine {tool.engine} {refused} {tool.workflow}: {error}"))
        except EngineUnavailable as error:
            text = f"Engine {tool.engine} cannot be reached; {nothing_done(tool)}. Try again later: {error}"
            return Finished(result=tool_error(text))
        if not isinstance(started, Task):
            return started
        task = started
        self._meters.remember_shown(principal, task.id)
        async with self._cancelled_if_abandoned(tool, task, principal):
            await anyio.lowlevel.checkpoint_if_cancelled()  # the client may have left during the start
        if not call.takes_tasks or tool.tasks is TaskSupport.FORBIDDEN:
            return await self._result(tool, task, call, principal, report, served)
        at_once = tool.adaptive is not None and not call.wants_task
        if at_once:
            with suppress(EngineError, ResultHidden):
                task = await self._wait(tool, task, report, principal, tool.adaptive, frozenset())
        rights = await self.authorization.rights(task, principal)
        if at_once and task.ended and rights.see:
            self._record(Event.RETRIEVE, principal, task)
            return finished(task)
        return Created(task=self._view(ObservedTask(task), rights, principal))

    async def _start(
        self, tool: AnyTool, call: Call, dialogue: Dialogue, principal: Principal, served: OpenCall
    ) -> Task | Finished | Questions | CapabilityNeeded:
        """Return the task of a call, the questions for the caller, or the reason why nothing was started."""
        task_id = secrets.token_hex(20)
        if not call.state:
            if await self._executions.repeated_calls.is_repeated(served):
                self._meters.count_poll(principal)
                if not await self.authorization.offers(tool.name, principal, call.arguments):
                    return Finished(result=tool_error(f"Not allowed: {tool.name} with these arguments"))
                if task := await self._executions.resume(served):
                    served.about(task)
                    self._record(Event.CREATE, principal, task, outcome="continued", arguments=call.arguments)
                    return task
            of_call = call.arguments if call.target is None else [call.arguments, call.target]
            key = key_of(call.idempotency_key, call.host_key, of_call, principal)
            dialogue = replace(dialogue, key=key)
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
        if not await self.authorization.offers(tool.name, principal, ready.arguments):
            return Finished(result=tool_error(f"Not allowed: {tool.name} with these arguments; {nothing_done(tool)}"))
        if sought := ready.confirmation:
            verdict = sought.taken(call.responses, ready.dialogue)
            if isinstance(verdict, Declined):
                text = f"{tool.name} was not confirmed ({verdict.action}); {nothing_done(tool)}"
                return Finished(result=tool_error(text))
            if not verdict:
                requests = {sought.name: sought.request}
                return self._ask(tool, requests, "a confirmation", sought.asked(ready.dialogue), call, principal)
        if tool.kind is Kind.WATCH:
            return await self._watch(tool, call, principal)
        new = self._new_task(tool, call, ready, task_id, principal)
        if ready.approval is not None and tool.approval is not None:
            requester = self._executions.sealed(self.authorization.kept(principal), task_id)
            ttl = self._ttl(call, tool, principal).total_seconds()
            held = Held(ttl=ttl, requester=requester, tool=tool_digest(tool))
            new = hold(new, held, ready.approval)
        refusal = self._meters.check_start(principal)
        reads = tool.message is not None and tool.message.reads
        if call.target is None and not reads:  # a pause blocks no action: an action may be the way to stop an execution
            refusal = refusal or await self._executions.pauses.refusal(tool.engine, tool.name, principal.id)
        served.about(new)
        caps = NO_MORE if refusal else caps_of(self._limits, tool, new.created)
        try:
            task = await self._executions.create(new, caps, ready.same)
        except LimitReached as reached:
            raise refusal or reached from None
        except (EngineRefused, EngineUnavailable):
            self._meters.started_nothing(principal)  # no row counts this call
            raise
        served.about(task)
        outcome = "ok" if task.id == new.id else "again"
        self._record(Event.CREATE, principal, task, outcome=outcome, arguments=call.arguments)
        return task

    def _ask(
        self,
        tool: AnyTool,
        requests: Mapping[str, InputRequest],
        missing: str,
        dialogue: Dialogue,
        call: Call,
        principal: Principal,
    ) -> Questions | CapabilityNeeded:
        if not call.takes_questions:
            text = f"tool {tool.name} must ask a person for: {missing}; it needs a client with elicitation"
            return CapabilityNeeded(capability=Capability.ELICITATION, message=text)
        state = write_dialogue(with_key(dialogue, tool, principal, self._executions.clock()))
        return Questions(requests=requests, state=state)

    async def _watch(self, tool: AnyTool, call: Call, principal: Principal) -> Task | Finished:
        """Return a task for an execution that was started elsewhere."""
        self._meters.count_poll(principal)
        try:
            ref = await self._executions.adoption.find_own(tool, call.arguments[EXECUTION_ID])
        except EngineUnavailable as error:
            text = f"Engine {tool.engine} does not answer; nothing is watched. Try again later: {error}"
            return Finished(result=tool_error(text))
        except ExecutionNotFound as error:
            self.authorization.denied(principal, tool=tool.name, reason="no such execution for this caller")
            self._meters.count_failed_lookup(principal)
            return Finished(result=tool_error(str(error)))
        ttl = self._ttl(call, tool, principal)
        new = self._executions.adoption.new_task(tool, ref, principal, call.arguments, ttl=ttl, context=call.context)
        task = await self._executions.adopt(new, caps_of(self._limits, tool, new.created))
        self._record(Event.CREATE, principal, task, outcome="watched")
        return task

    def _new_task(self, tool: AnyTool, call: Call, ready: Prepared, task_id: str, principal: Principal) -> Task:
        filled = ready.filled
        return task_of(
            tool,
            principal,
            now=self._executions.clock(),
            ttl=self._ttl(call, tool, principal),
            id=task_id,
            workflow=tool.workflow,
            key=self._executions.start_key(task_id, tool.name, principal.id, ready.same),
            input=filled.input,
            options=filled.options,
            gates=filled.gates,
            arguments=ready.arguments if tool.gates or tool.approval else None,
            context={**filled.context, **propagated(call.context)},
            idempotency_key=ready.same.key,
            fingerprint=ready.fingerprint if call.target is None else digest([ready.fingerprint, call.target]),
            host=call.host,
            target=call.target,
        )

    def _ttl(self, call: Call, tool: AnyTool, principal: Principal) -> timedelta:
        """Return the time to live: the client's wish within the limits."""
        known = principal.identified
        return self._limits.ttl(asked_ms=call.ttl_ms, tool=tool.ttl, retention=self._retention, identified=known)

    async def _result(
        self, tool: AnyTool, task: Task, call: Call, principal: Principal, report: Report, served: OpenCall
    ) -> CallOutcome:
        """Return the result to a client without tasks, or the unfinished task if the tool hands over in time."""
        try:
            try:
                task = await self._wait(tool, task, report, principal, time_left(tool, call), served.opened)
            except EngineError as error:
                if tool.hands_over:
                    task = await self._visible_now(task, principal)
                    text = f"engine {task.engine} does not answer: {error}"
                    return Unfinished(task=replace(await self._rendered_to(task, tool, principal), message=text))
                return self._goes_on(tool, task, f"Engine {task.engine} does not answer ({error})", served)
            except ServerStopping:
                return self._goes_on(tool, task, "The server is stopping", served)
            task = await self._visible_now(task, principal)
        except ResultHidden:
            text = f"{tool.name} was started and continues by itself. You may not see its result. Do not"
            return Finished(result=tool_error(f"{text} call it again: that would start it twice."))
        if task.ended:
            self._record(Event.RETRIEVE, principal, task)
            return finished(task)
        requests = askable(task.seen.requests if call.takes_questions else {}, takes_urls=call.takes_urls)
        requests = {key: request for key, request in requests.items() if key not in served.opened}
        if requests and task.seen.status is Status.INPUT_REQUIRED and not (call.shows_card and tool.model_may_answer):
            return Questions(requests=requests, state=write_dialogue(Dialogue(task_id=task.id)), started=True)
        if tool.hands_over:
            return Unfinished(task=await self._rendered_to(task, tool, principal))
        return self._goes_on(tool, task, unanswerable_text(task), served)

    def _goes_on(self, tool: AnyTool, task: Task, why: str, served: OpenCall) -> Finished:
        """Return the error of a call without a result, for a client that has no task id to return with."""
        if tool.message and tool.message.reads:
            return Finished(result=tool_error(f"Engine {task.engine} does not answer. Nothing has changed: try again"))
        served.lose()
        return Finished(result=tool_error(abandoned_text(task, why, continues=bool(served.match))))

    async def _wait(
        self, tool: AnyTool, task: Task, report: Report, principal: Principal, within: timedelta | None, shown: Set[str]
    ) -> Task:
        """Return the task when it has ended or asks, or after `within` (None: no limit).

        It does not return for questions in `shown`: people are answering them on their pages. The workflow continues
        without the client, unless the tool sets `cancel_on_disconnect`.
        """
        latest = task

        async def on_change(observed: ObservedTask) -> bool:
            nonlocal latest
            latest = observed.task
            execution = (await self._visible_now(latest, principal)).seen
            if execution.status is Status.INPUT_REQUIRED and execution.requests.keys() - shown:
                return True
            await report(execution)
            return False

        try:
            async with self._cancelled_if_abandoned(tool, task, principal):
                with anyio.move_on_after(None if within is None else within.total_seconds()):
                    await self._executions.follow(task, on_change, timeout=NO_ANSWER_LIMIT)
        except ServerStopping:
            if within is None:
                raise
        return latest

    async def _visible_now(self, task: Task, principal: Principal) -> Task:
        """Return the task limited to the principal's current rights, while its token is valid.

        Raises:
            ResultHidden: it has none.
        """
        current = await principal.revalidated_if_unexpired(self._executions.clock())
        rights = _NONE if current is None else await self.authorization.rights(task, current)
        if not rights.reads(task) and (task.ended or not rights.answer):
            self.authorization.denied(principal, task=task, reason="may not see the result")
            raise ResultHidden(INVALID_PARAMS, NOT_FOUND)
        return self._executions.with_links(rights.within(task))

    @asynccontextmanager
    async def _cancelled_if_abandoned(self, tool: AnyTool, task: Task, principal: Principal) -> AsyncGenerator[None]:
        """Cancel the workflow if the client leaves during the body and the tool sets `cancel_on_disconnect`.

        A stopping server does not count as a client that leaves.
        """
        try:
            yield
        except anyio.get_cancelled_exc_class():
            if tool.cancel_on_disconnect and not self._executions.stopping and not task.ended:
                with anyio.move_on_after(ABANDONING, shield=True), suppress(WorkflowsError):
                    self._record(Event.CANCEL, principal, await self._cancel(task), outcome="left")
            raise

    @asynccontextmanager
    async def asking(self, call: Call, questions: Questions, principal: Principal) -> AsyncGenerator[None]:
        """Wrap the time in which a receiver asks a person these questions; the client or the server may end it.

        Raises:
            RequestError: the server is stopping, and nothing was started.
        """
        task_id = read_dialogue(questions.state).task_id
        if task_id is None:
            with self._executions.until_stop():
                yield
            if self._executions.stopping:
                raise RequestError(INTERNAL_ERROR, "the server is stopping; nothing was started: call again later")
            return
        task, _ = await self._authorize(task_id, principal)
        async with self._cancelled_if_abandoned(self._tools[call.tool], task, principal):
            with self._executions.until_stop():
                yield

    # --- tasks/*

    async def get(self, task_id: str, principal: Principal) -> TaskView:
        """`tasks/get`: return the task after a poll, or its last known state if the engine does not answer."""
        by = anyio.current_time() + self._executions.read_timeout
        task, _ = await self._authorize(task_id, principal, by=by)
        found = await self._observed_view(task, principal, by)
        if found is None:
            raise _not_found()
        return found

    async def find(self, tool_name: str, arguments: Mapping[str, JSON], principal: Principal) -> TaskView:
        """Return the caller's newest task that a call with these arguments started, as `get` does.

        Raises:
            RequestError: the caller's latest tasks include none, it may not be seen, or the caller is anonymous.
        """
        if not principal.identified:
            raise _not_found()
        tool = self._tools.get(tool_name)
        sought = tool.checker.normalize(arguments) if tool else arguments
        task = await self._executions.newest(principal.id, tool_name, digest(sought))
        if task is None:
            raise _not_found()
        return await self.get(task.id, principal)

    async def answered(self, task_id: str, principal: Principal) -> TaskView | None:
        """Return the task after the principal's answer, or None if the principal may no longer see it.

        Unlike `get` this records no refusal, because the approver did nothing wrong.
        """
        by = anyio.current_time() + self._executions.read_timeout
        shared_tools = self.authorization.shared_tools(principal)
        task = await self._executions.find(task_id, principal.id, shared_tools, by=by)
        if task is None or task.expired(self._executions.clock()):
            return None
        return await self._observed_view(task, principal, by)

    async def _observed_view(self, task: Task, principal: Principal, by: float) -> TaskView | None:
        """Return the task after a poll, limited to the rights on its current questions; None: it may not be read."""
        observed = await self._executions.observe(task, by=by)
        rights = await self.authorization.rights(observed.task, principal)
        if not rights.reads(observed.task):
            return None
        if observed.task.ended:
            self._record(Event.RETRIEVE, principal, observed.task)
        return self._view(observed, rights, principal)

    async def update(
        self, task_id: str, responses: Mapping[str, JSON], principal: Principal, way: AnswerWay = AnswerWay.CHAT
    ) -> None:
        """`tasks/update`: deliver answers; none is applied unless all of them fit their questions."""
        task, _ = await self._authorize(task_id, principal, Verb.ANSWER)
        await self._answer(task, responses, principal, way)

    async def _answer(self, task: Task, responses: Mapping[str, JSON], principal: Principal, way: AnswerWay) -> Task:
        """Deliver answers to a task that was authorized with `Verb.ANSWER`.

        Raises:
            RequestError: the answers are too large, or see `Executions.answer`.
        """
        try:
            check_size("Answers", responses, self._limits.max_answer, MAX_JSON_VALUES)
        except LimitReached as reached:
            self._meters.refused(principal, task.tool, reached)
            raise

        async def check(latest: Task, answers: Answers) -> None:
            """Check the answers before delivery against the current rules and questions."""
            rights = await self.authorization.rights(latest, principal)
            if not rights.answer or answers.keys() & rights.for_others:
                self.authorization.denied(principal, task=latest, reason=f"may not {Verb.ANSWER} it")
                raise RequestError(INVALID_PARAMS, _MAY_NOT[Verb.ANSWER])
            if latest.held is not None and answers.get(START_KEY, {}).get("action") == Action.ACCEPT:
                await self._check_request(latest, latest.held)

        task, answers = await self._executions.answer(task, responses, principal, way, check)
        if answers:
            self._record(Event.ANSWER, principal, task, reason=audited(task, answers))
        return task

    async def _check_request(self, task: Task, held: Held) -> None:
        """Check that the approved start is still possible as it was requested.

        Raises:
            RequestError: it is not; the question stays open, and can be declined.
        """
        tool, requester = self._tools.get(task.tool), self._executions.unsealed(held.requester, task.id)
        arguments = cast("Mapping[str, JSON]", task.arguments)
        why = None
        if tool is None or tool_digest(tool) != held.tool:
            why = f"tool {task.tool} has changed since this was requested"
        elif requester is None or not await self.authorization.offers(tool.name, requester, arguments):
            why = f"the requester may no longer call {task.tool}"
        elif self._executions.is_foreign(task):
            why = f"{task.engine} now names another engine"
        elif paused := await self._executions.pauses.refusal(task.engine, task.tool, task.owner):
            raise RequestError(INVALID_PARAMS, f"Not approved: {paused.message}; try again later")
        if why is not None:
            raise RequestError(INVALID_PARAMS, f"Not approved: {why}: decline it and request it again")

    async def cancel(self, task_id: str, principal: Principal) -> None:
        """`tasks/cancel`: ask the engine to cancel; the status shows the outcome."""
        task, _ = await self._authorize(task_id, principal, Verb.CANCEL)
        await self._cancel(task)
        self._record(Event.CANCEL, principal, task, outcome="ended" if task.ended else "ok")

    async def withdraw(self, task_id: str, principal: Principal) -> TaskView:
        """`tasks/cancel` of 2025-11-25: the task is cancelled, finally, before the reply, whatever the engine does.

        Raises:
            RequestError: it has ended already.
        """
        by = anyio.current_time() + self._executions.read_timeout
        task, _ = await self._authorize(task_id, principal, Verb.CANCEL, by=by)
        task = (await self._executions.observe(task, by=by)).task
        if task.cancelled is None:
            task = await self._cancel(task, is_final=True)
            if task.cancelled is not None:
                self._record(Event.CANCEL, principal, task)
                rights = await self.authorization.rights(task, principal)
                return self._view(ObservedTask(task), rights, principal)
        raise RequestError(INVALID_PARAMS, "Cannot cancel task: it has ended already")

    async def _cancel(self, task: Task, *, is_final: bool = False) -> Task:
        if task.ended:
            return task
        if not task.may_cancel:
            why = "only watches, or may have sent its message already"
            raise RequestError(INVALID_PARAMS, f"nothing to cancel: tool {task.tool} {why}")
        return (await self._executions.cancel(task, is_final=is_final)).task

    async def tasks(self, cursor: str | None, principal: Principal) -> Listed:
        """`tasks/list`: return the caller's tasks that `get` finds, newest first.

        Raises:
            RequestError: the caller is anonymous, or the cursor was not issued here.
        """
        if not principal.identified:
            raise RequestError(METHOD_NOT_FOUND, "tasks are listed for identified callers only")

        messages = {tool.name for tool in self._tools.values() if tool.message is not None}

        def is_listed(task: Task, rights: Rights) -> bool:
            return rights.reads(task) and not (task.ended and task.tool in messages)

        views: Sequence[TaskView] = ()
        for _ in range(MOST_PAGES):
            page, cursor = await self._executions.page(principal.id, cursor, PAGE)
            views = await self._views(page, principal, is_listed)
            if views or cursor is None:
                break
        return Listed(tasks=views, next_cursor=cursor)

    async def questions(self, cursor: str | None, principal: Principal) -> Listed:
        """Return others' tasks with questions that this principal may answer, newest first; a page may be empty.

        Raises:
            RequestError: the cursor was not issued here.
        """
        shared_tools = self.authorization.shared_tools(principal)
        if not shared_tools:
            return Listed(tasks=(), next_cursor=None)
        page, following = await self._executions.page(principal.id, cursor, PAGE, shared_tools=shared_tools)
        asking = [ObservedTask(task) for task, _ in page if task.seen.status is Status.INPUT_REQUIRED]
        views = await self._views(asking, principal, lambda _, rights: rights.answer)
        return Listed(tasks=views, next_cursor=following)

    # --- pages for people

    async def inbox(self, principal: Principal) -> Inbox:
        """Return the open questions that this principal may answer, those of the oldest tasks first.

        Raises:
            LimitReached: the principal asks too often.
        """
        self._meters.count_poll(principal)
        shared_tools, after = self.authorization.shared_tools(principal), None
        mine: list[Task] = []
        is_cut, left = True, MOST_PAGES
        while is_cut and left and len(mine) < MOST_ASKING:
            page = await self._executions.list_asking(principal.id, shared_tools, PAGE_OF_ASKING, after)
            mine += [task for task in page if (await self._answerable(task, principal))]
            is_cut, left = len(page) == PAGE_OF_ASKING, left - 1
            after = (page[-1].created, page[-1].id) if page else None
        found: list[QuestionView] = []
        for task, _ in await self._executions.observe_all(mine[:MOST_ASKING]):
            found += [
                self._question(task, key, request) for key, request in (await self._answerable(task, principal)).items()
            ]
        is_cut = is_cut or len(mine) > MOST_ASKING
        return Inbox(questions=sorted(found, key=lambda each: each.since), is_cut=is_cut)

    async def _answerable(self, task: Task, principal: Principal) -> Mapping[str, InputRequest]:
        return (await self.authorization.rights(task, principal)).within(task).seen.requests

    async def question(self, link: str, principal: Principal) -> QuestionView:
        """Return the question of a link: open, or with its decision, for principals who see the task or could decide.

        Raises:
            RequestError: there is no such question for this principal.
        """
        self._meters.count_poll(principal)
        by = anyio.current_time() + self._executions.read_timeout
        task_id, question = self._executions.read_link(link) or ("", "")
        self._meters.check_lookup(principal, task_id)
        shared_tools = self.authorization.shared_tools(principal)
        task = await self._executions.find(task_id, principal.id, shared_tools, by=by)
        if task is not None and not task.expired(self._executions.clock()):
            task = (await self._executions.observe(task, by=by)).task
            rights = await self.authorization.rights(task, principal)
            shown = rights.within(task).seen.requests
            known = (*task.execution.requests, *task.decisions, *task.answered)
            key = next((each for each in known if question_digest(task.id, each) == question), "")
            if key in shown:
                return self._question(task, key, shown[key])
            decision = task.decisions.get(key)
            is_open = key in task.execution.requests and not task.ended and key not in task.answered
            if rights.see or (not is_open and await self.authorization.could_decide(task, decision, principal)):
                outcome = f"It {waits_for(task)}." if is_open else "It is no longer open."
                outcome = outcome if decision is None else f"It was {decision_text(decision)}."
                return self._question(task, key, outcome=outcome, is_whole=rights.see)
        self.authorization.denied(principal, task=task, task_id=task_id, reason="no such question for this caller")
        self._meters.count_failed_lookup(principal)
        raise RequestError(INVALID_PARAMS, "There is no such question for you")

    def _question(
        self, task: Task, key: str, request: InputRequest | None = None, *, outcome: str = "", is_whole: bool = True
    ) -> QuestionView:
        tool, waiting = self._tools.get(task.tool), task.waiting.get(key)
        return QuestionView(
            task_id=task.id,
            key=key,
            title=(tool and tool.title) or task.tool,
            requester=person_of(task.owner)[1],
            host=task.host,
            since=waiting.since if waiting else task.created,
            request=request,
            arguments=cast("Mapping[str, JSON]", task.arguments or {}) if is_whole else {},
            steps=task.seen.steps if is_whole else (),
            outcome=outcome,
            url=self._executions.page_url(task.id, key),
        )

    async def _views(
        self, page: Sequence[ObservedTask], principal: Principal, is_shown: Callable[[Task, Rights], bool]
    ) -> Sequence[TaskView]:
        rights = [await self.authorization.rights(observed.task, principal) for observed in page]
        return [
            self._view(observed, each, principal)
            for observed, each in zip(page, rights, strict=True)
            if is_shown(observed.task, each)
        ]

    async def listen(self, task_ids: Sequence[str], principal: Principal) -> Sequence[Task]:
        """Return the tasks of `subscriptions/listen` that this principal may see; leave out the others silently."""
        by = anyio.current_time() + self._executions.read_timeout
        tasks: dict[str, Task] = {}
        failures: list[StoreError] = []

        async def find(task_id: str) -> None:
            try:
                tasks[task_id], _ = await self._authorize(task_id, principal, by=by)
            except StoreError as error:
                failures.append(error)
            except RequestError:
                pass

        async with anyio.create_task_group() as group:
            for task_id in task_ids:
                group.start_soon(find, task_id)
        if failures:
            raise failures[0]
        return [tasks[task_id] for task_id in task_ids if task_id in tasks]

    async def follow(self, task: Task, on_change: OnView, principal: Principal) -> None:
        """Call `on_change` with each state of the task, until it ends or `on_change` returns True.

        Before each call the principal's rights and token are checked.

        Raises:
            RequestError: the task has expired, or the principal may no longer see it.
            ServerStopping: the server is stopping.
        """

        async def notify(observed: ObservedTask) -> bool | None:
            task = observed.task
            current = await principal.revalidated(self._executions.clock())
            rights = _NONE if current is None else await self.authorization.rights(task, current)
            if not rights.reads(task):
                self.authorization.denied(principal, task=task, reason="may no longer see it")
                raise _not_found()
            if task.ended:
                self._record(Event.RETRIEVE, principal, task)
            return await on_change(self._view(observed, rights, principal))

        now = self._executions.clock()
        left = float("inf") if task.expires is None else (task.expires - now).total_seconds()
        admitted = left if principal.expires is None else (principal.expires - now).total_seconds()
        with anyio.move_on_after(min(left, admitted)):
            await self._executions.follow(task, notify)
            return
        raise _expired() if left <= admitted else _not_found()

    async def owned(self, task_id: str, principal: Principal, verb: Verb = Verb.SEE) -> Task:
        """Return a task for following it, or for checking that the principal may `verb` it now or later.

        Raises:
            RequestError: the principal may not, or the task has expired.
        """
        return (await self._authorize(task_id, principal, verb))[0]

    async def read(self, task_id: str, part: Part, principal: Principal) -> Document:
        """`resources/read` of a task's full result, or of its log, with the same authorization."""
        by = anyio.current_time() + self._executions.read_timeout
        task, _ = await self._authorize(task_id, principal, by=by)
        task = (await self._executions.observe(task, by=by)).task
        if not (await self.authorization.rights(task, principal)).see:
            self.authorization.denied(principal, task=task, reason=f"may not see its {part.value}")
            raise _not_found()
        if part is Part.LOG:
            text = await self._executions.log(task) if task.seen.has_log else ""
            if not text:
                raise RequestError(INVALID_PARAMS, "Resource not found: the task has no log (yet)")
            document = log_document(task, text)
        elif task.execution.status not in {Status.SUCCEEDED, Status.FAILED} or protocol_error(task.execution):
            raise RequestError(INVALID_PARAMS, "Resource not found: the task has no result (yet)")
        else:
            document = whole_result(task)
        self._record(Event.RETRIEVE, principal, task)
        return document

    # --- for all commands

    async def _authorize(
        self, task_id: str, principal: Principal, verb: Verb = Verb.SEE, *, by: float = float("inf")
    ) -> tuple[Task, Rights]:
        """Load a task and check that the principal may `verb` it. All access by id goes through here.

        A read has the deadline `by`, on the event loop's clock.

        Raises:
            RequestError: the task is unknown or hidden (these look alike), or has expired, or the principal may
                only see it.
        """
        rules = self.authorization
        self._meters.check_lookup(principal, task_id)
        task = await self._executions.find(task_id, principal.id, rules.shared_tools(principal), by=by)
        if task is None:
            rules.denied(principal, task_id=task_id, reason="no such task for this caller")
            self._meters.count_failed_lookup(principal)
            raise _not_found()
        rights = await rules.rights(task, principal)
        lacks_answer = verb is Verb.ANSWER and not rights.answer
        if lacks_answer or (not rights.see and principal.id != task.owner):
            # a question for this principal may have just been asked
            by = min(by, anyio.current_time() + self._executions.read_timeout)
            task = (await self._executions.observe(task, by=by)).task
            rights = await rules.rights(task, principal)
        if not rights.reads(task):
            rules.denied(principal, task=task, reason="may not see it")
            self._meters.count_failed_lookup(principal)
            raise _not_found()
        self._meters.remember_shown(principal, task.id)
        if task.expired(self._executions.clock()):
            raise _expired()
        if not {Verb.ANSWER: rights.answer, Verb.CANCEL: rights.cancel, Verb.ACT: rights.act}.get(verb, True):
            rules.denied(principal, task=task, reason=f"may not {verb} it")
            raise RequestError(INVALID_PARAMS, _MAY_NOT[verb])
        return task, rights

    def _view(self, observed: ObservedTask, rights: Rights, principal: Principal) -> TaskView:
        """Return the task as this principal may see it, with its owner's name if the owner is another principal."""
        task, warning = observed
        found = self.rendered(rights.within(task), acts=rights.act)
        if warning is not None:
            found = replace(found, message=f"{warning}; last known: {found.message or found.status}")
        return found if principal.id == task.owner else replace(found, started_by=person_of(task.owner)[1])

    async def _rendered_to(self, task: Task, tool: AnyTool, principal: Principal) -> TaskView:
        """Return the view of a task already limited to the principal's rights, with the actions that it may take."""
        acts = bool(tool.actions) and (await self.authorization.rights(task, principal)).act
        return self.rendered(task, acts=acts)

    def rendered(self, task: Task, *, acts: bool = False) -> TaskView:
        """Return the view of a task already limited to its reader's rights, with its actions if the reader `acts`."""
        found = view(self._executions.with_links(task), self._executions.poll_interval(task))
        tool, for_people = self._tools.get(task.tool), self._executions.links(task)
        offers = acts and task.handle is not None and not task.ended
        actions = {
            name: ActionView(title=each.title, description=each.description, schema=each.input)
            for name, each in (tool.actions.items() if tool and offers else ())
        }
        if tool is not None and not tool.model_may_answer:
            for_people = {key: self._executions.page_url(task.id, key) or "" for key in found.requests}
        return replace(found, for_people=for_people, actions=actions)

    def _record(
        self,
        event: Event,
        principal: Principal,
        task: Task,
        *,
        outcome: str = "ok",
        reason: str | None = None,
        arguments: JSON = None,
    ) -> None:
        """Record an event on a task in the audit log."""
        if self._audit is not silent:
            self._audit(record_of(event, principal, task, outcome=outcome, reason=reason, arguments=arguments))


def nothing_done(tool: AnyTool) -> str:
    """Return the text for a call that changed nothing at its engine."""
    return "nothing was started" if tool.message is None else "nothing was sent"


def _not_found() -> RequestError:
    """Return the error for a task that is unknown or hidden: both look alike."""
    return RequestError(INVALID_PARAMS, NOT_FOUND)


def _expired() -> RequestError:
    return RequestError(INVALID_PARAMS, EXPIRED)


def time_left(tool: AnyTool, call: Call) -> timedelta | None:
    """Return how long the call may still wait, counted from the arrival of its request; None: no limit."""
    if not tool.hands_over:
        return READ_LIMIT if tool.message and tool.message.reads else None
    longest = tool.wait or (LONGEST_WAIT if call.asked else call_wait(call.host))
    waited = timedelta() if call.began is None else timedelta(seconds=anyio.current_time() - call.began)
    return max((min(longest, CARD_WAIT) if call.shows_card else longest) - waited, timedelta())
