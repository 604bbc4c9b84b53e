"""Explanation of an execution's state for operators: its steps, its callbacks and why its gates are closed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from mcp_workflows.adapter import Execution, Gate, Status, rough_duration
from mcp_workflows.errors import EngineError
from mcp_workflows.kit.tooling import ExplainedGate, Explanation, GateState, open_gates
from mcp_workflows_google.client import Client
from mcp_workflows_google.gates import GateRule, read_rules
from mcp_workflows_google.input_requests import problems
from mcp_workflows_google.outcome import calls_us
from mcp_workflows_google.resources import Callback, ExecutionName, ExecutionResource, WorkflowName
from mcp_workflows_google.tooling.check import place_problem, wait_problem
from mcp_workflows_google.tooling.definition import Definition, read_definition

ACTIVE: Final = 1  # of Execution.State
UNAVAILABLE: Final = 5
QUEUED: Final = 6

Reason = tuple[str, str | None]  # the reason, and advice

_ANSWER: Final = "answer it in the MCP host, or with mcp-workflows tasks answer"
_REACHED: Final = (
    "check that MCP_WORKFLOWS_URL of the workflow leads to the MCP server over HTTP, and read the server's log, which "
    "names each refused call"
)
_BACKLOG: Final = (
    "it is queued: the project has as many executions in this location as Google allows",
    "wait, end executions that are not needed, or ask Google for a higher quota of concurrent executions",
)


async def explain(
    client: Client, name: ExecutionName, execution: Execution, gates: Mapping[str, Gate] | None = None
) -> Explanation:
    """Explain the state of an execution; `execution` is the result of the preceding `describe`.

    Raises:
        ExecutionNotFound, EngineUnavailable: see `Explains.explain`.
    """
    if execution.terminal:
        why = execution.failure.text if execution.failure else execution.message
        return Explanation(reason=f"it has ended: {execution.status}" + (f", {why}" if why else ""))
    resource = await client.get(name, full=True)
    callbacks: Sequence[Callback] = ()
    trouble = None  # the error of listing the callbacks
    if resource.state == ACTIVE:
        try:
            callbacks = await client.callbacks(name)
        except EngineError as error:
            trouble = str(error)
    states = dict(open_gates(execution.requests))
    if gates and not states.keys() >= gates.keys():
        rules, _ = read_rules(gates)
        wrong = problems({}, resource, callbacks, gates)
        read = await _definition(client, name.workflow)
        for gate in gates.keys() - states.keys():
            said = [text.removeprefix(f"gate {gate}: ") for text in wrong if text.startswith(f"gate {gate}: ")]
            closed = ExplainedGate.closed("; ".join(said)) if said else None
            states[gate] = closed or _closed_gate(rules[gate], resource, callbacks, trouble, read)
        states = {gate: states[gate] for gate in gates}
    reason, advice = _reason(execution, resource, callbacks)
    return Explanation(reason=reason, facts=dict(_facts(resource, callbacks, trouble)), advice=advice, gates=states)


async def _definition(client: Client, workflow: WorkflowName) -> Definition | None:
    """Return the definition of the deployed workflow, if it can be read."""
    try:
        return await read_definition((await client.workflow(workflow)).source)
    except EngineError:
        return None


def _reason(execution: Execution, resource: ExecutionResource, callbacks: Sequence[Callback]) -> Reason:
    if execution.status is Status.INPUT_REQUIRED:
        return f"it waits for an answer{_at(resource)}", _ANSWER
    if resource.state == QUEUED:
        return _BACKLOG
    if resource.state == UNAVAILABLE:
        why = f": {resource.state_error}" if resource.state_error else ""
        key = "give the Workflows service agent access to the key it is encrypted with"
        return f"Google cannot show it now{why}", key
    if resource.state != ACTIVE:
        return f"its state is unknown here ({resource.state})", "see it in the console, and tell us"
    if any(callback.waiters for callback in callbacks):
        waits = f"it waits for a call of one of its callbacks{_at(resource)}"
        todo = "the receiver of the callback's URL must call it; or make the step a gate"
        return waits, f"{todo}, see: docs/engines/google-contract.md#gates"
    if resource.steps and all(calls_us(step) for step in resource.steps):
        return "it calls the MCP server (mcp_elicit, mcp_claim), and retries until it answers", _REACHED
    return (f"it is{_at(resource)}" if resource.steps else "no step is reported yet"), None


def _facts(
    resource: ExecutionResource, callbacks: Sequence[Callback], trouble: str | None
) -> Iterator[tuple[str, str]]:
    if resource.start_time is not None:
        yield "started", f"{rough_duration(datetime.now(UTC) - resource.start_time)} ago"
    for number, step in enumerate(resource.steps, 1):
        yield "step" if len(resource.steps) == 1 else f"step {number}", f"{step.routine}/{step.step}"
    if resource.revision:
        yield "revision", resource.revision
    for number, callback in enumerate(callbacks, 1):
        taken = f", {callback.payloads} requests not accepted yet" if callback.payloads else ""
        waits = "somebody waits" if callback.waiters else "nobody waits"
        yield "callback" if len(callbacks) == 1 else f"callback {number}", f"{callback.method}, {waits} for it{taken}"
    if trouble is not None:
        yield "callbacks", f"could not be read: {trouble}"


def _at(resource: ExecutionResource) -> str:
    steps = ", ".join(f"{step.routine}/{step.step}" for step in resource.steps)
    return f" at step {steps}" if steps else ""


def _closed_gate(
    rule: GateRule,
    resource: ExecutionResource,
    callbacks: Sequence[Callback],
    trouble: str | None,
    read: Definition | None,
) -> ExplainedGate:
    """Return the reason why a gate is not open, within what Google shows."""
    when = rule.when
    if not when.matches(resource.steps):
        if read is not None and (wrong := place_problem(read, when.routine, when.step)):
            return ExplainedGate.closed(f"in the workflow {'; '.join(wrong)}")
        if read is not None and (wrong_step := wait_problem(read, when.routine, when.step)):
            return ExplainedGate.closed(wrong_step)
        steps = ", ".join(f"{step.routine}/{step.step}" for step in resource.steps)
        now = f"the execution is at {steps}" if steps else "no step of the execution is reported yet"
        return ExplainedGate.closed(
            f"{now}; step {when.step} was not reached, or is over: Google does not report past steps"
        )
    if trouble is not None:
        return ExplainedGate(state=GateState.UNKNOWN, why=f"its callbacks could not be read: {trouble}")
    mine = [callback for callback in callbacks if when.may_wait_for(callback)]
    if mine and all(callback.payloads for callback in mine):
        return ExplainedGate.closed(f"already answered: step {when.step} has not accepted the request yet")
    if callbacks and not mine:
        methods = ", ".join(sorted({callback.method for callback in callbacks}))
        return ExplainedGate.closed(
            f"step {when.step} waits for no callback of method {when.method}; there are: {methods}"
        )
    return ExplainedGate.closed(f"step {when.step} waits for no callback now")
