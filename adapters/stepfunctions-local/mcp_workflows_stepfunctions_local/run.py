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

from mcp_workflows_stepfunctions_local.history import writer_after
from mcp_workflows_stepfunctions_local.patches import replace
from mcp_workflows_stepfunctions_local.tokens import TokenPool

_NO_STATE: Final = ""  # the state of a run before its definition is parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """The point where a redrive continues: a top-level state, its input and its variables."""

    events: Sequence[Any]  # the history so far
    count: int  # of redrives, including this one
    state: str
    input: Any
    variables: Any


class RunListener(Protocol):
    """The execution of a run."""

    def finish(self, run: Run) -> None:
        """Record that the run ended by itself."""

    def time_out(self, run: Run) -> None:
        """Record that the TimeoutSeconds of the definition have passed."""


class Run(ExecutionWorker):
    """The evaluation of a definition in a separate thread, which reports its end to the execution.

    Moto creates the environment only in the thread that evaluates: in its first milliseconds an execution could not be
    stopped, nor its history read. Moto also keeps a second thread per execution for TimeoutSeconds, which most
    definitions lack.
    """

    def __init__(
        self, *, details: EvaluationDetails, listener: RunListener, pool: TokenPool, resumption: Resumption | None
    ) -> None:
        nobody = cast("Any", None)  # moto reports to its execution through this, we do in `_execution_logic`
        super().__init__(
            evaluation_details=details, exec_comm=nobody, cloud_watch_logging_session=None, activity_store={}
        )
        self._listener = listener
        self._pool = pool
        self._resumption = resumption
        self._timer: threading.Timer | None = None
        self.env = self.environment = self._get_evaluation_environment()
        replace(self.environment, "callback_pool_manager", pool)
        self.environment.next_state_name = _NO_STATE  # makes it run
        self._open()

    @property
    def events(self) -> list[Any]:
        """The events so far."""
        return list(self.environment.event_manager.get_event_history())

    @property
    def variables(self) -> Any:
        """The variables assigned in top-level states."""
        return self.environment.variable_store

    def start(self) -> None:
        """Start the evaluation in a separate thread."""
        threading.Thread(target=self._execution_logic, daemon=True).start()

    def abandon(self) -> None:
        """End the threads of a run whose execution has ended."""
        if self._timer is not None:
            self._timer.cancel()
        self._pool.close_all()

    def _execution_logic(self) -> None:
        program: Any = self._get_evaluation_entrypoint()
        first: str = self._resumption.state if self._resumption else program.start_at.start_at_name
        try:
            self.environment.next_state_name = first
        except RuntimeError:
            return  # already stopped: moto then refuses to set a state
        if program.timeout_seconds is not None:
            self._timer = threading.Timer(program.timeout_seconds.timeout_seconds, self._listener.time_out, (self,))
            self._timer.daemon = True
            self._timer.start()
        EvalComponent.eval(program, self.environment)
        self._listener.finish(self)

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
        replace(self.environment, "event_manager", writer_after(self._resumption.events))
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
