"""An execution that ends once, whatever its threads still do, and can be redriven."""

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

from mcp_workflows_stepfunctions.local.history import ended_by, entered_last
from mcp_workflows_stepfunctions.local.refusing import RefusedError
from mcp_workflows_stepfunctions.local.run import Resumption, Run
from mcp_workflows_stepfunctions.local.tokens import Pool

COMPACT: Final = (",", ":")
_REDRIVABLE: Final = frozenset({"ABORTED", "FAILED", "TIMED_OUT"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What StartExecution was asked for: a machine (a copy, as it is now), perhaps by a version or an alias."""

    machine: Any
    version: str | None = None  # ARN
    alias: str | None = None  # ARN


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended."""

    status: ExecutionStatus
    events: Sequence[Any]
    output: Any = None
    error: str | None = None
    cause: str | None = None


class LocalExecution(Execution):
    """An execution of the local engine."""

    def __init__(
        self, *, target: Target, pool: Callable[[], Pool], announce: Callable[[LocalExecution], None], **started: Any
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
        self.redriven: datetime | None = None
        self.ended = threading.Event()
        self._pool = pool
        self._announce = announce
        self._turn = threading.RLock()
        self._run: Run = self._new_run()
        self.exec_status = ExecutionStatus.RUNNING
        self._events: list[Any] | None = None  # the whole history, once it has ended

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.exec_status is ExecutionStatus.RUNNING

    @property
    def events(self) -> list[Any]:
        """The history until now; nothing is added after the end, whereas moto lets left over threads do that."""
        with self._turn:
            return self._run.events if self._events is None else self._events

    @property
    def express(self) -> bool:
        """Whether its machine is an Express one."""
        return bool(self.target.machine.type == "EXPRESS")

    @property
    def output_text(self) -> str:
        """The output as the API shows it."""
        untyped: Any = self  # moto says that outputs are `json`, the module
        return to_json_str(untyped.output, separators=COMPACT)

    def start(self) -> None:
        """Begin, and say so on EventBridge."""
        self._announce(self)
        self._run.start()

    def stop(self, stop_date: datetime, error: str | None, cause: str | None) -> None:
        """End it now, also while it waits for a token or in a Map; moto goes on waiting and forgets error and cause."""
        details = {name: value for name, value in (("error", error), ("cause", cause)) if value is not None}
        aborted = {"type": "ExecutionAborted", "executionAbortedEventDetails": details}
        with self._turn:
            if self._run.environment.is_running():
                events = ended_by(self.events, aborted)
                self._run.environment.set_stop(stop_date=stop_date, cause=cause, error=error)
                self._end(self._run, Ending(status=ExecutionStatus.ABORTED, events=events, error=error, cause=cause))

    def time_out(self, run: Run) -> None:
        """End it because its machine's TimeoutSeconds are over; moto notes no end before its last thread has ended."""
        timed_out: dict[str, Any] = {"type": "ExecutionTimedOut", "executionTimedOutEventDetails": {}}
        with self._turn:
            if run.environment.is_running():
                events = ended_by(run.events, timed_out)
                run.environment.set_timed_out()
                self._end(run, Ending(status=ExecutionStatus.TIMED_OUT, events=events))

    def finished(self, run: Run) -> None:
        """A run has come to its end; one that we ended has been heard of already."""
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
        """Run again from the state that did not succeed.

        Raises:
            RefusedError: ExecutionNotRedrivable.
        """
        with self._turn:
            if self._events is None or self.status not in _REDRIVABLE:
                raise RefusedError("ExecutionNotRedrivable", _not_redrivable(self.status))
            self.redrives += 1
            self.redriven = now()
            self._run = self._new_run(self._resumption(self._events))
            self._events, self.exec_status = None, ExecutionStatus.RUNNING
            self.stop_date = self.output = self.error = self.cause = None
            self.ended.clear()
        self.start()
        return self.redriven

    def map_run(self, arn: str) -> Any:
        """Moto's record of a Map Run that it started, or None."""
        return self._run.environment.map_run_record_pool_manager.get(arn)

    def described(self) -> dict[str, Any]:
        """What DescribeExecution and the events on EventBridge say of it."""
        succeeded = self.exec_status is ExecutionStatus.SUCCEEDED
        found = {
            **self.listed(),
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

    def listed(self) -> dict[str, Any]:
        """What ListExecutions says of it."""
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
            "redriveDate": self.redriven,
        }
        return {name: value for name, value in found.items() if value is not None}

    def _end(self, run: Run, ending: Ending) -> None:
        """Note the end; who comes second, and what is left of a run that was redriven, changes nothing."""
        with self._turn:
            if run is not self._run or self._events is not None:
                return
            self._events = list(ending.events)
            self.output, self.error, self.cause = ending.output, ending.error, ending.cause
            self.stop_date = now()
            self.exec_status = ending.status
        run.give_up()
        self._announce(self)
        self.ended.set()

    def _new_run(self, resumption: Resumption | None = None) -> Run:
        run = Run(details=self._details(), whose=self, pool=self._pool(), resumption=resumption)
        self.exec_worker = run  # where moto looks for Map Runs
        return run

    def _resumption(self, events: Sequence[Any]) -> Resumption:
        first = json.loads(self.target.machine.definition)["StartAt"]
        state, given = entered_last(events, self.target.machine.definition) or (first, json.loads(self.execution_input))
        return Resumption(events=events, count=self.redrives, state=state, input=given, variables=self._run.variables)

    def _details(self) -> EvaluationDetails:
        return EvaluationDetails(
            aws_execution_details=self._get_start_aws_execution_details(),
            execution_details=self.get_start_execution_details(),
            state_machine_details=self.get_start_state_machine_details(),
        )


def now() -> datetime:
    """The time, as moto writes it."""
    return datetime.now(tz=UTC)


def _not_redrivable(status: str) -> str:
    return f"Execution is {status} and cannot be redriven"  # AWS's words
