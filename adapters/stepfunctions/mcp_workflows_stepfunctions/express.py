"""Express executions: they run within one call of at most 5 minutes, and cannot be looked up later.

So the adapter keeps them in memory: a handle is valid in this process only, and a start is made once.
Source: https://docs.aws.amazon.com/step-functions/latest/apireference/API_StartSyncExecution.html
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import replace
from datetime import timedelta
from typing import Final

import anyio
from anyio.abc import TaskGroup

from mcp_workflows.adapter import Execution, Failure, Ref, Status
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable
from mcp_workflows_stepfunctions.client import Client
from mcp_workflows_stepfunctions.describe import ended_execution
from mcp_workflows_stepfunctions.options import StepFunctionsOptions
from mcp_workflows_stepfunctions.start import StartRequest

KEPT: Final = 1_000  # ended executions; a waiting call looks within seconds
_PREFIX: Final = "express:"
_GRACE: Final = 10.0  # seconds between the end and the stored outcome


class ExpressExecutions:
    """The Express executions that this process has started."""

    def __init__(self, client: Client, group: TaskGroup) -> None:
        self._client = client
        self._group = group
        self._executions: OrderedDict[str, Execution] = OrderedDict()

    def start(self, request: StartRequest, patience: timedelta) -> str:
        """Begin to run an execution, and return its handle, from which another process can read only the start time."""
        handle = f"{_PREFIX}{time.time():.0f}:{request.name}"
        self._executions[handle] = Execution(status=Status.RUNNING, execution_id=request.name)
        self._group.start_soon(self._run, handle, request, patience.total_seconds())
        return handle

    def describe(self, ref: Ref) -> Execution:
        """Return the known state of an execution.

        Raises:
            EngineUnavailable: another process started it, and may still wait for it.
        """
        found = self._executions.get(ref.handle)
        if found is not None:
            return found
        patience = StepFunctionsOptions.read(ref.options).patience.total_seconds()
        if time.time() < _start_time(ref.handle) + patience + _GRACE:
            text = "only the process that started an Express execution hears how it ends"
            raise EngineUnavailable(text, silent=False)
        text = "its outcome is not known, and it is not started again: the process that waited for it is gone"
        return _failed(text, "OutcomeUnknown")

    async def _run(self, handle: str, request: StartRequest, patience: float) -> None:
        """Run an execution to its end; a started call is never stopped."""
        seen = _failed(f"it did not end within {patience:g} s, and may still go on", "States.Timeout")
        with anyio.move_on_after(patience):
            try:
                reply = await self._client.run_sync(caller=request.caller, **request.params)
                seen = replace(ended_execution(reply["status"], reply), execution_id=str(reply["executionArn"]))
            except EngineRefused as error:
                seen = _failed(f"Step Functions refused to run it: {error}", "Refused")
            except EngineError as error:
                seen = _failed(f"its outcome is not known, and it is not started again: {error}", "OutcomeUnknown")
        self._executions[handle] = seen
        self._executions.move_to_end(handle)
        self._forget()

    def _forget(self) -> None:
        """Forget the oldest of those that have ended."""
        ended = [handle for handle, seen in self._executions.items() if seen.terminal]
        for handle in ended[: max(0, len(ended) - KEPT)]:
            del self._executions[handle]


def _start_time(handle: str) -> float:
    """Return the start of a handle's execution, in seconds since 1970."""
    began, _, _ = handle.removeprefix(_PREFIX).partition(":")
    return float(began) if began.isdigit() else 0.0


def is_express(handle: str) -> bool:
    """Return True for the handle of an Express execution."""
    return handle.startswith(_PREFIX)


def _failed(text: str, kind: str) -> Execution:
    return Execution(status=Status.FAILED, failure=Failure(text=text, kind=kind))
