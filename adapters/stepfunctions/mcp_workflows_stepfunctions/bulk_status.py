"""A cheap look at many executions: the list of the running ones, see `mcp_workflows.kit.bulk_status`.

Source: https://docs.aws.amazon.com/step-functions/latest/apireference/API_ListExecutions.html
"""

from __future__ import annotations

from typing import Any

from mcp_workflows.errors import EngineRefused
from mcp_workflows.kit.bulk_status import PAGE, ListEntry, ListingRefusedError, Listings, RunningNames
from mcp_workflows_stepfunctions.arns import ExecutionArn, Machine
from mcp_workflows_stepfunctions.client import Client, ExpectedCodeError
from mcp_workflows_stepfunctions.names import DENIED


def listings(client: Client) -> Listings:
    """Return the lists of running executions, by state machine."""

    async def running(machine: str) -> RunningNames:
        params: dict[str, Any] = {"stateMachineArn": machine, "statusFilter": "RUNNING", "maxResults": PAGE}
        try:
            rows = await client.pages("list_executions", "executions", known={DENIED}, **params)
        except ExpectedCodeError:
            raise ListingRefusedError("states:ListExecutions is not allowed") from None
        return RunningNames.in_pages({str(row["executionArn"]) for row in rows})

    return Listings(running, _listed, lambda: client.refill("list_executions"))


def _listed(handle: str) -> ListEntry | None:
    """Return the machine of an execution, or None if the execution appears in no list."""
    try:
        found = ExecutionArn.parse(handle)
    except EngineRefused:
        return None
    if found.express or found.label:
        return None
    return ListEntry(workflow=Machine(place=found.place, name=found.machine).arn, name=handle)
