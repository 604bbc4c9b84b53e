"""Adapter for MCP servers whose tools start, describe, answer and cancel one execution."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self
from urllib.parse import parse_qsl

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.client import ClientRequestContext
from pydantic import BaseModel

from mcp_workflows.adapter import (
    JSON,
    Adapter,
    Allowance,
    Execution,
    Message,
    Notes,
    Ref,
    Start,
    StartGuarantee,
    digest,
)
from mcp_workflows.adapter.redaction import KNOWN
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound, ResultUnavailable
from mcp_workflows.kit.definition import action_settings
from mcp_workflows.kit.expressions import as_object
from mcp_workflows.kit.kept_definitions import KeptDefinitions, KeptStates
from mcp_workflows.kit.reply_reader import AskedQuestion, answer_scope
from mcp_workflows_mcp.client import Connection, Upstream
from mcp_workflows_mcp.definition import Ask, Search, ToolsDefinition
from mcp_workflows_mcp.describe import describe
from mcp_workflows_mcp.errors import change_error, holds
from mcp_workflows_mcp.handle import Handle, HandleKind
from mcp_workflows_mcp.open_calls import OpenCalls
from mcp_workflows_mcp.settings import McpAction, McpOptions, McpSettings
from mcp_workflows_mcp.start import StartCalls, find_executions
from mcp_workflows_mcp.tooling import McpTooling
from mcp_workflows_mcp.upstream_tasks import UpstreamTasks, task_of

_LONGEST_CALL: Final = timedelta(seconds=10)  # of the core to an engine
_LONGEST_PAUSE: Final = 60.0  # maximum seconds between two polls that a server can demand

_CREDENTIAL: Final = re.compile(r"secret|passw|passphrase|token|key|credential|auth|cookie", re.IGNORECASE)


class McpAdapter(Adapter):
    """Adapter for an MCP server."""

    Settings: ClassVar[type[BaseModel]] = McpSettings
    Options: ClassVar[type[BaseModel]] = McpOptions
    ActionSettings: ClassVar[type[BaseModel] | None] = McpAction
    starts: ClassVar[StartGuarantee] = StartGuarantee.ONCE  # the definition may promise more
    tooling: Any = McpTooling  # Any: see `Adapter.tooling`

    def __init__(self, settings: McpSettings) -> None:
        self._settings = settings
        self._definitions = KeptDefinitions[ToolsDefinition](settings, settings.definition, ToolsDefinition)
        KNOWN.add_all(settings)
        self._calls = OpenCalls(is_local=settings.is_local)
        self._upstream = Upstream(settings, self._calls, self._answer_elicitation)
        self._tasks = UpstreamTasks(self._upstream, self._calls.elicitations)
        self._starts = StartCalls(self._upstream, settings, self._calls)
        self._kept = KeptStates()
        self._exit = AsyncExitStack()
        self._group: TaskGroup | None = None
        self.tooling = McpTooling(settings, self._upstream, self._definitions)
        self.starts = settings.starts  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # its own
        self.ActionSettings = action_settings(McpAction, "tool", settings.actions)  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # its own
        if settings.find is not None:  # only then does the instance have the methods of `Finds`
            self.find, self.settling = partial(self._find, settings.find), _LONGEST_CALL + settings.settling

    def remember(self, notes: Notes) -> None:
        """Keep definitions and open calls in the notes; see `Remembers.remember`."""
        self._definitions.remember(notes)
        self._calls.notes = notes

    @property
    def identity(self) -> str:
        """The URL, or the program with a digest of what determines its target; see `Adapter.identity`.

        The query of a URL, the arguments of a program and its variables may be secrets, so only the digest contains
        them. The digest omits values with the name of a credential, as a new token does not make another engine.
        """
        settings = self._settings
        place, _, query = (settings.url or Path(settings.command[0]).name).partition("?")
        named = [*parse_qsl(query), *((name, text.get_secret_value()) for name, text in settings.env.items())]
        led = [settings.command, str(settings.cwd), [each for each in named if not _CREDENTIAL.search(each[0])]]
        return f"mcp:{place}#{digest(led)[:12]}" if settings.command or led[2] else f"mcp:{place}"

    async def __aenter__(self) -> Self:
        """Connect nothing; the first call does."""
        self._group = await self._exit.enter_async_context(self._upstream.running())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection, and stop a program."""
        self._group = None
        await self._exit.aclose()

    async def connect_engine(self) -> None:
        """Start the program, or open a session with the server; see `ConnectsLate.connect_engine`."""
        await self._upstream.connection()

    async def start(self, start: Start) -> str:
        """Call the tool that starts an execution, once; see `Adapter.start`."""
        await self._definitions.keep()
        target = None if self.message(start.options) is None else await self._target(start)
        call = self._starts.begin(start, self._definitions.current_digest, self._running, target)
        with anyio.move_on_after(self._settings.timeout.total_seconds()):
            await call.changed.wait()
        if call.error is not None:
            raise call.error
        if call.outcome is not None and "handle" in call.outcome:
            return str(call.outcome["handle"])
        asks = self._calls.elicitations.requests(call.id)
        if call.outcome is None and not asks:
            self._upstream.note_silence()
            if self.promise(start.options) is not StartGuarantee.ONCE:
                call.scope.cancel()  # a retry or a search is safe
                raise EngineUnavailable(self._late())
        await self._calls.keep(call, self._running)
        return Handle.of(HandleKind.CALL, call.id, start, self._definitions.current_digest).text()

    async def _target(self, start: Start) -> Handle:
        """Return the handle of the execution that a message is for.

        Raises:
            EngineRefused: there is none, or the engine's `actions` do not have the message.
        """
        if start.options["tool"] not in self._settings.actions:
            known = ", ".join(self._settings.actions) or "none"
            raise EngineRefused(f"the engine has no message {start.options['tool']} (actions: {known})")
        try:
            handle = await self._resolved(Ref(workflow=start.workflow, handle=start.target or ""))
        except ExecutionNotFound as error:
            raise EngineRefused(str(error), final=True) from None
        if handle.kind is HandleKind.CALL:
            raise EngineRefused("its call is not answered yet, so that the server has no name for it")
        return handle

    async def describe(self, ref: Ref) -> Execution:
        """Poll once, by the definition at its start; see `Adapter.describe`."""
        if kept := self._kept.get(ref.handle):
            return kept
        try:
            async with self._in_time():
                try:
                    execution, wait = await self._describe(ref)
                except ResultUnavailable as error:
                    execution, wait = await self._definitions.without_result(ref.handle, error), 0.0
        except EngineRefused as error:
            raise EngineUnavailable(str(error), silent=False) from None
        if wait > 0 and not execution.terminal:
            self._kept.keep(ref.handle, execution, min(wait, _LONGEST_PAUSE))
        return execution

    async def _describe(self, ref: Ref) -> tuple[Execution, float]:
        """Return the execution, and the seconds until the server accepts the next poll."""
        handle = Handle.parse(ref.handle)
        if handle.kind is HandleKind.CALL:
            found = await self._calls.describe(handle.name)
            if isinstance(found, Execution):
                return found, 0.0
            handle = Handle.parse(found)
        if handle.kind is HandleKind.TASK:
            return await self._tasks.describe(handle.name, self._running)
        definition = await self._definitions.get(handle.definition)
        seen = await describe(self._upstream, definition, handle, ref.options)
        if seen.unmapped is not None:
            await self._definitions.note_unmapped(seen.unmapped)
        return seen.execution, 0.0

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Send answers to open questions; see `Adapter.answer`."""
        self._kept.drop(ref.handle)
        async with self._in_time():
            handle = await self._resolved(ref)
            if handle.kind is HandleKind.CALL:
                await self._calls.answer(handle.name, responses)
            elif handle.kind is HandleKind.TASK:
                await self._tasks.answer(handle.name, responses)
            else:
                definition = await self._definitions.get(handle.definition)
                seen = await describe(self._upstream, definition, handle, ref.options)
                for key in responses.keys() & seen.questions.keys():
                    await self._send_answer(seen.questions[key], as_object(responses[key]) or {}, ref.principal)

    async def _send_answer(self, question: AskedQuestion[Ask], response: Mapping[str, JSON], principal: JSON) -> None:
        """Deliver a response to an open question; an answered one is ignored.

        Raises:
            EngineRefused: the server does not accept it, or the question cannot be declined.
            EngineUnavailable: it may not have arrived.
        """
        how = question.how
        if how.is_on_engine_page:
            return  # the person went to the page or not; a poll shows it
        call = how.send if response.get("action") == "accept" else how.decline
        if call is None:
            raise EngineRefused("this question cannot be declined: cancel the task in its place")
        scope = answer_scope(how, question.scope, as_object(response.get("content")) or {}, principal)
        reply = await self._upstream.call(call, scope)
        if reply.is_error and not holds(how.late_if, reply.within(scope)):
            raise change_error(reply)

    async def cancel(self, ref: Ref) -> None:
        """Request cancellation of an execution, unless it has ended; see `Adapter.cancel`."""
        self._kept.drop(ref.handle)
        async with self._in_time():
            handle = await self._resolved(ref)
            if handle.kind is HandleKind.CALL:
                await self._calls.cancel(handle.name)
            elif handle.kind is HandleKind.TASK:
                await self._tasks.cancel(handle.name)
            else:
                definition = await self._definitions.get(handle.definition)
                await self._cancel(definition, handle, ref.options)

    async def _cancel(self, definition: ToolsDefinition, handle: Handle, options: Mapping[str, JSON]) -> None:
        """Request cancellation of an execution of the definition's tools, unless it has ended.

        Raises:
            EngineRefused: the definition has no tool for this, or the tool refuses.
        """
        how = definition.cancel
        if how is None:
            raise EngineRefused("this server has no tool that cancels an execution (cancel)")
        seen = await describe(self._upstream, definition, handle, options)
        if seen.execution.terminal:
            return
        reply = await self._upstream.call(how, seen.scope)
        if reply.is_error and not holds(how.late_if, reply.within(seen.scope)):
            raise change_error(reply)

    async def _resolved(self, ref: Ref) -> Handle:
        """Return the handle to which a call has led, if any."""
        handle = Handle.parse(ref.handle)
        if handle.kind is not HandleKind.CALL:
            return handle
        found = await self._calls.describe(handle.name)
        return handle if isinstance(found, Execution) else Handle.parse(found)

    # --- questions of the server

    async def _answer_elicitation(
        self, connection: Connection, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult:
        """Answer a question of the server after a person has; a question of an uncertain execution gets no answer."""
        task_id = task_of(context)
        if task_id is not None and connection.in_core is not None:
            return await self._calls.elicitations.ask(task_id, params)
        is_modern = connection.in_core is None  # there a question answers the call, and its work asks it
        call = self._calls.current if is_modern else await self._calls.only_candidate()
        if call is None:
            return types.ElicitResult(action="cancel")
        return await self._calls.elicitations.ask(call.id, params)

    # --- further capabilities

    @staticmethod
    def message(options: Mapping[str, JSON]) -> Message | None:
        """Return the tool of the engine's `actions`; see `Adapter.message`."""
        name = options.get("tool")
        return Message(name=f"tool {name}") if name else None

    def promise(self, options: Mapping[str, JSON]) -> StartGuarantee:
        """Return the guarantee of the definition for a start or a message; see `Adapter.promise`."""
        if self.message(options) is None:
            return self.starts
        action = self._settings.actions.get(options["tool"])
        return StartGuarantee.ONCE if action is None else action.sends

    @property
    def allowance(self) -> Allowance:
        """The polls per second; see `Limited.allowance`."""
        return Allowance(polls_per_second=self._settings.polls_per_second, batch_every=_LONGEST_PAUSE, batch=1)

    async def _find(self, how: Search, start: Start) -> str | None:
        """Return the oldest execution of a key, and cancel the newer ones; see `Finds.find`."""
        async with self._in_time():
            digest = self._definitions.current_digest
            found = await find_executions(self._upstream, self._settings, how, digest, start)
            for handle in found[1:]:
                await self._cancel(self._settings, handle, start.options)
        return found[0].text() if found else None

    @property
    def _running(self) -> TaskGroup:
        if self._group is None:
            raise RuntimeError("enter the adapter first: async with")
        return self._group

    def _late(self) -> str:
        return f"no answer within {self._settings.timeout.total_seconds():g} s (timeout)"

    @asynccontextmanager
    async def _in_time(self) -> AsyncGenerator[None]:
        """Limit the time of all calls of one operation together."""
        try:
            with anyio.fail_after(self._settings.timeout.total_seconds()):
                yield
        except TimeoutError:
            self._upstream.note_silence()
            raise EngineUnavailable(self._late()) from None
