"""Cancelling: one request, to an execution that still runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import anyio

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import EngineRefused
from mcp_workflows.kit.expressions import lenient
from mcp_workflows_http.client import ApiClient
from mcp_workflows_http.definition import ApiDefinition
from mcp_workflows_http.error_translation import change_error
from mcp_workflows_http.handle import Handle
from mcp_workflows_http.look import look

_AGAIN: Final = 0.1  # seconds


async def cancel(client: ApiClient, definition: ApiDefinition, handle: Handle, options: Mapping[str, JSON]) -> None:
    """Ask to cancel it, unless it has ended: some APIs then rewrite how it ended.

    The caller bounds the time, as some executions cannot be cancelled while they begin.

    Raises:
        EngineRefused: this API cannot cancel, or not this one.
        ExecutionNotFound, EngineUnavailable: see `look`.
    """
    how = definition.cancel
    if how is None:
        raise EngineRefused("this API cannot cancel an execution")
    while not (seen := await look(client, definition, handle, options, with_log=False)).execution.terminal:
        if how.when is None or lenient(partial(seen.scope.is_true, how.when)):
            break
        await anyio.sleep(_AGAIN)
    else:
        return
    reply = await client.send(how.request, seen.scope, changes=True)
    if not reply.ok and reply.status not in how.late:
        raise change_error(reply)
