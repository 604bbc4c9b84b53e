"""The start of an execution: one request, what its reply says about the key, and the search for the key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from mcp_workflows.adapter import JSON, Start, StartGuarantee, Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound, MappingError, StartConflict
from mcp_workflows.kit.definition import Reading
from mcp_workflows.kit.expressions import REPLY, Scope, as_object, names_in, order_names
from mcp_workflows.kit.reply_reader import execution_of
from mcp_workflows_http.client import ApiClient
from mcp_workflows_http.definition import Search
from mcp_workflows_http.describe import describe
from mcp_workflows_http.errors import said, start_error
from mcp_workflows_http.handle import Handle, run_of
from mcp_workflows_http.reply import Reply
from mcp_workflows_http.settings import HttpSettings

_LONGEST_KEPT: Final = 64 * 1024  # bytes of a reply in a handle


def order_scope(start: Start, settings: HttpSettings) -> Scope:
    """Return the scope of expressions about an order."""
    names = order_names(start, settings.settling.total_seconds())
    return Scope(names={**names, "vars": settings.vars})


async def start_execution(client: ApiClient, settings: HttpSettings, definition: str, start: Start) -> Handle:
    """Send the request that starts an execution, once, and return the handle.

    Raises:
        StartConflict: the key belongs to another order.
        EngineRefused: definitely not started.
        EngineUnavailable: the outcome is unknown.
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


async def send_message(client: ApiClient, settings: HttpSettings, start: Start) -> Handle:
    """Send a message to an execution, once, and return a handle with its result.

    Raises:
        EngineRefused: definitely not sent.
        EngineUnavailable: the outcome is unknown.
    """
    try:
        how, target = settings.actions[start.options["request"]], Handle.parse(start.target or "")
    except KeyError:
        known = ", ".join(settings.actions) or "none"
        raise EngineRefused(f"the engine has no message {start.options['request']} (actions: {known})") from None
    except ExecutionNotFound as error:
        raise EngineRefused(str(error), final=True) from None
    scope = order_scope(start, settings) | target.scope(start.options).names
    reply = await client.send(how.request, scope, changes=True)
    scope |= {"reply": reply.as_json()}
    if how.refused_if is not None and _is_true(scope, how.refused_if):
        raise EngineRefused(said(reply), final=True)
    if not reply.ok:
        raise start_error(reply, how.sends)
    written = {"sent": start.options["request"], "to": target.name} if how.output is None else how.output
    seen = execution_of(Reading(output=written), Status.SUCCEEDED, None, scope, name=target.name)
    result = {"output": seen.output, "failure": seen.failure and seen.failure.text}
    if len(json.dumps(result)) > _LONGEST_KEPT:
        result = {
            "failure": f"it was delivered, but its result has more than {_LONGEST_KEPT:,} bytes, which is too long"
        }
    return Handle.of(target.run, start, settings, "", reply=result)


async def find_executions(
    client: ApiClient, settings: HttpSettings, how: Search, definition: str, start: Start
) -> Sequence[Handle]:
    """Return the executions of this key in the API's list, oldest first.

    Raises:
        StartConflict: the key belongs to another order.
        EngineUnavailable: the list cannot be read.
    """
    scope = order_scope(start, settings)
    found: list[tuple[Handle, Scope]] = []
    async for item in client.items(how, scope):
        each = scope | {"item": item}
        try:
            if each.is_true(how.where):
                found.append((Handle.of(run_of(each.value(how.handle)), start, settings, definition), each))
        except MappingError as error:
            raise EngineUnavailable(f"its list cannot be read: {error}", silent=False) from None
    if found:  # the list has the newest first
        await check_same(client, settings, found[-1][0], start, found[-1][1])
    return [handle for handle, _ in reversed(found)]


def _kept(reply: Reply) -> JSON:
    """Return a reply in the form that a handle keeps, without a body that is too long."""
    body = reply.text if len(reply.content) <= _LONGEST_KEPT else '{"truncated": true}'
    return {"status": reply.status, "body": body}


def _run(written: JSON, scope: Scope, reply: Reply) -> JSON:
    """Return the handle in a reply.

    Raises:
        EngineUnavailable: the reply has none, but the execution may have started.
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
    """Check that the execution of a key has the same order, if the definition says how.

    Raises:
        StartConflict: the order differs.
        EngineUnavailable: no answer.
    """
    same = settings.start.same
    if same is None:
        return
    if names_in(same) & REPLY:
        seen = await describe(client, settings, handle, start.options)
        scope |= {"reply": seen.reply.as_json(), "more": seen.scope.names["more"]}
    if not _is_true(scope, same):
        raise StartConflict("this key belongs to an execution of another workflow or with another input")


def _is_true(scope: Scope, source: str) -> bool:
    try:
        return scope.is_true(source)
    except MappingError as error:
        raise EngineUnavailable(f"its reply cannot be read: {error}", silent=False) from None
