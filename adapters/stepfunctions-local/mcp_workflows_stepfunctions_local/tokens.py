"""Task tokens: a new one per attempt of a state, open until it is answered or the state ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service_callback import (
    StateTaskServiceCallback,
)
from moto.stepfunctions.parser.asl.component.state.exec.state_task.state_task_activitiy import StateTaskActivity
from moto.stepfunctions.parser.asl.eval.callback.callback import (
    ActivityCallbackEndpoint,
    ActivityTaskStartEndpoint,
    CallbackConsumerLeft,
    CallbackEndpoint,
    CallbackOutcome,
    CallbackPoolManager,
)
from moto.stepfunctions.parser.backend.activity import Activity, ActivityTask

from mcp_workflows_stepfunctions_local.patches import require, wrap

Evaluation: TypeAlias = Callable[[Any, Any], None]  # of a state of moto, in an environment of moto


@dataclass(slots=True, kw_only=True)
class Token:
    """One task token, kept after its end: AWS answers TaskTimedOut for ended tokens, InvalidToken for unknown ones."""

    endpoint: CallbackEndpoint
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_outstanding(self) -> bool:
        """True if the state still waits for an answer."""
        return self.endpoint.consumer_error is None and self.endpoint.get_outcome() is None

    def answer(self, outcome: CallbackOutcome) -> bool:
        """Deliver an answer to the state; return False if it already has one or no longer waits."""
        with self.lock:
            if not self.is_outstanding:
                return False
            self.endpoint.notify(outcome)
            return True

    def close(self) -> None:
        """Accept no more answers, and end the wait of the state."""
        with self.lock:
            if self.endpoint.consumer_error is None:
                self.endpoint.report(CallbackConsumerLeft())
        self.endpoint.interrupt_all()
        if isinstance(self.endpoint, ActivityCallbackEndpoint):
            started: Any = self.endpoint.get_activity_task_start_endpoint()
            started._next_activity_task_start_event.set()  # noqa: SLF001 moto has no method to give up waiting


class ActivityQueue(Activity):
    """An activity with a queue of tasks that workers can wait for; without a task, moto's raises IndexError."""

    def __init__(self, arn: str, name: str) -> None:
        super().__init__(arn, name)
        self._changed = threading.Condition()

    def add_task(self, task: ActivityTask) -> None:
        """Add a task, and wake a worker."""
        with self._changed:
            super().add_task(task)
            self._changed.notify()

    def take(self, seconds: float, tokens: Mapping[str, Token]) -> ActivityTask | None:
        """Return the oldest task whose state still waits, or None if none arrives within `seconds`."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._changed.wait_for(lambda: self._tasks, max(0.0, deadline - time.monotonic())):
                task = self._tasks.popleft()
                if tokens[task.task_token].is_outstanding:
                    return task
            return None


class TokenPool(CallbackPoolManager):
    """The tokens of one run of an execution, also kept in the store's register."""

    def __init__(self, *, queues: Mapping[str, ActivityQueue], register: dict[str, Token]) -> None:
        super().__init__(activity_store=cast("dict[str, Activity]", queues))
        self._queues = queues
        self._register = register
        self._own: dict[str, Token] = {}

    def add(self, callback_id: str) -> CallbackEndpoint:
        """Add a token of a `.waitForTaskToken` state."""
        endpoint = super().add(callback_id)
        self._keep(callback_id, endpoint)
        return endpoint

    def add_activity_task(self, callback_id: str, activity_arn: str, activity_input: str) -> ActivityCallbackEndpoint:
        """Add a token of an activity before a worker can get its task; moto does this afterwards."""
        endpoint = ActivityCallbackEndpoint(callback_id=callback_id, activity_input=activity_input)
        queue = self._queues.get(activity_arn)
        if queue is None:
            return super().add_activity_task(callback_id, activity_arn, activity_input)  # explains the problem
        self._pool[callback_id] = endpoint
        self._keep(callback_id, endpoint)
        queue.add_task(ActivityTask(task_token=callback_id, task_input=activity_input))
        return endpoint

    def is_outstanding(self, token: str) -> bool:
        """Return True if the token is of this run and its state still waits for an answer."""
        return token in self._own and self._own[token].is_outstanding

    def close(self, token: str) -> None:
        """Close the token of a state that ended."""
        if token in self._own:
            self._own[token].close()

    def close_all(self) -> None:
        """Close all tokens at the end of the run."""
        for token in list(self._own.values()):
            token.close()

    def _keep(self, name: str, endpoint: CallbackEndpoint) -> None:
        self._own[name] = self._register[name] = Token(endpoint=endpoint)


def install() -> None:
    """Wrap the states of moto that wait for a token."""
    wrap(StateTaskServiceCallback, "_evaluate_with_timeout", renew_token)
    wrap(StateTaskActivity, "_eval_execution", close_token)
    require(ActivityTaskStartEndpoint, "_outcome", "wait", "notify")
    # moto reads it before it is set: a task that no worker took ended as States.Runtime, not States.Timeout
    endpoint: Any = ActivityTaskStartEndpoint
    endpoint._outcome = None  # noqa: SLF001


def renew_token(evaluate: Evaluation) -> Evaluation:
    """Create a token per attempt; moto creates one per state, so a Retry found the old one already answered."""

    def evaluate_with_new_token(state: Any, env: Any) -> None:
        token, pool = _token(env), env.callback_pool_manager
        if token is not None and not pool.is_outstanding(token):
            token = env.states.context_object.update_task_token()
            pool.add(token)
        try:
            evaluate(state, env)
        finally:
            if token is not None:
                pool.close(token)

    return evaluate_with_new_token


def close_token(evaluate: Evaluation) -> Evaluation:
    """Close the token of an activity after a timeout or a missed heartbeat; moto still accepts answers to it."""

    def evaluate_and_close(state: Any, env: Any) -> None:
        try:
            evaluate(state, env)
        finally:
            token = _token(env)
            if token is not None:
                env.callback_pool_manager.close(token)

    return evaluate_and_close


def _token(env: Any) -> str | None:
    """Return the task token of the evaluated state in this environment."""
    task: Mapping[str, str] | None = env.states.context_object.context_object_data.get("Task")
    return task["Token"] if task else None
