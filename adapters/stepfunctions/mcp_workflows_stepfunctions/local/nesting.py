"""Executions that start executions: `states:startExecution` with `.sync`, `.sync:2`, and `aws-sdk:sfn` calls.

Moto passes the parameters on as the definition writes them (`StateMachineArn`), where its client needs
`stateMachineArn`, and does the reverse with the reply.
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

from mcp_workflows_stepfunctions.local.execution import COMPACT
from mcp_workflows_stepfunctions.local.patching import required, wrap

_NESTED: Final = frozenset({"inputDetails", "outputDetails"})  # the fields of the reply whose own keys are the API's


def install() -> None:
    """Translate on the way there and back."""
    for task in (StateTaskServiceSfn, StateTaskServiceAwsSdk):
        required(task, "_get_boto_service_name")
        wrap(task, "_normalise_parameters", for_the_client)
        wrap(task, "_normalise_response", for_the_definition)


def for_the_client(prepare: Callable[..., None]) -> Callable[..., None]:
    """`StateMachineArn` -> `stateMachineArn`, and an input that is not text as JSON."""

    def prepared(state: Any, parameters: dict[str, Any], *names: Any, **more: Any) -> None:
        prepare(state, parameters, *names, **more)
        if _calls_us(state):
            _put(parameters, {name[:1].lower() + name[1:]: _text(value) for name, value in parameters.items()})

    return prepared


def for_the_definition(prepare: Callable[..., None]) -> Callable[..., None]:
    """`executionArn` -> `ExecutionArn`, and dates as milliseconds."""

    def prepared(state: Any, response: dict[str, Any], *names: Any, **more: Any) -> None:
        prepare(state, response, *names, **more)
        if _calls_us(state):
            _put(response, _capitalised(response))

    return prepared


def _calls_us(state: Any) -> bool:
    """Whether a Task state calls Step Functions; the other services are written as their clients need them."""
    return bool(state._get_boto_service_name() == "stepfunctions")  # noqa: SLF001 moto's own


def _text(value: Any) -> Any:
    return to_json_str(value, separators=COMPACT) if isinstance(value, dict | list) else value


def _capitalised(reply: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name[:1].upper() + name[1:]: _capitalised(value) if name in _NESTED else _millis(value)
        for name, value in reply.items()
    }


def _millis(value: Any) -> Any:
    return int(value.timestamp() * 1000) if isinstance(value, datetime) else value


def _put(mapping: dict[str, Any], content: Mapping[str, Any]) -> None:
    """Change it in place, as moto expects."""
    mapping.clear()
    mapping.update(content)
