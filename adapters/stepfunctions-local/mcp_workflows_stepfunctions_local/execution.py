"""An execution, which ends once, even if its threads continue, and can be redriven."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from moto.stepfunctions.parser.api import ExecutionStatus
from moto.stepfunctions.parser.asl.eval.evaluation_details import EvaluationDetails
from moto.stepfunctions.parser.asl.eval.program_state import ProgramEnded, ProgramError
from moto.stepfunctions.parser.asl.utils.encoding import to_json_str
from moto.stepfunctions.parser.backend.execution import Execution

from mcp_workflows_stepfunctions_local.errors import RefusedError
from mcp_workflows_stepfunctions_local.history import last_entered, with_end
from mcp_workflows_stepfunctions_local.run import Resumption, Run
from mcp_workflows_stepfunctions_local.tokens import TokenPool

COMPACT: Final = (",", ":")
_REDRIVABLE: Final = frozenset({"ABORTED", "FAILED", "TIMED_OUT"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The machine that StartExecution names (a copy of its current state), and the version or alias in its ARN."""

    machine: Any
    version: str | None = None  # ARN
    alias: str | None = None  # ARN


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a run."""

    status: ExecutionStatus
    events: Sequence[Any]
    output: Any = None
    error: str | None = None
    cause: str | None = None


class LocalExecution(Execution):
    """An execution of the local engine."""

    def __init__(
        self,
        *,
        target: Target,
        new_pool: Callable[[], TokenPool],
        publish: Callable[[LocalExecution], None],
        **started: Any,
    ) -> None:
        super().__init__(
            state_machine=target.machine,
            sm_type=target.machine.type,
            role_arn=target.machine.roleArn,
            cloud_watch_logging_session=None,
            activity_store={},
            **started,
        )
        self.target = target
        self.redrives = 0
        self.redriven_at: datetime | None = None
        self.ended = threading.Event()
        self._new_pool = new_pool
        self._publish = publish
        self._lock = threading.RLock()
        self._run: Run = self._new_run()
        self.exec_status = ExecutionStatus.RUNNING
        self._events: list[Any] | None = None  # the whole history, after the end

    @property
    def is_running(self) -> bool:
        """True until the execution ends."""
        return self.exec_status is ExecutionStatus.RUNNING

    @property
    def events(self) -> list[Any]:
        """The history so far. Nothing is added after the end; moto's running threads still add to it."""
        with self._lock:
            return self._run.events if self._events is None else self._events

    @property
    def is_express(self) -> bool:
        """True if the machine is an Express one."""
        return bool(self.target.machine.type == "EXPRESS")

    @property
    def output_text(self) -> str:
        """The output in the form of the API."""
        untyped: Any = self  # moto types outputs as `json`, the module
        return to_json_str(untyped.output, separators=COMPACT)

    def start(self) -> None:
        """Start the run, and publish the status."""
        self._publish(self)
        self._run.start()

    def stop(self, stop_date: datetime, error: str | None, cause: str | None) -> None:
        """End the execution now, also while it waits for a token or in a Map.

        Moto continues to wait, and drops error and cause.
        """
        details = {name: value for name, value in (("error", error), ("cause", cause)) if value is not None}
        aborted = {"type": "ExecutionAborted", "executionAbortedEventDetails": details}
        with self._lock:
            if self._run.environment.is_running():
                events = with_end(self.events, aborted)
                self._run.environment.set_stop(stop_date=stop_date, cause=cause, error=error)
                self._end(self._run, Ending(status=ExecutionStatus.ABORTED, events=events, error=error, cause=cause))

    def time_out(self, run: Run) -> None:
        """End the execution after the machine's TimeoutSeconds; moto records no end before its last thread ends."""
        timed_out: dict[str, Any] = {"type": "ExecutionTimedOut", "executionTimedOutEventDetails": {}}
        with self._lock:
            if run.environment.is_running():
                events = with_end(run.events, timed_out)
                run.environment.set_timed_out()
                self._end(run, Ending(status=ExecutionStatus.TIMED_OUT, events=events))

    def finish(self, run: Run) -> None:
        """Record the end of a run; the end of a stopped run is already recorded."""
        match run.environment.program_state():
            case ProgramEnded():
                output = run.environment.states.get_input()
                self._end(run, Ending(status=ExecutionStatus.SUCCEEDED, events=run.events, output=output))
            case ProgramError(error=failure):
                why: dict[str, Any] = {name: (failure or {}).get(name) for name in ("error", "cause")}
                self._end(run, Ending(status=ExecutionStatus.FAILED, events=run.events, **why))
            case _:
                pass

    def redrive(self) -> datetime:
        """Run again from the state that did not succeed, and return the time.

        Raises:
            RefusedError: ExecutionNotRedrivable.
        """
        with self._lock:
            if self._events is None or self.status not in _REDRIVABLE:
                raise RefusedError("ExecutionNotRedrivable", _not_redrivable(self.status))
            self.redrives += 1
            redriven_at = self.redriven_at = now()
            self._run = self._new_run(self._resumption(self._events))
            self._events, self.exec_status = None, ExecutionStatus.RUNNING
            self.stop_date = self.output = self.error = self.cause = None
            self.ended.clear()
        self.start()
        return redriven_at

    def map_run(self, arn: str) -> Any:
        """Return moto's record of a Map Run that the execution started, or None."""
        return self._run.environment.map_run_record_pool_manager.get(arn)

    def description(self) -> dict[str, Any]:
        """Return the fields of DescribeExecution, which EventBridge events also have."""
        succeeded = self.exec_status is ExecutionStatus.SUCCEEDED
        found = {
            **self.summary(),
            "input": self.execution_input,
            "inputDetails": {"included": True},
            "output": self.output_text if succeeded else None,
            "outputDetails": {"included": True} if succeeded else None,
            "error": self.error,
            "cause": self.cause,
            "traceHeader": self.trace_header,
            "redriveStatus": "REDRIVABLE" if self.status in _REDRIVABLE else "NOT_REDRIVABLE",
            "redriveStatusReason": None if self.status in _REDRIVABLE else _not_redrivable(self.status),
        }
        return {name: value for name, value in found.items() if value is not None}

    def summary(self) -> dict[str, Any]:
        """Return the fields of ListExecutions."""
        found = {
            "executionArn": self.exec_arn,
            "stateMachineArn": self.target.machine.arn,
            "stateMachineVersionArn": self.target.version,
            "stateMachineAliasArn": self.target.alias,
            "name": self.name,
            "status": self.status,
            "startDate": self.start_date,
            "stopDate": self.stop_date,
            "redriveCount": self.redrives,
            "redriveDate": self.redriven_at,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _end(self, run: Run, ending: Ending) -> None:
        """Record the end. A second end, and one of a run before a redrive, change nothing."""
        with self._lock:
            if run is not self._run or self._events is not None:
                return
            self._events = list(ending.events)
            self.output, self.error, self.cause = ending.output, ending.error, ending.cause
            self.stop_date = now()
            self.exec_status = ending.status
        run.abandon()
        self._publish(self)
        self.ended.set()

    def _new_run(self, resumption: Resumption | None = None) -> Run:
        run = Run(details=self._details(), listener=self, pool=self._new_pool(), resumption=resumption)
        self.exec_worker = run  # where moto searches Map Runs
        return run

    def _resumption(self, events: Sequence[Any]) -> Resumption:
        first = json.loads(self.target.machine.definition)["StartAt"]
        state, given = last_entered(events, self.target.machine.definition) or (first, json.loads(self.execution_input))
        return Resumption(events=events, count=self.redrives, state=state, input=given, variables=self._run.variables)

    def _details(self) -> EvaluationDetails:
        return EvaluationDetails(
            aws_execution_details=self._get_start_aws_execution_details(),
            execution_details=self.get_start_execution_details(),
            state_machine_details=self.get_start_state_machine_details(),
        )


def now() -> datetime:
    """Return the current time in moto's form."""
    return datetime.now(tz=UTC)


def _not_redrivable(status: str) -> str:
    return f"Execution is {status} and cannot be redriven"  # AWS's text
