"""The StartWorkflowExecution that a start would send, in the terms of Temporal's API."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from mcp_workflows.adapter import JSON
from mcp_workflows_temporal.options import Pinned, TemporalOptions
from mcp_workflows_temporal.start_request import StartRequest, attributes


def preview(request: StartRequest, namespace: str) -> Mapping[str, JSON]:
    """Return the request as JSON, with input and memo as they are before the converter and the codec.

    Source: temporal.api.workflowservice.v1.StartWorkflowExecutionRequest.

    Raises:
        EngineRefused: a search attribute is not of its type.
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
    """Leave out the fields that are not set; an empty list is set."""
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
