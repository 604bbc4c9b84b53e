"""SendTaskSuccess, SendTaskFailure, SendTaskHeartbeat, GetActivityTask."""

from __future__ import annotations

from typing import Final

from moto.core.responses import ActionResult, EmptyResult
from moto.stepfunctions.parser.asl.eval.callback.callback import (
    ActivityCallbackEndpoint,
    CallbackOutcomeFailure,
    CallbackOutcomeSuccess,
)

from mcp_workflows_stepfunctions.local.asked import check_output
from mcp_workflows_stepfunctions.local.calls import Calls
from mcp_workflows_stepfunctions.local.refusing import RefusedError
from mcp_workflows_stepfunctions.local.store import too_late

POLL_SECONDS: Final = 60.0  # GetActivityTask answers without a task after this time


class TokenCalls(Calls):
    """The calls with a task token."""

    def send_task_success(self) -> EmptyResult:
        """With an output that is JSON; moto takes anything, and fails the execution then."""
        token, output = self.text("taskToken"), self.text("output")
        check_output(output)
        self.store.answer(token, CallbackOutcomeSuccess(callback_id=token, output=output))
        return EmptyResult()

    def send_task_failure(self) -> EmptyResult:
        """With the cause, which moto drops."""
        token, error, cause = self.text("taskToken"), self._get_param("error"), self._get_param("cause")
        self.store.answer(token, CallbackOutcomeFailure(callback_id=token, error=error, cause=cause))
        return EmptyResult()

    def send_task_heartbeat(self) -> EmptyResult:
        """Also of a state without HeartbeatSeconds, of which moto says InvalidToken."""
        token = self.store.token(self.text("taskToken"))
        if not token.outstanding:
            raise too_late()
        token.endpoint.notify_heartbeat()
        return EmptyResult()

    def get_activity_task(self) -> ActionResult:
        """The next task of an activity, waited for; moto fails."""
        arn = self.text("activityArn")
        mailbox = self.store.mailboxes.get(arn)
        if mailbox is None:
            raise RefusedError("ActivityDoesNotExist", f"Activity does not exist: '{arn}'")
        task = mailbox.take(POLL_SECONDS, self.store.tokens)
        if task is None:
            return ActionResult({})
        endpoint = self.store.token(task.task_token).endpoint
        if isinstance(endpoint, ActivityCallbackEndpoint):
            endpoint.notify_activity_task_start(worker_name=self._get_param("workerName"))
        return ActionResult({"taskToken": task.task_token, "input": task.task_input})
