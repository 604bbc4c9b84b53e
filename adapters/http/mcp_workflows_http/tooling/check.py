"""Checks, without changes, that the API answers and accepts our credentials."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from mcp_workflows.adapter import Finding, Start, StartGuarantee
from mcp_workflows.errors import EngineError, EngineUnavailable, MappingError
from mcp_workflows.kit.definition import promise_of
from mcp_workflows.kit.expressions import CLOCKS_DIFFER, Scope, as_object, names_in
from mcp_workflows_http.client import ApiClient
from mcp_workflows_http.definition import Method, Request
from mcp_workflows_http.errors import said
from mcp_workflows_http.handle import Handle
from mcp_workflows_http.settings import HttpSettings
from mcp_workflows_http.start import order_scope

_NOT_LET_IN = {401: "check auth", 403: "check auth", 407: "check proxy"}
_NOBODYS = "0"  # an id; some APIs accept only numbers


async def check_engine(client: ApiClient, settings: HttpSettings) -> Finding:
    """Check that the API answers, with the request of the definition for this, or at the API's own URL."""
    request = settings.check.engine or Request(method=Method.GET, path="/")
    try:
        reply = await client.send(request, Scope(names={"vars": settings.vars}))
    except EngineError as error:
        hint = "check url, proxy and tls" if isinstance(error, EngineUnavailable) else None
        return Finding(ok=False, text=str(error), hint=hint)
    if reply.status in _NOT_LET_IN:
        return Finding(ok=False, text=said(reply), hint=_NOT_LET_IN[reply.status])
    if reply.is_server_error or (settings.check.engine is not None and not reply.ok):
        return Finding(ok=False, text=said(reply), hint="check url")
    if settings.check.engine is not None and not reply.is_json:
        return Finding(ok=False, text=f"it answered {reply.status} with a page that is not JSON", hint="check url")
    ahead = 0.0 if reply.date is None else reply.date - time.time()
    if abs(ahead) > CLOCKS_DIFFER:
        how = "ahead of" if ahead > 0 else "behind"
        return Finding(
            ok=False, text=f"its clock is {abs(ahead):.0f} s {how} ours", hint="set the clock of this machine"
        )
    return Finding(
        ok=True, text=f"{settings.url} answers ({reply.status}); {promise_of(settings.starts)}", hint=_advice(settings)
    )


def _advice(settings: HttpSettings) -> str | None:
    """Return what would make retries safe, if they are not."""
    return settings.check.advice if settings.starts is StartGuarantee.ONCE else None


async def check_workflow(client: ApiClient, settings: HttpSettings, start: Start) -> Finding:
    """Check that the workflow exists, if the definition says how, and that the search works."""
    scope, texts = order_scope(start, settings), list[str]()
    try:
        client.prepare(settings.start.request, scope)
        if settings.check.workflow is not None:
            reply = await client.send(settings.check.workflow, scope)
            if not reply.ok:
                return Finding(ok=False, text=f"workflow {start.workflow}: {said(reply)}")
            texts.append("is there")
        if settings.find is not None and settings.find.request.method is Method.GET:
            async for item in client.items(settings.find, scope):
                (scope | {"item": item}).is_true(settings.find.where)
                break
            texts.append("its executions can be searched")
        if (wrong := await _poll_nobodys(client, settings, start)) is not None:
            return Finding(ok=False, text=f"workflow {start.workflow}: {wrong}", hint="check describe")
    except (EngineUnavailable, MappingError) as error:
        return Finding(ok=False, text=f"workflow {start.workflow}: {error}")
    except EngineError as error:  # a value that only a call has
        return Finding(ok=None, text=f"workflow {start.workflow}: {error}")
    if not texts:
        return Finding(ok=None, text=f"workflow {start.workflow}: this API cannot show it without a start")
    return Finding(ok=True, text=f"workflow {start.workflow} {', '.join(texts)}")


async def _poll_nobodys(client: ApiClient, settings: HttpSettings, start: Start) -> str | None:
    """Poll an execution that nobody started, which changes nothing; return the problem with the answer."""
    request = settings.describe.request
    if request.method is not Method.GET or "handle" not in names_in([request.path, request.query]):
        return None  # a URL from the API cannot be made up
    parts = as_object(settings.start.handle)
    run = _NOBODYS if parts is None else dict.fromkeys(parts, _NOBODYS)
    reply = await client.send(request, Handle.of(run, start, settings, "").scope(start.options))
    refuses_the_id = reply.is_client_error and reply.status not in _NOT_LET_IN
    if not (reply.ok or refuses_the_id or reply.status in settings.describe.codes):
        return f"a poll of {_NOBODYS} fails: {said(reply)}"
    return None if reply.is_json else f"a poll of {_NOBODYS} gets a page that is not JSON ({reply.status})"


def made_up(workflow: str, options: dict[str, object]) -> Start:
    """Return an invented order, for checks."""
    return Start(workflow=workflow, arguments={}, key="check-0", created=datetime.now(UTC), options=options)
