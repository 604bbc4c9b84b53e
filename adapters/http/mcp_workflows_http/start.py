"""Starting: one request, and what its reply says of the key."""

from __future__ import annotations

from typing import Final

from mcp_workflows.adapter import JSON, Start, StartGuarantee
from mcp_workflows.errors import EngineRefused, EngineUnavailable, MappingError, StartConflict
from mcp_workflows.kit.expressions import REPLY, Scope, as_object, names_in, order_names
from mcp_workflows_http.client import ApiClient, Reply
from mcp_workflows_http.error_translation import said, start_error
from mcp_workflows_http.handle import Handle, run_of
from mcp_workflows_http.look import look
from mcp_workflows_http.settings import HttpSettings

_LONGEST_KEPT: Final = 64 * 1024  # bytes of a reply in a handle


def order_scope(start: Start, settings: HttpSettings) -> Scope:
    """Return what expressions know of an order."""
    names = order_names(start, settings.settling.total_seconds())
    return Scope(names={**names, "vars": settings.vars})


async def start_execution(client: ApiClient, settings: HttpSettings, definition: str, start: Start) -> Handle:
    """Send the request that starts it, once, and return the handle.

    Raises:
        StartConflict: the key belongs to another order.
        EngineRefused: a definite no.
        EngineUnavailable: nobody knows.
    """
    how, scope = settings.start, order_scope(start, settings)
    reply = await client.send(how.request, scope, changes=True)
    scope |= {"reply": reply.as_json()}
    if how.refused_if is not None and _is_true(scope, how.refused_if):
        raise EngineRefused(said(reply), final=True)
    if reply.status in how.conflict:
        raise StartConflict(said(reply))
    taken = how.taken
    if taken is not None and reply.status in taken.status and (taken.when is None or _is_true(scope, taken.when)):
        handle = Handle.of(_run(taken.handle, scope, reply), start, settings, definition)
        await check_same(client, settings, handle, start, scope)
        return handle
    if not reply.ok:
        raise start_error(reply, settings.starts)
    finished = how.finished is not None and _is_true(scope, how.finished)
    run = _run(how.handle, scope, reply)
    handle = Handle.of(run, start, settings, definition, reply=_kept(reply) if finished else None)
    may_be_known = how.known is None or _is_true(scope, how.known)
    if settings.starts is StartGuarantee.KEYED and may_be_known:
        await check_same(client, settings, handle, start, scope)
    return handle


def _kept(reply: Reply) -> JSON:
    """Return a reply as it is kept in a handle, without a body that is too long for one."""
    body = reply.text if len(reply.content) <= _LONGEST_KEPT else '{"truncated": true}'
    return {"status": reply.status, "body": body}


def _run(written: JSON, scope: Scope, reply: Reply) -> JSON:
    """Return the handle in a reply.

    Raises:
        EngineUnavailable: there is none, though it may have been started.
    """
    try:
        run = scope.value(written)
    except MappingError as error:
        raise EngineUnavailable(
            f"it answered {reply.status}, and its handle cannot be read: {error}", silent=False
        ) from None
    parts = as_object(run)
    if any(part is None or part == "" for part in ([run] if parts is None else parts.values())):
        what = "no JSON" if reply.content and reply.body is None else f"no handle at {written}"
        raise EngineUnavailable(f"it answered {reply.status} with {what}: it may have been started", silent=False)
    return run_of(run)


async def check_same(client: ApiClient, settings: HttpSettings, handle: Handle, start: Start, scope: Scope) -> None:
    """Check that the execution of a key is of the same order, where the definition says how.

    Raises:
        StartConflict: it is not.
        EngineUnavailable: no answer.
    """
    same = settings.start.same
    if same is None:
        return
    if names_in(same) & REPLY:
        seen = await look(client, settings, handle, start.options)
        scope |= {"reply": seen.reply.as_json(), "more": seen.scope.names["more"]}
    if not _is_true(scope, same):
        raise StartConflict("this key belongs to an execution of another workflow or with another input")


def _is_true(scope: Scope, source: str) -> bool:
    try:
        return scope.is_true(source)
    except MappingError as error:
        raise EngineUnavailable(f"its reply cannot be read: {error}", silent=False) from None
