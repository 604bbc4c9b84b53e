"""Searching: the execution of a key in a list of the server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Final

from mcp_workflows.adapter import JSON, Start
from mcp_workflows.errors import EngineUnavailable, MappingError
from mcp_workflows.kit.expressions import Scope, as_list, as_object, lenient
from mcp_workflows_mcp.cancel import cancel
from mcp_workflows_mcp.definition import Search, ToolCall, ToolsDefinition
from mcp_workflows_mcp.error_translation import look_error
from mcp_workflows_mcp.handle import Handle, HandleKind, run_of
from mcp_workflows_mcp.look import call_reading_tool
from mcp_workflows_mcp.start import check_same, order_scope
from mcp_workflows_mcp.upstream import Upstream

_MOST_PAGES: Final = 10


async def find(upstream: Upstream, definition: ToolsDefinition, definition_digest: str, start: Start) -> Handle | None:
    """Return the oldest execution of this key; later ones are cancelled.

    Raises:
        StartConflict: the key belongs to another order.
        EngineUnavailable: it cannot be told.
    """
    how, scope = definition.find, order_scope(start, definition)
    assert how is not None, "only an adapter with find is asked"
    found: list[tuple[Handle, Scope]] = []
    async for item in _items(upstream, how, scope):
        each = scope | {"item": item}
        try:
            if each.is_true(how.where):
                run = run_of(each.value(how.handle))
                found.append((Handle.of(HandleKind.SPLIT, run, start, definition_digest), each))
        except MappingError as error:
            raise EngineUnavailable(f"its list cannot be read: {error}", silent=False) from None
    if not found:
        return None
    *later, (oldest, seen_as) = found  # the list has the youngest first
    await check_same(upstream, definition, oldest, start, seen_as)
    for handle, _ in later:
        await cancel(upstream, definition, handle, start.options)
    return oldest


async def _items(upstream: Upstream, how: Search, scope: Scope) -> AsyncGenerator[JSON]:
    call: ToolCall = how
    for _ in range(_MOST_PAGES):
        reply = await call_reading_tool(upstream, call, scope)
        if reply.is_error:
            raise look_error(reply)
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
