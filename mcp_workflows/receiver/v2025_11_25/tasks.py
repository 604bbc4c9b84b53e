"""Tasks of 2025-11-25: `tasks/*`, notifications outside of requests, and elicitation.

Source: the specification of that revision, basic/utilities/tasks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from mcp_workflows.access import Principal
from mcp_workflows.adapter import JSON, askable
from mcp_workflows.errors import INVALID_PARAMS, RequestError
from mcp_workflows.receiver.context import Context, ProgressReports
from mcp_workflows.receiver.streams import until_disconnected
from mcp_workflows.receiver.v2025_11_25.session import (
    TRIES,
    CallQuestions,
    Channel,
    OpenQuestion,
    PolledQuestion,
    Session,
    TaskQuestions,
    is_still_read,
    session_of,
    with_complaint,
    withdraw,
)
from mcp_workflows.task import Task
from mcp_workflows.tasks.repeated_calls import OpenCall
from mcp_workflows.tasks.results import final_result, withdrawn_result
from mcp_workflows.tasks.service import NOT_FOUND, TaskService, time_left
from mcp_workflows.tools.dialogue import AnswerWay
from mcp_workflows.tools.tool import AnyTool
from mcp_workflows.units import utc_now
from mcp_workflows.wire import v2025_11_25 as wire
from mcp_workflows.wire.commands import Call, CallOutcome, Questions, TaskView
from mcp_workflows.wire.params import Params, takes_forms, takes_urls, task_id_of

_SEEN_BEFORE_PUSHED = 2  # polls that show a question which was not asked
_CHECK_EVERY = 5  # polls between checks that an open question still reaches the client
_ASKED_AGAIN_AFTER = 60.0  # seconds, then longer, after a question without an answer
_WITHDRAWN_WITHIN = 1.0  # seconds
_PUSHED_FOR = 300.0  # seconds for the client to answer a question asked outside of requests


class InCoreTasks:
    """The task methods for clients of 2025-11-25; `group` runs the background work."""

    def __init__(self, service: TaskService, group: TaskGroup) -> None:
        self._service = service
        self._group = group

    # --- tools/call

    async def call(
        self, ctx: Context, call: Call, principal: Principal, tool: AnyTool, served: OpenCall
    ) -> CallOutcome:
        """Call a tool and ask its questions on the call's stream; ask those of the workflow while the call may wait.

        Ask each question once; ask again only if the answer failed validation. If the question stays open, treat the
        client as unable to elicit.
        """
        rounds = CallQuestions(Channel(session=ctx.session, request_id=ctx.request_id))
        report = ProgressReports(ctx.session.report_progress).report
        outcome = await self._service.call_round(call, principal, report, served)
        while isinstance(outcome, Questions):
            call = replace(call, asked=outcome.started)
            left = time_left(tool, call) if outcome.started else None
            async with self._service.asking(call, outcome, principal):
                with anyio.move_on_after(None if left is None else left.total_seconds()):
                    await rounds.ask(outcome.requests)
            served.wait_on()
            principal, answers = await _still(principal), dict(rounds.answers)
            call = replace(call, responses=answers, state=outcome.state, takes_questions=bool(answers))
            started = outcome.started
            try:
                outcome = await self._service.call_round(call, principal, report, served)
            except RequestError as error:
                if not rounds.refused(error, started=started):
                    raise
            else:
                rounds.taken()
        return outcome

    async def accompany(self, ctx: Context, task_id: str, principal: Principal, *, tools_change: bool) -> None:
        """Notify the client of the task's changes during its session, and of its progress if it requested that.

        `tools_change`: after a client has requested a task, its tool list changes and no longer has task tools.
        """
        session = session_of(ctx)
        try:
            task = await self._service.owned(task_id, principal)
        except RequestError:  # the caller may start the task but not see it
            return
        first, session.augmented = not session.augmented, True
        if first and tools_change:
            session.start(self._group, session.connection.send_tool_list_changed)
        token = (ctx.meta or {}).get("progress_token")
        session.start(self._group, partial(self._notify, session, task, token, principal))

    async def _notify(self, session: Session, task: Task, token: str | int | None, principal: Principal) -> None:
        notified: dict[str, Any] | None = None

        async def send(value: float, total: float | None, message: str | None) -> None:
            found = {"progressToken": token, "progress": value, "total": total, "message": message}
            params = {key: value for key, value in found.items() if value is not None}
            await session.connection.notify("notifications/progress", {**params, "_meta": wire.related(task.id)})

        progress = ProgressReports(send)

        async def on_change(view: TaskView) -> bool:
            nonlocal notified
            state = wire.task_of(view)
            if notified is not None:
                await session.connection.notify(wire.NOTIFICATION, state)
            if token is not None and not wire.ended(view):
                await progress.send(view.message, view.progress)
            notified = state
            withdraw(session.questions, view)
            return wire.ended(view)

        with session.alone(task.id):  # a repeated call returned the same task
            await self._service.follow(task, on_change, principal)

    # --- tasks/*

    async def get(self, ctx: Context, params: Params, principal: Principal) -> dict[str, Any]:
        """Serve `tasks/get`; also ask a question that the client did not receive otherwise."""
        view = await self._service.get(task_id_of(params), principal)
        await self._push(ctx, view, principal)
        return wire.detailed(view)

    async def cancel(self, ctx: Context, params: Params, principal: Principal) -> dict[str, Any]:
        """Serve `tasks/cancel`."""
        return wire.detailed(await self._service.withdraw(task_id_of(params), principal))

    async def list(self, ctx: Context, params: Params, principal: Principal) -> dict[str, Any]:
        """Serve `tasks/list`."""
        return wire.listed(await self._service.tasks(wire.parse_list(params), principal))

    async def result(self, ctx: Context, params: Params, principal: Principal) -> dict[str, Any]:
        """Serve `tasks/result`: block until the task has ended, and ask its questions on this request's stream.

        A question outlives the request: clients time out sooner than people answer.
        """
        task, session = await self._service.owned(task_id_of(params), principal), session_of(ctx)
        asking = self._asking(session, Channel(session=ctx.session, request_id=ctx.request_id), task.id, principal)
        last: TaskView | None = None

        async def on_change(view: TaskView) -> bool:
            nonlocal last
            last = view
            asking.see(_as_askable(view, ctx), partial(session.start, self._group))
            return wire.ended(view)

        await until_disconnected(ctx, partial(self._service.follow, task, on_change, principal), needed=True)
        assert last is not None, "on_change was called with the end"
        with anyio.move_on_after(_WITHDRAWN_WITHIN):
            for question in withdraw(session.questions, last):
                await question.over.wait()  # before its stream ends with the result
        return wire.result_of(last, withdrawn_result(last) if last.cancelled else final_result(last))

    # --- questions to clients that only poll

    async def _push(self, ctx: Context, view: TaskView, principal: Principal) -> None:
        """Ask a question that a client sees repeatedly in `tasks/get` without opening `tasks/result`.

        It is asked outside of requests or, if the client reads nothing there, on the stream of this one.
        """
        session = session_of(ctx)
        withdraw(session.questions, view)
        session.forget(view)
        view = _as_askable(view, ctx)
        if wire.ended(view) or not view.requests:
            return
        if session.is_reachable is None and not session.is_checking:
            session.is_checking = True
            session.start(self._group, partial(self._check_reachable, session, ctx))
        for key, request in view.requests.items():
            polled = session.polled.setdefault((view.task_id, key), PolledQuestion())
            polled.seen += 1
            again = request if polled.complaint is None else with_complaint(request, polled.complaint)
            asked = session.questions.get((view.task_id, key), [])
            if any(question.is_read for question in asked):
                lasting = [question for question in asked if not question.channel.brief]
                if lasting and polled.seen % _CHECK_EVERY == 0:
                    session.start(self._group, partial(_check_questions, session, lasting))
            elif self._due(session, polled):
                channel = Channel(session=ctx.session)
                if not session.is_reachable:
                    channel = replace(channel, request_id=ctx.request_id, brief=True)
                put = partial(self._asking(session, channel, view.task_id, principal).put, view.task_id, key, again)
                session.start(self._group, partial(_put_once, put, polled))
                await anyio.lowlevel.checkpoint()  # the question is sent before the reply that ends this stream

    def _due(self, session: Session, polled: PolledQuestion) -> bool:
        seen_enough = polled.seen >= _SEEN_BEFORE_PUSHED and session.is_reachable is not None
        return seen_enough and anyio.current_time() >= polled.not_before

    async def _check_reachable(self, session: Session, ctx: Context) -> None:
        try:
            session.is_reachable = await Channel(session=ctx.session).reaches()
        finally:
            session.is_checking = False

    def _asking(self, session: Session, channel: Channel, task_id: str, principal: Principal) -> TaskQuestions:
        async def deliver(key: str, answer: Mapping[str, JSON]) -> None:
            await self._service.update(task_id, {key: answer}, await _still(principal), AnswerWay.LINK)

        return TaskQuestions(session.questions, channel, deliver)


METHODS: Mapping[str, Callable[[InCoreTasks, Context, Params, Principal], Awaitable[dict[str, Any]]]] = {
    "tasks/get": InCoreTasks.get,
    "tasks/result": InCoreTasks.result,
    "tasks/list": InCoreTasks.list,
    "tasks/cancel": InCoreTasks.cancel,
}
"""The methods of this revision besides `tools/call`."""


async def _still(principal: Principal) -> Principal:
    """Return the principal with its current rights: people take time to answer, and rights may be revoked.

    An expired token is ignored: the answer came with a valid one, which is not visible here.

    Raises:
        RequestError: the principal is no longer admitted.
    """
    if (now := await principal.revalidated_if_unexpired(utc_now())) is None:
        raise RequestError(INVALID_PARAMS, NOT_FOUND)
    return now


async def _put_once(put: Callable[[], Awaitable[str | None]], polled: PolledQuestion) -> None:
    """Ask; without an answer, wait before the next attempt, unless the answer did not fit."""
    polled.complaint = None
    with anyio.move_on_after(_PUSHED_FOR):
        polled.complaint = await put()
    polled.rejections += polled.complaint is not None
    if polled.complaint is not None and polled.rejections % TRIES:
        return
    polled.pause = min(max(2 * polled.pause, _ASKED_AGAIN_AFTER), _PUSHED_FOR)
    polled.not_before = anyio.current_time() + polled.pause


async def _check_questions(session: Session, asked: Sequence[OpenQuestion]) -> None:
    """Check that the questions still reach the client; if not, check its reachability outside of requests again."""
    if not await is_still_read(asked) and any(question.channel.request_id is None for question in asked):
        session.is_reachable = None


def asks_forms(ctx: Context) -> bool:
    """True if the client declared that it can ask a person."""
    return takes_forms(_capabilities(ctx))


def asks_urls(ctx: Context) -> bool:
    """True if the client declared that it can send a person to a page."""
    return takes_urls(_capabilities(ctx))


def _capabilities(ctx: Context) -> Params:
    declared = ctx.session.client_capabilities
    return {} if declared is None else cast("Params", declared.model_dump(by_alias=True, exclude_none=True))


def _as_askable(view: TaskView, ctx: Context) -> TaskView:
    """Return the task with only the questions that the client can ask a person."""
    requests = askable(view.requests if asks_forms(ctx) else {}, takes_urls=asks_urls(ctx))
    return replace(view, requests=requests)
