"""Workflows of known behaviour, for `check --live`: a worker in this process, on a separate task queue."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Protocol

import anyio
from mcp_workflows_temporal_worker import elicit
from temporalio import workflow
from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from mcp_workflows.adapter import (
    JSON,
    Adapter,
    DescribesMany,
    Execution,
    Fixtures,
    MessageRole,
    Observation,
    Question,
    Ref,
    Role,
    Start,
    Terminates,
)
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows_temporal.client import Frontend

NOTICE: Final = (
    "A worker in this process runs small workflows on a task queue of its own, mcp-workflows-verify-..., so nothing is "
    "deployed. The executions are named contract-... and stay in the namespace until its retention is over. The "
    "credentials must allow starts and polling (in Temporal Cloud: Write on the namespace)."
)
_LISTED: Final = 60.0  # seconds until a new execution must be in the list
_FORM: Final = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
_FAILURE: Final = "the card was declined"


class Verbs(DescribesMany, Terminates, Protocol):
    """The verbs of the adapter that the tools need."""

    async def describe(self, ref: Ref) -> Execution:
        """See `Adapter.describe`."""
        ...

    async def start(self, start: Start) -> str:
        """See `Adapter.start`."""
        ...


@workflow.defn(name="McpWorkflowsVerifyEcho")
class _Echo:
    @workflow.run
    async def run(self, value: Any = None) -> Any:  # Any: JSON
        return value


@workflow.defn(name="McpWorkflowsVerifyFail")
class _Fail:
    @workflow.run
    async def run(self) -> None:
        raise ApplicationError(_FAILURE, type="CardDeclined", non_retryable=True)


@workflow.defn(name="McpWorkflowsVerifyForever")
class _Forever:
    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)


@workflow.defn(name="McpWorkflowsVerifyAsk")
class _Ask:
    """Asks this number of questions at once."""

    @workflow.run
    async def run(self, questions: int) -> list[Any]:  # Any: JSON
        answers = await asyncio.gather(*(elicit(f"Ship parcel {number}?", _FORM) for number in range(questions)))
        return [answer.content for answer in answers]


@workflow.defn(name="McpWorkflowsVerifyInbox")
class _Inbox:
    """Receives messages endlessly."""

    def __init__(self) -> None:
        self._received: list[str] = []

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.signal
    def put(self, text: str) -> None:
        self._received.append(text)

    @workflow.query
    def received(self) -> list[str]:
        return self._received


async def received(adapter: Adapter, ref: Ref) -> Sequence[JSON]:
    """Return the result of an execution's query `received`; nothing if its worker does not answer."""
    order = Start(
        workflow="query received",
        arguments=[],
        key=uuid.uuid4().hex,
        created=datetime.now(UTC),
        options={"query": "received"},
        target=ref.handle,
    )
    found = Ref(workflow=order.workflow, handle=await adapter.start(order), options=order.options)
    return (await adapter.describe(found)).output or []


@asynccontextmanager
async def fixtures(
    frontend: Frontend, connected: Callable[[], Awaitable[Client]], verbs: Verbs
) -> AsyncGenerator[Fixtures]:
    """Run the worker, with a connected client; `verbs` are the adapter's own.

    Raises:
        EngineError: the worker cannot be run.
    """
    queue = f"mcp-workflows-verify-{uuid.uuid4().hex[:8]}"
    try:
        worker = Worker(
            await connected(),
            task_queue=queue,
            workflows=[_Echo, _Fail, _Forever, _Ask, _Inbox],
            workflow_runner=UnsandboxedWorkflowRunner(),  # they are deterministic without it
        )
    except RuntimeError as error:
        raise EngineUnavailable(f"no worker can be run: {error}") from None

    def role(name: str, *arguments: JSON) -> Role:
        return Role(workflow=f"McpWorkflowsVerify{name}", arguments=list(arguments), options={"task_queue": queue})

    questions: Mapping[str, Question] = {
        "The version of the server.": partial(_version, frontend),
        "A new execution is in the list of executions, and how soon.": partial(_listed_after, role("Forever"), verbs),
    }
    async with anyio.create_task_group() as group:
        group.start_soon(_run, worker)
        try:
            yield Fixtures(
                finishes=role("Echo", {"text": "hi"}),
                output={"text": "hi"},
                other_arguments=[{"text": "ho"}],
                fails=role("Fail"),
                failure=_FAILURE,
                endless=role("Forever"),
                asks=role("Ask", 1),
                asks_two=role("Ask", 2),
                content={"answer": "yes"},
                unknown_handle="mcp-workflows-verify-nobody/no-run",
                messages=MessageRole(receiver=role("Inbox"), settings={"signal": "put"}, received=received),
                questions=questions,
            )
        finally:
            with anyio.CancelScope(shield=True):
                await worker.shutdown()


async def _run(worker: Worker) -> None:
    """Run the worker until it is shut down: if it were cancelled, the SDK's core would continue to poll.

    Raises:
        EngineUnavailable: it has ended by itself.
    """
    try:
        with anyio.CancelScope(shield=True):
            await worker.run()
    except RuntimeError as error:
        raise EngineUnavailable(f"the worker ended: {error}") from None


async def _version(frontend: Frontend) -> Sequence[Observation]:
    async with frontend.call():
        info = await frontend.client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=frontend.timeout)
    return [Observation(expected="", seen=info.server_version or "it does not say", ok=None)]


async def _listed_after(role: Role, verbs: Verbs) -> Sequence[Observation]:
    """Measure the lag of the list, which bulk polls rely on."""
    key = f"contract-{uuid.uuid4().hex}"
    start = Start(
        workflow=role.workflow, arguments=role.arguments, key=key, created=datetime.now(UTC), options=role.options
    )
    ref = Ref(workflow=role.workflow, handle=await verbs.start(start), options=role.options)
    began = anyio.current_time()
    try:
        with anyio.move_on_after(_LISTED):
            while not await verbs.describe_many([ref]):  # noqa: ASYNC110  # no event tells us
                await anyio.sleep(0.05)
            return [Observation(expected="", seen=f"after {anyio.current_time() - began:.1f} s", ok=True)]
    finally:
        with anyio.CancelScope(shield=True):
            await verbs.terminate(ref, "mcp-workflows check --live is over")
    return [Observation(expected=f"within {_LISTED:g} s", seen="not in the list", ok=False)]
