"""A token of its own for every try of a state, and none outstanding once the state is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service_callback import (
    StateTaskServiceCallback,
)
from moto.stepfunctions.parser.asl.component.state.exec.state_task.state_task_activitiy import StateTaskActivity
from moto.stepfunctions.parser.asl.eval.callback.callback import ActivityTaskStartEndpoint

from mcp_workflows_stepfunctions.local.patching import required, wrap

Evaluation: TypeAlias = Callable[[Any, Any], None]  # of a state of moto, in an environment of moto


def install() -> None:
    """Put it around moto's states."""
    wrap(StateTaskServiceCallback, "_evaluate_with_timeout", fresh_token)
    wrap(StateTaskActivity, "_eval_execution", closed_token)
    required(ActivityTaskStartEndpoint, "_outcome", "wait", "notify")
    # moto reads it before anybody has set it: a task that no worker took ended as States.Runtime, not States.Timeout
    unset: Any = ActivityTaskStartEndpoint
    unset._outcome = None  # noqa: SLF001


def fresh_token(evaluate: Evaluation) -> Evaluation:
    """Moto makes one token per state, so that a Retry found the old one answered already; AWS makes one per try."""

    def evaluated(state: Any, env: Any) -> None:
        token, pool = _token(env), env.callback_pool_manager
        if token is not None and not pool.outstanding(token):
            token = env.states.context_object.update_task_token()
            pool.add(token)
        try:
            evaluate(state, env)
        finally:
            if token is not None:
                pool.close(token)

    return evaluated


def closed_token(evaluate: Evaluation) -> Evaluation:
    """Moto takes answers to an activity that has timed out or missed a heartbeat; AWS says TaskTimedOut."""

    def evaluated(state: Any, env: Any) -> None:
        try:
            evaluate(state, env)
        finally:
            token = _token(env)
            if token is not None:
                env.callback_pool_manager.close(token)

    return evaluated


def _token(env: Any) -> str | None:
    """The task token of the state that is evaluated in this environment."""
    task: Mapping[str, str] | None = env.states.context_object.context_object_data.get("Task")
    return task["Token"] if task else None
