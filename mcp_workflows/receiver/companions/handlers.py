"""Handlers of the companion tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import anyio

from mcp_workflows.access import Principal
from mcp_workflows.adapter import JSON, TERMINAL, Progress, Status
from mcp_workflows.errors import LimitReached, RequestError, ServerStopping
from mcp_workflows.receiver.companions.definitions import Companion, Name
from mcp_workflows.receiver.companions.text import (
    render_list,
    render_questions,
    render_task,
    text_result,
    unclear_key_text,
)
from mcp_workflows.tasks.repository import EXPIRED
from mcp_workflows.tasks.results import tool_error
from mcp_workflows.tasks.service import TaskService
from mcp_workflows.tools.questions import find_key
from mcp_workflows.tools.tool import Card
from mcp_workflows.wire.commands import Cancel, Find, Get, List, TaskView, Update

Tell = Callable[[str | None, Progress | None], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Companions:
    """The companion tools for one caller."""

    service: TaskService
    principal: Principal
    tell: Tell  # called with each change while a call waits
    until: float  # the latest time for a reply that waits, on the event loop's clock
    final: bool = False  # a cancellation is final in this client's revision, whatever the engine does
    card_of: Callable[[str], Card] = lambda _: Card.OFF  # by the tool's name, for this client
    has_answers_only: bool = False  # this client hides `task_answer` from the model

    async def call(self, companion: Companion, arguments: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """`tools/call` of a companion tool; errors of the caller are results with `isError`.

        Raises:
            LimitReached: a rate limit is reached.
        """
        if companion.lists and not self.principal.identified:
            return tool_error(f"{companion.name} is for identified callers only, and you are anonymous")
        arguments = companion.checker.normalize(arguments)
        if wrong := companion.checker.violations(arguments):
            return tool_error(f"Wrong arguments for {companion.name}: " + "; ".join(wrong))
        try:
            return await _CALLS[companion.name](self, arguments)
        except LimitReached:
            raise
        except RequestError as error:
            return tool_error(f"{companion.name}: {error.message}")

    async def status(self, arguments: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Return the status after a look."""
        return self._render(await self._look(arguments["taskId"]))

    async def wait(self, arguments: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Wait until the task has ended, asks, or the time of the caller's host is over; return its status."""

        async def enough(task: TaskView) -> bool:
            current = self._seen(task)
            if current.status is not Status.RUNNING:
                return True
            await self.tell(current.message, current.progress)
            return False

        before = await self._look(arguments["taskId"])
        if before.status is not Status.RUNNING:
            return self._render(before)
        row = await self.service.owned(before.task_id, self.principal)
        until = min(self.until, anyio.current_time() + arguments.get("seconds", float("inf")))
        with anyio.CancelScope(deadline=until), suppress(ServerStopping):  # it goes on
            await self.service.follow(row, enough, self.principal)
        return self._render(await self._look(before.task_id))

    async def answer(self, arguments: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Deliver an answer; report if the question is not open any more."""
        task = await self._look(arguments["taskId"])
        if task.status is not Status.INPUT_REQUIRED:
            if task.status not in TERMINAL:  # the question may be visible to others only
                await self.service.may_answer(Get(task_id=task.task_id), self.principal)
            return {**self._render(task, lead="Nothing was answered: no question is open."), "isError": True}
        asked = {key: request.params for key, request in task.requests.items()}
        key = find_key(asked, arguments["key"]) if "key" in arguments else task.only_question
        if key is None:
            return {**self._render(task, lead=unclear_key_text(task, arguments.get("key"))), "isError": True}
        response = {"action": "accept"} | {part: arguments[part] for part in ("action", "content") if part in arguments}
        try:
            await self.service.update(Update(task_id=task.task_id, responses={key: response}), self.principal)
        except RequestError as error:
            raise RequestError(error.code, error.message.removeprefix(f"inputResponses[{key!r}]: ")) from None
        after = await self.service.answered(Get(task_id=task.task_id), self.principal)
        if after is None:  # the caller could see the task only while it asked
            return text_result(f"Task {task.task_id} ({task.tool}) has the answer. There is nothing more to do.")
        return self._render(self._seen(after.task))

    async def questions(self, arguments: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Return a page of questions in others' tasks."""
        page = await self.service.questions(List(cursor=arguments.get("cursor")), self.principal)
        return render_questions(page, answers_only=self.has_answers_only)

    async def cancel(self, arguments: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Ask the engine to cancel; the status shows the outcome."""
        before = await self._look(arguments["taskId"])
        if before.status in TERMINAL:
            return self._render(before, lead="There was nothing to cancel.")
        await self.service.cancel(Cancel(task_id=before.task_id), self.principal)
        return self._render(await self._look(before.task_id), lead="Its workflow was asked to cancel.")

    async def list(self, arguments: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Return a page of the caller's tasks."""
        page = await self.service.tasks(List(cursor=arguments.get("cursor")), self.principal)
        return render_list(replace(page, tasks=[self._seen(task) for task in page.tasks]))

    async def find(self, arguments: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Return the caller's newest task that a call with these arguments started."""
        sought = Find(tool=arguments["tool"], arguments=arguments["arguments"])
        return self._render(self._seen((await self.service.find(sought, self.principal)).task))

    def _render(self, task: TaskView, *, lead: str = "") -> dict[str, Any]:
        card = self.card_of(task.tool)
        if card is Card.ON and task.started_by is not None:  # the card is in the owner's chat, not in this one
            card = Card.OFF
        return render_task(task, lead=lead, card=card)

    async def _look(self, task_id: str) -> TaskView:
        try:
            found = await self.service.get(Get(task_id=task_id), self.principal)
        except LimitReached:
            raise
        except RequestError as error:
            if error.message == EXPIRED:
                raise RequestError(error.code, f"{EXPIRED}. Nothing of it can be read any more.") from None
            elsewhere = f"; {Name.LIST} lists the user's tasks" if self.principal.identified else ""
            said = f"{error.message}. Give the taskId exactly as the tool answered with it{elsewhere}."
            raise RequestError(error.code, said) from None
        return self._seen(found.task)

    def _seen(self, task: TaskView) -> TaskView:
        if not (self.final and task.cancelled):
            return task
        return replace(
            task, status=Status.CANCELLED, message="cancelled by request", requests={}, result=None, error=None
        )


_CALLS: Final[Mapping[Name, Callable[[Companions, Mapping[str, JSON]], Awaitable[Mapping[str, JSON]]]]] = {
    Name.STATUS: Companions.status,
    Name.WAIT: Companions.wait,
    Name.ANSWER: Companions.answer,
    Name.CANCEL: Companions.cancel,
    Name.LIST: Companions.list,
    Name.QUESTIONS: Companions.questions,
    Name.FIND: Companions.find,
}
