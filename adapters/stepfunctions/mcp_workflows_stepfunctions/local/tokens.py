"""Task tokens: which there are, and whether they are still outstanding."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from moto.stepfunctions.parser.asl.eval.callback.callback import (
    ActivityCallbackEndpoint,
    CallbackConsumerLeft,
    CallbackEndpoint,
    CallbackOutcome,
    CallbackPoolManager,
)
from moto.stepfunctions.parser.backend.activity import Activity, ActivityTask


@dataclass(slots=True, kw_only=True)
class Token:
    """One task token; kept after its end, because AWS says TaskTimedOut of those and InvalidToken of unknown ones."""

    endpoint: CallbackEndpoint
    turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def outstanding(self) -> bool:
        """Whether its state still waits, and nobody has answered yet."""
        return self.endpoint.consumer_error is None and self.endpoint.get_outcome() is None

    def answer(self, outcome: CallbackOutcome) -> bool:
        """Hand over an answer, unless there is one already or nobody waits any more."""
        with self.turn:
            if not self.outstanding:
                return False
            self.endpoint.notify(outcome)
            return True

    def close(self) -> None:
        """Its state is left: no answer counts any more, and whoever waits for one stops waiting."""
        with self.turn:
            if self.endpoint.consumer_error is None:
                self.endpoint.report(CallbackConsumerLeft())
        self.endpoint.interrupt_all()
        if isinstance(self.endpoint, ActivityCallbackEndpoint):
            started: Any = self.endpoint.get_activity_task_start_endpoint()
            started._next_activity_task_start_event.set()  # noqa: SLF001 moto has no method to give up waiting


class Mailbox(Activity):
    """An activity whose workers can wait for a task; moto's raises IndexError when there is none."""

    def __init__(self, arn: str, name: str) -> None:
        super().__init__(arn, name)
        self._changed = threading.Condition()

    def add_task(self, task: ActivityTask) -> None:
        """Put a task in and wake a worker up."""
        with self._changed:
            super().add_task(task)
            self._changed.notify()

    def take(self, seconds: float, tokens: Mapping[str, Token]) -> ActivityTask | None:
        """The oldest task whose state still waits, or None when there is none in this time."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._changed.wait_for(lambda: self._tasks, max(0.0, deadline - time.monotonic())):
                task = self._tasks.popleft()
                if tokens[task.task_token].outstanding:
                    return task
            return None


class Pool(CallbackPoolManager):
    """The tokens of one run of an execution, written into the engine's register as well."""

    def __init__(self, *, mailboxes: Mapping[str, Mailbox], register: dict[str, Token]) -> None:
        super().__init__(activity_store=cast("dict[str, Activity]", mailboxes))
        self._mailboxes = mailboxes
        self._register = register
        self._own: dict[str, Token] = {}

    def add(self, callback_id: str) -> CallbackEndpoint:
        """A token of a `.waitForTaskToken` state."""
        endpoint = super().add(callback_id)
        self._keep(callback_id, endpoint)
        return endpoint

    def add_activity_task(self, callback_id: str, activity_arn: str, activity_input: str) -> ActivityCallbackEndpoint:
        """A token of an activity; registered before a worker can have it, whereas moto does the reverse."""
        endpoint = ActivityCallbackEndpoint(callback_id=callback_id, activity_input=activity_input)
        mailbox = self._mailboxes.get(activity_arn)
        if mailbox is None:
            return super().add_activity_task(callback_id, activity_arn, activity_input)  # which says what is wrong
        self._pool[callback_id] = endpoint
        self._keep(callback_id, endpoint)
        mailbox.add_task(ActivityTask(task_token=callback_id, task_input=activity_input))
        return endpoint

    def outstanding(self, token: str) -> bool:
        """Whether its state still waits for an answer."""
        return token in self._own and self._own[token].outstanding

    def close(self, token: str) -> None:
        """Its state is left."""
        if token in self._own:
            self._own[token].close()

    def close_all(self) -> None:
        """The run is over."""
        for token in list(self._own.values()):
            token.close()

    def _keep(self, name: str, endpoint: CallbackEndpoint) -> None:
        self._own[name] = self._register[name] = Token(endpoint=endpoint)
