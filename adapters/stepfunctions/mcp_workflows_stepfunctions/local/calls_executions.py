"""StartExecution, DescribeExecution, ListExecutions, StopExecution, RedriveExecution, GetExecutionHistory."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from moto.core.responses import ActionResult

from mcp_workflows_stepfunctions.local.calls import Calls
from mcp_workflows_stepfunctions.local.execution import LocalExecution, now
from mcp_workflows_stepfunctions.local.history import without_data
from mcp_workflows_stepfunctions.local.paging import page
from mcp_workflows_stepfunctions.local.refusing import RefusedError

EXPRESS_SECONDS: Final = 300.0  # how long an Express execution may take
NOT_SUPPORTED: Final = "This operation is not supported by this type of state machine"  # AWS's words


class ExecutionCalls(Calls):
    """The calls about executions."""

    def start_execution(self) -> ActionResult:
        """With a trace header, which moto drops."""
        execution = self.store.start_execution(
            self.text("stateMachineArn"),
            self._get_param("name"),
            self._get_param("input"),
            self._get_param("traceHeader"),
        )
        return ActionResult({"executionArn": execution.exec_arn, "startDate": execution.start_date})

    def start_sync_execution(self) -> ActionResult:
        """An Express execution, waited for; moto has no such call."""
        arn = self.text("stateMachineArn")
        self._of_type(arn, "EXPRESS")
        execution = self.store.start_execution(arn, self._get_param("name"), self._get_param("input"))
        if not execution.ended.wait(EXPRESS_SECONDS):
            execution.stop(now(), "States.Timeout", None)
        billed = {"billingDetails": {"billedDurationInMilliseconds": 100, "billedMemoryUsedInMB": 64}}
        status = {"status": "TIMED_OUT" if execution.status == "ABORTED" else execution.status}
        return ActionResult({**execution.described(), **status, **billed})

    def describe_execution(self) -> ActionResult:
        """With stopDate of TIMED_OUT, version, alias and redrives, which moto leaves out."""
        return ActionResult(self._execution().described())

    def stop_execution(self) -> ActionResult:
        """With error, cause and the stopDate, which moto drops; an ended execution stays as it is."""
        execution = self._execution()
        execution.stop(now(), self._get_param("error"), self._get_param("cause"))
        return ActionResult({"stopDate": execution.stop_date or now()})

    def redrive_execution(self) -> ActionResult:
        """From the state of the top level that did not succeed; moto has no such call."""
        return ActionResult({"redriveDate": self._execution().redrive()})

    def list_executions(self) -> ActionResult:
        """Newest first; moto fails for a Map Run, and counts the pages."""
        if self._get_param("mapRunArn"):
            raise RefusedError("ValidationException", "the local engine does not list the executions of a Map Run")
        arn = self.text("stateMachineArn")
        self._of_type(arn, "STANDARD")
        status = self._get_param("statusFilter")
        found = [execution for execution in self.store.of_machine(arn) if status in (None, "", execution.status)]
        shown = page(
            sorted(found, key=_last_changed, reverse=True),
            under="executions",
            key=lambda execution: str(execution.exec_arn),
            size=self._get_int_param("maxResults"),
            token=self._get_param("nextToken"),
        )
        return ActionResult({**shown, "executions": [execution.listed() for execution in shown["executions"]]})

    def get_execution_history(self) -> ActionResult:
        """With order, pages and without data if asked so; moto gives everything to everybody."""
        execution = self._execution()
        events = execution.events
        if self._get_bool_param("reverseOrder", False):
            events = events[::-1]
        if not self._get_bool_param("includeExecutionData", True):
            events = without_data(events)
        size, token = self._get_int_param("maxResults"), self._get_param("nextToken")
        return ActionResult(page(events, under="events", key=_event_id, size=size, token=token))

    def describe_state_machine_for_execution(self) -> ActionResult:
        """The machine as it was when the execution started; moto answers as it is now."""
        machine: Any = self._execution().target.machine
        found = {"stateMachineArn": machine.arn, "name": machine.name, "definition": machine.definition}
        return ActionResult({**found, "roleArn": machine.roleArn, "updateDate": machine.update_date})

    def _execution(self) -> LocalExecution:
        return self.store.describe_execution(self.text("executionArn"))

    def _of_type(self, arn: str, wanted: str) -> None:
        if self.store.target(arn).machine.type != wanted:
            raise RefusedError("StateMachineTypeNotSupported", NOT_SUPPORTED)


def _last_changed(execution: LocalExecution) -> datetime:
    """Of those that run when they started, of others when they ended."""
    changed: datetime = execution.stop_date or execution.start_date
    return changed


def _event_id(event: Any) -> str:
    return str(event["id"])
