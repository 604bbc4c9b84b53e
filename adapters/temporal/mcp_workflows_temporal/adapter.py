"""TemporalAdapter: the four verbs, and further capabilities, for one Temporal namespace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import ClassVar, Self
from uuid import UUID, uuid5

import anyio
from pydantic import BaseModel
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import (
    JSON,
    Discovered,
    Execution,
    Explanation,
    Finding,
    Fixtures,
    Gate,
    Nothing,
    Ref,
    Replayed,
    Start,
    StartGuarantee,
    WorkflowSchema,
)
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows_temporal.client import Frontend, Handle, is_open
from mcp_workflows_temporal.connection import Connection
from mcp_workflows_temporal.describe import describe, describe_many
from mcp_workflows_temporal.errors import unless_ended
from mcp_workflows_temporal.gate_rules import GateSettings, is_gate_key
from mcp_workflows_temporal.gates import Gates
from mcp_workflows_temporal.questions import answer_questions
from mcp_workflows_temporal.settings import START_OPTIONS, Place, TemporalOptions, TemporalSettings, is_template
from mcp_workflows_temporal.start import preview, read_start, refuse_unwritable, start_execution
from mcp_workflows_temporal.tooling.check import check_engine, check_queue, read_references, verify, verify_arguments
from mcp_workflows_temporal.tooling.discover import adopt, discover
from mcp_workflows_temporal.tooling.explain import explain
from mcp_workflows_temporal.tooling.fixtures import NOTICE, fixtures
from mcp_workflows_temporal.tooling.replay import replay
from mcp_workflows_temporal.tooling.schema import embedded_files, find_mismatches, read_schema

REQUEST_IDS = UUID(
    "6f8f5f0e-6f0b-5d0c-9a53-0f7c2f3f6f52"
)  # the UUID namespace of the request ids of cancelling signals
SETTLE = 0.1  # seconds for the SDK's core to release ended calls: see `__aexit__`


class TemporalAdapter:
    """Temporal workflows as executions; connects with the first call.

    Satisfies `Adapter`, and those protocols of `mcp_workflows.adapter.capabilities` that Temporal can.
    """

    Settings: ClassVar[type[BaseModel]] = TemporalSettings
    Options: ClassVar[type[BaseModel]] = TemporalOptions
    GateSettings: ClassVar[type[BaseModel]] = GateSettings
    starts: ClassVar[StartGuarantee] = StartGuarantee.KEYED
    start_options: ClassVar[frozenset[str]] = START_OPTIONS
    first_settings: ClassVar[Mapping[str, str]] = {
        "address": "${TEMPORAL_ADDRESS:-localhost:7233}",
        "namespace": "${TEMPORAL_NAMESPACE:-default}",
        "task_queue": "",
    }

    def __init__(self, settings: TemporalSettings) -> None:
        self._settings = settings
        self._given: Client | None = None
        self._connection: Connection | None = None
        self._opened: Frontend | None = None
        self._gates = Gates()
        self._waits: set[anyio.CancelScope] = set()
        self._has_waited = False

    @classmethod
    def from_client(cls, client: Client, settings: TemporalSettings | None = None) -> Self:
        """Use your own client, with its data converter and interceptors; the adapter does not close it.

        Of the settings only `task_queue`, `ui_url`, `timeout_seconds` and `max_input_bytes` count. Give the client a
        runtime that does not log to stdout if you speak MCP there: `runtime=connection.quiet_runtime()`.
        """
        adapter = cls(settings or TemporalSettings())
        adapter._given = client
        return adapter

    @property
    def identity(self) -> str:
        """The namespace; see `Identified.identity`."""
        return f"temporal:{self._frontend.place.namespace}"

    async def __aenter__(self) -> Self:
        """Read certificates and Temporal's own configuration; send no request.

        Raises:
            ConfigError: one of these cannot be read.
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

        The SDK has no close, and an interpreter that ends while its core still holds a call, even one just
        cancelled, hangs or crashes (1.35). So no call is left open, and the core gets 0.1 s.
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
        """Start under the workflow id of the tool, or `mcp-{key}`; see `Adapter.start`."""
        frontend, request = self._frontend, read_start(start, self._settings.task_queue)
        async with frontend.call():
            return str(await start_execution(frontend, request, self._settings.max_input_bytes))

    async def describe(self, ref: Ref) -> Execution:
        """Send one DescribeWorkflowExecution, no worker needed; once closed, one more request for the outcome.

        A tool with gates needs more requests, see `mcp-workflows docs gates`; see `Adapter.describe`.
        """
        frontend = self._frontend
        async with frontend.call():
            return await describe(frontend, Handle.parse(ref.handle), partial(self._gates.read, frontend, ref))

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Deliver answers as updates, which the workflow validates; as signals if no worker is up.

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

        The request id of the signal is the same for each call, so that Temporal keeps one signal for each execution.
        """
        frontend, handle, signal = self._frontend, Handle.parse(ref.handle), TemporalOptions.final(ref.options).cancel
        async with frontend.call():
            if signal is None:
                await frontend.request_cancel(handle)
            elif is_open(await frontend.describe_chain(handle)):
                with unless_ended():
                    request_id = str(uuid5(REQUEST_IDS, str(handle)))
                    await frontend.signal(handle.execution, signal.signal, signal.args, request_id)

    def preview(self, start: Start) -> Mapping[str, JSON]:
        """Return the StartWorkflowExecution that `start` would send; see `Previews.preview`."""
        frontend, request = self._frontend, read_start(start, self._settings.task_queue)
        refuse_unwritable(frontend.converter(request.id), request.arguments, self._settings.max_input_bytes)
        return preview(request, frontend.place.namespace)

    async def explain(self, ref: Ref) -> Explanation:
        """Explain the state: attempts, last errors, pollers; a few requests. See `Explains.explain`."""
        frontend, execution = self._frontend, await self.describe(ref)
        async with frontend.call():
            read_gates = partial(self._gates.read, frontend, ref)
            return await explain(frontend, Handle.parse(ref.handle), execution, ref.gates, read_gates)

    async def terminate(self, ref: Ref, reason: str) -> None:
        """Terminate the chain of runs; its workers learn of it when they next report. See `Terminates.terminate`."""
        frontend, handle = self._frontend, Handle.parse(ref.handle)
        async with frontend.call():
            try:
                await frontend.terminate(handle, reason)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                await frontend.describe_chain(handle)  # Temporal gives the same error for a chain that has ended

    async def adopt(self, execution_id: str) -> Ref:
        """Return the execution with this workflow id, or `id/run id`; see `Adopts.adopt`."""
        frontend = self._frontend
        async with frontend.call():
            return await adopt(frontend, execution_id)

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """Send one ListWorkflowExecutions for each 200 of them; see `Sweeps.describe_many`."""
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

    async def check_engine(self) -> Finding:
        """Check that Temporal answers and has the namespace."""
        return await check_engine(self._frontend)

    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        """Check that somebody polls the workflow's task queue; options may have placeholders."""
        try:
            queue = TemporalOptions.written(options).task_queue or self._settings.task_queue
        except EngineRefused as error:
            return Finding(ok=False, text=str(error))
        if is_template(queue):
            return Finding(ok=None, text=f"the arguments choose the task queue of {workflow}: {queue}")
        return await check_queue(self._frontend, workflow, queue)

    async def verify(
        self, workflow: str, options: Mapping[str, JSON], gates: Mapping[str, Mapping[str, JSON]]
    ) -> Sequence[Finding]:
        """Check that the workflow has the signals, updates and queries that the tool names; see `Verifies.verify`."""
        queue = self._settings.task_queue if options.get("task_queue") is None else options["task_queue"]
        named = await verify(self._frontend, workflow, queue, read_references(options, gates))
        return [*named, *await verify_arguments(self._frontend, workflow, queue, gates)]

    async def discover(self) -> Sequence[Discovered]:
        """Return the workflow types of the latest executions; see `Discovers.discover`."""
        frontend = self._frontend
        async with frontend.call():
            return await discover(frontend, self._settings.task_queue)

    @staticmethod
    def schema(reference: str) -> WorkflowSchema:
        """Return the schemas of `module:WorkflowClass`, from the type hints of its `@workflow.run`.

        Raises:
            ConfigError: see `Schemas.schema`.
        """
        return read_schema(reference)

    @staticmethod
    def misfits(reference: str, gates: Mapping[str, Mapping[str, JSON]]) -> Mapping[str, str]:
        """Return the gates whose arguments the handlers of `module:WorkflowClass` do not take.

        Raises:
            ConfigError: see `ReadsHandlers.misfits`.
        """
        return find_mismatches(reference, gates)

    @staticmethod
    def embeds() -> Mapping[str, str]:
        """Return mcpwf.go and mcpwf.ts, with which workflows in Go and TypeScript ask people and report progress."""
        return embedded_files()

    @staticmethod
    def replay(history: JSON, gates: Mapping[str, Gate]) -> Sequence[Replayed]:
        """Return the changes that clients would have seen, from `temporal workflow show -o json`.

        Raises:
            ConfigError: see `Replays.replay`.
        """
        return replay(history, gates)

    @staticmethod
    def fixture_settings() -> type[BaseModel]:
        """Return the model of no settings; see `HasFixtures`."""
        return Nothing

    def fixtures_notice(self) -> str:
        """Say what runs, and where; see `HasFixtures.fixtures_notice`."""
        return NOTICE

    def fixtures(self, settings: BaseModel) -> AbstractAsyncContextManager[Fixtures]:
        """Run a worker for workflows of known behaviour; see `HasFixtures.fixtures`."""
        return fixtures(self._frontend, self._connected, self)

    async def _connected(self) -> Client:
        """Return a client for a worker."""
        if self._connection is None:
            return self._frontend.client
        async with self._frontend.call():
            return await self._connection.open(lazy=False)

    @property
    def _frontend(self) -> Frontend:
        if self._opened is None:
            raise RuntimeError("enter the adapter first: async with TemporalAdapter(settings) as adapter")
        return self._opened
