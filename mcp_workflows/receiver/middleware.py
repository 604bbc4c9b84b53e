"""The middleware that serves our tools and tasks and passes on the rest, in two parts around the server's own."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import jsonrpc
from pydantic import BaseModel, ValidationError

from mcp_workflows.access import Principal
from mcp_workflows.access.rate_limits import RateLimits
from mcp_workflows.adapter import JSON
from mcp_workflows.errors import LimitReached, RequestError, WorkflowsError
from mcp_workflows.receiver import skills
from mcp_workflows.receiver.context import (
    AnyServer,
    Callers,
    Context,
    ProgressReports,
    check_param_headers,
    client_of,
    host_of,
    is_in_core,
    is_modern,
    name_header,
    name_of,
    shows_cards,
)
from mcp_workflows.receiver.events import EventRequests
from mcp_workflows.receiver.streams import TaskSubscription, note_retry_after, until_disconnected, while_admitted
from mcp_workflows.receiver.task_tools.calls import TaskToolCalls, outcome_in_text
from mcp_workflows.receiver.task_tools.definitions import Name, TaskTool
from mcp_workflows.receiver.task_view import page_at, with_apps
from mcp_workflows.receiver.tool_list import Offer, Viewer
from mcp_workflows.receiver.v2025_11_25.session import connection_of, session_of
from mcp_workflows.receiver.v2025_11_25.tasks import METHODS, InCoreTasks, asks_forms, asks_urls
from mcp_workflows.tasks.results import limit_result, part_at
from mcp_workflows.tasks.service import TaskService
from mcp_workflows.tools.dialogue import AnswerWay
from mcp_workflows.tools.hosts import call_wait, subscribes
from mcp_workflows.tools.tool import Card
from mcp_workflows.wire import events as event_wire
from mcp_workflows.wire import v2025_11_25 as in_core
from mcp_workflows.wire import v2026_07_28 as wire
from mcp_workflows.wire.commands import CallOutcome, Created, Finished, Outcome
from mcp_workflows.wire.params import call_of, mapping_of, object_of, with_extension

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class CurrentCall:
    """The tools at the time of the call, and its `requestState` in plain text, incoming and then outgoing.

    During a tool function of the server, also its context, and the outcome if it handed over to a workflow.
    """

    offer: Offer
    principal: Principal
    request_state: str | None = None
    service: TaskService | None = None  # None: the caller may call no tool of ours with this name
    began: float = field(default_factory=anyio.current_time)  # on the event loop's clock
    ctx: Context | None = None
    has_handed_over: bool = False
    outcome: CallOutcome | None = None


_call: ContextVar[CurrentCall] = ContextVar("mcp_workflows_call")


def current_call() -> CurrentCall | None:
    """Return the current call; None outside of a call."""
    return _call.get(None)


@contextmanager
def as_current_call(call: CurrentCall) -> Generator[None]:
    """Make this the current call within this context."""
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


class Middleware:
    """Dispatches requests of every revision. `offer`, `boundary` and `group` are set while `Workflows` is entered."""

    def __init__(self, server: AnyServer, offer: Offer, callers: Callers, meters: RateLimits) -> None:
        self.offer = offer
        self.callers = callers
        self._meters = meters
        self.boundary: RequestStateBoundary | None = None
        self.group: TaskGroup | None = None
        self.events: EventRequests | None = None
        self.has_own_lists = True  # the server has tools or resources besides ours
        self.serves_skills = False
        self._envelope = Envelope(server)
        self._methods: Mapping[str, Callable[[Context, CallNext], Awaitable[HandlerResult]]] = {
            "initialize": self._initialize,
            "server/discover": self._discover,
            "tools/list": self._list,
            "tools/call": self._call,
            "resources/read": self._read,
            "subscriptions/listen": self._listen,
            **dict.fromkeys(wire.TASK_METHODS, self._task_request),
            **dict.fromkeys(wire.REMOVED_METHODS, self._task_request),
            **dict.fromkeys(event_wire.Method, self._event_request),
            **dict.fromkeys((skills.LIST, skills.GET), self._skills),
        }

    async def seal(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Unseal and seal the `requestState` of our calls, with a key shared by replicas and across restarts.

        This part comes before the server's own boundary, whose key may be local to its process, and hides our state
        from it.
        """
        if ctx.method != "tools/call" or self.boundary is None or self.offer.service is None:
            return await call_next(ctx)
        state = await self._current(ctx)
        if state.service is None:  # treated as unknown: an error about its state would reveal the tool
            with as_current_call(state):
                return await call_next(ctx)

        async def hide(ctx: Context) -> HandlerResult:
            params = dict(ctx.params or {})
            state.request_state = params.pop("requestState", None)
            with as_current_call(state):
                result = await call_next(replace(ctx, params=params))
            if isinstance(result, dict) and result.get("resultType") == "input_required":
                return {**result, "requestState": state.request_state}
            return result

        return await self.boundary(ctx, hide)

    async def serve(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Serve our methods and pass on the rest; every error raised here is safe for clients."""
        method = self._methods.get(ctx.method)
        is_greeted = ctx.protocol_version == wire.PROTOCOL_VERSION or _is_greeted(ctx)
        if ctx.request_id is None or method is None or not is_greeted:
            return await call_next(ctx)
        try:
            return await method(ctx, call_next)
        except RequestError as error:
            note_retry_after(ctx, error)
            raise MCPError(error.code, error.message, error.data) from None
        except WorkflowsError as error:
            raise MCPError(jsonrpc.INTERNAL_ERROR, str(error)) from None
        except (MCPError, ValidationError):  # the SDK renders these
            raise
        except Exception:  # the boundary of a request: no internal error may reach a client: docs/decisions/0002
            logger.exception("%s failed", ctx.method)
            raise MCPError(jsonrpc.INTERNAL_ERROR, "Internal error") from None

    # --- the methods

    async def _initialize(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Declare tasks to clients that negotiate exactly the revision with tasks in its core."""
        result = event_wire.with_events(plain(await call_next(ctx)), tells=True)
        result = skills.with_skills(result) if self.serves_skills else result
        declared = object_of((ctx.params or {}).get("capabilities"))
        session_of(ctx).hears_events = event_wire.declares_events(declared)  # the SDK drops such a field
        if result.get("protocolVersion") != in_core.PROTOCOL_VERSION:
            return result
        lists = self.callers.principal(ctx).identified
        return in_core.with_tasks(result, lists=lists, tools_change=self.offer.hands_over)

    async def _discover(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        result = event_wire.with_events(with_extension(plain(await call_next(ctx)), wire.EXTENSION), tells=False)
        if not self.has_own_lists and "resources" in result["capabilities"]:
            result["capabilities"]["resources"] = {}  # the SDK declares subscriptions, which are not supported
        result = skills.with_skills(result) if self.serves_skills else result
        return with_apps(result) if self._has_cards(ctx) else result

    def _has_cards(self, ctx: Context) -> bool:
        return self.offer.has_cards and shows_cards(ctx)

    async def _list(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """List the server's tools, and on the last page also ours, in the order of the configuration."""
        result = plain(await call_next(ctx))
        if result.get("nextCursor"):
            return result
        private = {"cacheScope": "private"} if is_modern(ctx) else {}
        viewer = await self._viewer(ctx)
        return {**result, **private, "tools": [*result["tools"], *self.offer.listed(viewer)]}

    async def _viewer(self, ctx: Context) -> Viewer:
        """Return the viewer of a tool list, with the tools that the rules allow."""
        augmented = not is_modern(ctx) and session_of(ctx).augmented
        viewer, service = self.callers.viewer(ctx, augmented=augmented), self.offer.service
        if service is None:
            return viewer
        principal, rules = self.callers.principal(ctx), service.authorization
        return replace(viewer, offered=await rules.offered(principal), approves=bool(rules.shared_tools(principal)))

    async def _call(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        state = current_call() or await self._current(ctx)
        if state.service is None:
            if task_tool := state.offer.task_tool(name_of(ctx), shows_cards=shows_cards(ctx)):
                return await self._call_task_tool(ctx, state, task_tool)
            return await self._call_own(ctx, call_next, state)
        if ctx.protocol_version != wire.PROTOCOL_VERSION:
            return await self._call_2025(ctx, state, state.service)
        check_param_headers(ctx, state.offer.tools[str(name_of(ctx))])
        report, params = ProgressReports(ctx.session.report_progress).report, ctx.params or {}
        call = wire.parse_call(params, wire.client_of(params), self.callers.key_paths)
        card = Card.OFF if call.takes_tasks else state.offer.card_of(call.tool, shows_cards=shows_cards(ctx))
        call = replace(
            call,
            state=state.request_state,
            shows_card=card is not Card.OFF,
            host=host_of(ctx),
            began=state.began,
        )
        outcome = await state.service.call(call, state.principal, report)
        rendered = wire.render(outcome_in_text(outcome, card, hears_events=_hears_events(ctx)))
        state.request_state = rendered.get("requestState")
        return self._envelope.around(ctx, rendered)

    async def _current(self, ctx: Context) -> CurrentCall:
        """Begin `tools/call`. If the caller may not call our tool of this name, the server treats it as unknown."""
        name, offer, principal = name_of(ctx), self.offer, self.callers.principal(ctx)
        service = offer.task_service if offer.shows(name) else None
        if service is not None and not await service.authorization.offers(str(name), principal):
            service = None
        return CurrentCall(offer=offer, principal=principal, service=service)

    async def _call_own(self, ctx: Context, call_next: CallNext, state: CurrentCall) -> HandlerResult:
        """Serve `tools/call` of a tool of the server, whose function may hand over to one of our workflows."""
        if self.has_own_lists:
            _refuse_task(ctx)
        state.ctx = ctx
        try:
            result = await call_next(ctx)
        finally:
            state.ctx = None  # background work of the function can no longer hand over
        if state.outcome is None or plain(result).get("isError"):
            return result
        unfinished = outcome_in_text(state.outcome, hears_events=_hears_events(ctx))
        return self._envelope.around(ctx, _render(ctx, unfinished))

    async def _call_task_tool(self, ctx: Context, state: CurrentCall, task_tool: TaskTool) -> HandlerResult:
        """Serve `tools/call` of a task tool, which creates no tasks itself."""
        _refuse_task(ctx)
        principal, service = state.principal, state.offer.task_service
        assert self.events is not None, "the service is there, and so is this"
        served = TaskToolCalls(
            service=service,
            principal=principal,
            notify=ProgressReports(ctx.session.report_progress).send,
            lost=self.events.lost,
            request=replace(call_of(ctx.params or {}, self.callers.key_paths), host=host_of(ctx), began=state.began),
            until=state.began + call_wait(host_of(ctx)).total_seconds(),
            final=is_in_core(ctx),
            card_of=partial(state.offer.card_of, shows_cards=shows_cards(ctx)),
            has_answers_only=shows_cards(ctx) and state.offer.has_answers_only,
            hears_events=_hears_events(ctx),
        )
        arguments = mapping_of(ctx.params or {}, "arguments", default={})
        try:
            self._meters.count_poll(principal)
            with self._meters.listening(principal) if task_tool.name is Name.WAIT else nullcontext():
                result = await served.call(task_tool, arguments)
        except LimitReached as reached:
            result = limit_result(reached)
        return self._envelope.around(ctx, _render(ctx, Finished(result=result)))

    async def _call_2025(self, ctx: Context, state: CurrentCall, service: TaskService) -> HandlerResult:
        """Serve `tools/call` of 2025-11-25 and earlier; only 2025-11-25 can request a task."""
        offer, principal = state.offer, state.principal
        call = in_core.parse_call(
            ctx.params or {},
            in_core=is_in_core(ctx),
            takes_questions=asks_forms(ctx),
            takes_urls=asks_urls(ctx),
            key_paths=self.callers.key_paths,
        )
        tool = offer.tools[call.tool]
        card = offer.card_of(tool.name, shows_cards=shows_cards(ctx))
        call = replace(call, shows_card=card is not Card.OFF, host=host_of(ctx), began=state.began)
        tasks = self._tasks_2025(service)
        async with service.serve(call) as served:
            serve = partial(tasks.call, ctx, call, principal, tool, served)
            outcome = await until_disconnected(ctx, serve, needed=tool.cancel_on_disconnect, on_left=served.lose)
        if isinstance(outcome, Created):
            await tasks.accompany(ctx, outcome.task.task_id, principal, tools_change=offer.hands_over)
        hears_events = _hears_events(ctx)
        unfinished = outcome_in_text(outcome, card, hears_events=hears_events)
        return in_core.render(unfinished, wants_task=call.wants_task, hears_events=hears_events)

    async def _task_request(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.protocol_version != wire.PROTOCOL_VERSION:
            method = METHODS.get(ctx.method) if is_in_core(ctx) else None
            if method is None:
                return await call_next(ctx)
            principal = self.callers.principal(ctx)
            self._meters.count_poll(principal)
            with self._meters.listening(principal) if method is InCoreTasks.result else nullcontext():
                return await method(self._tasks_2025(self.offer.task_service), ctx, ctx.params or {}, principal)
        if ctx.method in wire.REMOVED_METHODS:
            raise MCPError(jsonrpc.METHOD_NOT_FOUND, "Method not found", ctx.method)
        principal, header, params = self.callers.principal(ctx), name_header(ctx), ctx.params or {}
        client = wire.client_of(params)
        task_id, responses = wire.parse_task_request(ctx.method, params, client)
        wire.check_name_header(header, task_id)
        self._meters.count_poll(principal)
        service = self.offer.task_service
        match ctx.method:
            case "tasks/update":
                way = AnswerWay.LINK if client.takes_urls else AnswerWay.CHAT
                await service.update(task_id, responses, principal, way)
            case "tasks/cancel":
                await service.cancel(task_id, principal)
            case _:
                task = await service.get(task_id, principal)
                return self._envelope.around(ctx, wire.described(task, takes_urls=client.takes_urls))
        return self._envelope.around(ctx, wire.acknowledged())

    def _tasks_2025(self, service: TaskService) -> InCoreTasks:
        assert self.group is not None, "the service is there, and so is this"
        return InCoreTasks(service, self.group)

    async def _event_request(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if self.events is None:
            return await call_next(ctx)
        result = plain(await self.events.serve(ctx, self.callers.principal(ctx)))
        return self._envelope.around(ctx, {"resultType": "complete", **result} if is_modern(ctx) else result)

    async def _read(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        uri = (ctx.params or {}).get("uri")
        if self._has_cards(ctx) and (page := page_at(uri)):
            self._meters.count_poll(self.callers.principal(ctx))
            return self._envelope.around(ctx, _render(ctx, page))
        if self.serves_skills and skills.is_skill(uri):
            return self._envelope.around(ctx, _render(ctx, skills.read(uri, await self._visible_skills(ctx))))
        address = part_at(uri) if isinstance(uri, str) else None
        if address is None:
            return await call_next(ctx)
        principal = self.callers.principal(ctx)
        self._meters.count_poll(principal)
        document = await self.offer.task_service.read(*address, principal)
        return self._envelope.around(ctx, _render(ctx, document))

    async def _skills(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if not self.serves_skills:
            return await call_next(ctx)
        visible = await self._visible_skills(ctx)
        found = skills.respond(ctx.method, ctx.params or {}, visible, is_modern=is_modern(ctx))
        return self._envelope.around(ctx, found)

    async def _visible_skills(self, ctx: Context) -> Sequence[skills.Skill]:
        """Return the skills of the tools that the caller's tool list has; names are the same for all callers."""
        self._meters.count_poll(self.callers.principal(ctx))
        every = skills.skills_of(self.offer.tools.values())
        return [every[tool.name] for tool in self.offer.visible(await self._viewer(ctx))]

    async def _listen(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        if not is_modern(ctx):
            return await call_next(ctx)
        task_ids = wire.parse_listen(ctx.params or {}, client_of(ctx))
        principal = self.callers.principal(ctx)
        if task_ids is not None:
            self._meters.count_poll(principal, len(task_ids))
        with self._meters.listening(principal):
            serve: Callable[[], Awaitable[HandlerResult]] = partial(call_next, ctx)
            if task_ids is not None:
                tasks = await self.offer.task_service.listen(task_ids, principal)
                serve = partial(TaskSubscription(ctx, self.offer.task_service, tasks, principal).serve, call_next)
            result = await while_admitted(principal, serve)
        if result is None:  # its token expired; the client may listen again with a new one
            return types.SubscriptionsListenResult(_meta={SUBSCRIPTION_ID_META_KEY: ctx.request_id})
        return result


def _is_greeted(ctx: Context) -> bool:
    """True if the handshake of 2025-11-25 and earlier is complete, or begins."""
    return ctx.method == "initialize" or connection_of(ctx).initialize_accepted


def _hears_events(ctx: Context) -> bool:
    """True if the client can subscribe to events: it declared that, or is known to."""
    if not is_modern(ctx):
        return session_of(ctx).hears_events or subscribes(host_of(ctx))
    return event_wire.declares_events(wire.capabilities_of(ctx.params or {})) or subscribes(host_of(ctx))


def _refuse_task(ctx: Context) -> None:
    """Refuse `params.task` for a tool that is not a workflow (2025-11-25: Tool-Level Negotiation 2.1)."""
    if is_in_core(ctx) and (ctx.params or {}).get("task") is not None:
        text = f"there is no tool {name_of(ctx)!r} that creates tasks: call it without params.task"
        raise RequestError(jsonrpc.METHOD_NOT_FOUND, text)


def _render(ctx: Context, outcome: Outcome) -> dict[str, Any]:
    return wire.render(outcome) if is_modern(ctx) else in_core.render(outcome)


def plain(result: HandlerResult) -> dict[str, Any]:
    """Return a handler's result as a dict in wire format."""
    if isinstance(result, BaseModel):
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return dict(result or {})


class Envelope:
    """The envelope of results that bypass the SDK's own."""

    def __init__(self, server: AnyServer) -> None:
        self._server = server

    def around(self, ctx: Context, result: dict[str, Any]) -> dict[str, Any]:
        """Return the result with the server's information in 2026-07-28, unchanged in older revisions."""
        if not is_modern(ctx):
            return result
        meta: Mapping[str, JSON] = result.get("_meta", {})
        return {**result, "_meta": {types.SERVER_INFO_META_KEY: self._stamp(), **meta}}

    def _stamp(self) -> Mapping[str, JSON]:
        """Return a copy of the server's information, as callers may modify it."""
        info = self._server_info
        return deepcopy(info) if "icons" in info else dict(info)  # no other value is nested

    @cached_property
    def _server_info(self) -> Mapping[str, JSON]:
        """The server's information in the SDK's form; rendered once, as it never changes."""
        server = self._server
        if isinstance(server, Server):
            return server.server_info_stamp
        found = types.Implementation(
            name=server.name,
            version=server.version or "",
            title=server.title,
            description=server.description,
            website_url=server.website_url,
            icons=server.icons,
        )
        return found.model_dump(by_alias=True, mode="json", exclude_none=True)
