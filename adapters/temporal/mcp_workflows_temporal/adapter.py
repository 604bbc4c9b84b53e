"""TemporalAdapter: the four verbs, in front of one Temporal namespace."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import ClassVar, Self

import anyio
from pydantic import BaseModel, ValidationError
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import JSON, Execution, Ref, Start, StartGuarantee
from mcp_workflows.capabilities import Finding, WorkflowSchema
from mcp_workflows.errors import EngineRefused
from mcp_workflows_temporal.checks import TASK_QUEUE_HINT, check_engine, check_queue
from mcp_workflows_temporal.connection import Place, connect
from mcp_workflows_temporal.frontend import Frontend, Handle
from mcp_workflows_temporal.looking import look, open_questions
from mcp_workflows_temporal.names import BAD_ANSWER, UNKNOWN_QUESTION
from mcp_workflows_temporal.schema import read_schema
from mcp_workflows_temporal.settings import TemporalOptions, TemporalSettings, ui_root
from mcp_workflows_temporal.starting import start as start_execution

SETTLE = 0.1  # seconds for the SDK's core to let go of ended calls: see `__aexit__`


class TemporalAdapter:
    """Temporal workflows as executions; connects with the first call.

    Satisfies `Adapter`, `Checks` and `Schemas` of `mcp_workflows.adapter`.
    """

    Settings: ClassVar[type[BaseModel]] = TemporalSettings
    Options: ClassVar[type[BaseModel]] = TemporalOptions
    starts: ClassVar[StartGuarantee] = StartGuarantee.KEYED

    def __init__(self, settings: TemporalSettings) -> None:
        self._settings = settings
        self._given: Client | None = None
        self._opened: Frontend | None = None
        self._ui: str | None = None

    @classmethod
    def from_client(cls, client: Client, settings: TemporalSettings | None = None) -> Self:
        """Use your own client, with its data converter and interceptors; it stays yours to look after.

        Of the settings only `task_queue`, `ui_url`, `timeout_seconds` and `max_input_bytes` count. Give the client a
        runtime that does not log to stdout if you speak MCP there: `runtime=connection.quiet_runtime()`.
        """
        adapter = cls(settings or TemporalSettings())
        adapter._given = client
        return adapter

    async def __aenter__(self) -> Self:
        """Read certificates and Temporal's own configuration; the engine is not needed.

        Raises:
            ConfigError: something of that cannot be read.
        """
        client, place = (self._given, _place(self._given)) if self._given else await connect(self._settings)
        self._opened = Frontend(client, place, timedelta(seconds=self._settings.timeout_seconds))
        self._ui = ui_root(place.address, self._settings.ui_url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the client.

        The SDK has no close, and an interpreter that ends while its core still holds a call, even one just
        cancelled, hangs or crashes (1.35): so nothing here ever leaves a call waiting, and the core gets a moment.
        """
        self._opened = None
        if self._given is None:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(SETTLE)

    async def start(self, start: Start) -> str:
        """Start under the workflow id `mcp-{key}`; see `Adapter.start`."""
        frontend, queue = self._frontend, self._task_queue(start.options)
        if queue is None:
            raise EngineRefused(f"workflow {start.workflow} has no task queue: set {TASK_QUEUE_HINT}")
        async with frontend.call():
            return str(await start_execution(frontend, start, queue, self._settings.max_input_bytes))

    async def describe(self, ref: Ref) -> Execution:
        """One DescribeWorkflowExecution, no worker; once closed, one more for the outcome. See `Adapter.describe`."""
        frontend = self._frontend
        async with frontend.call():
            return await look(frontend, Handle.parse(ref.handle), self._ui)

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Deliver answers as updates, validated by the workflow; as signals if no worker is up.

        Raises:
            EngineRefused: the workflow does not accept an answer.
            ExecutionNotFound, EngineUnavailable: see `Adapter.answer`.
        """
        frontend, handle = self._frontend, Handle.parse(ref.handle)
        async with frontend.call():
            open_keys = await open_questions(frontend, handle)
            worker = True
            for key in responses.keys() & open_keys.keys():
                worker = worker and await _update(frontend, handle, key, responses[key])
                if not worker:
                    await _signal(frontend, handle, key, responses[key])

    async def cancel(self, ref: Ref) -> None:
        """Ask the whole chain of runs to stop; see `Adapter.cancel`."""
        frontend = self._frontend
        async with frontend.call():
            await frontend.cancel(Handle.parse(ref.handle))

    async def check_engine(self) -> Finding:
        """Whether Temporal answers and has the namespace."""
        return await check_engine(self._frontend)

    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        """Whether somebody polls the workflow's task queue."""
        try:
            queue = self._task_queue(options)
        except EngineRefused as error:
            return Finding(ok=False, text=str(error))
        return await check_queue(self._frontend, workflow, queue)

    @staticmethod
    def schema(reference: str) -> WorkflowSchema:
        """The schemas of `module:WorkflowClass`, from the type hints of its `@workflow.run`.

        Raises:
            ConfigError: see `Schemas.schema`.
        """
        return read_schema(reference)

    @property
    def _frontend(self) -> Frontend:
        if self._opened is None:
            raise RuntimeError("enter the adapter first: async with TemporalAdapter(settings) as adapter")
        return self._opened

    def _task_queue(self, options: Mapping[str, JSON]) -> str | None:
        try:
            return TemporalOptions.model_validate(dict(options)).task_queue or self._settings.task_queue
        except ValidationError as error:
            wrong = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, wrong["loc"]))
            raise EngineRefused(f"options of the tool: {where}: {wrong['msg']}") from None


async def _update(frontend: Frontend, handle: Handle, key: str, response: JSON) -> bool:
    """Whether that settled it; if not, no worker took it in time, or the workflow does not listen yet."""
    try:
        refusal = await frontend.update(handle, key, response)
    except RPCError:
        return False  # if it is more than a missing worker, the signal will say so
    kind = refusal.application_failure_info.type if refusal else None
    if refusal and kind == BAD_ANSWER:
        raise EngineRefused(f"the workflow does not accept this answer: {refusal.message}")
    return refusal is None or kind == UNKNOWN_QUESTION


async def _signal(frontend: Frontend, handle: Handle, key: str, response: JSON) -> None:
    try:
        await frontend.signal(handle, key, response)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        # It was there a moment ago: it has ended, and nobody waits for an answer any more.


def _place(client: Client) -> Place:
    return Place(address=client.service_client.config.target_host, namespace=client.namespace)
