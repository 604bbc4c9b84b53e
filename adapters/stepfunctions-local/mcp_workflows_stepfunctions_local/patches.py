"""Replacement of parts of moto, with a check at the start that moto still has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any, Final

from moto.core.base_backend import BackendDict, BaseBackend
from moto.server import ThreadedMotoServer
from moto.stepfunctions.models import StateMachine
from moto.stepfunctions.parser.asl.component.program.program import Program
from moto.stepfunctions.parser.asl.eval.callback.callback import (
    ActivityTaskStartEndpoint,
    CallbackEndpoint,
    CallbackPoolManager,
)
from moto.stepfunctions.parser.asl.eval.environment import Environment
from moto.stepfunctions.parser.asl.eval.event.event_manager import EventIdGenerator, EventManager
from moto.stepfunctions.parser.backend.activity import Activity
from moto.stepfunctions.parser.backend.execution import Execution
from moto.stepfunctions.parser.backend.execution_worker import ExecutionWorker
from moto.stepfunctions.parser.models import StepFunctionsParserBackend
from moto.stepfunctions.responses import StepFunctionResponse

from mcp_workflows_stepfunctions_local.release import LocalEngineError, describe_misfit, is_known

USED: Final[Mapping[Any, tuple[str, ...]]] = {
    Activity: ("_tasks", "add_task"),
    ActivityTaskStartEndpoint: ("_next_activity_task_start_event",),
    BackendDict: ("__getitem__",),
    BaseBackend: ("_url_module", "reset"),
    CallbackEndpoint: ("consumer_error", "get_outcome", "interrupt_all", "notify", "notify_heartbeat", "report"),
    CallbackPoolManager: ("_pool", "add", "add_activity_task"),
    Environment: (
        "callback_pool_manager",
        "event_manager",
        "variable_store",
        "is_running",
        "set_stop",
        "set_timed_out",
    ),
    EventIdGenerator: ("_next_id",),
    EventManager: ("_event_id_gen", "_history_event_list", "add_event", "get_event_history"),
    Execution: ("_get_start_aws_execution_details", "get_start_execution_details", "get_start_state_machine_details"),
    ExecutionWorker: ("_get_evaluation_entrypoint", "_get_evaluation_environment", "env"),
    Program: ("start_at", "timeout_seconds"),
    StateMachine: ("publish",),
    StepFunctionResponse: ("_get_bool_param", "_get_int_param", "_get_param", "dispatch", "stepfunction_backend"),
    StepFunctionsParserBackend: (
        "_revision_by_name",
        "_validate_definition",
        "_validate_execution_arn",
        "_validate_machine_arn",
    ),
    ThreadedMotoServer: ("start", "stop"),
}
"""The private parts of moto that we use, checked at the start so that no call fails for lack of them."""


def check() -> None:
    """Check the release of moto and the parts that we use.

    Raises:
        LocalEngineError: the release is unknown, or a part is missing.
    """
    version = metadata.version("moto")
    if not is_known(version):
        raise LocalEngineError(describe_misfit(f"moto {version}"))
    for owner, names in USED.items():
        require(owner, *names)


def require(owner: Any, *names: str) -> None:
    """Check that a module or class of moto still has these parts.

    Raises:
        LocalEngineError: a part is missing.
    """
    annotated = getattr(owner, "__annotations__", {})
    gone = [name for name in names if not hasattr(owner, name) and name not in annotated]
    if gone:
        raise LocalEngineError(
            describe_misfit(f"{getattr(owner, '__name__', type(owner).__name__)} has no {', '.join(gone)}")
        )


def replace(owner: Any, name: str, part: Any) -> None:
    """Replace a part of moto with ours."""
    require(owner, name)
    setattr(owner, name, part)


def wrap(owner: type, name: str, wrapper: Callable[[Any], Any]) -> None:
    """Wrap a method of a class of moto, which the class may inherit."""
    require(owner, name)
    setattr(owner, name, wrapper(getattr(owner, name)))
