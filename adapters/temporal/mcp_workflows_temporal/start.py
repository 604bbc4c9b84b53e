"""A start with a key: one execution per key, and never the execution of another owner."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mcp_workflows_temporal_worker.contract import MEMO_CONTEXT, MEMO_DIGEST, MEMO_KEY
from temporalio.api.enums.v1 import WorkflowExecutionStatus as State
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.client import WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.converter import DataConverter
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import EngineRefused, StartConflict
from mcp_workflows_temporal.client import Frontend, Handle
from mcp_workflows_temporal.labels import as_mapping
from mcp_workflows_temporal.options import OnExisting
from mcp_workflows_temporal.payloads import decode_known
from mcp_workflows_temporal.start_request import OWNER, PRINCIPAL, StartRequest, sdk_options

UNREGISTERED = re.compile(r"no mapping defined for search attribute (\S+)")
STATES: Mapping[int, str] = {
    State.WORKFLOW_EXECUTION_STATUS_RUNNING: "is running",
    State.WORKFLOW_EXECUTION_STATUS_COMPLETED: "completed",
    State.WORKFLOW_EXECUTION_STATUS_FAILED: "failed",
    State.WORKFLOW_EXECUTION_STATUS_CANCELED: "was cancelled",
    State.WORKFLOW_EXECUTION_STATUS_TERMINATED: "was terminated",
    State.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW: "is running",
    State.WORKFLOW_EXECUTION_STATUS_TIMED_OUT: "timed out",
    State.WORKFLOW_EXECUTION_STATUS_PAUSED: "is paused",
}
_PAYLOAD = 100  # bytes, more than what is around the JSON of one argument
OPEN_STATES = frozenset({"is running", "is paused"})


def refuse_unwritable(converter: DataConverter, arguments: Sequence[JSON], limit: int) -> int:
    """Return the size of the input in bytes, before any codec.

    Raises:
        EngineRefused: the input cannot be written as UTF-8 JSON, or is too large and no codec could change that.
    """
    try:
        payloads = converter.payload_converter.to_payloads(arguments)
    except ValueError as error:
        raise EngineRefused(f"the input cannot be encoded: {type(error).__name__}", final=True) from error
    size = sum(payload.ByteSize() for payload in payloads)
    if converter.payload_codec is None:
        _refuse_large(size, limit)
    return size


async def refuse_large(converter: DataConverter, arguments: Sequence[JSON], limit: int) -> None:
    """Refuse a large input before it is sent: over 4 MiB Temporal's own error looks like a temporary overload.

    Raises:
        EngineRefused: see `refuse_unwritable`; or the encoded input is too large.
    """
    if refuse_unwritable(converter, arguments, limit) > limit / 2 and converter.payload_codec:
        _refuse_large(sum(payload.ByteSize() for payload in await converter.encode(arguments)), limit)


def _is_surely_small(converter: DataConverter, request: StartRequest, limit: int) -> bool:
    """True if the input need not be encoded to know its size: the shipped converter writes ASCII JSON, and no codec."""
    is_shipped = converter.payload_converter_class is DataConverter.default.payload_converter_class
    size = request.size + _PAYLOAD * len(request.arguments)
    return is_shipped and converter.payload_codec is None and size <= limit


def _refuse_large(size: int, limit: int) -> None:
    if size > limit:
        raise EngineRefused(
            f"the input is too large for Temporal: {size} bytes, the limit is {limit} bytes", final=True
        )


async def start_execution(frontend: Frontend, request: StartRequest, max_input: int) -> Handle:
    """Start an execution, or return the one that was started with this key before, ended or not.

    The conflict policy is FAIL, so that an existing execution is checked before it is adopted.

    Raises:
        EngineRefused, StartConflict: see `Adapter.start`.
    """
    if not _is_surely_small(frontend.client.data_converter, request, max_input):
        await refuse_large(frontend.converter(request.id), request.arguments, max_input)
    try:
        handle: WorkflowHandle[Any, Any] = await frontend.client.start_workflow(  # Any: a result of unknown type
            request.workflow,
            args=request.arguments,
            id=request.id,
            task_queue=request.task_queue,
            memo=request.memo,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            rpc_timeout=frontend.timeout,
            **sdk_options(request.options),
        )
    except WorkflowAlreadyStartedError:
        return await _existing(frontend, request)
    except RPCError as error:
        raise _registration_error(error, frontend) from error
    return Handle(workflow_id=request.id, first_run_id=handle.first_execution_run_id or "")


def _registration_error(error: RPCError, frontend: Frontend) -> Exception:
    """Return our error for an unregistered search attribute; any other error as it is."""
    unknown = UNREGISTERED.search(error.message)
    if error.status is not RPCStatusCode.INVALID_ARGUMENT or unknown is None:
        return error
    name = unknown[1]
    return EngineRefused(
        f"search attribute {name} is not registered in namespace {frontend.place.namespace}: register it "
        f"(temporal operator search-attribute create --name {name} --type ...), or take it out of the tool"
    )


async def _existing(frontend: Frontend, request: StartRequest) -> Handle:
    """Return the execution that has the workflow id, if it is ours."""
    info = (await frontend.describe(request.id)).workflow_execution_info
    known = (MEMO_DIGEST, MEMO_KEY, MEMO_CONTEXT)
    memo = await decode_known(partial(frontend.converter, request.id), info.memo.fields, known)
    if _is_by_our_key(request, memo):
        if memo.get(MEMO_DIGEST) != request.fingerprint:
            raise _conflict(request, "another input" if info.type.name == request.workflow else _of_another(info))
    elif request.options.on_existing is not OnExisting.ADOPT:
        raise _taken(request, info, memo)
    else:
        _check_adoptable(request, info, memo)
    await _refuse_cron(frontend, request, info)
    return Handle(workflow_id=request.id, first_run_id=info.first_run_id)


def _is_by_our_key(request: StartRequest, memo: Mapping[str, JSON]) -> bool:
    """Return whether this key started it; a default id is made of the key, so it needs no `mcp.key`."""
    if request.options.workflow_id is None:
        return True
    return memo.get(MEMO_KEY) == request.key


def _check_adoptable(request: StartRequest, info: WorkflowExecutionInfo, memo: Mapping[str, JSON]) -> None:
    """Raise StartConflict unless the same owner started the same workflow; the message reveals no other owner."""
    if not request.owner or _owner(memo) != request.owner:
        raise _not_yours(request)
    if info.type.name != request.workflow:
        raise _conflict(request, _of_another(info))


def _taken(request: StartRequest, info: WorkflowExecutionInfo, memo: Mapping[str, JSON]) -> StartConflict:
    """Return the conflict, with the state of the existing execution only for its owner."""
    if _owner(memo) not in (None, request.owner):
        return _not_yours(request)
    state = STATES.get(info.status, "is there")
    hint = "" if state in OPEN_STATES else "; an id is used once, even after its execution has ended"
    return StartConflict(f"workflow id {request.id} is taken: {info.type.name} {state} there{hint}")


def _owner(memo: Mapping[str, JSON]) -> JSON:
    context = as_mapping(memo.get(MEMO_CONTEXT))
    return context.get(PRINCIPAL) or context.get(OWNER)


def _not_yours(request: StartRequest) -> StartConflict:
    return StartConflict(f"workflow id {request.id} is taken by an execution that is not yours")


def _conflict(request: StartRequest, difference: str) -> StartConflict:
    return StartConflict(f"workflow id {request.id} is taken by an execution with {difference}")


def _of_another(info: WorkflowExecutionInfo) -> str:
    return f"another workflow, {info.type.name}"


async def _refuse_cron(frontend: Frontend, request: StartRequest, info: WorkflowExecutionInfo) -> None:
    started = (await frontend.first_event(info.execution)).workflow_execution_started_event_attributes
    if started.cron_schedule:
        raise EngineRefused(f"workflow id {request.id} has a cron schedule: it never ends, so it cannot be a task")
