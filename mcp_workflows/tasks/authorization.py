"""Authorization at every request and push: the rules of the tools, then the operator's own authorizer.

A task that a principal may not see is not found, and a tool that it may not call does not exist. The reason goes to the
audit log only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import anyio

from mcp_workflows.access import AccessRequest, Authorizer, Principal, Verb, permits, person_of, reaches_others
from mcp_workflows.access.audit import Audit, Event, answer_reason, record_of, silent, task_hash
from mcp_workflows.access.limit_settings import Limits
from mcp_workflows.access.rate_limits import RateLimits
from mcp_workflows.adapter import JSON, Execution, Status
from mcp_workflows.errors import INVALID_PARAMS, LimitReached, RequestError
from mcp_workflows.task import Task
from mcp_workflows.tasks.repository import TaskRepository, expired
from mcp_workflows.tasks.view import view
from mcp_workflows.tools.sizes import check_size
from mcp_workflows.tools.tool import Tool
from mcp_workflows.wire.commands import TaskView

logger = logging.getLogger(__name__)

AUTHORIZER_TIMEOUT: Final = 5.0  # seconds for an authorizer to say yes
NOT_FOUND: Final = "Task not found"
_MAY_NOT: Mapping[Verb, str] = {
    Verb.ANSWER: "Not allowed: what this task asks is for somebody else to answer; nothing was applied",
    Verb.CANCEL: "Not allowed: you may not cancel this task; it goes on",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """The rights of one principal on one task."""

    see: bool
    answer: bool
    cancel: bool

    def reads(self, task: Task) -> bool:
        """Return True if the task may be read now. With `answer` alone, that is while it waits for input."""
        return self.see or (self.answer and task.execution.status is Status.INPUT_REQUIRED)


_ALL: Final = Rights(see=True, answer=True, cancel=True)


NO_RIGHTS: Final = Rights(see=False, answer=False, cancel=False)


def not_found() -> RequestError:
    """Return the error for a task that is unknown or not to be seen: both look alike."""
    return RequestError(INVALID_PARAMS, NOT_FOUND)


class Authorization:
    """The rules of the tools and the operator's authorizer; one object for as long as the server lives.

    New rules count at once, also for streams that were opened before.
    """

    def __init__(
        self, tools: Mapping[str, Tool], *, authorizer: Authorizer | None = None, audit: Audit = silent
    ) -> None:
        self._authorizer = authorizer
        self._audit = audit
        self.use(tools)

    def use(self, tools: Mapping[str, Tool]) -> None:
        """Replace the tools, and with them the rules."""
        self._tools = tools
        self._ruled = self._authorizer is not None or any(tool.allow is not None for tool in tools.values())

    # --- tools

    async def offers(self, name: str, principal: Principal) -> bool:
        """Return True if the principal may call this tool; record a refusal."""
        if not self._ruled or await self._may(AccessRequest(principal=principal, verb=Verb.CALL, tool=name)):
            return True
        self.denied(principal, tool=name, reason="may not call it")
        return False

    async def offered(self, principal: Principal) -> frozenset[str]:
        """Return the tools that the principal may call."""
        if not self._ruled:
            return frozenset(self._tools)
        wishes = [AccessRequest(principal=principal, verb=Verb.CALL, tool=name) for name in self._tools]
        return frozenset([wish.tool for wish in wishes if await self._may(wish)])

    async def starts(self, tool: Tool, arguments: Mapping[str, JSON], principal: Principal) -> bool:
        """Return True if the principal may call the tool with these arguments; only authorizers see these."""
        if not self._ruled:
            return True
        wish = AccessRequest(principal=principal, verb=Verb.CALL, tool=tool.name, arguments=arguments)
        if await self._may(wish):
            return True
        self.denied(principal, tool=tool.name, reason="may not call it with these arguments")
        return False

    # --- tasks

    def beyond(self, principal: Principal) -> Sequence[str]:
        """Return the tools whose rules may let this principal see or answer tasks of other owners."""
        if not self._ruled:
            return ()
        return [name for name, tool in self._tools.items() if reaches_others(tool.allow, principal)]

    async def rights(self, task: Task, principal: Principal) -> Rights:
        """Return the rights of the principal on this task now."""
        tool = self._tools.get(task.tool)
        mine = principal.id == task.owner
        if tool is None and task.guarded:  # its rules are gone: the owner may see the task and do nothing else
            return Rights(see=mine, answer=False, cancel=False)
        if self._authorizer is None and (tool is None or tool.allow is None):
            return _ALL if mine else NO_RIGHTS
        see, answer, cancel = [
            await self._may(
                AccessRequest(principal=principal, verb=verb, tool=task.tool, owner=task.owner, task_id=task.id)
            )
            for verb in (Verb.SEE, Verb.ANSWER, Verb.CANCEL)
        ]
        return Rights(see=see, answer=answer, cancel=cancel)

    # --- both

    async def _may(self, wish: AccessRequest) -> bool:
        tool = self._tools.get(wish.tool)
        allow = None if tool is None else tool.allow
        if not permits(allow, wish.verb, wish.principal, wish.owner):
            return False
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


class ResultHidden(RequestError):  # noqa: N818  # an answer, not a fault
    """The caller may not see the result of its call."""


class TaskAccess:
    """The access of principals to tasks: every request about a task goes through it; see docs/decisions/0017."""

    def __init__(
        self,
        *,
        repository: TaskRepository,
        authorization: Authorization,
        meters: RateLimits,
        limits: Limits,
        audit: Audit,
    ) -> None:
        self._repository = repository
        self._authorization = authorization
        self._meters = meters
        self._limits = limits
        self._audit = audit

    async def authorize(
        self, task_id: str, principal: Principal, verb: Verb = Verb.SEE, *, by: float = float("inf")
    ) -> tuple[Task, Rights]:
        """Return the task and the principal's rights on it, which include `verb`: the only way from an id to a task.

        A read has the deadline `by`, see `TaskRepository.deadline`.

        Raises:
            RequestError: the task is unknown or not to be seen (these look alike), or has expired, or the principal
                may see it and no more.
        """
        self._meters.check_lookup(principal, task_id)
        task = await self._repository.found(task_id, principal.id, self._authorization.beyond(principal), by=by)
        if task is None:
            self._authorization.denied(principal, task_id=task_id, reason="there is no such task for them")
            self._meters.count_failed_lookup(principal)
            raise not_found()
        rights = await self._authorization.rights(task, principal)
        if not rights.see and principal.id != task.owner:
            # such a principal may read it only while it asks, which may have begun a moment ago
            task, _ = await self._repository.current(task, by=min(by, self._repository.deadline()))
        if not rights.reads(task):
            self._authorization.denied(principal, task=task, reason="may not see it")
            self._meters.count_failed_lookup(principal)
            raise not_found()
        self._meters.remember_shown(principal, task.id)
        if self._repository.over(task):
            raise expired()
        if (verb is Verb.ANSWER and not rights.answer) or (verb is Verb.CANCEL and not rights.cancel):
            self._authorization.denied(principal, task=task, reason=f"may not {verb} it")
            raise RequestError(INVALID_PARAMS, _MAY_NOT[verb])
        return task, rights

    def view(self, task: Task, rights: Rights, principal: Principal) -> TaskView:
        """Return the task as this principal may see it, with its owner's name if that is somebody else."""
        seen = view(as_seen(rights, task), self._repository.pace(task))
        return seen if principal.id == task.owner else replace(seen, started_by=person_of(task.owner)[1])

    async def shown_now(self, task: Task, principal: Principal) -> Task:
        """Return the task within the rights that the principal has at this moment, while its token is good.

        Raises:
            ResultHidden: it has none.
        """
        who = await principal.revalidated_if_unexpired(self._repository.now())
        rights = NO_RIGHTS if who is None else await self._authorization.rights(task, who)
        if not rights.reads(task) and (task.ended or not rights.answer):
            self._authorization.denied(principal, task=task, reason="may not see what comes of it")
            raise ResultHidden(INVALID_PARAMS, NOT_FOUND)
        return as_seen(rights, task)

    async def answer(self, task: Task, responses: Mapping[str, JSON], principal: Principal) -> Task:
        """Deliver answers to a task that was found with `Verb.ANSWER`.

        Raises:
            RequestError: the answers are too large, or see `TaskRepository.answer`.
        """
        try:
            check_size("Answers", responses, self._limits.max_answer, self._limits.max_json_values)
        except LimitReached as reached:
            self._meters.refused(principal, task.tool, reached)
            raise
        after, taken = await self._repository.answer(task, responses, principal)
        if taken:
            self.record(Event.ANSWER, principal, after, reason=answer_reason(taken))
        return after

    def record(
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


def as_seen(rights: Rights, task: Task) -> Task:
    """Return the task within these rights: without questions to answer, or without any content."""
    if not rights.reads(task):
        return replace(task, execution=Execution(status=Status.RUNNING), ended=None)
    return task if rights.answer else replace(task, may_answer=False)
