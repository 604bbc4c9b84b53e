"""One run of an execution: the first one, or one after a redrive."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from moto.stepfunctions.parser.api import HistoryEventType
from moto.stepfunctions.parser.asl.component.eval_component import EvalComponent
from moto.stepfunctions.parser.asl.eval.evaluation_details import EvaluationDetails
from moto.stepfunctions.parser.asl.eval.event.event_detail import EventDetails
from moto.stepfunctions.parser.asl.utils.encoding import to_json_str
from moto.stepfunctions.parser.backend.execution_worker import ExecutionWorker

from mcp_workflows_stepfunctions.local.history import continued
from mcp_workflows_stepfunctions.local.patching import replace
from mcp_workflows_stepfunctions.local.tokens import Pool

NOT_YET: Final = ""  # the state a run is in before its definition is parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """Where a redrive goes on: at a state of the top level, with what was known there."""

    events: Sequence[Any]  # the history until now
    count: int  # of redrives, this one too
    state: str
    input: Any
    variables: Any


class Whose(Protocol):
    """The execution of a run."""

    def finished(self, run: Run) -> None:
        """It has come to its end by itself."""

    def time_out(self, run: Run) -> None:
        """The TimeoutSeconds of the definition are over."""


class Run(ExecutionWorker):
    """Evaluates a definition in a thread of its own, and tells the execution how that ended.

    Moto starts evaluating in another thread and has no environment until then, so that an execution could not be
    stopped, or its history read, in its first milliseconds; and it keeps a second thread per execution for a
    TimeoutSeconds that most have not.
    """

    def __init__(self, *, details: EvaluationDetails, whose: Whose, pool: Pool, resumption: Resumption | None) -> None:
        nobody = cast("Any", None)  # moto tells its execution through this, we do it in `_execution_logic`
        super().__init__(
            evaluation_details=details, exec_comm=nobody, cloud_watch_logging_session=None, activity_store={}
        )
        self._whose = whose
        self._pool = pool
        self._resumption = resumption
        self._timer: threading.Timer | None = None
        self.env = self.environment = self._get_evaluation_environment()
        replace(self.environment, "callback_pool_manager", pool)
        self.environment.next_state_name = NOT_YET  # which makes it run
        self._open()

    @property
    def events(self) -> list[Any]:
        """The history until now."""
        return list(self.environment.event_manager.get_event_history())

    @property
    def variables(self) -> Any:
        """What was assigned in states of the top level."""
        return self.environment.variable_store

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._execution_logic, daemon=True).start()

    def give_up(self) -> None:
        """Nobody waits for the run any more: let its threads end."""
        if self._timer is not None:
            self._timer.cancel()
        self._pool.close_all()

    def _execution_logic(self) -> None:
        program: Any = self._get_evaluation_entrypoint()
        first: str = self._resumption.state if self._resumption else program.start_at.start_at_name
        try:
            self.environment.next_state_name = first
        except RuntimeError:
            return  # stopped already: moto refuses to name a state then
        if program.timeout_seconds is not None:
            self._timer = threading.Timer(program.timeout_seconds.timeout_seconds, self._whose.time_out, (self,))
            self._timer.daemon = True
            self._timer.start()
        EvalComponent.eval(program, self.environment)
        self._whose.finished(self)

    def _open(self) -> None:
        """Write the first event of the run."""
        if self._resumption is None:
            details = self._evaluation_details
            started = {
                "input": to_json_str(details.execution_details.inpt),
                "inputDetails": {"truncated": False},
                "roleArn": details.aws_execution_details.role_arn,
            }
            self._write(HistoryEventType.ExecutionStarted, {"executionStartedEventDetails": started})
            return
        replace(self.environment, "event_manager", continued(self._resumption.events))
        replace(self.environment, "variable_store", self._resumption.variables)
        self.environment.states.reset(self._resumption.input)
        redriven = {"redriveCount": self._resumption.count}
        self._write(HistoryEventType.ExecutionRedriven, {"executionRedrivenEventDetails": redriven})

    def _write(self, kind: HistoryEventType, details: Mapping[str, Any]) -> None:
        self.environment.event_manager.add_event(
            context=self.environment.event_history_context,
            event_type=kind,
            event_details=cast("EventDetails", details),
            update_source_event_id=False,
        )
