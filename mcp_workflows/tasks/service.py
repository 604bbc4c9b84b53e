"""The task service: the commands of MCP clients, each on behalf of a principal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import anyio

from mcp_workflows.access import Principal, Verb
from mcp_workflows.access.audit import Audit, Event, silent
from mcp_workflows.access.limit_settings import UNLIMITED, Limits
from mcp_workflows.access.rate_limits import RateLimits
from mcp_workflows.adapter import Status, digest
from mcp_workflows.errors import INVALID_PARAMS, METHOD_NOT_FOUND, RequestError, StoreError
from mcp_workflows.task import Task
from mcp_workflows.tasks.authorization import NO_RIGHTS, Authorization, Rights, TaskAccess, not_found
from mcp_workflows.tasks.call import ToolCalls
from mcp_workflows.tasks.repository import TaskRepository, expired
from mcp_workflows.tasks.view import log_document, protocol_error, whole_result
from mcp_workflows.tools.tool import Tool
from mcp_workflows.wire.commands import (
    Acknowledged,
    Cancel,
    Described,
    Document,
    Find,
    Get,
    List,
    Listed,
    Listen,
    Part,
    Read,
    TaskView,
    Update,
)

PAGE = 50  # tasks of one `tasks/list`
OnView = Callable[[TaskView], Awaitable[bool | None]]


class TaskService:
    """The commands of every revision; those of `tools/call` are in `calls`, and `authorization` has the rules."""

    def __init__(
        self,
        *,
        tools: Mapping[str, Tool],
        repository: TaskRepository,
        retention: timedelta,
        authorization: Authorization | None = None,
        audit: Audit = silent,
        limits: Limits = UNLIMITED,
        meters: RateLimits | None = None,
    ) -> None:
        authorization, meters = (
            authorization or Authorization(tools, audit=audit),
            meters or RateLimits(limits, audit=audit),
        )
        access = TaskAccess(
            repository=repository, authorization=authorization, meters=meters, limits=limits, audit=audit
        )
        self.calls = ToolCalls(
            tools=tools,
            repository=repository,
            retention=retention,
            authorization=authorization,
            meters=meters,
            limits=limits,
            access=access,
        )
        self._tools = tools
        self._repository = repository
        self.authorization = authorization
        self._access = access

    async def get(self, command: Get, principal: Principal) -> Described:
        """`tasks/get`: return the task after a look, or its last known state if the engine does not answer."""
        by = self._repository.deadline()
        task, rights = await self._access.authorize(command.task_id, principal, by=by)
        found = await self._described(task, rights, principal, by)
        if found is None:
            raise not_found()
        return found

    async def find(self, command: Find, principal: Principal) -> Described:
        """Return the caller's own newest task that a call with these arguments started, as `get` does.

        Raises:
            RequestError: there is none among the caller's latest tasks, it may not be seen, or the caller is anonymous.
        """
        if not principal.identified:
            raise not_found()
        tool = self._tools.get(command.tool)
        arguments = tool.checker.normalize(command.arguments) if tool else command.arguments
        found = await self._repository.newest(principal.id, command.tool, digest(arguments))
        if found is None:
            raise not_found()
        return await self.get(Get(task_id=found.id), principal)

    async def answered(self, command: Get, principal: Principal) -> Described | None:
        """Return the task after the principal's own answer, or None if the principal may see no more of it.

        Unlike `get` this records no refusal: an approver did nothing wrong.
        """
        by = self._repository.deadline()
        task = await self._repository.found(command.task_id, principal.id, self.authorization.beyond(principal), by=by)
        if task is None or self._repository.over(task):
            return None
        return await self._described(task, await self.authorization.rights(task, principal), principal, by)

    async def _described(self, task: Task, rights: Rights, principal: Principal, by: float) -> Described | None:
        task, warning = await self._repository.current(task, by=by)
        if not rights.reads(task):
            return None
        seen = self._access.view(task, rights, principal)
        if task.ended:
            self._access.record(Event.RETRIEVE, principal, task)
        return Described(task=_with_warning(seen, warning))

    async def may_answer(self, command: Get, principal: Principal) -> None:
        """Check that the principal may answer questions of this task, now or later.

        Raises:
            RequestError: it may not.
        """
        await self._access.authorize(command.task_id, principal, Verb.ANSWER)

    async def update(self, command: Update, principal: Principal) -> Acknowledged:
        """`tasks/update`: deliver answers; either all of them fit their questions, or none is applied."""
        task, _ = await self._access.authorize(command.task_id, principal, Verb.ANSWER)
        await self._access.answer(task, command.responses, principal)
        return Acknowledged()

    async def cancel(self, command: Cancel, principal: Principal) -> Acknowledged:
        """`tasks/cancel`: ask the engine to cancel; the status shows the outcome."""
        task, _ = await self._access.authorize(command.task_id, principal, Verb.CANCEL)
        await self._repository.cancel(task)
        self._access.record(Event.CANCEL, principal, task, outcome="ended" if task.ended else "ok")
        return Acknowledged()

    async def withdraw(self, command: Cancel, principal: Principal) -> Described:
        """`tasks/cancel` of 2025-11-25: the task is cancelled before the reply and for ever, whatever the engine does.

        Raises:
            RequestError: it has ended already.
        """
        by = self._repository.deadline()
        found, rights = await self._access.authorize(command.task_id, principal, Verb.CANCEL, by=by)
        task, _ = await self._repository.current(found, by=by)
        is_cancelled = (
            task.cancelled is None
            and (task := await self._repository.cancel(task, is_final=True)).cancelled is not None
        )
        if not is_cancelled:
            raise RequestError(INVALID_PARAMS, "Cannot cancel task: it has ended already")
        self._access.record(Event.CANCEL, principal, task)
        return Described(task=self._access.view(task, rights, principal))

    async def tasks(self, command: List, principal: Principal) -> Listed:
        """`tasks/list`: return the caller's own tasks that `get` finds, newest first.

        Raises:
            RequestError: the caller is anonymous, or the cursor was not made here.
        """
        if not principal.identified:
            raise RequestError(METHOD_NOT_FOUND, "tasks are listed for identified callers only")
        rows, following = await self._repository.page(principal.id, command.cursor, PAGE)
        seen = [(row, warning, await self.authorization.rights(row, principal)) for row, warning in rows]
        shown = [
            _with_warning(self._access.view(row, rights, principal), warning)
            for row, warning, rights in seen
            if rights.reads(row)
        ]
        return Listed(tasks=shown, next_cursor=following)

    async def questions(self, command: List, principal: Principal) -> Listed:
        """Return questions of others' tasks that this principal may answer, newest first; a page may be empty.

        Raises:
            RequestError: the cursor was not made here.
        """
        tools = self.authorization.beyond(principal)
        rows, following = (
            await self._repository.page_of(tools, principal.id, command.cursor, PAGE) if tools else ((), None)
        )
        open_rows = [row for row, _ in rows if row.seen.status is Status.INPUT_REQUIRED]
        seen = [(row, await self.authorization.rights(row, principal)) for row in open_rows]
        shown = [self._access.view(row, rights, principal) for row, rights in seen if rights.answer]
        return Listed(tasks=shown, next_cursor=following)

    async def listen(self, command: Listen, principal: Principal) -> Sequence[Task]:
        """Return the tasks of `subscriptions/listen` that this principal may see; the others are left out silently."""
        by = self._repository.deadline()
        found: dict[str, Task] = {}
        unread: list[StoreError] = []

        async def find(task_id: str) -> None:
            try:
                found[task_id], _ = await self._access.authorize(task_id, principal, by=by)
            except StoreError as error:
                unread.append(error)
            except RequestError:
                pass

        async with anyio.create_task_group() as group:
            for task_id in command.task_ids:
                group.start_soon(find, task_id)
        if unread:
            raise unread[0]
        return [found[task_id] for task_id in command.task_ids if task_id in found]

    async def follow(self, task: Task, on_change: OnView, principal: Principal) -> None:
        """Call `on_change` with each state of the task, until it has ended or `on_change` returned True.

        Before each call the rights of the principal are checked, and its token, too.

        Raises:
            RequestError: the task has expired, or the principal may not see it any more.
            ServerStopping: the server is stopping.
        """

        async def tell(current: Task) -> bool | None:
            now = await principal.revalidated(self._repository.now())
            rights = NO_RIGHTS if now is None else await self.authorization.rights(current, now)
            if not rights.reads(current):
                self.authorization.denied(principal, task=current, reason="may not see it any more")
                raise not_found()
            if current.ended:
                self._access.record(Event.RETRIEVE, principal, current)
            seen = self._access.view(current, rights, principal)
            return await on_change(_with_warning(seen, self._repository.unsaved(current)))

        left = self._repository.seconds_left(task)
        admitted = left if principal.expires is None else (principal.expires - self._repository.now()).total_seconds()
        with anyio.move_on_after(min(left, admitted)):
            await self._repository.follow(task, tell)
            return
        raise expired() if left <= admitted else not_found()

    async def owned(self, task_id: str, principal: Principal) -> Task:
        """Return a task to follow.

        Raises:
            RequestError: the principal may not see it, or it has expired.
        """
        return (await self._access.authorize(task_id, principal))[0]

    async def read(self, command: Read, principal: Principal) -> Document:
        """`resources/read` of a task's whole result, or of its log, with the same authorization."""
        by = self._repository.deadline()
        task, rights = await self._access.authorize(command.task_id, principal, by=by)
        task, _ = await self._repository.current(task, by=by)
        if not rights.reads(task):
            raise not_found()
        if command.part is Part.LOG:
            document = await self._log(task)
        elif task.execution.status not in {Status.SUCCEEDED, Status.FAILED} or protocol_error(task.execution):
            raise RequestError(INVALID_PARAMS, "Resource not found: the task has no result (yet)")
        else:
            document = whole_result(task)
        self._access.record(Event.RETRIEVE, principal, task)
        return document

    async def _log(self, task: Task) -> Document:
        text = await self._repository.log(task) if task.seen.has_log else ""
        if not text:
            raise RequestError(INVALID_PARAMS, "Resource not found: the task has no log (yet)")
        return log_document(task, text)


def _with_warning(task: TaskView, warning: str | None) -> TaskView:
    """Return the task with a message that includes the warning."""
    if warning is None:
        return task
    return replace(task, message=f"{warning}; last known: {task.message or task.status}")
