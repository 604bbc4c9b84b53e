"""Searching: the execution of a key in a list of the API."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from mcp_workflows.adapter import JSON, Start
from mcp_workflows.errors import EngineError, EngineUnavailable, MappingError
from mcp_workflows.kit.expressions import Scope, as_list, lenient
from mcp_workflows_http.cancel import cancel
from mcp_workflows_http.client import ApiClient, Reply
from mcp_workflows_http.definition import Pages, Request
from mcp_workflows_http.error_translation import look_error
from mcp_workflows_http.handle import Handle, run_of
from mcp_workflows_http.settings import HttpSettings
from mcp_workflows_http.start import check_same, order_scope

_NEXT: Final = re.compile(r'\s*<([^<>]*)>(?=.*;\s*rel="?next"?)', re.IGNORECASE)


async def find(client: ApiClient, settings: HttpSettings, definition: str, start: Start) -> Handle | None:
    """Return the oldest execution of this key; later ones are cancelled.

    Raises:
        StartConflict: the key belongs to another order.
        EngineUnavailable: it cannot be told.
    """
    how, scope = settings.find, order_scope(start, settings)
    if how is None:
        raise EngineUnavailable("this API has no search (find)", sent=False)
    found: list[tuple[Handle, Scope]] = []
    async for item in items(client, how, scope):
        each = scope | {"item": item}
        try:
            if each.is_true(how.where):
                found.append((Handle.of(run_of(each.value(how.handle)), start, settings, definition), each))
        except MappingError as error:
            raise EngineUnavailable(f"its list cannot be read: {error}", silent=False) from None
    if not found:
        return None
    *later, (oldest, seen_as) = found  # the list has the youngest first
    await check_same(client, settings, oldest, start, seen_as)
    for handle, _ in later:
        await cancel(client, settings, handle, start.options)
    return oldest


async def items(client: ApiClient, how: Pages, scope: Scope) -> AsyncGenerator[JSON]:
    """Yield the items of all pages; see `pages`."""
    async for page in pages(client, how, scope):
        for item in page:
            yield item


async def pages(client: ApiClient, how: Pages, scope: Scope) -> AsyncGenerator[Sequence[JSON]]:
    """Yield the items of each page: one call each.

    Raises:
        EngineUnavailable: there is no list, or it has more pages than are read.
    """
    request = how.request
    for _ in range(how.pages):
        try:
            reply = await client.send(request, scope)
        except EngineUnavailable:
            raise
        except EngineError as error:
            raise EngineUnavailable(str(error), silent=False) from None
        if not reply.ok:
            raise look_error(reply)
        page = scope | {"reply": reply.as_json()}
        found = as_list(lenient(partial(page.value, how.each)))
        if found is None:
            raise EngineUnavailable(f"it answered {reply.status} without a list at {how.each}", silent=False)
        yield found
        following = _following(how, reply, page) if found else None
        if following is None:
            return
        request = following
    raise EngineUnavailable(f"its list has more than {how.pages} pages, which are not read (pages)", silent=False)


def _following(how: Pages, reply: Reply, page: Scope) -> Request | None:
    """Return the request of the next page; None: this was the last one."""
    if how.next is None:
        return None
    if how.next.link:
        links = map(_NEXT.match, reply.headers.get("link", "").split(","))
        found = next((each for each in links if each), None)
        return None if found is None else how.request.model_copy(update={"path": None, "url": found[1], "query": {}})
    more: Mapping[str, Any] = {name: page.value(value) for name, value in how.next.query.items()}
    if all(value in (None, "", False) for value in more.values()):
        return None
    return how.request.model_copy(update={"query": {**how.request.query, **more}})
