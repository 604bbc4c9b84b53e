"""Executions started by executions: `states:startExecution` with `.sync`, `.sync:2`, and `aws-sdk:sfn` calls.

Moto forwards the parameters with the names of the definition (`StateMachineArn`), but its client needs
`stateMachineArn`, and the reverse for the reply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service_aws_sdk import (
    StateTaskServiceAwsSdk,
)
from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service_sfn import (
    StateTaskServiceSfn,
)
from moto.stepfunctions.parser.asl.utils.encoding import to_json_str

from mcp_workflows_stepfunctions_local.execution import COMPACT
from mcp_workflows_stepfunctions_local.patches import require, wrap

_NESTED: Final = frozenset({"inputDetails", "outputDetails"})  # fields of the reply that contain keys of the API


def install() -> None:
    """Wrap moto's translation of parameters and replies."""
    for task in (StateTaskServiceSfn, StateTaskServiceAwsSdk):
        require(task, "_get_boto_service_name")
        wrap(task, "_normalise_parameters", translate_parameters)
        wrap(task, "_normalise_response", translate_reply)


def translate_parameters(prepare: Callable[..., None]) -> Callable[..., None]:
    """Translate `StateMachineArn` to `stateMachineArn`, and an input that is not text to JSON."""

    def translate(state: Any, parameters: dict[str, Any], *names: Any, **more: Any) -> None:
        prepare(state, parameters, *names, **more)
        if _calls_step_functions(state):
            _put(parameters, {name[:1].lower() + name[1:]: _text(value) for name, value in parameters.items()})

    return translate


def translate_reply(prepare: Callable[..., None]) -> Callable[..., None]:
    """Translate `executionArn` to `ExecutionArn`, and dates to milliseconds."""

    def translate(state: Any, response: dict[str, Any], *names: Any, **more: Any) -> None:
        prepare(state, response, *names, **more)
        if _calls_step_functions(state):
            _put(response, _capitalise(response))

    return translate


def _calls_step_functions(state: Any) -> bool:
    """Return True if a Task state calls Step Functions; parameters of other services need no translation."""
    return bool(state._get_boto_service_name() == "stepfunctions")  # noqa: SLF001 moto's own


def _text(value: Any) -> Any:
    return to_json_str(value, separators=COMPACT) if isinstance(value, dict | list) else value


def _capitalise(reply: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name[:1].upper() + name[1:]: _capitalise(value) if name in _NESTED else _millis(value)
        for name, value in reply.items()
    }


def _millis(value: Any) -> Any:
    return int(value.timestamp() * 1000) if isinstance(value, datetime) else value


def _put(mapping: dict[str, Any], content: Mapping[str, Any]) -> None:
    """Replace the content of a mapping in place, as moto expects."""
    mapping.clear()
    mapping.update(content)
