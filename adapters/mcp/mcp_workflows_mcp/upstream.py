"""The MCP server behind an engine: one connection, opened when it is needed, and again when it is lost."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final, Self, TypeAlias

import anyio
import httpx2
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.client import Client, ClientRequestContext, Transport
from mcp.client.session import ElicitationFnT, IncomingMessage
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from mcp_workflows.adapter import JSON, closest
from mcp_workflows.adapter.display_text import cleaned
from mcp_workflows.adapter.expressions import Scope, as_object
from mcp_workflows.client import TasksClient, TaskState, reconnecting_http
from mcp_workflows.client.retries import TaskRequests
from mcp_workflows.client.v2025_11_25 import InCoreTaskRequests
from mcp_workflows.errors import ClientError, EngineError, EngineRefused, EngineUnavailable, MappingError
from mcp_workflows_mcp.auth import auth_of, without_secrets
from mcp_workflows_mcp.definition import ToolCall
from mcp_workflows_mcp.error_translation import connection_error, is_over, is_reply, request_error
from mcp_workflows_mcp.reply import Reply
from mcp_workflows_mcp.settings import McpSettings

logger = logging.getLogger(__name__)

_DISTRIBUTION: Final = "mcp-workflows"
_AGAIN_AFTER: Final = 1.0  # seconds after a failed attempt to connect, at least
_SILENT: Final = 3  # calls in a row without an answer, after which the connection is given up
_LONGEST_LINE: Final = 400  # characters of a line of a program's standard error
_MOST_PAGES: Final = 100  # of a list of tools

_BREAKS: Final = (OSError, RuntimeError, ValueError, MCPError, ClientError, httpx2.HTTPError, ExceptionGroup)
"""Errors of a connection; a group has any of them, or of the transport's own."""

Asked: TypeAlias = Callable[
    ["Connection", ClientRequestContext, types.ElicitRequestParams], Awaitable[types.ElicitResult]
]
"""Answers a question of the server."""


async def _ignore(_: TaskState) -> None:
    """Hear of a task's state: the poller looks by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An open connection, and the tasks of its revision."""

    client: Client
    tasks: TasksClient
    in_core: InCoreTaskRequests | None  # of 2025-11-25
    over: anyio.Event = field(default_factory=anyio.Event)  # set it to give the connection up

    @property
    def offers_tasks(self) -> bool:
        """True if calls can become tasks of the extension of 2026-07-28."""
        declared = self.client.server_capabilities.extensions or {}
        return self.in_core is None and TasksClient.identifier in declared

    def task_requests(self, patience: float) -> TaskRequests:
        """Return the requests about tasks of the extension."""
        return TaskRequests(session=self.client.session, patience=patience)

    async def tools(self) -> Mapping[str, types.Tool]:
        """Return all tools of the server, by name, as they are now.

        Raises:
            MCPError: no list.
        """
        found: dict[str, types.Tool] = {}
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
            page = await self.client.session.list_tools(params=params)
            found |= {tool.name: tool for tool in page.tools}
            cursor = page.next_cursor
            if not cursor:
                break
        return found


@dataclass(slots=True)
class _Attempt:
    """A connection that is being opened, or is open."""

    done: anyio.Event = field(default_factory=anyio.Event)
    connection: Connection | None = None
    error: EngineError | None = None
    failed_at: float = 0.0
    silent: int = 0  # calls in a row without an answer


class Upstream:
    """One MCP server."""

    def __init__(self, settings: McpSettings, asked: Asked) -> None:
        """`asked` answers the server's questions."""
        self._settings = settings
        self._asked = asked
        self._attempt: _Attempt | None = None
        self._tasks: TaskGroup | None = None
        self._tools: Mapping[str, types.Tool] = {}
        self._is_stale = True
        self.is_busy: Callable[[], bool] = lambda: False  # a call is open that would be lost with the connection

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[TaskGroup]:
        """Be usable while this is entered; yield the task group of what goes on beside calls."""
        async with anyio.create_task_group() as self._tasks:
            yield self._tasks
            self._tasks.cancel_scope.cancel()

    def masked(self, text: str) -> str:
        """Return a text without our credentials."""
        return without_secrets(text, self._settings.secrets)

    # --- the connection

    async def connection(self) -> Connection:
        """Return the open connection.

        Raises:
            EngineUnavailable: there is none now; nothing was sent.
        """
        attempt = self._attempt
        if attempt is None or self._is_worn_out(attempt):
            if self._tasks is None:
                raise RuntimeError("enter the adapter first: async with")
            attempt = self._attempt = _Attempt()
            self._tasks.start_soon(self._hold, attempt)
        await attempt.done.wait()
        if attempt.connection is None:
            raise attempt.error or EngineUnavailable("it cannot be connected to", sent=False)
        return attempt.connection

    def _is_worn_out(self, attempt: _Attempt) -> bool:
        """True if another attempt to connect is due."""
        if not attempt.done.is_set():
            return False
        if attempt.connection is None:
            return anyio.current_time() >= attempt.failed_at + _AGAIN_AFTER
        return attempt.connection.over.is_set()

    async def _hold(self, attempt: _Attempt) -> None:
        """Connect, and keep the connection until it is over."""
        try:
            async with self.connect(self._asked) as attempt.connection:
                self._is_stale = True
                attempt.done.set()
                await attempt.connection.over.wait()
        except EngineError as error:
            if attempt.done.is_set():
                logger.info("the connection to an MCP server ended: %s", error)
            attempt.error = error
        if attempt.connection is not None:
            attempt.connection.over.set()
        attempt.failed_at = anyio.current_time()
        attempt.done.set()

    @asynccontextmanager
    async def connect(self, asked: Asked) -> AsyncGenerator[Connection]:
        """Connect for as long as this is entered.

        Raises:
            EngineUnavailable: the server does not answer, or the connection broke.
        """
        opened: list[Connection] = []

        async def answer(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
            return await asked(opened[0], context, params)  # questions come after the handshake

        tasks = TasksClient()
        with _Stderr() as stderr:
            try:
                async with self._client(tasks, answer, stderr) as client:
                    is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
                    in_core = None if is_modern else InCoreTaskRequests(client.session, _ignore)
                    opened.append(Connection(client=client, tasks=tasks, in_core=in_core))
                    yield opened[0]
            except EngineError:
                raise
            except _BREAKS as error:
                raise connection_error(error, self.masked(stderr.last)) from None

    def _client(self, tasks: TasksClient, answer: ElicitationFnT, stderr: _Stderr) -> Client:
        how = self._settings
        if how.url is None:
            program, *args = how.command
            env = {name: value.get_secret_value() for name, value in how.env.items()}
            parameters = StdioServerParameters(command=program, args=args, env=env, cwd=how.cwd)
            server: Transport = stdio_client(parameters, errlog=stderr.file)
        else:
            server = reconnecting_http(how.url, headers=how.headers, auth=auth_of(how.auth, how.url))
        return Client(
            server,
            extensions=[tasks],
            elicitation_callback=answer,
            message_handler=self._heard,
            client_info=types.Implementation(name=_DISTRIBUTION, version=version(_DISTRIBUTION)),
        )

    async def _heard(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._is_stale = True

    # --- tools

    async def tools(self, *, fresh: bool = False) -> Mapping[str, types.Tool]:
        """Return the tools of the server by name; `fresh`: ask it again.

        Raises:
            EngineUnavailable: it gives no list now; nothing was sent besides.
        """
        connection = await self.connection()
        if fresh or self._is_stale:
            self._is_stale = False
            async with self.translated(sent=False):
                found = await connection.tools()
            _log_differences(self._tools, found)
            self._tools = found
        return self._tools

    async def tool(self, name: str) -> types.Tool:
        """Return a tool of the server.

        Raises:
            EngineRefused: it has none of this name.
            EngineUnavailable: it gives no list now.
        """
        found = (await self.tools()).get(name) or (await self.tools(fresh=True)).get(name)
        if found is None:
            meant = closest(name, self._tools)
            hint = f"did you mean {meant!r}?" if meant else f"it has {', '.join(sorted(self._tools)) or 'none'}"
            raise EngineRefused(f"the server has no tool {name!r}; {hint}")
        return found

    async def call(self, how: ToolCall, scope: Scope) -> Reply:
        """Call a tool, once, and return its reply.

        Raises:
            EngineRefused: the call cannot be made of these values, or the server knows no such tool or arguments.
            EngineUnavailable: no answer.
        """
        name, arguments = prepared(how, scope)
        tool = await self.tool(name)
        connection = await self.connection()
        seconds = self._settings.timeout.total_seconds()
        async with self.translated():
            try:
                result = await connection.client.session.call_tool(
                    name, arguments, seconds, allow_input_required=True, allow_claimed=True
                )
            except MCPError as error:
                if is_reply(error):
                    return Reply.of_error(error.code, error.message, self.masked)
                raise
        if not isinstance(result, types.CallToolResult):
            raise EngineUnavailable(f"{name} did not answer at once: it asks, or became a task", silent=False)
        return self.reply(result, tool, how)

    def reply(self, result: types.CallToolResult, tool: types.Tool, how: ToolCall) -> Reply:
        """Return the reply in the result of a tool."""
        return Reply.of(result, tool.output_schema, how.extract, self.masked)

    @asynccontextmanager
    async def translated(self, *, sent: bool = True) -> AsyncGenerator[None]:
        """Translate errors of a request; note whether the server still answers.

        Raises:
            EngineRefused, EngineUnavailable: see `error_translation`.
        """
        attempt = self._attempt
        assert attempt is not None, "there is a connection"
        try:
            yield
        except (MCPError, ClientError, ValidationError, RuntimeError, httpx2.TransportError) as error:
            ours = request_error(error, sent=sent)
            self._count(attempt, has_answered=not (isinstance(ours, EngineUnavailable) and ours.silent))
            if is_over(error) and attempt.connection is not None:
                attempt.connection.over.set()
            ours.args = (self.masked(str(ours)),)
            raise ours from None
        self._count(attempt, has_answered=True)

    def _count(self, attempt: _Attempt, *, has_answered: bool) -> None:
        """Give up a connection on which several calls in a row got no answer, unless a call would be lost with it."""
        attempt.silent = 0 if has_answered else attempt.silent + 1
        if attempt.silent >= _SILENT and attempt.connection is not None and not self.is_busy():
            logger.warning("an MCP server gave no answer to %d calls in a row: it is connected to again", _SILENT)
            attempt.connection.over.set()


def prepared(how: ToolCall, scope: Scope) -> tuple[str, dict[str, JSON]]:
    """Return the name of the tool, and its arguments.

    Raises:
        EngineRefused: they cannot be made of these values.
    """
    try:
        name, arguments = scope.text(how.tool), as_object(scope.value(how.args))
    except MappingError as error:
        raise EngineRefused(str(error), final=True) from None
    if arguments is None:
        raise EngineRefused(f"the arguments of {name} are no object", final=True)
    return name, dict(arguments)


def _log_differences(before: Mapping[str, types.Tool], now: Mapping[str, types.Tool]) -> None:
    """Log what has changed in the server's list of tools."""
    if not before:
        return
    changed = [name for name in before.keys() & now.keys() if before[name].input_schema != now[name].input_schema]
    parts = {"new": now.keys() - before.keys(), "gone": before.keys() - now.keys(), "with another input": changed}
    if told := "; ".join(f"{what}: {', '.join(sorted(names))}" for what, names in parts.items() if names):
        logger.warning("the tools of an MCP server have changed: %s", told)


class _Stderr:
    """The standard error of a program: it is logged, and its last line tells why the program does not start."""

    def __init__(self) -> None:
        read, write = os.pipe()
        self.file = os.fdopen(write, "w")
        self._lines: deque[str] = deque(maxlen=1)
        self._thread = threading.Thread(target=self._copy, args=(read,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()  # the thread ends when the program has closed its end, too

    def _copy(self, read: int) -> None:
        with os.fdopen(read, "rb") as lines:
            for line in lines:
                text = cleaned(line[:_LONGEST_LINE].decode("utf-8", "replace").strip(), _LONGEST_LINE)
                if text:
                    self._lines.append(text)
                    logger.debug("a program says: %s", text)

    @property
    def last(self) -> str:
        """The last line so far; empty if there is none."""
        return self._lines[-1] if self._lines else ""
