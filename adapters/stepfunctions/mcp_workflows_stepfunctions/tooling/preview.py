"""The StartExecution of a start, without sending it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from mcp_workflows.adapter import JSON, Start
from mcp_workflows_stepfunctions.machines import Machines
from mcp_workflows_stepfunctions.options import StepFunctionsOptions
from mcp_workflows_stepfunctions.start import read_input, start_request


def preview(start: Start, machines: Machines) -> Mapping[str, JSON]:
    """Return the request as JSON, with the input not yet as text; an account known only to AWS is left open.

    Raises:
        EngineRefused: it would be refused before anything is sent.
    """
    ready = start_request(start, machines.find_offline(start.workflow), read_input(start.arguments))
    operation = "StartSyncExecution" if StepFunctionsOptions.read(start.options).express else "StartExecution"
    return {"operation": operation, **ready.params, "input": json.loads(ready.input)}
