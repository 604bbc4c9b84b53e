"""Starts with a key: one execution per key, and never the execution of another owner."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, cast

from mcp_workflows_temporal_worker.contract import MEMO_CONTEXT, MEMO_DIGEST, MEMO_KEY
from pydantic import AwareDatetime, TypeAdapter, ValidationError
from temporalio.api.enums.v1 import WorkflowExecutionStatus as State
from temporalio.client import WorkflowHandle
from temporalio.common import (
    AutoUpgradeVersioningOverride,
    PinnedVersioningOverride,
    Priority,
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    VersioningOverride,
    WorkerDeploymentVersion,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.converter import DataConverter
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import JSON, Start
from mcp_workflows.errors import EngineRefused, StartConflict
from mcp_workflows_temporal.client import Frontend, Handle
from mcp_workflows_temporal.payloads import as_mapping, read_memo
from mcp_workflows_temporal.settings import (
    MAX_INPUT_BYTES,
    OWN_IDS,
    AttributeType,
    OnExisting,
    Pinned,
    TemporalOptions,
    TypedAttribute,
)

OWNER = "owner"  # in the context of a start: the name of the owner, for people
PRINCIPAL = "principal"  # the exact owner, if the name is ambiguous: one subject of two issuers is two principals


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """One StartWorkflowExecution."""

    workflow: str
    arguments: Sequence[JSON]
    id: str
    task_queue: str
    fingerprint: str  # of the workflow type and the arguments (SHA-256, hex)
    size: int  # characters of the input as JSON, all of them ASCII
    key: str  # hashed
    context: Mapping[str, str]
    options: TemporalOptions

    @property
    def memo(self) -> Mapping[str, JSON]:
        """The memo: digest and key identify the execution later, and the context names its owner."""
        return {MEMO_DIGEST: self.fingerprint, MEMO_KEY: self.key, MEMO_CONTEXT: dict(self.context)}

    @property
    def owner(self) -> str | None:
        """The exact owner."""
        return self.context.get(PRINCIPAL) or self.context.get(OWNER)


def read_start(start: Start, task_queue: str | None) -> StartRequest:
    """Return the request for a start; `task_queue` is the default for tools.

    Raises:
        EngineRefused: the options of the tool are invalid, or there is no task queue.
    """
    options = TemporalOptions.final(start.options)
    queue = options.task_queue or task_queue
    if queue is None:
        raise EngineRefused(
            f"workflow {start.workflow} has no task queue: set task_queue, on the engine or on the tool"
        )
    arguments = positional(start.arguments)
    canonical = _JSON.encode([start.workflow, arguments])
    return StartRequest(
        workflow=start.workflow,
        arguments=arguments,
        id=f"{OWN_IDS}{start.key}" if options.workflow_id is None else options.workflow_id,
        task_queue=queue,
        fingerprint=hashlib.sha256(canonical.encode()).hexdigest(),
        size=len(canonical),
        key=hashlib.sha256(start.key.encode()).hexdigest(),
        context=start.context,
        options=options,
    )


def positional(given: JSON) -> Sequence[JSON]:
    """Return the positional arguments: those in a list, or any other value as the only argument."""
    return list(cast("Sequence[JSON]", given)) if isinstance(given, list) else [given]


_JSON: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def priority(options: TemporalOptions) -> Priority:
    """Return Temporal's Priority; its default if none is set."""
    chosen = options.priority
    if chosen is None:
        return Priority.default
    return Priority(priority_key=chosen.key, fairness_key=chosen.fairness_key, fairness_weight=chosen.fairness_weight)


def versioning_override(options: TemporalOptions) -> VersioningOverride | None:
    """Return Temporal's VersioningOverride, if one is set."""
    chosen = options.versioning_override
    if chosen is None:
        return None
    if not isinstance(chosen, Pinned):
        return AutoUpgradeVersioningOverride()
    version = WorkerDeploymentVersion(deployment_name=chosen.pinned.deployment, build_id=chosen.pinned.build_id)
    return PinnedVersioningOverride(version=version)


def search_attributes(options: TemporalOptions) -> TypedSearchAttributes | None:
    """Return Temporal's search attributes, if there are any.

    Raises:
        EngineRefused: a value does not have the required type.
    """
    pairs = [SearchAttributePair(_ATTRIBUTES[kind][1](name), value) for name, kind, value in attributes(options)]
    return TypedSearchAttributes(pairs) if pairs else None


def attributes(options: TemporalOptions) -> Iterator[tuple[str, AttributeType, Any]]:  # Any: of that type
    """Yield name, type and value of each search attribute; skip those without a value.

    Raises:
        EngineRefused: see `search_attributes`.
    """
    for name, written in options.search_attributes.items():
        if isinstance(written, TypedAttribute):
            kind, value = written.type, written.value
        else:
            kind, value = _INFERRED.get(type(written), AttributeType.KEYWORD), written
        if value is not None:
            try:
                yield name, kind, _ATTRIBUTES[kind][0].validate_python(value)
            except ValidationError:
                raise EngineRefused(f"search attribute {name} is no {kind}", final=True) from None


_ATTRIBUTES: Mapping[AttributeType, tuple[TypeAdapter[Any], Any]] = {  # Any: value types; the SDK's key types
    AttributeType.TEXT: (TypeAdapter(str), SearchAttributeKey.for_text),
    AttributeType.KEYWORD: (TypeAdapter(str), SearchAttributeKey.for_keyword),
    AttributeType.INT: (TypeAdapter(int), SearchAttributeKey.for_int),
    AttributeType.DOUBLE: (TypeAdapter(float), SearchAttributeKey.for_float),
    AttributeType.BOOL: (TypeAdapter(bool), SearchAttributeKey.for_bool),
    AttributeType.DATETIME: (TypeAdapter(AwareDatetime), SearchAttributeKey.for_datetime),
    AttributeType.KEYWORD_LIST: (TypeAdapter(list[str]), SearchAttributeKey.for_keyword_list),
}
_INFERRED: Mapping[type, AttributeType] = {
    str: AttributeType.KEYWORD,
    bool: AttributeType.BOOL,
    int: AttributeType.INT,
    float: AttributeType.DOUBLE,
    list: AttributeType.KEYWORD_LIST,
}


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
_PAYLOAD = 100  # bytes, more than the overhead around the JSON of one argument
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


def _refuse_large(size: int, limit: int) -> None:
    """Refuse a large input before it is sent: over 4 MiB, Temporal's own error looks like a temporary overload."""
    if size > limit:
        text = f"the input is too large for Temporal: {size} bytes, the limit is {limit} bytes"
        raise EngineRefused(text, final=True)


async def start_execution(frontend: Frontend, request: StartRequest, max_input: int) -> Handle:
    """Start an execution, or return the one started with this key before, ended or not.

    The conflict policy is FAIL, so that an existing execution is checked before it is adopted.

    Raises:
        EngineRefused, StartConflict: see `Adapter.start`.
    """
    try:
        return await start_workflow(
            frontend, request, WorkflowIDReusePolicy.REJECT_DUPLICATE, WorkflowIDConflictPolicy.FAIL, max_input
        )
    except WorkflowAlreadyStartedError:
        return await _existing(frontend, request)


async def start_workflow(
    frontend: Frontend,
    request: StartRequest,
    reuse: WorkflowIDReusePolicy,
    conflict: WorkflowIDConflictPolicy,
    max_input: int = MAX_INPUT_BYTES,
) -> Handle:
    """Start an execution, with policies for the case that another one has its workflow id.

    Raises:
        WorkflowAlreadyStartedError: another execution has it, and the policies refuse that.
        EngineRefused: see `Adapter.start`.
    """
    options, converter = request.options, frontend.converter(request.id)
    # A clearly small input need not be encoded to know its size; pydantic writes some numbers longer.
    is_small = frontend.has_shipped_converter and 2 * request.size + _PAYLOAD * len(request.arguments) <= max_input
    size = 0 if is_small else refuse_unwritable(converter, request.arguments, max_input)
    if size > max_input / 2 and converter.payload_codec:
        encoded = await converter.encode(request.arguments)
        _refuse_large(sum(payload.ByteSize() for payload in encoded), max_input)
    try:
        handle: WorkflowHandle[Any, Any] = await frontend.client.start_workflow(  # Any: a result of unknown type
            request.workflow,
            args=request.arguments,
            id=request.id,
            task_queue=request.task_queue,
            memo=request.memo,
            id_reuse_policy=reuse,
            id_conflict_policy=conflict,
            rpc_timeout=frontend.timeout,
            execution_timeout=options.execution_timeout,
            run_timeout=options.run_timeout,
            task_timeout=options.task_timeout,
            search_attributes=search_attributes(options),
            priority=priority(options),
            versioning_override=versioning_override(options),
            static_summary=options.summary,
            static_details=options.details,
        )
    except ValueError:
        refuse_unwritable(converter, request.arguments, max_input)
        raise
    except RPCError as error:
        unknown = UNREGISTERED.search(error.message)
        if error.status is not RPCStatusCode.INVALID_ARGUMENT or unknown is None:
            raise
        raise EngineRefused(
            f"search attribute {unknown[1]} is not registered in namespace {frontend.place.namespace}: register it "
            f"(temporal operator search-attribute create --name {unknown[1]} --type ...), or take it out of the tool"
        ) from error
    return Handle(workflow_id=request.id, first_run_id=handle.first_execution_run_id or "")


async def _existing(frontend: Frontend, request: StartRequest) -> Handle:
    """Return the execution with the workflow id, if it is ours; no message reveals another owner.

    Raises:
        StartConflict: the workflow id belongs to another key, owner or workflow, or to this key with another input.
        EngineRefused: it has a cron schedule.
    """
    info = (await frontend.describe(request.id)).workflow_execution_info
    memo = await read_memo(frontend, info, MEMO_DIGEST, MEMO_KEY, MEMO_CONTEXT)
    context = as_mapping(memo.get(MEMO_CONTEXT))
    owner = context.get(PRINCIPAL) or context.get(OWNER)
    taken, other = f"workflow id {request.id} is taken", f"another workflow, {info.type.name}"
    is_same_workflow = info.type.name == request.workflow
    if request.options.workflow_id is None or memo.get(MEMO_KEY) == request.key:  # a default id contains the key
        if memo.get(MEMO_DIGEST) != request.fingerprint:
            raise StartConflict(f"{taken} by an execution with {'another input' if is_same_workflow else other}")
    elif request.options.on_existing is OnExisting.ADOPT:
        if not request.owner or owner != request.owner:
            raise StartConflict(f"{taken} by an execution that is not yours")
        if not is_same_workflow:
            raise StartConflict(f"{taken} by an execution with {other}")
    elif owner not in (None, request.owner):
        raise StartConflict(f"{taken} by an execution that is not yours")
    else:
        state = STATES.get(info.status, "is there")
        hint = "" if state in OPEN_STATES else "; an id is used once, even after its execution has ended"
        raise StartConflict(f"{taken}: {info.type.name} {state} there{hint}")
    await frontend.refuse_cron(info.execution, f"workflow id {request.id}")
    return Handle(workflow_id=request.id, first_run_id=info.first_run_id)


def preview(request: StartRequest, namespace: str) -> Mapping[str, JSON]:
    """Return the request as JSON, with input and memo before the converter and the codec.

    Source: temporal.api.workflowservice.v1.StartWorkflowExecutionRequest.

    Raises:
        EngineRefused: a search attribute does not have its type.
    """
    options = request.options
    found: dict[str, JSON] = {
        "namespace": namespace,
        "workflowId": request.id,
        "workflowType": {"name": request.workflow},
        "taskQueue": {"name": request.task_queue},
        "input": list(request.arguments),
        "workflowExecutionTimeout": _seconds(options.execution_timeout),
        "workflowRunTimeout": _seconds(options.run_timeout),
        "workflowTaskTimeout": _seconds(options.task_timeout),
        "workflowIdReusePolicy": "REJECT_DUPLICATE",
        "workflowIdConflictPolicy": "FAIL",
        "memo": dict(request.memo),
        "searchAttributes": _attributes(options),
        "priority": _priority(options),
        "versioningOverride": _versioning(options),
        "userMetadata": _filled({"summary": options.summary, "details": options.details}),
    }
    return _filled(found)


def _filled(values: Mapping[str, JSON]) -> dict[str, JSON]:
    """Omit the fields that are not set; an empty list is set."""
    return {name: value for name, value in values.items() if value is not None and value != {}}


def _seconds(time: timedelta | None) -> str | None:
    return None if time is None else f"{time.total_seconds():g}s"


def _attributes(options: TemporalOptions) -> dict[str, JSON]:
    found = attributes(options)
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, _, value in found}


def _priority(options: TemporalOptions) -> dict[str, JSON]:
    chosen = options.priority
    if chosen is None:
        return {}
    named = {"priorityKey": chosen.key, "fairnessKey": chosen.fairness_key, "fairnessWeight": chosen.fairness_weight}
    return _filled(named)


def _versioning(options: TemporalOptions) -> dict[str, JSON]:
    chosen = options.versioning_override
    if not isinstance(chosen, Pinned):
        return {"autoUpgrade": True} if chosen else {}
    version = {"deploymentName": chosen.pinned.deployment, "buildId": chosen.pinned.build_id}
    return {"pinned": {"version": version, "behavior": "PINNED"}}
