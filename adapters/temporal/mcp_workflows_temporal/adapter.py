"""TemporalAdapter: the four verbs, and further capabilities, for one Temporal namespace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, ClassVar, Self
from uuid import UUID, uuid5

import anyio
from pydantic import BaseModel
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import JSON, Adapter, EndedExecution, Execution, Message, Ref, Start, StartGuarantee
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows_temporal.client import Frontend, Handle, is_open
from mcp_workflows_temporal.connection import Connection
from mcp_workflows_temporal.describe import describe, describe_many
from mcp_workflows_temporal.errors import unless_ended
from mcp_workflows_temporal.gate_rules import GateSettings, is_gate_key
from mcp_workflows_temporal.gates import Gates
from mcp_workflows_temporal.messages import MessageHandle, read_outcome, send
from mcp_workflows_temporal.questions import ProgressQueries, answer_questions
from mcp_workflows_temporal.settings import (
    START_OPTIONS,
    Place,
    TemporalAction,
    TemporalOptions,
    TemporalSettings,
    message_in,
)
from mcp_workflows_temporal.start import read_start, start_execution
from mcp_workflows_temporal.tooling import TemporalTooling
from mcp_workflows_temporal.tooling.discover import adopt, list_ended

REQUEST_IDS = UUID("6f8f5f0e-6f0b-5d0c-9a53-0f7c2f3f6f52")  # the namespace of request ids of cancelling signals
SETTLE = 0.1  # seconds for the SDK's core to release ended calls: see `__aexit__`


class TemporalAdapter(Adapter):
    """Temporal workflows as executions; connects with the first call.

    It has the capabilities of `mcp_workflows.adapter` that Temporal supports.
    """

    Settings: ClassVar[type[BaseModel]] = TemporalSettings
    Options: ClassVar[type[BaseModel]] = TemporalOptions
    GateSettings: ClassVar[type[BaseModel] | None] = GateSettings
    ActionSettings: ClassVar[type[BaseModel] | None] = TemporalAction
    starts: ClassVar[StartGuarantee] = StartGuarantee.KEYED
    start_options: ClassVar[frozenset[str]] = START_OPTIONS
    tooling: Any = TemporalTooling  # Any: see `Adapter.tooling`

    def __init__(self, settings: TemporalSettings) -> None:
        self._settings = settings
        self._given: Client | None = None
        self._connection: Connection | None = None
        self._opened: Frontend | None = None
        self._gates = Gates()
        self._queried = ProgressQueries()
        self._waits: set[anyio.CancelScope] = set()
        self._has_waited = False
        self.tooling = TemporalTooling(settings, lambda: self._frontend, self._gates, self, self._connected)

    @classmethod
    def from_client(cls, client: Client, settings: TemporalSettings | None = None) -> Self:
        """Use your own client, with its data converter and interceptors; the adapter does not close it.

        Of the settings, only `task_queue`, `ui_url`, `timeout_seconds` and `max_input_bytes` apply. If you use MCP over
        stdout, give the client a runtime that does not log there: `runtime=connection.quiet_runtime()`.
        """
        adapter = cls(settings or TemporalSettings())
        adapter._given = client
        return adapter

    @property
    def identity(self) -> str:
        """The namespace; see `Adapter.identity`."""
        return f"temporal:{self._frontend.place.namespace}"

    async def __aenter__(self) -> Self:
        """Read certificates and Temporal's own configuration; send no request.

        Raises:
            ConfigError: a file cannot be read.
        """
        timeout = timedelta(seconds=self._settings.timeout_seconds)
        if self._given is None:
            self._connection = connection = Connection(self._settings)
            self._opened = Frontend(await connection.open(), connection.place, timeout, connection.renew)
        else:
            address = self._given.service_client.config.target_host
            place = Place.of(address, self._given.namespace, self._settings.ui_url)
            self._opened = Frontend(self._given, place, timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the client.

        The SDK cannot close a client, and an interpreter that exits while the SDK's core holds a call, even a just
        cancelled one, hangs or crashes (1.35). So leave no call open, and give the core 0.1 s.
        """
        self._opened = None
        for scope in self._waits:
            scope.cancel()
        if self._given is None or self._has_waited:
            with anyio.CancelScope(shield=True):
                if self._connection is not None:
                    await self._connection.aclose()
                await anyio.sleep(SETTLE)

    async def start(self, start: Start) -> str:
        """Start with the tool's workflow id, or `mcp-{key}`; see `Adapter.start`."""
        frontend, queue = self._frontend, self._settings.task_queue
        if (message := self.message(start.options)) is not None:
            try:
                async with frontend.call():
                    sent = await send(frontend, start, queue, self._settings.max_input_bytes)
            except EngineUnavailable as error:
                error.sent = error.sent and not message.reads
                raise
            return sent.model_dump_json(exclude_defaults=True)
        request = read_start(start, queue)
        async with frontend.call():
            return str(await start_execution(frontend, request, self._settings.max_input_bytes))

    async def describe(self, ref: Ref) -> Execution:
        """Send one DescribeWorkflowExecution, which needs no worker; for a closed execution, one more for the outcome.

        A tool with gates needs more requests, see `docs/use/gates.md`; see `Adapter.describe`.
        """
        frontend = self._frontend
        async with frontend.call():
            if self.message(ref.options) is not None:
                return await read_outcome(frontend, MessageHandle.parse(ref.handle), ref.options)
            return await describe(frontend, ref, self._gates, self._queried)

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Deliver answers as updates, which the workflow validates, or as signals if no worker is up.

        Raises:
            EngineRefused: the workflow does not accept an answer.
            ExecutionNotFound, EngineUnavailable: see `Adapter.answer`.
        """
        frontend, handle = self._frontend, Handle.parse(ref.handle)
        sent = (key for key, response in responses.items() if "send" in response)  # only responses to gates have it
        to_gates = {key: responses[key] for key in sent if is_gate_key(key, ref.gates)}
        async with frontend.call():
            if to_gates:
                await self._gates.answer(frontend, ref, to_gates)
            if len(to_gates) < len(responses) or not to_gates:
                await answer_questions(frontend, handle, responses)

    async def cancel(self, ref: Ref) -> None:
        """Request the cancellation of the whole chain of runs, or send the tool's own signal; see `Adapter.cancel`.

        The request id of the signal is the same for each call, so that Temporal keeps one signal per execution.
        """
        if self.message(ref.options) is not None:
            raise EngineRefused("a message that was sent cannot be taken back")
        frontend, handle, signal = self._frontend, Handle.parse(ref.handle), TemporalOptions.final(ref.options).cancel
        async with frontend.call():
            if signal is None:
                await frontend.request_cancel(handle)
            elif is_open(await frontend.describe_chain(handle)):
                with unless_ended():
                    request_id = str(uuid5(REQUEST_IDS, str(handle)))
                    await frontend.signal(handle.execution, signal.signal, signal.args, request_id)

    async def terminate(self, ref: Ref, reason: str) -> None:
        """Terminate the chain of runs; its workers notice at their next report. See `Terminates.terminate`."""
        frontend, handle = self._frontend, Handle.parse(ref.handle)
        async with frontend.call():
            try:
                await frontend.terminate(handle, reason)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                await frontend.describe_chain(handle)  # Temporal returns the same error for an ended chain

    async def adopt(self, execution_id: str) -> Ref:
        """Return the execution with this workflow id, or `id/run id`; see `Adopts.adopt`."""
        frontend = self._frontend
        async with frontend.call():
            return await adopt(frontend, execution_id)

    async def list_ended(self, workflow: str, since: datetime) -> Sequence[EndedExecution]:
        """Send one ListWorkflowExecutions, and one DescribeWorkflowExecution per ended execution; see `ListsEnded`."""
        frontend = self._frontend
        async with frontend.call():
            return await list_ended(frontend, workflow, since)

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """Send one ListWorkflowExecutions per 200 executions; see `DescribesMany.describe_many`."""
        frontend = self._frontend
        async with frontend.call():
            return await describe_many(frontend, refs)

    async def wait(self, ref: Ref) -> None:
        """Wait for the end of the chain with a long poll; see `Waits.wait`."""
        frontend, handle, self._has_waited = self._frontend, Handle.parse(ref.handle), True
        with anyio.CancelScope() as scope:
            self._waits.add(scope)
            try:
                await frontend.wait_for_end(handle)
            finally:
                self._waits.discard(scope)
        if scope.cancelled_caught:
            raise EngineUnavailable("the adapter was closed while somebody waited")

    @staticmethod
    def message(options: Mapping[str, JSON]) -> Message | None:
        """Return the signal, update or query; see `Adapter.message`."""
        if (found := message_in(options)) is None:
            return None
        kind, name = found
        return Message(name=f"{kind} {name}", address=options.get("workflow_id"), reads=kind == "query")

    @staticmethod
    def fleeting(options: Mapping[str, JSON]) -> bool:
        """True for a query, which starts nothing; see `Adapter.fleeting`."""
        return bool(options.get("query"))

    async def _connected(self) -> Client:
        """Return a connected client for a worker."""
        if self._connection is None:
            return self._frontend.client
        async with self._frontend.call():
            return await self._connection.open(lazy=False)

    @property
    def _frontend(self) -> Frontend:
        if self._opened is None:
            raise RuntimeError("enter the adapter first: async with TemporalAdapter(settings) as adapter")
        return self._opened
