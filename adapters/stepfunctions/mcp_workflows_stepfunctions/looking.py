"""One look: DescribeExecution, and while it runs its history for what it asks and where it is.

Source: https://docs.aws.amazon.com/step-functions/latest/apireference/API_DescribeExecution.html
"""

from __future__ import annotations

from dataclasses import replace

from mcp_workflows.adapter import TERMINAL, Execution, Ref, Status
from mcp_workflows_stepfunctions.calls import Calls
from mcp_workflows_stepfunctions.console import Console
from mcp_workflows_stepfunctions.options import StepFunctionsOptions
from mcp_workflows_stepfunctions.reading import Histories
from mcp_workflows_stepfunctions.seeing import STATUSES, finished, unfinished


async def look(calls: Calls, histories: Histories, console: Console, ref: Ref) -> Execution:
    """One call for an execution that has ended, two while it runs; one if its tool wants no history."""
    found = await calls.call("describe_execution", executionArn=ref.handle)
    if STATUSES.get(found["status"]) in TERMINAL:
        histories.forget(ref.handle)
        seen = finished(found["status"], found)
    else:
        seen = await _running(histories, ref)
    return replace(seen, execution_id=ref.handle, url=console.page(ref.handle))


async def _running(histories: Histories, ref: Ref) -> Execution:
    if not StepFunctionsOptions.read(ref.options).history:
        return Execution(status=Status.RUNNING)
    fold = await histories.read(ref.handle, ref.gates)  # if it has ended since the call before, the next look tells how
    return unfinished(fold, ref.gates)
