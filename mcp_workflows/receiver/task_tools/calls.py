"""Calls of the task tools, and tasks as text for a model: a short text with the next step, and structured content.

Clients without tasks also get these texts from a call whose workflow continues.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, cast

import anyio

from mcp_workflows.access import Principal, Verb
from mcp_workflows.adapter import JSON, TERMINAL, Execution, InputRequest, Progress, Status
from mcp_workflows.adapter.display_text import cleaned, quoted, safe_link, without_zero_fractions
from mcp_workflows.errors import LimitReached, RequestError, ServerStopping
from mcp_workflows.receiver.task_tools.definitions import Name, TaskTool
from mcp_workflows.tasks.results import (
    META_LOG,
    META_STEPS,
    META_URL,
    error_in,
    text_block,
    texts_in,
    tool_error,
    tool_result,
)
from mcp_workflows.tasks.service import EXPIRED, TaskService
from mcp_workflows.tools.questions import REASON, can_decline, example_of, find_key, short_key
from mcp_workflows.tools.tool import Card, repetition
from mcp_workflows.wire.commands import (
    ActionView,
    Call,
    CallOutcome,
    Finished,
    Listed,
    Outcome,
    ProtocolError,
    TaskView,
    Unfinished,
    people_answer,
)
from mcp_workflows.wire.events import advice
from mcp_workflows.wire.params import STATUS, progress_text

Notify = Callable[[str | None, Progress | None], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskToolCalls:
    """The task tools for one caller."""

    service: TaskService
    principal: Principal
    notify: Notify  # called with each change while a call waits
    lost: Callable[[Principal], Awaitable[Sequence[str]]]  # texts about the caller's lost subscriptions
    request: Call  # this call, as from a client without tasks
    until: float  # the deadline of a reply that waits, on the event loop's clock
    final: bool = False  # a cancellation is final in this client's revision, whatever the engine does
    card_of: Callable[[str], Card] = lambda _: Card.OFF  # by the tool's name, for this client
    has_answers_only: bool = False  # this client hides `task_answer` from the model
    hears_events: bool = False  # this client can subscribe to events

    async def call(self, task_tool: TaskTool, arguments: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Serve `tools/call` of a task tool; errors of the caller are results with `isError`.

        Raises:
            LimitReached: a rate limit is reached.
        """
        if task_tool.lists and not self.principal.identified:
            return tool_error(f"{task_tool.name} is for identified callers only, and you are anonymous")
        arguments = task_tool.checker.normalize(arguments)
        if wrong := task_tool.checker.violations(arguments):
            return tool_error(f"Wrong arguments for {task_tool.name}: " + "; ".join(wrong))
        try:
            return await _CALLS[task_tool.name](self, arguments)
        except LimitReached:
            raise
        except RequestError as error:
            return tool_error(f"{task_tool.name}: {error.message}")

    async def status(self, arguments: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Return the status after a poll."""
        return self._render(await self._observe(arguments["taskId"]))

    async def wait(self, arguments: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Wait until the task ends, has a question, or the time limit of the caller's host is reached; return its
        status."""

        async def enough(task: TaskView) -> bool:
            current = self._seen(task)
            if current.status is not Status.RUNNING:
                return True
            await self.notify(current.message, current.progress)
            return False

        before = await self._observe(arguments["taskId"])
        if before.status is not Status.RUNNING:
            return self._render(before)
        row = await self.service.owned(before.task_id, self.principal)
        until = min(self.until, anyio.current_time() + arguments.get("seconds", float("inf")))
        with anyio.CancelScope(deadline=until), suppress(ServerStopping):  # the task continues
            await self.service.follow(row, enough, self.principal)
        return self._render(await self._observe(before.task_id))

    async def answer(self, arguments: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Deliver an answer; report if the question is no longer open."""
        task = await self._observe(arguments["taskId"])
        if task.status is not Status.INPUT_REQUIRED:
            if task.status not in TERMINAL:  # the question may be visible to others only
                await self.service.owned(task.task_id, self.principal, Verb.ANSWER)
            return {**self._render(task, lead="No answer was sent: no question is open."), "isError": True}
        asked = {key: request.params for key, request in task.requests.items()}
        key = find_key(asked, arguments["key"]) if "key" in arguments else task.only_question
        if key is None:
            return {**self._render(task, lead=unclear_key_text(task, arguments.get("key"))), "isError": True}
        if key in task.for_people:
            lead = f"No answer was sent: {people_answer(task.for_people[key])}."
            return {**self._render(task, lead=lead), "isError": True}
        response = {"action": "accept"} | {part: arguments[part] for part in ("action", "content") if part in arguments}
        try:
            await self.service.update(task.task_id, {key: response}, self.principal)
        except RequestError as error:
            raise RequestError(error.code, error.message.removeprefix(f"inputResponses[{key!r}]: ")) from None
        after = await self.service.answered(task.task_id, self.principal)
        if after is None:  # the caller could see the task only while it waited for the answer
            return tool_result(f"Task {task.task_id} ({task.tool}) received the answer. There is nothing more to do.")
        return self._render(self._seen(after))

    async def questions(self, arguments: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Return a page of questions in others' tasks."""
        page = await self.service.questions(arguments.get("cursor"), self.principal)
        return render_questions(page, answers_only=self.has_answers_only)

    async def cancel(self, arguments: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Request cancellation from the engine; the status shows the outcome."""
        before = await self._observe(arguments["taskId"])
        if before.status in TERMINAL:
            return self._render(before, lead="There was nothing to cancel.")
        await self.service.cancel(before.task_id, self.principal)
        return self._render(await self._observe(before.task_id), lead="The workflow was asked to cancel.")

    async def action(self, arguments: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Run an action; one that takes long becomes a separate task."""

        async def report(execution: Execution) -> None:
            await self.notify(execution.message, execution.progress)

        call = replace(self.request, arguments=arguments)
        outcome = outcome_in_text(await self.service.act(call, self.principal, report))
        assert isinstance(outcome, Finished), "an action asks nothing, and takes no native task"
        return outcome.result

    async def list(self, arguments: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Return a page of the caller's tasks; the first page lists lost subscriptions."""
        page = await self.service.tasks(arguments.get("cursor"), self.principal)
        lost: Sequence[str] = () if "cursor" in arguments else await self.lost(self.principal)
        return render_list(replace(page, tasks=[self._seen(task) for task in page.tasks]), lost)

    async def find(self, arguments: Mapping[str, JSON]) -> Mapping[str, JSON]:
        """Return the caller's newest task that a call with these arguments started."""
        return self._render(
            self._seen(await self.service.find(arguments["tool"], arguments["arguments"], self.principal))
        )

    def _render(self, task: TaskView, *, lead: str = "") -> dict[str, Any]:
        card = self.card_of(task.tool)
        if card is Card.ON and task.started_by is not None:  # the card is in the owner's chat, not in this one
            card = Card.OFF
        return render_task(task, lead=lead, card=card, hears_events=self.hears_events)

    async def _observe(self, task_id: str) -> TaskView:
        try:
            return self._seen(await self.service.get(task_id, self.principal))
        except LimitReached:
            raise
        except RequestError as error:
            if error.message == EXPIRED:
                raise RequestError(error.code, f"{EXPIRED}. Its result is gone.") from None
            elsewhere = f"; {Name.LIST} lists the user's tasks" if self.principal.identified else ""
            said = f"{error.message}. Give the taskId exactly as the tool returned it{elsewhere}."
            raise RequestError(error.code, said) from None

    def _seen(self, task: TaskView) -> TaskView:
        if not (self.final and task.cancelled):
            return task
        return replace(
            task, status=Status.CANCELLED, message="cancelled by request", requests={}, result=None, error=None
        )


_CALLS: Final[Mapping[Name, Callable[[TaskToolCalls, Mapping[str, JSON]], Awaitable[Mapping[str, JSON]]]]] = {
    Name.STATUS: TaskToolCalls.status,
    Name.WAIT: TaskToolCalls.wait,
    Name.ANSWER: TaskToolCalls.answer,
    Name.CANCEL: TaskToolCalls.cancel,
    Name.ACTION: TaskToolCalls.action,
    Name.LIST: TaskToolCalls.list,
    Name.QUESTIONS: TaskToolCalls.questions,
    Name.FIND: TaskToolCalls.find,
}


# --- tasks as text; pure


_OVER: Final = "nothing: the task has ended"
_LONGEST_MESSAGE: Final = 200  # characters of a message in a list
_WAITS_FOR_OTHERS: Final = "somebody else's answer"
_ANSWERED_ELSEWHERE: Final = (
    "let the user answer in a client without cards: in this one, only the card where the task was started takes answers"
)
_TELL_THE_USER: Final = "tell the user where to answer: you cannot"
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


def outcome_in_text(outcome: CallOutcome, card: Card = Card.OFF, *, hears_events: bool = False) -> Outcome:
    """Return the outcome, with an unfinished workflow as a text result.

    `card` is the card that the client shows for the task; `hears_events`: the client can subscribe to events.
    """
    if not isinstance(outcome, Unfinished):
        return outcome
    return Finished(result=render_task(outcome.task, card=card, hears_events=hears_events))


def render_task(task: TaskView, *, lead: str = "", card: Card = Card.OFF, hears_events: bool = False) -> dict[str, Any]:
    """Return the task as a `CallToolResult`; an ended one includes its result, after a line of text and as `result`.

    `lead` is the first sentence. With a `card`, the text explains the card to the model, and the structured content has
    additional fields that only the card shows. Everything else is in both the text and the structured content, because
    some hosts show the model only one of them.
    """
    result = task.result or {}
    text, follow_up = _RENDERERS[task.status](task, card)
    if hears_events and task.status not in TERMINAL:
        text, follow_up = (f"{said.removesuffix('.')}. {advice(task.task_id)}" for said in (text, follow_up))
    status = _word(task)
    structured: dict[str, JSON] = {
        "note": lead or None,
        "taskId": task.task_id,
        "tool": task.tool,
        "status": status,
        "message": _said(task),
        "progress": task.progress and _without_none(without_zero_fractions(asdict(task.progress))),
        "steps": task.meta.get(META_STEPS),
        "questions": _questions(task) if task.status is Status.INPUT_REQUIRED else None,
        "actions": {name: _action(each) for name, each in task.actions.items()} or None,
        "result": None if task.status is Status.FAILED else _structured(result),
        "error": _error(task.error) if task.error else error_in(result) if task.status is Status.FAILED else None,
    }
    found: dict[str, Any] = {
        "content": [text_block(f"{lead} {text}{_offers(task)}".strip()), *result.get("content", []), *_links(task)],
        "structuredContent": {**_without_none(structured), **_for_card(task, card), "next": follow_up},
        "isError": task.error is not None or bool(result.get("isError")),
    }
    return {**found, "_meta": result["_meta"]} if result.get("_meta") else found


def _for_card(task: TaskView, card: Card) -> dict[str, JSON]:
    """Return the additional fields for the card, listed in `docs/use/task-view.md`."""
    if card is Card.OFF:
        return {}
    found: dict[str, JSON] = {
        "url": safe_link(task.meta.get(META_URL)),
        "createdAt": task.created.strftime(_TIME),
        "pollIntervalMs": None if task.status in TERMINAL else task.poll_interval_ms,
        "waitsFor": _WAITS_FOR_OTHERS if task.waits_for_others else None,
    }
    return _without_none(found)


def _links(task: TaskView) -> list[dict[str, str]]:
    uri = str(task.meta.get(META_LOG, ""))
    link = {"type": "resource_link", "uri": uri, "name": f"{task.tool} log", "mimeType": "text/plain"}
    return [link] if uri else []


def render_list(page: Listed, lost: Sequence[str] = ()) -> dict[str, Any]:
    """Return a page of tasks, a line each, and texts about lost subscriptions."""
    rows = [_row(task) for task in page.tasks]
    lines = [f"{row['taskId']} {row['tool']} ({row['createdAt']}): {_state(row)}" for row in rows]
    follow_up = f"call {Name.STATUS} with a taskId for details (clients with tasks: tasks/get)"
    if page.next_cursor:
        follow_up += f", or {Name.LIST} with {_call(cursor=page.next_cursor)} for older ones"
    head = f"{_counted(len(rows), 'task')}, newest first. Next: {follow_up}."
    if not rows:
        head = f"No tasks on this page. Next: {follow_up}." if page.next_cursor else "There are no tasks."
    found = _page_result(
        [head, *lines, *lost], rows, follow_up if rows or page.next_cursor else "nothing", page.next_cursor
    )
    if lost:
        found["structuredContent"]["lostSubscriptions"] = list(lost)
    return found


def render_questions(page: Listed, *, answers_only: bool = False) -> dict[str, Any]:
    """Return a page of questions in others' tasks, for approvers.

    With `answers_only` the model cannot answer them, and the text contains no form.
    """
    rows = [
        {**_row(task), "startedBy": cleaned(task.started_by or ""), "questions": _questions(task)}
        for task in page.tasks
    ]
    lines = [
        f"{task.task_id} {task.tool}, started by {quoted(task.started_by)} ({task.created.strftime(_TIME)}):\n"
        + "\n".join(_line(key, asked, has_form=not answers_only) for key, asked in _questions(task).items())
        for task in page.tasks
    ]
    follow_up = f"ask the user, then call {Name.ANSWER} with the taskId, the question's key and content"
    answerable = [task for task in page.tasks if _for_model(task)]
    if answers_only:
        follow_up = _ANSWERED_ELSEWHERE
    elif answerable:
        follow_up += f", such as {_ready(answerable[0])}"
        follow_up += _refusal(request for task in answerable for request in _for_model(task).values())
    elif page.tasks:
        follow_up = _TELL_THE_USER
    if page.next_cursor:
        follow_up += f", or {Name.QUESTIONS} with {_call(cursor=page.next_cursor)} for older ones"
    head = f"{_counted(len(rows), 'task')} with open questions, newest first. Next: {follow_up}."
    if not rows:
        head = "There are no open questions for this user."
        head += f" Next: {follow_up}." if page.next_cursor else ""
    return _page_result([head, *lines], rows, follow_up if rows or page.next_cursor else "nothing", page.next_cursor)


def _page_result(lines: Sequence[str], rows: Sequence[JSON], follow_up: str, cursor: str | None) -> dict[str, Any]:
    structured = _without_none({"tasks": list(rows), "next": follow_up, "nextCursor": cursor})
    return {"content": [text_block("\n".join(lines))], "structuredContent": structured, "isError": False}


def unclear_key_text(task: TaskView, key: str | None) -> str:
    """Return the reason why this key, or a missing one, identifies no open question."""
    keys = ", ".join(short_key(each, request.params) for each, request in task.requests.items())
    if key is not None:
        return f"No answer was sent: no open question has the key {quoted(key)}; open: {keys}."
    if len(task.requests) > 1:
        return f"No answer was sent: several questions are open, so give the key of one: {keys}."
    # a late or repeated answer to the previous question must not answer this one
    return f"No answer was sent: this task has asked another question before, so give the key: {keys}."


# --- one text per status


_CARD_SENTENCES: Final[Mapping[Card, str]] = {
    Card.OFF: "",
    Card.ON: " The user sees it in a card where it was started, and can answer or cancel there.",
    Card.ANSWERS_ONLY: " The user sees it in a card where it was started, and can answer or cancel only there.",
}
"""The sentence about the card, for the model."""


def _working(task: TaskView, card: Card) -> tuple[str, str]:
    again = repetition(task.tool)
    follow_up = f"call {Name.WAIT} with {_call(taskId=task.task_id)} for its result; do not {again} again"
    doing = f"{_named(task)} is working{_because(_doing(task))}"
    return f"{doing}. It continues by itself.{_CARD_SENTENCES[card]} Next: {follow_up}.", follow_up


def _asking(task: TaskView, card: Card) -> tuple[str, str]:
    asked, answerable = _questions(task), _for_model(task)
    head = f"{_named(task)} has {_counted(len(asked), 'question')} for the user and waits for the answer."
    if not answerable:
        lines = [_line(key, question) for key, question in asked.items()]
        follow_up = f"{_TELL_THE_USER}; call {Name.WAIT} with {_call(taskId=task.task_id)} for the result"
        return "\n".join([head, *lines, f"Next: {follow_up}."]), follow_up
    head += _CARD_SENTENCES[card]
    if card is Card.ANSWERS_ONLY:
        lines = [_line(key, question, has_form=False) for key, question in asked.items()]
        follow_up = (
            f"let the user answer in the card; call {Name.WAIT} with {_call(taskId=task.task_id)} for the result"
        )
        return "\n".join([head, *lines, f"Next: {follow_up}."]), follow_up
    lines = [_line(key, question) for key, question in asked.items()]
    several = "" if len(answerable) == 1 else " once per question, with its key, such as"
    first = "ask the user, then" if card is Card.OFF else "let the user answer in the card, or, if they answer you,"
    follow_up = f"{first} call {Name.ANSWER} with{several} {_ready(task)}{_refusal(answerable.values())}"
    return "\n".join([head, *lines, f"Next: {follow_up}."]), follow_up


def _completed(task: TaskView, card: Card) -> tuple[str, str]:
    if _word(task) == "failed":
        return _failed(task, card)
    return f"{_named(task)} has completed; this is its result:", _OVER


def _failed(task: TaskView, _: Card) -> tuple[str, str]:
    if task.error is None:
        return f"{_named(task)} has failed:", _OVER
    return f"{_named(task)} has failed with error {task.error.code}: {task.error.message}", _OVER


def _cancelled(task: TaskView, _: Card) -> tuple[str, str]:
    return f"{_named(task)} was {_ended(_word(task), _said(task))}. There is no result.", _OVER


_RENDERERS: Final[Mapping[Status, Callable[[TaskView, Card], tuple[str, str]]]] = {
    Status.RUNNING: _working,
    Status.INPUT_REQUIRED: _asking,
    Status.SUCCEEDED: _completed,
    Status.FAILED: _failed,
    Status.CANCELLED: _cancelled,
}
"""The text for the model, with its next step."""


# --- parts


def _word(task: TaskView) -> str:
    """Return the status; a workflow that ended with an error result counts as failed."""
    return "failed" if (task.result or {}).get("isError") else STATUS[task.status]


def _named(task: TaskView) -> str:
    return f"Task {task.task_id} ({task.tool})"


def _said(task: TaskView) -> str | None:
    """Return the current step, or the reason for a task's end; omit the last step of a completed task."""
    result = task.result or {}
    if result.get("isError"):
        return texts_in(result) or None
    if task.status is Status.SUCCEEDED or task.message == STATUS[task.status]:
        return None
    return task.message


def _because(message: JSON) -> str:
    return f": {message}" if message else ""


def _ended(status: str, message: str | None) -> str:
    """Return the status with its reason, but avoid `cancelled: cancelled on request`."""
    return message if message and message.startswith(status) else f"{status}{_because(message)}"


def _doing(task: TaskView) -> str | None:
    if task.progress is None:
        return _said(task)
    step = progress_text(task.progress)
    return f"{task.message} ({step})" if task.message else step


def _call(**arguments: JSON) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def _ready(task: TaskView) -> str:
    """Return the arguments that answer the first question open to models, with an example of its content."""
    key, request = next(iter(_for_model(task).items()))
    which = {"taskId": task.task_id, "key": short_key(key, request.params)}
    schema = request.params.get("requestedSchema")
    if schema is None:  # a page to visit
        return _call(**which)
    content = example_of(schema)
    if content is None:
        return f"{_call(**which)} and content, an object that matches the schema"
    meaning = ", with the user's answer as content" if content else " if the user agrees"
    return f"{_call(**which, content=content)}{meaning}"


def _for_model(task: TaskView) -> Mapping[str, InputRequest]:
    """Return the open questions that the task tools can answer."""
    return {key: request for key, request in task.requests.items() if key not in task.for_people}


def _questions(task: TaskView) -> dict[str, dict[str, JSON]]:
    return {
        short_key(key, request.params): _question(key, request.params, task) for key, request in task.requests.items()
    }


def _question(key: str, params: Mapping[str, JSON], task: TaskView) -> dict[str, JSON]:
    message = params.get("message", key)
    if key in task.for_people:
        return _without_none({"message": message, "url": task.for_people[key] or None, "canAnswer": False})
    found = {"message": message, "schema": params.get("requestedSchema"), "url": params.get("url")}
    return _without_none(found) if can_decline(params) else {**_without_none(found), "canDecline": False}


def _refusal(requests: Iterable[InputRequest]) -> str:
    """Return how to refuse these questions, where they can be declined."""
    asked = list(requests)
    declinable = {can_decline(request.params) for request in asked}
    if True not in declinable:
        return "; it cannot be declined: if the user does not want to answer, leave it open"
    where = ", where the question can be declined," if False in declinable else ","
    forms = [cast("Mapping[str, JSON]", each.params.get("requestedSchema") or {}) for each in asked]
    why = " and no content"
    if any(REASON in form.get("properties", {}) for form in forms):
        why = ', and content {"reason": ...} if the user gives a reason'
    return f'; if the user refuses{where} send "action": "decline"{why}'


def _action(action: ActionView) -> dict[str, JSON]:
    schema = action.schema if action.schema.get("properties") else None
    return _without_none({"title": action.title, "description": action.description, "schema": schema})


def _offers(task: TaskView) -> str:
    """Return the actions of a task, a line each; empty without actions."""
    if not task.actions:
        return ""
    lines = [f"\nActions, if the user wants one: call {Name.ACTION} with {_call(taskId=task.task_id, action='...')}"]
    for name, each in task.actions.items():
        schema = f" - schema of content: {_call(**each.schema)}" if each.schema.get("properties") else ""
        lines.append(f"- {name}{_because(each.description or each.title)}{schema}")
    return "\n".join(lines)


def _line(key: str, question: Mapping[str, JSON], *, has_form: bool = True) -> str:
    """Return a question as a line; without a key if the model cannot answer it."""
    if question.get("canAnswer") is False:
        return f"- {question['message']} ({people_answer(question.get('url', ''))})"
    return f"- {key}: {question['message']}{_form(question)}" if has_form else f"- {question['message']}"


def _form(question: Mapping[str, JSON]) -> str:
    schema = question.get("schema")
    said = f" (at {question['url']})" if "url" in question else ""
    said += " (it cannot be declined)" if question.get("canDecline") is False else ""
    return said if schema is None else f"{said} - schema of content: {json.dumps(schema, ensure_ascii=False)}"


def _structured(result: Mapping[str, JSON]) -> JSON:
    """Return the structured content, or else the text, for hosts that show the model only structure."""
    if "structuredContent" in result or result.get("isError"):
        return result.get("structuredContent")
    return texts_in(result) or None


def _error(error: ProtocolError) -> dict[str, JSON]:
    return _without_none({"code": error.code, "message": error.message, "data": error.data})


def _row(task: TaskView) -> dict[str, JSON]:
    found: dict[str, JSON] = {
        "taskId": task.task_id,
        "tool": task.tool,
        "status": _word(task),
        "message": " ".join((_said(task) or "").split())[:_LONGEST_MESSAGE] or None,
        "createdAt": task.created.strftime(_TIME),
        "lastUpdatedAt": task.updated.strftime(_TIME),
    }
    return _without_none(found)


def _state(row: Mapping[str, JSON]) -> str:
    return _ended(row["status"], row.get("message"))


def _without_none(found: Mapping[str, JSON]) -> dict[str, JSON]:
    return {key: value for key, value in found.items() if value is not None}


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
