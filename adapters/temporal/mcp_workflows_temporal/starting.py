"""Starting with a key: the same id for the same key, and nobody else's execution taken for ours."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, cast

from temporalio.client import WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from mcp_workflows.adapter import JSON, Start
from mcp_workflows.errors import EngineRefused, StartConflict
from mcp_workflows_temporal.decode import decode_known
from mcp_workflows_temporal.frontend import Frontend, Handle
from mcp_workflows_temporal.names import MEMO_CONTEXT, MEMO_DIGEST


def workflow_id(key: str) -> str:
    """The workflow id that a key always gets."""
    return f"mcp-{key}"


def positional(arguments: JSON) -> list[JSON]:
    """The mapped arguments as Temporal takes them: a list is positional, anything else the one argument."""
    return list(cast("Sequence[JSON]", arguments)) if isinstance(arguments, list) else [arguments]


def digest(workflow: str, arguments: Sequence[JSON]) -> str:
    """What an execution was started with, without telling it (SHA-256, hex)."""
    text = json.dumps([workflow, arguments], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


async def refuse_large(frontend: Frontend, id: str, arguments: Sequence[JSON], limit: int) -> None:  # noqa: A002  # Temporal's word
    """Temporal says it too late and badly: over 4 MiB it looks like an overload that passes.

    Raises:
        EngineRefused: too large, or no JSON that can be written as UTF-8.
    """
    try:
        payloads = await frontend.converter(id).encode(arguments)
    except ValueError as error:
        raise EngineRefused(f"the input cannot be encoded: {type(error).__name__}", final=True) from error
    size = sum(payload.ByteSize() for payload in payloads)
    if size > limit:
        raise EngineRefused(
            f"the input is too large for Temporal: {size} bytes, the limit is {limit} bytes", final=True
        )


async def start(frontend: Frontend, start: Start, task_queue: str, max_input: int) -> Handle:
    """Start, or find what was started with this key before, ended or not.

    Raises:
        EngineRefused, StartConflict: see `Adapter.start`.
    """
    arguments = positional(start.arguments)
    id = workflow_id(start.key)  # noqa: A001  # Temporal's word
    await refuse_large(frontend, id, arguments, max_input)
    fingerprint = digest(start.workflow, arguments)
    memo: dict[str, JSON] = {MEMO_DIGEST: fingerprint, MEMO_CONTEXT: dict(start.context)}
    try:
        handle: WorkflowHandle[Any, Any] = await frontend.client.start_workflow(  # Any: a result of unknown type
            start.workflow,
            args=arguments,
            id=id,
            task_queue=task_queue,
            memo=memo,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            rpc_timeout=frontend.timeout,
        )
    except WorkflowAlreadyStartedError:
        return await _adopt(frontend, id, start.workflow, fingerprint)
    if not _started_now(handle):
        return await _adopt(frontend, id, start.workflow, fingerprint)
    return Handle(workflow_id=id, first_run_id=handle.first_execution_run_id or "")


def _started_now(handle: WorkflowHandle[Any, Any]) -> bool:  # Any: a result of unknown type
    """Whether this very call started it; if we cannot tell, we look."""
    response = getattr(handle, "_start_workflow_response", None)  # private: the SDK gives it in no other way (1.35)
    return bool(getattr(response, "started", False)) and bool(handle.first_execution_run_id)


async def _adopt(frontend: Frontend, id: str, workflow: str, fingerprint: str) -> Handle:  # noqa: A002  # Temporal's word
    info = (await frontend.describe(id)).workflow_execution_info
    memo = await decode_known(frontend.converter(id), info.memo.fields, frozenset({MEMO_DIGEST}))
    if memo.get(MEMO_DIGEST) != fingerprint:
        same = info.type.name == workflow
        how = "with another input" if same else f"of another workflow, {info.type.name}"
        raise StartConflict(f"workflow id {id} is taken by an execution {how}")
    started = (await frontend.first_event(info.execution)).workflow_execution_started_event_attributes
    if started.cron_schedule:
        raise EngineRefused(f"workflow id {id} has a cron schedule: it never ends, so it cannot be a task")
    return Handle(workflow_id=id, first_run_id=info.first_run_id)
