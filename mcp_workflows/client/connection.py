"""A client of one server that acts as a host of one revision; for the command line."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from typing import Any, Protocol

import anyio
import httpx2
import mcp_types as types
from mcp.client import Client, ClientRequestContext
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from mcp_workflows.client import OnStatus, TaskHandle, TasksClient, TaskState
from mcp_workflows.client.follower import bare
from mcp_workflows.client.v2025_11_25 import InCoreTaskRequests
from mcp_workflows.errors import ClientError, OperatorError, ServerUnreachable
from mcp_workflows.wire import v2026_07_28 as wire

_US = "mcp-workflows"


class ClientKind(StrEnum):
    """The protocol revision and the kind of tasks of a client."""

    TASKS = wire.PROTOCOL_VERSION  # 2026-07-28 with the tasks extension
    LEGACY = "2025-11-25"  # 2025-11-25 with the tasks of its core
    NONE = "none"  # the newest version without the tasks extension


class Elicit(Protocol):
    """Asks a person a question. `key` is the server's name of the question; None in revisions without keys."""

    async def __call__(self, key: str | None, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Return the person's answer; an `OperatorError` ends the call."""
        ...


@dataclass(frozen=True, slots=True)
class Begun:
    """The task that a call returned, with its handle if the revision has handles."""

    state: TaskState
    handle: TaskHandle | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An open connection to a server, and the tasks of its revision."""

    client: Client
    tasks: TasksClient
    in_core: InCoreTaskRequests | None

    @property
    def offers_tasks(self) -> bool:
        """True if calls of a client with the extension can become tasks on this server."""
        declared = self.client.server_capabilities.extensions or {}
        return self.client.protocol_version == wire.PROTOCOL_VERSION and wire.EXTENSION in declared

    async def tools(self) -> Sequence[types.Tool]:
        """Return all tools of the server."""
        page = await self.client.list_tools()
        found = list(page.tools)
        while page.next_cursor:
            page = await self.client.list_tools(cursor=page.next_cursor)
            found += page.tools
        return found

    async def start(
        self,
        tool: types.Tool,
        arguments: Mapping[str, Any],  # Any: JSON
        *,
        key: str | None = None,
        progress: ProgressFnT | None = None,
    ) -> Begun | types.CallToolResult:
        """Call a tool; return its result, or the task if the call became one.

        Raises:
            MCPError: a JSON-RPC error, or a refused question.
        """
        if self.in_core and self.in_core.offered(tool):
            return Begun(await self.in_core.start(tool.name, arguments, key))
        started = await self.tasks.start(
            self.client, tool.name, arguments, idempotency_key=key, progress_callback=progress
        )
        if isinstance(started, types.CallToolResult):
            return started
        assert started.begun is not None, "it was just begun"
        return Begun(started.begun, started)

    async def result(self, begun: Begun | str) -> types.CallToolResult:
        """Return the result of a task from `start`, or from its id.

        Raises:
            MCPError: task not found, no reply, or a JSON-RPC error as the outcome.
            TaskCancelled: the task was cancelled.
        """
        task_id = begun if isinstance(begun, str) else begun.state.task_id
        if self.in_core:
            return await self.in_core.result(task_id)
        handle = None if isinstance(begun, str) else begun.handle
        return await (handle or self.tasks.handle(self.client, task_id)).result()


class _ElicitationCallback:
    """The callback for questions; an unanswered question cancels `scope`.

    In 2025-11-25 a question is a request of the server, and the SDK does not pass an error of its callback on.
    """

    def __init__(self, elicit: Elicit) -> None:
        self.scope = anyio.CancelScope()
        self.unanswered: OperatorError | None = None
        self._elicit = elicit

    async def __call__(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        if isinstance(context.request_id, str):
            return await self._elicit(context.request_id, params)
        try:
            return await self._elicit(None, params)
        except OperatorError as error:
            self.unanswered = error
            self.scope.cancel()
            return types.ErrorData(code=types.INTERNAL_ERROR, message="nobody is there to answer")


@asynccontextmanager
async def connect(
    server: Any,  # as mcp.client.Client takes it: a URL, a server in this process, a transport
    *,
    kind: ClientKind,
    on_status: OnStatus,
    elicit: Elicit,
) -> AsyncGenerator[Connection]:
    """Connect to a server within this context; raise a single error without groups around it.

    Raises:
        ServerUnreachable: the server does not reply, or the connection was lost.
    """
    tasks = TasksClient(on_status=on_status)
    asking = _ElicitationCallback(elicit)
    client = Client(
        server,
        mode="legacy" if kind is ClientKind.LEGACY else "auto",
        extensions=[tasks] if kind is ClientKind.TASKS else None,
        elicitation_callback=asking,
        client_info=types.Implementation(name=_US, version=version(_US)),
    )
    try:
        async with client:
            in_core = InCoreTaskRequests(client.session, on_status) if kind is ClientKind.LEGACY else None
            with asking.scope:
                yield Connection(client=client, tasks=tasks, in_core=in_core)
        if asking.unanswered:
            raise asking.unanswered
    except BaseExceptionGroup as errors:
        raise _translated(bare(errors.subgroup(httpx2.TransportError) or errors)) from None


def _translated(error: BaseException) -> BaseException:
    """Translate foreign errors (HTTP, the SDK, models) into ours; return other errors unchanged."""
    match error:
        case httpx2.TransportError():
            return ServerUnreachable(f"no answer ({error or type(error).__name__})")
        case MCPError():  # our own requests handle their errors, so this is the handshake
            return ServerUnreachable(f"no MCP server answers at that address ({error.message})")
        case ValidationError() | RuntimeError():
            return ClientError(f"the server violates the protocol: {str(error).splitlines()[0]}")
        case _:
            return error
