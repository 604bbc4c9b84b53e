"""Executions on the local engine, read and answered by the pure parts of the adapter alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from mcp_workflows_stepfunctions.gates import answer_calls, requests
from mcp_workflows_stepfunctions.history import History
from mcp_workflows_stepfunctions.questions import find_mcp_input

from mcp_workflows.adapter import Gate
from tests.support.stepfunctions_engine import StepFunctions

_NO_GATES: Final[Mapping[str, Gate]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution."""

    engine: StepFunctions
    arn: str

    def history(self) -> list[Any]:
        found = self.engine.client().get_execution_history(executionArn=self.arn, maxResults=1000)
        events: list[Any] = found["events"]
        return events

    def fold(self) -> History:
        found = History()
        found.feed(self.history())
        return found

    def until(self, wanted: Callable[[History], bool], seconds: float = 60.0) -> History:
        deadline = time.monotonic() + seconds
        while not wanted(found := self.fold()):
            assert time.monotonic() < deadline, [(each["type"], each["id"]) for each in self.history()]
            time.sleep(0.01)
        return found

    def asked(self, count: int = 1) -> list[str]:
        """The keys of the questions, once there are so many."""
        return list(requests(self.until(lambda found: len(requests(found, {})) == count), {}))

    def answer(self, key: str, response: Mapping[str, Any], gates: Mapping[str, Gate] = _NO_GATES) -> None:
        [delivery] = answer_calls(self.fold(), gates, {key: response})
        getattr(self.engine.client(), delivery.operation)(**delivery.params)

    def fail(self, key: str, error: str) -> None:
        """What the code behind a question does when it breaks."""
        envelope = find_mcp_input(self.fold().waiting[int(key)].parameters)
        assert envelope is not None
        self.engine.client().send_task_failure(taskToken=envelope.token, error=error)

    def end(self) -> Any:
        return self.engine.ended(self.arn)

    def stop(self) -> None:
        self.engine.client().stop_execution(executionArn=self.arn, error="Tests.Stopped", cause="enough")


Runs: TypeAlias = Callable[..., Run]  # of a definition and an input, {} by default


def start(engine: StepFunctions, definition: Mapping[str, Any], given: Any) -> Run:
    """Start a machine of this definition."""
    started = engine.client().start_execution(stateMachineArn=engine.machine(definition), input=json.dumps(given))
    return Run(engine=engine, arn=started["executionArn"])
