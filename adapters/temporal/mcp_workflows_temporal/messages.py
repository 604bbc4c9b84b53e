"""Messages to executions: signals, updates and queries.

To the core a message is a separate execution: `send` starts it, and `read_outcome` describes it. Within one run,
Temporal drops a second signal with the same request id and a second update with the same update id. A query is sent
when its outcome is read, so it starts nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, timedelta
from functools import partial
from typing import TypeVar
from uuid import UUID, uuid5

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse as Described
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.converter import DataConverter
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import JSON, Execution, Failure, Start, Status, read_options
from mcp_workflows.adapter.display_text import cleaned
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows_temporal.client import ACCEPTED, WORKFLOWS, Frontend, Handle, is_open, quoted
from mcp_workflows_temporal.diagnosis import LONGEST_TEXT, one_line
from mcp_workflows_temporal.gates import NO_WORKER, NOT_IN_TIME
from mcp_workflows_temporal.payloads import UndecodableError, decode, read_failure
from mcp_workflows_temporal.settings import MessageNames, TemporalAction, TemporalOptions
from mcp_workflows_temporal.start import OWNER, positional, read_start, start_workflow

REQUEST_IDS = UUID("0f4b7d44-3c0e-5a5e-9a57-0c5a1d9b7a51")  # the UUID namespace of our request ids
REUSE = {"refuse": WorkflowIDReusePolicy.REJECT_DUPLICATE, "start": WorkflowIDReusePolicy.ALLOW_DUPLICATE}
STARTS = 2  # of a missing execution, for one message: it may end before the message arrives
EVENTS_READ = 256  # the last events of an ended run, in which a signal is searched
RUNS_LISTED = 100  # per call: the maximum number of runs of one id
CLOCKS_DIFFER = timedelta(minutes=1)  # maximum difference between our clock and Temporal's

Found = TypeVar("Found")


class MessageHandle(BaseModel):
    """A message in the form that the core stores."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workflow_id: str
    run_id: str = ""  # of a query to a task; empty: the current run
    update: tuple[str, str] | None = None  # the run that has it, and its key
    query_args: list[JSON] = Field(default_factory=list[JSON])

    @classmethod
    def parse(cls, text: str) -> MessageHandle:
        """Parse a stored handle.

        Raises:
            ExecutionNotFound: the text is not a handle of a message.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            raise ExecutionNotFound("this is not the handle of a message to a Temporal execution") from None


async def send(frontend: Frontend, start: Start, task_queue: str | None, max_input: int) -> MessageHandle:
    """Send a signal or an update once per key; a query is only stored.

    A message that an earlier attempt delivered is not sent again, even if the execution has ended since.

    Raises:
        EngineRefused: there is no such open execution, or it rejects the update.
        EngineUnavailable: the delivery is uncertain; an update needs a live worker.
    """
    own = None if start.target is None else Handle.parse(start.target)
    if own is not None:
        options: MessageNames = read_options(TemporalAction, start.options)
        workflow_id, missing = own.workflow_id, None
    else:
        options = written = TemporalOptions.final(start.options)
        workflow_id, missing = written.workflow_id or "", written.start_if_missing
    [(kind, name)] = options.names.items()
    deliver = partial(DELIVERIES[kind], frontend, start, name)
    if own is None and (start.attempt == 1 or kind == "query"):
        with suppress(RPCError):  # the error becomes apparent below
            return await deliver(WorkflowExecution(workflow_id=workflow_id))
        start = replace(start, attempt=None)
    for tries in range(STARTS + 1):
        try:
            found = await _if_found(frontend.describe(workflow_id) if own is None else frontend.describe_chain(own))
        except ExecutionNotFound as error:
            raise EngineRefused(str(error), final=True) from None
        if found and (sent := await _sent_before(frontend, start, kind, found)):
            return sent
        if found and is_open(found):
            run = found.workflow_execution_info.execution
        elif missing is None:
            raise EngineRefused(f"no execution {workflow_id} is running", final=True)
        elif tries == STARTS:
            raise EngineRefused(f"execution {workflow_id} was started, and ended before the message came", final=True)
        else:
            order = replace(start, workflow=missing.workflow, arguments=missing.args)
            policies = REUSE[missing.after_end], WorkflowIDConflictPolicy.USE_EXISTING
            try:
                started = await start_workflow(frontend, read_start(order, task_queue), *policies, max_input)
            except WorkflowAlreadyStartedError:
                text = f"execution {workflow_id} has ended, and `after_end: refuse` starts no other one"
                raise EngineRefused(text, final=True) from None
            run = WorkflowExecution(workflow_id=workflow_id, run_id=started.first_run_id)
        if sent := await _if_found(deliver(run)):  # otherwise that run has just ended
            return sent
        start = replace(start, attempt=None)
    raise EngineUnavailable(f"execution {workflow_id} goes on in a new run each time before the message arrives")


async def read_outcome(frontend: Frontend, handle: MessageHandle, options: Mapping[str, JSON]) -> Execution:
    """Return the outcome of a message: a signal has none, an update may still run, a query is sent now."""
    found = Execution(status=Status.SUCCEEDED, execution_id=handle.workflow_id)
    if query := options.get("query"):
        return await _ask(frontend, handle, query, found)
    if handle.update is None:
        return replace(found, output={"sent": options.get("signal"), "to": handle.workflow_id})
    polled = await frontend.poll_update(handle.workflow_id, *handle.update)
    if not polled.HasField("outcome"):
        text = f"the workflow has accepted {options.get('update')}, and works on it"
        return replace(found, status=Status.RUNNING, message=text)
    converter = frontend.converter(handle.workflow_id)
    if polled.outcome.HasField("failure"):
        failure = await read_failure(converter, polled.outcome.failure)
        return replace(found, status=Status.FAILED, failure=failure)
    return await _with_output(converter, found, polled.outcome.success.payloads)


async def _query(frontend: Frontend, start: Start, name: str, run: WorkflowExecution) -> MessageHandle:
    """Store a query; `_ask` sends it."""
    args = list(positional(start.arguments))
    return MessageHandle(workflow_id=run.workflow_id, run_id=run.run_id, query_args=args)


async def _signal(frontend: Frontend, start: Start, name: str, run: WorkflowExecution) -> MessageHandle:
    """Send a signal; retry only to the same run, as the next run would treat it as another signal."""
    request_id, args = _request_id(start, run.workflow_id), positional(start.arguments)
    identity = f"{_identity(start)} ({request_id})"
    await frontend.signal(run, name, args, request_id, identity, retry=bool(run.run_id))
    return MessageHandle(workflow_id=run.workflow_id)


async def _update(frontend: Frontend, start: Start, name: str, run: WorkflowExecution) -> MessageHandle:
    """Send an update, and wait until a worker has accepted it.

    Raises:
        EngineRefused: the workflow rejects it, or has no such update.
        EngineUnavailable: no worker has accepted it in time; Temporal then drops it.
    """
    workflow_id, args = run.workflow_id, positional(start.arguments)
    try:
        done = await frontend.update(run, name, args, start.key, identity=_identity(start), stage=ACCEPTED)
    except RPCError as error:
        if error.status not in NOT_IN_TIME:
            raise
        queue = (await frontend.describe(workflow_id)).workflow_execution_info.task_queue
        raise EngineUnavailable(
            f"no worker on task queue {queue} has taken the update {name} in time; it is sent again until one does",
            throttled=True,
        ) from None
    run_id = done.update_ref.workflow_execution.run_id
    handle = MessageHandle(workflow_id=workflow_id, update=(run_id, start.key))
    if done.outcome.HasField("failure") and not await _if_found(frontend.poll_update(workflow_id, run_id, start.key)):
        rejection = await read_failure(frontend.converter(workflow_id), done.outcome.failure)
        raise EngineRefused(rejection.text, final=True)  # Temporal keeps no rejected update
    return handle


DELIVERIES = {"query": _query, "signal": _signal, "update": _update}


async def _sent_before(frontend: Frontend, start: Start, kind: str, found: Described) -> MessageHandle | None:
    """Return the handle of a message that an earlier attempt delivered to a run which has ended since.

    That is the described run, or an earlier one that the message can have reached.
    """
    info, since = found.workflow_execution_info, start.created - CLOCKS_DIFFER
    workflow_id = info.execution.workflow_id
    runs = [] if is_open(found) else [info.execution]
    if start.attempt != 1 and info.start_time.ToDatetime(UTC) > since:
        at_that_time = f"(ExecutionStatus = 'Running' OR CloseTime > '{since.isoformat()}')"  # the list lags behind
        rows = frontend.list_executions(f"WorkflowId = {quoted(workflow_id)} AND {at_that_time}", page=RUNS_LISTED)
        runs += [row.execution async for row in rows if row.execution != info.execution]
    for run in runs:
        if kind == "update":
            if await _if_found(frontend.poll_update(workflow_id, run.run_id, start.key)):
                return MessageHandle(workflow_id=workflow_id, update=(run.run_id, start.key))
        elif page := await _if_found(frontend.history_page(run, EVENTS_READ)):
            signals = (event.workflow_execution_signaled_event_attributes for event in page.history.events)
            if any(each.identity.endswith(f"({_request_id(start, workflow_id)})") for each in signals):
                return MessageHandle(workflow_id=workflow_id)
    return None


async def _if_found(call: Awaitable[Found]) -> Found | None:
    """Return the reply to a call; None if Temporal knows no such execution or update, or the execution has ended."""
    try:
        return await call
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return None


async def _ask(frontend: Frontend, handle: MessageHandle, name: str, found: Execution) -> Execution:
    """Send a query; return the execution with its result, or with the reason why there is none."""
    run = WorkflowExecution(workflow_id=handle.workflow_id, run_id=handle.run_id)
    try:
        payload = await frontend.query(run, name, handle.query_args, only_open=False)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            text = f"there is no execution {handle.workflow_id}"
        elif error.status in NO_WORKER:
            queue = (await frontend.describe(handle.workflow_id, handle.run_id)).workflow_execution_info.task_queue
            gone = await frontend.task_queues.is_deserted(queue, WORKFLOWS)
            why = f"nobody polls task queue {queue}" if gone else f"no worker on task queue {queue} answers in time"
            text = f"{why}, and only a worker can answer the query {name}: try again later"
        elif error.status is RPCStatusCode.INVALID_ARGUMENT:
            text = f"the query {name} failed: {one_line(cleaned(error.message))}"
        else:
            raise
        return replace(found, status=Status.FAILED, failure=Failure(text=text, kind="QueryFailed"))
    return await _with_output(frontend.converter(handle.workflow_id), found, [payload] if payload else [])


async def _with_output(converter: DataConverter, found: Execution, payloads: Sequence[Payload]) -> Execution:
    try:
        return replace(found, output=await decode(converter, payloads[0]) if payloads else None)
    except UndecodableError as error:
        failure = Failure(text=f"it has a result that cannot be read here ({error})", kind="UndecodableResult")
        return replace(found, status=Status.FAILED, failure=failure)


def _request_id(start: Start, workflow_id: str) -> str:
    return str(uuid5(REQUEST_IDS, f"{workflow_id}/{start.key}"))


def _identity(start: Start) -> str:
    """Return the identity for the event in the history: the sender of the message."""
    return f"mcp-workflows: by {cleaned(start.context.get(OWNER) or 'anonymous')[:LONGEST_TEXT]}"
