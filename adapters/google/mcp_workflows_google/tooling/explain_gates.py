"""Explanation of closed gates for operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mcp_workflows.adapter import Execution, ExplainedGate, Gate, GateState, open_gates
from mcp_workflows.errors import EngineError
from mcp_workflows_google.client import Client
from mcp_workflows_google.gates import GateRule, read_rules
from mcp_workflows_google.input_requests import problems
from mcp_workflows_google.resources import Callback, ExecutionResource, WorkflowName
from mcp_workflows_google.tooling.definition import Definition, read_definition
from mcp_workflows_google.tooling.verify import place_problem, wait_problem


async def explain_gates(
    client: Client,
    workflow: WorkflowName,
    resource: ExecutionResource,
    callbacks: Sequence[Callback],
    trouble: str | None,
    execution: Execution,
    gates: Mapping[str, Gate],
) -> Mapping[str, ExplainedGate]:
    """Return the state of each gate; `trouble` is the error of listing the callbacks, if any."""
    opened = open_gates(execution.requests)
    if opened.keys() >= gates.keys():
        return opened
    rules, _ = read_rules(gates)
    wrong = problems({}, resource, callbacks, gates)
    read = await _defined(client, workflow)
    states: dict[str, ExplainedGate] = {}
    for name in gates:
        said = [text.removeprefix(f"gate {name}: ") for text in wrong if text.startswith(f"gate {name}: ")]
        states[name] = (
            ExplainedGate.closed("; ".join(said))
            if said
            else _explained(rules[name], resource, callbacks, trouble, read)
        )
    return {**states, **opened}


async def _defined(client: Client, workflow: WorkflowName) -> Definition | None:
    """Return the definition of the deployed workflow; None if it cannot be read."""
    try:
        return await read_definition((await client.workflow(workflow)).source)
    except EngineError:
        return None


def _explained(
    rule: GateRule,
    resource: ExecutionResource,
    callbacks: Sequence[Callback],
    trouble: str | None,
    read: Definition | None,
) -> ExplainedGate:
    when = rule.when
    if not when.matches(resource.steps):
        if read is not None and (wrong := place_problem(read, when.routine, when.step)):
            return ExplainedGate.closed(f"in the workflow {'; '.join(wrong)}")
        if read is not None and (wrong_step := wait_problem(read, when.routine, when.step)):
            return ExplainedGate.closed(wrong_step)
        steps = ", ".join(f"{step.routine}/{step.step}" for step in resource.steps)
        now = f"the execution is at {steps}" if steps else "no step of the execution is told yet"
        return ExplainedGate.closed(
            f"{now}; step {when.step} was not reached, or is over: Google does not tell which steps were"
        )
    if trouble is not None:
        return ExplainedGate(state=GateState.UNKNOWN, why=f"its callbacks could not be told: {trouble}")
    mine = [callback for callback in callbacks if when.may_wait_for(callback)]
    if mine and all(callback.payloads for callback in mine):
        return ExplainedGate.closed(f"answered already: step {when.step} has not taken the request yet")
    if callbacks and not mine:
        methods = ", ".join(sorted({callback.method for callback in callbacks}))
        return ExplainedGate.closed(
            f"step {when.step} waits for no callback of method {when.method}; there are: {methods}"
        )
    return ExplainedGate.closed(f"step {when.step} waits for no callback now")
