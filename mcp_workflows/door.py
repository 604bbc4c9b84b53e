"""The one way from an id to a task, and what goes through it: what somebody may see of it, and answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mcp_workflows.access import Principal, Verb, person_of
from mcp_workflows.access.audit import Audit, Event, Record, record_of, silent, task_hash
from mcp_workflows.access.limits import Limits
from mcp_workflows.access.rate_limits import Meters
from mcp_workflows.adapter import JSON, Execution, Status
from mcp_workflows.errors import INVALID_PARAMS, LimitReached, RequestError
from mcp_workflows.guard import Guard, Rights, not_found
from mcp_workflows.ledger import Ledger, expired
from mcp_workflows.sizing import check_size
from mcp_workflows.task import Task
from mcp_workflows.view import META_PREFIX, view
from mcp_workflows.wire.commands import TaskView

_MAY_NOT: Mapping[Verb, str] = {
    Verb.ANSWER: "Not allowed: what this task asks is for somebody else to answer; nothing was applied",
    Verb.CANCEL: "Not allowed: you may not cancel this task; it goes on",
}


class Door:
    """Where every request about a task comes through; see docs/decisions/0017."""

    def __init__(self, *, ledger: Ledger, guard: Guard, meters: Meters, limits: Limits, audit: Audit) -> None:
        self._ledger = ledger
        self._guard = guard
        self._meters = meters
        self._limits = limits
        self._audit = audit

    async def found(
        self, task_id: str, principal: Principal, verb: Verb = Verb.SEE, *, by: float = float("inf")
    ) -> tuple[Task, Rights]:
        """The task and what this principal may do with it, that verb among it: the only way from an id to a task.

        A read has the deadline `by`, see `Ledger.deadline`.

        Raises:
            RequestError: it is unknown, or not theirs to see (these look alike), or expired; or they may see it, and no
                more.
        """
        self._meters.guess(principal, task_id)
        task = await self._ledger.found(task_id, principal.id, self._guard.beyond(principal), by=by)
        if task is None:
            self._guard.denied(principal, task_id=task_id, reason="there is no such task for them")
            self._meters.missed(principal)
            raise not_found()
        rights = await self._guard.rights(task, principal)
        if not rights.see and principal.id != task.owner:
            # they may see it only while it asks, which may have begun a moment ago
            task, _ = await self._ledger.current(task, by=min(by, self._ledger.deadline()))
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

    def view(self, task: Task, rights: Rights, principal: Principal) -> TaskView:
        """The task as they may see it; who started it, if that was somebody else."""
        seen = view(as_seen(rights, task), self._ledger.pace(task))
        return seen if principal.id == task.owner else replace(seen, started_by=person_of(task.owner)[1])

    async def answer(self, task: Task, responses: Mapping[str, JSON], principal: Principal) -> Task:
        """Deliver answers to a task that was found for who may answer it.

        Raises:
            RequestError: see `Ledger.answer`; or they are too large.
        """
        try:
            check_size("Answers", responses, self._limits.max_answer, self._limits.max_json_values)
        except LimitReached as reached:
            self._meters.refused(principal, task.tool, reached)
            raise
        after, taken = await self._ledger.answer(task, responses, principal)
        if taken:
            self.record(Event.ANSWER, principal, after)
        return after

    def record(
        self, event: Event, principal: Principal, task: Task, *, outcome: str = "ok", arguments: JSON = None
    ) -> None:
        """Put on record what they did with it."""
        if self._audit is not silent:
            self._audit(record_of(event, principal, task, outcome=outcome, arguments=arguments))

    def record_again(self, principal: Principal, task: TaskView) -> None:
        """Put on record that they were given a result which was rendered before."""
        if self._audit is not silent:
            self._audit(_given_again(principal, task))


def as_seen(rights: Rights, task: Task) -> Task:
    """The task as those see it who may answer what it asks, or who may not; nothing of it, while they may not look."""
    if not rights.reads(task):
        return replace(task, execution=Execution(status=Status.RUNNING), ended=None)
    return task if rights.answer else replace(task, may_answer=False)


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
