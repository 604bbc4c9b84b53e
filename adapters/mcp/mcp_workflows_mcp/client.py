"""The MCP server of an engine: one connection, opened when needed, and again after a loss."""

from __future__ import annotations

import codecs
import logging
import math
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from encodings.utf_8 import IncrementalDecoder
from importlib.metadata import version
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import anyio
import anyio.to_thread
import httpx2
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.client import Client, ClientRequestContext, Transport
from mcp.client.session import ElicitationFnT, IncomingMessage
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from mcp_workflows.adapter import JSON, closest
from mcp_workflows.adapter.display_text import cleaned
from mcp_workflows.adapter.redaction import KNOWN
from mcp_workflows.client import TasksClient, TaskState, reconnecting_http
from mcp_workflows.client.requests import TaskRequests
from mcp_workflows.client.v2025_11_25 import InCoreTaskRequests
from mcp_workflows.errors import (
    AdapterBroke,
    ClientError,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    MappingError,
)
from mcp_workflows.kit.expressions import Scope, as_list, as_object
from mcp_workflows_mcp.auth import credentials_of
from mcp_workflows_mcp.definition import ToolCall
from mcp_workflows_mcp.errors import (
    UNEXPECTED,
    connection_error,
    ends_connection,
    is_no_answer,
    is_reply,
    knows_no_session,
    request_error,
)
from mcp_workflows_mcp.open_calls import OpenCalls
from mcp_workflows_mcp.reply import Reply
from mcp_workflows_mcp.settings import McpSettings

logger = logging.getLogger(__name__)

_DISTRIBUTION: Final = "mcp-workflows"
_CONNECT_SECONDS: Final = 120.0  # for the handshake: npx and uvx first install a program
_AGAIN_AFTER: Final = 1.0  # seconds after a failed attempt to connect; doubles with each attempt
_LONGEST_PAUSE: Final = 30.0  # seconds between two attempts
_SILENT: Final = 3  # consecutive calls without an answer, after which the connection is given up
_SILENT_SECONDS: Final = 600.0  # seconds without any answer until even a connection with open calls is given up
_LONGEST_LINE: Final = 400  # characters to keep of a line of a program's standard error
_LAST_WORDS_SECONDS: Final = 1.0  # for the rest of it, after the program has ended
_READ_AT_A_TIME: Final = 8192  # bytes of such a line
_MOST_PAGES: Final = 100  # of a list of tools
_MOST_TOOLS: Final = 10_000
_LIST_AGAIN_AFTER: Final = 5.0  # the fields of a list besides its tools
_LIST: Final = "tools/list"
_PAGE: Final = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}  # of a list, besides its tools
_MOST_NAMES: Final = 20  # of tools in a text
_LONGEST_NAME: Final = 100  # characters

MAX_LINE: Final = 32 * 2**20  # bytes in a line of a program
_LINES: Final = "mcp_workflows_lines"  # the name of the codec that limits lines
_GIVE_UP: ContextVar[Callable[[], None]] = ContextVar("mcp_workflows_mcp_give_up")  # of the new connection

_BREAKS: Final = (OSError, RuntimeError, ValueError, MCPError, ClientError, httpx2.HTTPError, ExceptionGroup)
"""Errors of a connection; a group contains any of them, or errors of the transport."""

ElicitationHandler: TypeAlias = Callable[
    ["Connection", ClientRequestContext, types.ElicitRequestParams], Awaitable[types.ElicitResult]
]
"""Answers a question of the server."""


class _LineDecoder(IncrementalDecoder):
    """The decoder of a program's output, which gives up a program if a line is too long.

    The SDK reads lines of any length into memory, and takes a codec by name.
    """

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._give_up = _GIVE_UP.get()
        self._length = 0  # bytes of the current line

    def decode(  # Any: bytes
        self,
        input: Any,  # noqa: A002  # as in codecs
        final: bool = False,  # as in codecs
    ) -> str:
        """Decode a part of the output.

        Raises:
            BrokenResourceError: the line is too long; the connection is given up.
        """
        end = input.rfind(b"\n")
        self._length = self._length + len(input) if end < 0 else len(input) - end - 1
        if self._length > MAX_LINE:
            logger.warning("a program wrote a line of more than %d bytes: the connection was closed", MAX_LINE)
            self._give_up()
            raise anyio.BrokenResourceError
        return super().decode(input, final)


def _find_codec(name: str) -> codecs.CodecInfo | None:
    utf8 = codecs.lookup("utf-8")
    return codecs.CodecInfo(utf8.encode, utf8.decode, incrementaldecoder=_LineDecoder) if name == _LINES else None


codecs.register(_find_codec)


async def _ignore(_: TaskState) -> None:
    """Ignore a task's state: the poller polls by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An open connection, and the tasks of its protocol revision."""

    over: anyio.Event  # set it to give up the connection
    client: Client
    tasks: TasksClient
    in_core: InCoreTaskRequests | None  # of 2025-11-25

    @property
    def offers_tasks(self) -> bool:
        """True if calls can become tasks of the extension of 2026-07-28."""
        declared = self.client.server_capabilities.extensions or {}
        return self.in_core is None and TasksClient.identifier in declared

    @property
    def task_requests(self) -> TaskRequests:
        """The requests about tasks of the extension; none is repeated, as the poller polls again."""
        return TaskRequests(session=self.client.session, timeout=0.0)

    async def tools(self) -> Mapping[str, types.Tool]:
        """Return the current tools of the server by name; of an endless list, the first ones.

        Raises:
            MCPError: the server returns no list.
        """
        found: dict[str, types.Tool] = {}
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
            page = await self.client.session.list_tools(params=params)
            found |= {tool.name: tool for tool in page.tools}
            cursor = page.next_cursor
            if not cursor or len(found) > _MOST_TOOLS:
                break
        return found


@dataclass(slots=True)
class _Attempt:
    """A connection that is being opened, or is open."""

    done: anyio.Event = field(default_factory=anyio.Event)
    connection: Connection | None = None
    error: EngineError | None = None
    again_at: float = 0.0
    silent: int = 0  # consecutive calls without an answer
    answered_at: float = field(default_factory=anyio.current_time)  # time of the last answer


class Upstream:
    """One MCP server."""

    def __init__(self, settings: McpSettings, calls: OpenCalls, answer_elicitation: ElicitationHandler) -> None:
        """`calls` are those that a lost connection would lose."""
        self._settings = settings
        self._credentials = credentials_of(settings.auth, settings.url or "")
        self._calls = calls
        self._answer_elicitation = answer_elicitation
        self._attempt: _Attempt | None = None
        self._tasks: TaskGroup | None = None
        self._tools: Mapping[str, types.Tool] = {}
        self._is_stale = True
        self._listed_at = -math.inf
        self._failures = 0  # consecutive failed attempts to connect

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[TaskGroup]:
        """Enable use while this is entered; yield the group of the tasks that run beside calls."""
        async with anyio.create_task_group() as self._tasks:
            yield self._tasks
            self._tasks.cancel_scope.cancel()

    # --- the connection

    async def connection(self) -> Connection:
        """Return the open connection.

        Raises:
            EngineUnavailable: there is no connection now; nothing was sent.
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
            return anyio.current_time() >= attempt.again_at
        return attempt.connection.over.is_set()

    async def _hold(self, attempt: _Attempt) -> None:
        """Connect, and keep the connection until it is over."""
        try:
            async with self.connect(self._answer_elicitation) as attempt.connection:
                self._is_stale, self._listed_at, self._failures = True, -math.inf, 0
                self._calls.forget_abandoned()
                attempt.done.set()
                await attempt.connection.over.wait()
        except EngineError as error:
            if attempt.done.is_set():
                logger.info("the connection to an MCP server ended: %s", error)
            attempt.error = error
        except UNEXPECTED as error:  # here it would end the whole engine
            logger.exception("a connection to an MCP server ended unexpectedly")
            attempt.error = AdapterBroke(f"its adapter failed ({type(error).__name__}); see the log")
        if attempt.connection is not None:
            attempt.connection.over.set()
        else:
            attempt.again_at = anyio.current_time() + min(_AGAIN_AFTER * 2.0**self._failures, _LONGEST_PAUSE)
            self._failures += 1
        attempt.done.set()

    @asynccontextmanager
    async def connect(self, answer_elicitation: ElicitationHandler) -> AsyncGenerator[Connection]:
        """Connect for as long as this is entered.

        Raises:
            EngineUnavailable: the server does not answer, or the connection broke.
        """
        opened: list[Connection] = []
        over = anyio.Event()

        async def answer(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
            return await answer_elicitation(opened[0], context, params)  # questions come after the handshake

        tasks = TasksClient()
        with _Stderr() as stderr:
            try:
                with anyio.fail_after(_CONNECT_SECONDS) as handshake:

                    def give_up() -> None:
                        over.set()
                        handshake.deadline = min(handshake.deadline, anyio.current_time() if not opened else math.inf)

                    _GIVE_UP.set(give_up)
                    async with self._client(tasks, answer, stderr, over) as client:
                        handshake.deadline = math.inf
                        setattr(client.session, "validate_tool_result", _accept)  # noqa: B010  # it is not a field
                        _skip_malformed_tools(client)
                        is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
                        in_core = None if is_modern else InCoreTaskRequests(client.session, _ignore)
                        opened.append(Connection(over=over, client=client, tasks=tasks, in_core=in_core))
                        yield opened[0]
            except EngineError:
                raise
            except _BREAKS as error:
                raise connection_error(error, await stderr.last_line()) from None

    def _client(self, tasks: TasksClient, answer: ElicitationFnT, stderr: _Stderr, over: anyio.Event) -> Client:
        how = self._settings
        if how.url is None:
            program, *args = how.command
            env = {name: value.get_secret_value() for name, value in how.env.items()}
            parameters = StdioServerParameters(command=program, args=args, env=env, cwd=how.cwd, encoding=_LINES)
            server: Transport = _watched(stdio_client(parameters, errlog=stderr.file), over)
        else:
            server = reconnecting_http(how.url, headers=how.headers, auth=self._credentials)
        return Client(
            server,
            extensions=[tasks],
            elicitation_callback=answer,
            message_handler=self._on_message,
            client_info=types.Implementation(name=_DISTRIBUTION, version=version(_DISTRIBUTION)),
        )

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._is_stale = True

    # --- tools

    async def tools(self, *, fresh: bool = False) -> Mapping[str, types.Tool]:
        """Return the tools of the server by name; `fresh`: list them again.

        Raises:
            EngineUnavailable: the server returns no list now; nothing else was sent.
        """
        connection = await self.connection()
        is_due = self._is_stale and anyio.current_time() >= self._listed_at + _LIST_AGAIN_AFTER
        if fresh or is_due:
            self._is_stale, is_listed = False, False
            try:
                async with self.translated(sent=False):
                    found = await connection.tools()
                is_listed = True
            finally:
                self._is_stale = self._is_stale or not is_listed
            self._listed_at = anyio.current_time()
            _log_differences(self._tools, found)
            self._tools = found
        return self._tools

    async def tool(self, name: str) -> types.Tool:
        """Return a tool of the server.

        Raises:
            EngineRefused: the server has no tool of this name.
            EngineUnavailable: the server returns no list now.
        """
        found = (await self.tools()).get(name) or (await self.tools(fresh=True)).get(name)
        if found is None:
            raise EngineRefused(f"the server has no tool {name!r}; {hint_for(name, self._tools)}")
        return found

    async def call(self, how: ToolCall, scope: Scope) -> Reply:
        """Call a tool, once, and return its reply.

        Raises:
            EngineRefused: these values make no valid call, or the server does not know the tool or the arguments.
            EngineUnavailable: no answer.
        """
        name, arguments = render_call(how, scope)
        tool = await self.tool(name)
        connection = await self.connection()
        seconds = self._settings.timeout.total_seconds()
        with self._calls.request():
            async with self.translated():
                try:
                    result = await connection.client.session.call_tool(
                        name, arguments, seconds, allow_input_required=True, allow_claimed=True
                    )
                except MCPError as error:
                    if is_reply(error):
                        return Reply.of_error(error.code, error.message)
                    raise
        if not isinstance(result, types.CallToolResult):
            raise EngineUnavailable(f"{name} did not answer at once: it asks, or became a task", silent=False)
        return self.reply(result, tool, how)

    async def read(self, how: ToolCall, scope: Scope) -> Reply:
        """Call a tool that changes nothing; without its reply, the result is unknown.

        Raises:
            EngineUnavailable: no answer, or these values make no valid call.
        """
        try:
            return await self.call(how, scope)
        except EngineRefused as error:
            raise EngineUnavailable(str(error), silent=False) from None

    def reply(self, result: types.CallToolResult, tool: types.Tool, how: ToolCall) -> Reply:
        """Return the reply in the result of a tool."""
        return Reply.of(result, tool.output_schema, how.extract)

    @asynccontextmanager
    async def translated(self, *, sent: bool = True) -> AsyncGenerator[None]:
        """Translate the errors of a request, and record whether the server still answers.

        Raises:
            EngineRefused, EngineUnavailable: see `errors`.
        """
        attempt = self._attempt
        assert attempt is not None, "there is a connection"
        try:
            yield
        except (MCPError, ClientError, ValidationError, RuntimeError, httpx2.TransportError) as error:
            ours = request_error(error, sent=sent)
            is_silent = (isinstance(ours, EngineUnavailable) and ours.silent) or is_no_answer(error)
            self._count(attempt, has_answered=not is_silent)
            is_lost = ends_connection(error) or (self._settings.url is not None and knows_no_session(error))
            if is_lost and attempt.connection is not None:
                attempt.connection.over.set()
            raise ours from None
        self._count(attempt, has_answered=True)

    def note_silence(self) -> None:
        """Record that a call got no answer in time."""
        attempt = self._attempt
        if attempt is not None and attempt.connection is not None:
            self._count(attempt, has_answered=False)

    def _count(self, attempt: _Attempt, *, has_answered: bool) -> None:
        """Give up a connection after several consecutive calls without an answer.

        If the connection has an open call that would be lost, it gets much more time.
        """
        if has_answered:
            attempt.silent, attempt.answered_at = 0, anyio.current_time()
            return
        attempt.silent += 1
        if attempt.connection is None or attempt.connection.over.is_set() or attempt.silent < _SILENT:
            return
        if not self._calls.are_open or anyio.current_time() > attempt.answered_at + _SILENT_SECONDS:
            logger.warning("an MCP server did not answer %d calls in a row: reconnecting", _SILENT)
            attempt.connection.over.set()


def render_call(how: ToolCall, scope: Scope) -> tuple[str, dict[str, JSON]]:
    """Return the name of the tool, and its arguments.

    Raises:
        EngineRefused: these values make no valid call.
    """
    try:
        name, arguments = scope.text(how.tool), as_object(scope.value(how.args))
    except MappingError as error:
        raise EngineRefused(str(error), final=True) from None
    if arguments is None:
        raise EngineRefused(f"the arguments of {name} are no object", final=True)
    return name, dict(arguments)


def _log_differences(before: Mapping[str, types.Tool], now: Mapping[str, types.Tool]) -> None:
    """Log changes in the server's list of tools."""
    if not before:
        return
    changed = [name for name in before.keys() & now.keys() if before[name].input_schema != now[name].input_schema]
    parts = {"new": now.keys() - before.keys(), "gone": before.keys() - now.keys(), "with another input": changed}
    if changes := "; ".join(f"{what}: {named(names)}" for what, names in parts.items() if names):
        logger.warning("the tools of an MCP server have changed: %s", changes)


def hint_for(name: str, tools: Iterable[str]) -> str:
    """Return what an unknown tool name may mean."""
    listed = list(tools)
    meant = closest(name, listed)
    return f"did you mean {cleaned(meant, _LONGEST_NAME)!r}?" if meant else f"it has {named(listed)}"


def named(tools: Iterable[str]) -> str:
    """Return the names of tools as a text for people, cleaned, as a server may put text for people into names."""
    names = sorted(tools)
    shown = [" ".join(cleaned(name, _LONGEST_NAME).split()) for name in names[:_MOST_NAMES]]
    return (
        ", ".join([*shown, *([f"and {len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else [])]) or "none"
    )


async def _accept(name: str, result: types.CallToolResult) -> None:
    """Accept any result: the definition says how to read it.

    The SDK checks results against the output schema of the tool, in unlimited time (its `pattern` is a regular
    expression of the server). A result that does not match would be lost although an execution was started.
    """


def _skip_malformed_tools(client: Client) -> None:
    """Remove malformed tools from each list before the SDK reads it: one of them makes the SDK refuse the list."""
    dispatcher: Any = getattr(client.session, "_dispatcher")  # noqa: B009  # Any: private; the SDK has no other way in
    send, version = dispatcher.send_raw_request, client.protocol_version

    def is_tool(tool: JSON) -> bool:
        try:
            validate_server_result(_LIST, version, {**_PAGE, "tools": [tool]})
            types.Tool.model_validate(tool, by_name=False)
        except ValidationError as error:
            name = cleaned(str((as_object(tool) or {}).get("name")), _LONGEST_NAME)
            logger.warning("a tool of an MCP server is malformed and omitted: %r (%s)", name, error.errors()[0]["msg"])
            return False
        return True

    async def send_and_filter(method: str, *args: Any, **more: Any) -> Any:  # Any: as the SDK has it
        page = await send(method, *args, **more)
        tools = as_list(page.get("tools")) if method == _LIST else None
        return page if tools is None else {**page, "tools": [tool for tool in tools if is_tool(tool)]}

    dispatcher.send_raw_request = send_and_filter


@asynccontextmanager
async def _watched(transport: Transport, over: anyio.Event) -> AsyncGenerator[Any]:  # Any: private to the SDK
    """Set `over` when a program ends, so that no call is sent to an ended program."""
    async with transport as (read, write):
        yield _Watched(read, over), write


class _Watched:
    """The messages of a program; `over` is set after the last one."""

    def __init__(self, messages: Any, over: anyio.Event) -> None:  # Any: the SDK does not export the type
        self._messages = messages
        self._over = over

    async def receive(self) -> Any:  # Any: as the SDK has it
        try:
            return await self._messages.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._over.set()
            raise

    async def aclose(self) -> None:
        self._over.set()
        await self._messages.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:  # Any: as the SDK has it
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class _Stderr:
    """The standard error of a program: it is logged, and its last line explains a failed start."""

    def __init__(self) -> None:
        read, write = os.pipe()
        self.file = os.fdopen(write, "w")
        self._lines: deque[str] = deque(maxlen=1)
        self._thread = threading.Thread(target=self._copy, args=(read,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()  # the thread ends when the program has closed its end

    def _copy(self, read: int) -> None:
        with os.fdopen(read, "rb") as lines:
            while line := lines.readline(_READ_AT_A_TIME):
                text = cleaned(KNOWN.mask(line.decode("utf-8", "replace")).strip(), _LONGEST_LINE)
                if text:
                    self._lines.append(text)
                    logger.debug("a program says: %s", text)

    async def last_line(self) -> str:
        """Return the last line of an ended program, or an empty text."""
        self.file.close()
        await anyio.to_thread.run_sync(self._thread.join, _LAST_WORDS_SECONDS)
        return self._lines[-1] if self._lines else ""
