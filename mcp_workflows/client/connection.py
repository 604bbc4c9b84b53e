"""A client of one server that speaks as a host of one era would; for our own command line."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from typing import Any, Protocol

import httpx2
import mcp_types as types
from mcp.client import Client, ClientRequestContext
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from mcp_workflows.client import OnChange, TasksClient
from mcp_workflows.client.following import bare
from mcp_workflows.errors import ClientError, ServerUnreachable
from mcp_workflows.wire import v2026_07_28 as wire

_US = "mcp-workflows"


class Era(StrEnum):
    """Which kind of client to be."""

    TASKS = wire.PROTOCOL_VERSION  # of that version, with the tasks extension
    LEGACY = "2025-11-25"
    NONE = "none"  # of the newest version, without the tasks extension


class Elicit(Protocol):
    """How a question reaches the person; `key` is the server's name for it, None where the era has none."""

    async def __call__(self, key: str | None, params: types.ElicitRequestParams) -> types.ElicitResult:
        """The person's answer; what it raises ends the call."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An open connection to a server."""

    client: Client
    tasks: TasksClient

    @property
    def offers_tasks(self) -> bool:
        """Whether calls of a client with the extension can become tasks here."""
        declared = self.client.server_capabilities.extensions or {}
        return self.client.protocol_version == wire.PROTOCOL_VERSION and wire.EXTENSION in declared

    async def tools(self) -> Sequence[types.Tool]:
        """All that the server has."""
        page = await self.client.list_tools()
        found = list(page.tools)
        while page.next_cursor:
            page = await self.client.list_tools(cursor=page.next_cursor)
            found += page.tools
        return found


@asynccontextmanager
async def connect(
    server: Any,  # what mcp.client.Client takes: a URL, a server in this process, a transport
    *,
    era: Era,
    on_change: OnChange,
    elicit: Elicit,
) -> AsyncGenerator[Connection]:
    """Connect, speak, leave; one error is raised as it is, without groups around it.

    Raises:
        ServerUnreachable: it does not answer, or went away meanwhile.
    """
    tasks = TasksClient(on_change)

    async def ask(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        return await elicit(context.request_id if isinstance(context.request_id, str) else None, params)

    client = Client(
        server,
        mode="legacy" if era is Era.LEGACY else "auto",
        extensions=[tasks] if era is Era.TASKS else None,
        elicitation_callback=ask,
        client_info=types.Implementation(name=_US, version=version(_US)),
    )
    try:
        async with client:
            yield Connection(client=client, tasks=tasks)
    except BaseExceptionGroup as errors:
        raise _said(bare(errors.subgroup(httpx2.TransportError) or errors)) from None


def _said(error: BaseException) -> BaseException:
    """Errors of strangers (HTTP, the SDK, models) as ours; everything else as it is."""
    match error:
        case httpx2.TransportError():
            return ServerUnreachable(f"no answer ({error or type(error).__name__})")
        case MCPError():  # our own requests' errors are handled where they are sent: this is the handshake
            return ServerUnreachable(f"no MCP server answers there ({error.message})")
        case ValidationError() | RuntimeError():
            return ClientError(f"the server does not keep to the protocol: {str(error).splitlines()[0]}")
        case _:
            return error
