"""Tasks of 2025-11-25: `tasks/*`, what goes on beside a task's requests, and questions on the way.

Source: the specification of that revision, basic/utilities/tasks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias, cast

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup
from mcp.server.context import ServerRequestContext

from mcp_workflows.access import Principal
from mcp_workflows.adapter import JSON
from mcp_workflows.errors import RequestError
from mcp_workflows.receiver.subscriptions import Progress
from mcp_workflows.receiver.v2025_11_25.disconnect import until_disconnected
from mcp_workflows.receiver.v2025_11_25.elicitation import (
    TRIES,
    CallQuestions,
    Channel,
    OpenQuestion,
    TaskQuestions,
    still_heard,
    with_complaint,
    withdraw,
)
from mcp_workflows.receiver.v2025_11_25.session import PolledQuestion, Session, session_of
from mcp_workflows.task import Task
from mcp_workflows.tasks.authorization import not_found
from mcp_workflows.tasks.refresh import utc_now
from mcp_workflows.tasks.service import TaskService
from mcp_workflows.tasks.view import final_result, withdrawn_result
from mcp_workflows.wire import v2025_11_25 as wire
from mcp_workflows.wire.commands import Call, CallOutcome, Questions, TaskView, Update
from mcp_workflows.wire.params import Params, takes_forms

Context: TypeAlias = ServerRequestContext[Any, Any]  # Any: the lifespan and the transport are the user's

_SEEN_BEFORE_PUSHED = 2  # polls that show a question its client does not hear of
_LOOK_AFTER_EVERY = 5  # polls, whether a question that is open still reaches anybody
_ASKED_AGAIN_AFTER = 60.0  # seconds, and then longer, when what was asked so came to nothing
_WITHDRAWN_WITHIN = 1.0  # seconds
_PUSHED_FOR = 300.0  # seconds a client has to answer what it was asked outside of any request


class InCoreTasks:
    """What a client of 2025-11-25 asks about tasks; `group` is where things go on after a request."""

    def __init__(self, service: TaskService, group: TaskGroup) -> None:
        self._service = service
        self._group = group

    # --- tools/call

    async def call(self, ctx: Context, call: Call, principal: Principal, *, patience: timedelta | None) -> CallOutcome:
        """The call, its questions put to the person on its own stream, those of the workflow for no longer than that.

        A question that stays open although it was asked is not asked again, unless the answer did not fit: then the
        client gets what one gets that cannot ask.
        """
        began = anyio.current_time()
        rounds = CallQuestions(Channel(session=ctx.session, request_id=ctx.request_id))
        report = Progress(ctx.session.report_progress).report
        outcome = await self._service.call(call, principal, report)
        while isinstance(outcome, Questions):
            bounded = patience is not None and outcome.started
            until = began + patience.total_seconds() if patience and bounded else float("inf")
            async with self._service.asking(call, outcome, principal):
                with anyio.CancelScope(deadline=until):
                    await rounds.ask(outcome.requests)
            principal = await _still(principal)
            waited, answers = timedelta(seconds=anyio.current_time() - began), dict(rounds.answers)
            call = replace(call, responses=answers, state=outcome.state, takes_questions=bool(answers), waited=waited)
            started = outcome.started
            try:
                outcome = await self._service.call(call, principal, report)
            except RequestError as error:
                if not rounds.refused(error, started=started):
                    raise
            else:
                rounds.taken()
        return outcome

    async def accompany(self, ctx: Context, task_id: str, principal: Principal, *, tools_change: bool) -> None:
        """Tell the client of the task's changes, for as long as its session lasts, and of its progress if it asked.

        `tools_change`: who has asked for a task is shown other tools from then on: without the companions.
        """
        session = session_of(ctx)
        try:
            task = await self._service.owned(task_id, principal)
        except RequestError:  # they may start it, and not see it
            return
        first, session.augmented = not session.augmented, True
        if first and tools_change:
            session.start(self._group, session.connection.send_tool_list_changed)
        token = (ctx.meta or {}).get("progress_token")
        session.start(self._group, partial(self._tell, session, task, token, principal))

    async def _tell(self, session: Session, task: Task, token: str | int | None, principal: Principal) -> None:
        told: dict[str, Any] | None = None

        async def send(value: float, total: float | None, message: str | None) -> None:
            found = {"progressToken": token, "progress": value, "total": total, "message": message}
            params = {key: value for key, value in found.items() if value is not None}
            await session.connection.notify("notifications/progress", {**params, "_meta": wire.related(task.id)})

        progress = Progress(send)

        async def on_change(view: TaskView) -> bool:
            nonlocal told
            state = wire.task_of(view)
            if told is not None:
                await session.connection.notify(wire.NOTIFICATION, state)
            if token is not None and not wire.ended(view):
                await progress.tell(view.message, view.progress)
            told = state
            withdraw(session.questions, view)
            return wire.ended(view)

        with session.alone(task.id):  # a call that was sent again made the same task
            await self._service.follow(task, on_change, principal)

    # --- tasks/*

    async def get(self, ctx: Context, params: Params, principal: Principal) -> dict[str, Any]:
        """`tasks/get`; a question that nobody hears is asked beside it."""
        view = (await self._service.get(wire.parse_get(params), principal)).task
        await self._push(ctx, view, principal)
        return wire.detailed(view)

    async def cancel(self, ctx: Context, params: Params, principal: Principal) -> dict[str, Any]:
        """`tasks/cancel`."""
        return wire.detailed((await self._service.withdraw(wire.parse_cancel(params), principal)).task)

    async def list(self, ctx: Context, params: Params, principal: Principal) -> dict[str, Any]:
        """`tasks/list`."""
        return wire.listed(await self._service.tasks(wire.parse_list(params), principal))

    async def result(self, ctx: Context, params: Params, principal: Principal) -> dict[str, Any]:
        """Blocks until the task has ended; meanwhile its questions are asked on this request's stream.

        A question outlives the request: clients give up on a request sooner than people answer.
        """
        task, session = await self._service.owned(wire.parse_result(params).task_id, principal), session_of(ctx)
        asking = self._asking(session, Channel(session=ctx.session, request_id=ctx.request_id), task.id, principal)
        last: TaskView | None = None

        async def on_change(view: TaskView) -> bool:
            nonlocal last
            last = view
            if asks_forms(ctx):
                asking.see(view, partial(session.start, self._group))
            return wire.ended(view)

        await until_disconnected(ctx, partial(self._service.follow, task, on_change, principal), needed=True)
        assert last is not None, "it has ended, so it was seen"
        with anyio.move_on_after(_WITHDRAWN_WITHIN):
            for question in withdraw(session.questions, last):
                await question.over.wait()  # before its stream ends with the result
        return wire.result_of(last, withdrawn_result(last) if last.cancelled else final_result(last))

    # --- questions to clients that only poll

    async def _push(self, ctx: Context, view: TaskView, principal: Principal) -> None:
        """Who sees a question again and again in `tasks/get` and does not open `tasks/result` never hears it otherwise.

        It is asked outside of any request; or, where nobody listens there, on the stream of this one.
        """
        session = session_of(ctx)
        withdraw(session.questions, view)
        session.forget(view)
        if wire.ended(view) or not view.requests or not asks_forms(ctx):
            return
        if session.hears is None and not session.finding_out:
            session.finding_out = True
            session.start(self._group, partial(self._find_out, session, ctx))
        for key, request in view.requests.items():
            polled = session.polled.setdefault((view.task_id, key), PolledQuestion())
            polled.seen += 1
            again = request if polled.complaint is None else with_complaint(request, polled.complaint)
            asked = session.questions.get((view.task_id, key), [])
            if any(question.heard for question in asked):
                lasting = [question for question in asked if not question.channel.brief]
                if lasting and polled.seen % _LOOK_AFTER_EVERY == 0:
                    session.start(self._group, partial(_look_after, session, lasting))
            elif self._due(session, polled):
                channel = Channel(session=ctx.session)
                if not session.hears:
                    channel = replace(channel, request_id=ctx.request_id, brief=True)
                put = partial(self._asking(session, channel, view.task_id, principal).put, view.task_id, key, again)
                session.start(self._group, partial(_for_a_while, put, polled))
                await anyio.lowlevel.checkpoint()  # the question goes out before the reply that ends this stream

    def _due(self, session: Session, polled: PolledQuestion) -> bool:
        seen_enough = polled.seen >= _SEEN_BEFORE_PUSHED and session.hears is not None
        return seen_enough and anyio.current_time() >= polled.not_before

    async def _find_out(self, session: Session, ctx: Context) -> None:
        try:
            session.hears = await Channel(session=ctx.session).reaches()
        finally:
            session.finding_out = False

    def _asking(self, session: Session, channel: Channel, task_id: str, principal: Principal) -> TaskQuestions:
        async def deliver(key: str, answer: Mapping[str, JSON]) -> None:
            await self._service.update(Update(task_id=task_id, responses={key: answer}), await _still(principal))

        return TaskQuestions(session.questions, channel, deliver)


METHODS: Mapping[str, Callable[[InCoreTasks, Context, Params, Principal], Awaitable[dict[str, Any]]]] = {
    "tasks/get": InCoreTasks.get,
    "tasks/result": InCoreTasks.result,
    "tasks/list": InCoreTasks.list,
    "tasks/cancel": InCoreTasks.cancel,
}
"""What this revision has beside `tools/call`."""


async def _still(principal: Principal) -> Principal:
    """Who has answered a question, as they would be let in now: people take their time, and rights are taken back.

    That their token has expired meanwhile is nothing: the answer came with one that is good, which is not seen here.

    Raises:
        RequestError: they would not be let in any more.
    """
    if (now := await principal.still(utc_now())) is None:
        raise not_found()
    return now


async def _for_a_while(put: Callable[[], Awaitable[str | None]], polled: PolledQuestion) -> None:
    """Ask; if that comes to nothing, not again at once, unless the answer did not fit."""
    polled.complaint = None
    with anyio.move_on_after(_PUSHED_FOR):
        polled.complaint = await put()
    polled.rejections += polled.complaint is not None
    if polled.complaint is not None and polled.rejections % TRIES:
        return
    polled.pause = min(max(2 * polled.pause, _ASKED_AGAIN_AFTER), _PUSHED_FOR)
    polled.not_before = anyio.current_time() + polled.pause


async def _look_after(session: Session, asked: Sequence[OpenQuestion]) -> None:
    """Whether what was asked still reaches somebody; if not, also whether anything outside of requests does."""
    if not await still_heard(asked) and any(question.channel.request_id is None for question in asked):
        session.hears = None


def asks_forms(ctx: Context) -> bool:
    """Whether the client said that it can put questions to a person."""
    capabilities = ctx.session.client_capabilities
    return capabilities is not None and takes_forms(
        cast("Params", capabilities.model_dump(by_alias=True, exclude_none=True))
    )
