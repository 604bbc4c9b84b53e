"""The calls of the API that we answer; moto answers all others."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import moto.stepfunctions as moto_stepfunctions
from moto.core.responses import ActionResult, EmptyResult
from moto.stepfunctions import models, responses, urls
from moto.stepfunctions.parser import models as parser_models
from moto.stepfunctions.parser.asl.eval.callback.callback import (
    ActivityCallbackEndpoint,
    CallbackOutcomeFailure,
    CallbackOutcomeSuccess,
)
from moto.stepfunctions.responses import StepFunctionResponse

from mcp_workflows_stepfunctions_local.errors import RefusedError
from mcp_workflows_stepfunctions_local.execution import LocalExecution, now
from mcp_workflows_stepfunctions_local.history import without_data
from mcp_workflows_stepfunctions_local.patches import replace
from mcp_workflows_stepfunctions_local.store import STORES, Routes, Store, too_late
from mcp_workflows_stepfunctions_local.validation import check_output
from mcp_workflows_stepfunctions_local.versions import publish, unpublish

EXPRESS_SECONDS: Final = 300.0  # maximum duration of an Express execution
POLL_SECONDS: Final = 60.0  # GetActivityTask returns without a task after this time
DEFAULT_PAGE: Final = 100  # items
LARGEST_PAGE: Final = 1000  # items
_NOT_SUPPORTED: Final = "This operation is not supported by this type of state machine"  # AWS's text


class Api(StepFunctionResponse):
    """The handlers of the API's calls, one method each, on the store of the called account and Region."""

    @property
    def store(self) -> Store:
        """The store of the account and Region of this call."""
        return STORES[self.current_account][self.region]

    def text(self, name: str) -> str:
        """Return a parameter that botocore requires."""
        return str(self._get_param(name))

    def start_execution(self) -> ActionResult:
        """Start an execution, with a trace header, which moto drops."""
        execution = self.store.start_execution(
            self.text("stateMachineArn"),
            self._get_param("name"),
            self._get_param("input"),
            self._get_param("traceHeader"),
        )
        return ActionResult({"executionArn": execution.exec_arn, "startDate": execution.start_date})

    def start_sync_execution(self) -> ActionResult:
        """Start an Express execution and wait for its end; moto has no such call."""
        arn = self.text("stateMachineArn")
        self._check_type(arn, "EXPRESS")
        execution = self.store.start_execution(arn, self._get_param("name"), self._get_param("input"))
        if not execution.ended.wait(EXPRESS_SECONDS):
            execution.stop(now(), "States.Timeout", None)
        billed = {"billingDetails": {"billedDurationInMilliseconds": 100, "billedMemoryUsedInMB": 64}}
        status = {"status": "TIMED_OUT" if execution.status == "ABORTED" else execution.status}
        return ActionResult({**execution.description(), **status, **billed})

    def describe_execution(self) -> ActionResult:
        """Describe an execution, with the stopDate of TIMED_OUT, version, alias and redrives, which moto omits."""
        return ActionResult(self._execution().description())

    def stop_execution(self) -> ActionResult:
        """Stop an execution with error, cause and stopDate, which moto drops; an ended execution does not change."""
        execution = self._execution()
        execution.stop(now(), self._get_param("error"), self._get_param("cause"))
        return ActionResult({"stopDate": execution.stop_date or now()})

    def redrive_execution(self) -> ActionResult:
        """Run an execution again from the top-level state that did not succeed; moto has no such call."""
        return ActionResult({"redriveDate": self._execution().redrive()})

    def list_executions(self) -> ActionResult:
        """List the newest executions first; moto fails for a Map Run, and numbers the pages."""
        if self._get_param("mapRunArn"):
            raise RefusedError("ValidationException", "the local engine does not list the executions of a Map Run")
        arn = self.text("stateMachineArn")
        self._check_type(arn, "STANDARD")
        status = self._get_param("statusFilter")
        found = [execution for execution in self.store.executions_of(arn) if status in (None, "", execution.status)]
        shown = self._page(
            sorted(found, key=_changed_at, reverse=True),
            name="executions",
            key=lambda execution: str(execution.exec_arn),
        )
        return ActionResult({**shown, "executions": [execution.summary() for execution in shown["executions"]]})

    def get_execution_history(self) -> ActionResult:
        """Return the history in the requested order, in pages, and without data on request; moto returns all of it."""
        events = self._execution().events
        if self._get_bool_param("reverseOrder", False):
            events = events[::-1]
        if not self._get_bool_param("includeExecutionData", True):
            events = without_data(events)
        return ActionResult(self._page(events, name="events", key=lambda event: str(event["id"])))

    def describe_state_machine_for_execution(self) -> ActionResult:
        """Describe the machine at the start of the execution; moto describes the current one."""
        machine: Any = self._execution().target.machine
        found = {"stateMachineArn": machine.arn, "name": machine.name, "definition": machine.definition}
        return ActionResult({**found, "roleArn": machine.roleArn, "updateDate": machine.update_date})

    def send_task_success(self) -> EmptyResult:
        """Answer a token with an output that is JSON; moto accepts any text, and then fails the execution."""
        token, output = self.text("taskToken"), self.text("output")
        check_output(output)
        self.store.answer(token, CallbackOutcomeSuccess(callback_id=token, output=output))
        return EmptyResult()

    def send_task_failure(self) -> EmptyResult:
        """Fail the state of a token, with the cause, which moto drops."""
        token, error, cause = self.text("taskToken"), self._get_param("error"), self._get_param("cause")
        self.store.answer(token, CallbackOutcomeFailure(callback_id=token, error=error, cause=cause))
        return EmptyResult()

    def send_task_heartbeat(self) -> EmptyResult:
        """Accept a heartbeat, also for a state without HeartbeatSeconds; moto answers InvalidToken for those."""
        token = self.store.token(self.text("taskToken"))
        if not token.is_outstanding:
            raise too_late()
        token.endpoint.notify_heartbeat()
        return EmptyResult()

    def get_activity_task(self) -> ActionResult:
        """Wait for the next task of an activity; moto fails."""
        arn = self.text("activityArn")
        queue = self.store.activity_queues.get(arn)
        if queue is None:
            raise RefusedError("ActivityDoesNotExist", f"Activity does not exist: '{arn}'")
        task = queue.take(POLL_SECONDS, self.store.tokens)
        if task is None:
            return ActionResult({})
        endpoint = self.store.token(task.task_token).endpoint
        if isinstance(endpoint, ActivityCallbackEndpoint):
            endpoint.notify_activity_task_start(worker_name=self._get_param("workerName"))
        return ActionResult({"taskToken": task.task_token, "input": task.task_input})

    def publish_state_machine_version(self) -> ActionResult:
        """Publish the current machine."""
        published = publish(self.store.machine(self.text("stateMachineArn")), self._get_param("description"))
        return ActionResult({"creationDate": published.creation_date, "stateMachineVersionArn": published.arn})

    def list_state_machine_versions(self) -> ActionResult:
        """List the newest versions first."""
        machine = self.store.machine(self.text("stateMachineArn"))
        found = [
            {"stateMachineVersionArn": version.arn, "creationDate": version.creation_date}
            for _, version in sorted(machine.versions.items(), reverse=True)
        ]
        return ActionResult(
            self._page(found, name="stateMachineVersions", key=lambda version: str(version["stateMachineVersionArn"]))
        )

    def delete_state_machine_version(self) -> EmptyResult:
        """Delete a version that no alias uses."""
        arn = self.text("stateMachineVersionArn")
        unpublish(self.store.machine(arn.rpartition(":")[0]), arn)
        return EmptyResult()

    def _execution(self) -> LocalExecution:
        return self.store.describe_execution(self.text("executionArn"))

    def _check_type(self, arn: str, machine_type: str) -> None:
        if self.store.target(arn).machine.type != machine_type:
            raise RefusedError("StateMachineTypeNotSupported", _NOT_SUPPORTED)

    def _page(self, items: Sequence[Any], *, name: str, key: Callable[[Any], str]) -> Mapping[str, Any]:
        """Return one page: `{name: items}`, and the `nextToken` if there are more.

        The token is the key of the last shown item, so that new items neither repeat nor hide others.

        Raises:
            RefusedError: ValidationException, InvalidToken.
        """
        size, token = self._get_int_param("maxResults"), self._get_param("nextToken")
        if size is not None and size > LARGEST_PAGE:
            raise RefusedError(
                "ValidationException",
                f"1 validation error detected: Value '{size}' at 'maxResults' failed to satisfy constraint: "
                f"Member must have value less than or equal to {LARGEST_PAGE}",
            )
        first = _index_after(items, key, token) if token else 0
        end = first + (size or DEFAULT_PAGE)
        shown = {name: list(items[first:end])}
        if end >= len(items):
            return shown
        return {**shown, "nextToken": base64.urlsafe_b64encode(key(items[end - 1]).encode()).decode()}


def install() -> None:
    """Make moto's server and its tagging API use our store and our answers."""
    Store.routes = Routes(url_bases=urls.url_bases, url_paths={"{0}/$": Api.dispatch})
    replace(parser_models, "stepfunctions_parser_backends", STORES)
    for module in (models, responses, moto_stepfunctions):
        replace(module, "stepfunctions_backends", STORES)


def _changed_at(execution: LocalExecution) -> datetime:
    """Return the end time, or the start time of a running execution."""
    changed: datetime = execution.stop_date or execution.start_date
    return changed


def _index_after(items: Sequence[Any], key: Callable[[Any], str], token: str) -> int:
    try:
        last = base64.urlsafe_b64decode(token).decode()
    except (binascii.Error, UnicodeDecodeError):
        last = ""
    found = next((index for index, item in enumerate(items) if key(item) == last), None)
    if found is None:
        raise RefusedError("InvalidToken", f"Invalid Token: '{token}'")
    return found + 1
