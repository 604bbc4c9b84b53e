"""The start of an execution: one call, its outcome, and the search for its key."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.client import ClientRequestContext
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter, ValidationError

from mcp_workflows.adapter import JSON, Start, StartGuarantee
from mcp_workflows.errors import EngineRefused, EngineUnavailable, MappingError, StartConflict
from mcp_workflows.kit.expressions import REPLY, Scope, as_list, as_object, lenient, names_in, order_names
from mcp_workflows_mcp.client import Connection, ElicitationHandler, Upstream, render_call
from mcp_workflows_mcp.definition import Search, ToolCall, ToolsDefinition
from mcp_workflows_mcp.describe import describe
from mcp_workflows_mcp.errors import change_error, describe_error, holds, is_reply
from mcp_workflows_mcp.handle import Handle, HandleKind, run_of
from mcp_workflows_mcp.open_calls import OpenCall, OpenCalls, Outcome
from mcp_workflows_mcp.reply import Reply
from mcp_workflows_mcp.settings import McpSettings

_PAGES: Final = TypeAdapter(tuple[types.ElicitRequestURLParams, ...])
_MOST_ROUNDS: Final = 20  # of pages for people before one call has its result
_AFTER_PAGE_SECONDS: Final = 1.0  # between a person's confirmation and the next call
_MOST_PAGES: Final = 10  # of the list of executions
_LONGEST_ID: Final = 4000  # characters of a handle as JSON

_Begun: TypeAlias = types.CallToolResult | Reply | str
"""The result of a call, the error that answered it, or the id of the task that it became."""


def order_scope(start: Start, definition: ToolsDefinition) -> Scope:
    """Return the scope of expressions about an order."""
    return Scope(names={**order_names(start, definition.settling.total_seconds()), "error": None})


async def read_handle(
    upstream: Upstream, definition: ToolsDefinition, definition_digest: str, start: Start, reply: Reply
) -> Handle:
    """Return the handle in the reply of a start.

    Raises:
        StartConflict: the key belongs to another order.
        EngineRefused: definitely not started.
        EngineUnavailable: the outcome is unknown.
    """
    how, scope = definition.start, reply.within(order_scope(start, definition))
    if holds(how.conflict_if, scope):
        raise StartConflict(reply.reason)
    if holds(how.refused_if, scope):
        raise EngineRefused(f"its tool answered with an error: {reply.reason}", final=True)
    if reply.is_error:
        if how.refused_if is None:
            raise change_error(reply)
        raise EngineUnavailable(f"its tool answered with an error: {reply.reason}", silent=False)
    try:
        run = run_of(scope.value(how.handle))
    except MappingError as error:
        raise EngineUnavailable(f"its handle cannot be read: {error}", silent=False) from None
    if run is not None and len(json.dumps(run)) > _LONGEST_ID:
        raise EngineUnavailable("its handle is too long to be one: it may have been started", silent=False)
    if run is None:
        what = reply.prose if reply.is_prose else f"its tool answered with no handle at {how.handle}"
        raise EngineUnavailable(f"{what}: it may have been started (start.handle, start.extract)", silent=False)
    kept = reply.data if how.finished is not None and holds(how.finished, scope) else None
    handle = Handle.of(HandleKind.SPLIT, run, start, definition_digest, reply=kept)
    if definition.starts is StartGuarantee.KEYED:
        await check_same(upstream, definition, handle, start, scope)
    return handle


async def check_same(
    upstream: Upstream, definition: ToolsDefinition, handle: Handle, start: Start, scope: Scope
) -> None:
    """Check that the execution of a key has the same order, if the definition says how.

    Raises:
        StartConflict: the order differs.
        EngineUnavailable: no answer.
    """
    same = definition.start.same
    if same is None:
        return
    if names_in(same) & REPLY:
        seen = await describe(upstream, definition, handle, start.options)
        scope |= {name: seen.scope.names.get(name) for name in REPLY}
    if not holds(same, scope):
        raise StartConflict("this key belongs to an execution of another workflow or with another input")


async def find_executions(
    upstream: Upstream, definition: ToolsDefinition, how: Search, definition_digest: str, start: Start
) -> Sequence[Handle]:
    """Return the executions of this key in the server's list, oldest first.

    Raises:
        StartConflict: the key belongs to another order.
        EngineUnavailable: the list cannot be read.
    """
    scope = order_scope(start, definition)
    found: list[tuple[Handle, Scope]] = []
    async for item in _items(upstream, how, scope):
        each = scope | {"item": item}
        try:
            if each.is_true(how.where):
                run = run_of(each.value(how.handle))
                found.append((Handle.of(HandleKind.SPLIT, run, start, definition_digest), each))
        except MappingError as error:
            raise EngineUnavailable(f"its list cannot be read: {error}", silent=False) from None
    if found:  # the list has the newest first
        await check_same(upstream, definition, found[-1][0], start, found[-1][1])
    return [handle for handle, _ in reversed(found)]


async def _items(upstream: Upstream, how: Search, scope: Scope) -> AsyncGenerator[JSON]:
    call: ToolCall = how
    for _ in range(_MOST_PAGES):
        reply = await upstream.read(call, scope)
        if reply.is_error:
            raise describe_error(reply)
        page = reply.within(scope)
        found = as_list(lenient(partial(page.value, how.each)))
        if found is None:
            raise EngineUnavailable(f"its tool answered without a list at {how.each}", silent=False)
        for item in found:
            yield item
        more = as_object(lenient(partial(page.value, dict(how.next)))) or {}
        if not found or all(value in (None, "", False) for value in more.values()):
            return
        call = ToolCall(tool=how.tool, args={**(as_object(page.value(how.args)) or {}), **more}, extract=how.extract)
    raise EngineUnavailable(f"its list has more than {_MOST_PAGES} pages, which are not read", silent=False)


class StartCalls:
    """The calls that start executions."""

    def __init__(self, upstream: Upstream, settings: McpSettings, calls: OpenCalls) -> None:
        self._upstream = upstream
        self._settings = settings
        self._calls = calls

    def begin(self, start: Start, definition_digest: str, group: TaskGroup, target: Handle | None) -> OpenCall:
        """Begin the call that starts an execution, or sends a message to `target`."""

        async def work(call: OpenCall) -> Outcome:
            return await self._outcome(start, definition_digest, call, target)

        return self._calls.begin(work, group)

    async def _outcome(self, start: Start, definition_digest: str, call: OpenCall, target: Handle | None) -> Outcome:
        """Make the call, and return its outcome.

        Raises:
            EngineError: see `Adapter.start`.
        """
        upstream, scope = self._upstream, order_scope(start, self._settings)
        how: ToolCall = self._settings.start
        if target is not None:
            how, scope = self._settings.actions[start.options["tool"]], scope | target.scope(start.options).names
        name, arguments = render_call(how, scope)
        tool = await upstream.tool(name)
        begun = await self._call_or_task(tool, arguments, start.key, call)
        if isinstance(begun, str):
            return {"handle": Handle.of(HandleKind.TASK, begun, start, definition_digest).text()}
        if isinstance(begun, types.CallToolResult):
            reply = upstream.reply(begun, tool, how)
            if target is not None and reply.is_error and isinstance(refused := change_error(reply), EngineRefused):
                raise refused
            if target is not None or self._settings.describe is None:
                return {"result": begun.model_dump(by_alias=True, mode="json", exclude_none=True)}
            begun = reply
        if target is not None:
            raise change_error(begun)
        return {"handle": (await read_handle(upstream, self._settings, definition_digest, start, begun)).text()}

    async def _call_or_task(self, tool: types.Tool, arguments: Mapping[str, JSON], key: str, call: OpenCall) -> _Begun:
        """Return the result of the call, the error that answered it, or the id of the task that it became."""
        upstream, connection = self._upstream, await self._upstream.connection()
        in_core = connection.in_core
        if in_core is not None and in_core.offered(tool):

            async def begin_task() -> str:
                return (await in_core.start(tool.name, arguments, key)).task_id

            return await self._after_pages(begin_task, call)

        async def make_call(on: Connection) -> types.CallToolResult | str:
            begun = await on.tasks.start(
                on.client, tool.name, arguments, idempotency_key=key, progress_callback=call.note_progress
            )
            return begun if isinstance(begun, types.CallToolResult) else begun.id

        if in_core is None or self._settings.url is None:
            return await self._after_pages(partial(make_call, connection), call)
        call.is_alone = True
        async with upstream.connect(self._asker(call)) as own:  # so that its questions are certainly of this call
            return await self._after_pages(partial(make_call, own), call)

    async def _after_pages(self, begin: Callable[[], Awaitable[types.CallToolResult | str]], call: OpenCall) -> _Begun:
        """Begin, and begin again after people have visited the pages that the server names.

        Source: MCP 2025-11-25, elicitation, URL elicitation required. A call with this answer has started nothing.
        """
        for _ in range(_MOST_ROUNDS):
            begun = await self._answered(begin)
            pages = _pages(begun)
            if not pages:
                return begun
            for page in pages:
                given = await self._calls.elicitations.ask(call.id, page)
                if given.action != "accept":
                    raise EngineRefused("a page that the server wants people to visit first was not visited")
            await anyio.sleep(_AFTER_PAGE_SECONDS)
        raise EngineRefused(f"the server sent people to a page {_MOST_ROUNDS} times, and still does not start it")

    async def _answered(self, begin: Callable[[], Awaitable[types.CallToolResult | str]]) -> _Begun:
        async with self._upstream.translated():
            try:
                return await begin()
            except MCPError as error:
                if is_reply(error):
                    return Reply.of_error(error.code, error.message, error.data)
                raise

    def _asker(self, call: OpenCall) -> ElicitationHandler:
        async def asked(
            _: Connection, __: ClientRequestContext, params: types.ElicitRequestParams
        ) -> types.ElicitResult:
            return await self._calls.elicitations.ask(call.id, params)

        return asked


def _pages(begun: _Begun) -> Sequence[types.ElicitRequestURLParams]:
    """Return the pages that people must visit before the call is repeated."""
    if not isinstance(begun, Reply) or begun.code != types.URL_ELICITATION_REQUIRED:
        return ()
    try:
        return _PAGES.validate_python((as_object(begun.error_data) or {}).get("elicitations"))
    except ValidationError:
        return ()
