"""Explanation of an execution's state for operators: its steps and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from mcp_workflows.adapter import Execution, Explanation, Gate, Status, rough_duration
from mcp_workflows.errors import EngineError
from mcp_workflows_google.client import Client
from mcp_workflows_google.outcome import calls_us
from mcp_workflows_google.resources import Callback, ExecutionName, ExecutionResource
from mcp_workflows_google.tooling.explain_gates import explain_gates

ACTIVE: Final = 1  # of Execution.State
UNAVAILABLE: Final = 5
QUEUED: Final = 6

Reason = tuple[str, str | None]  # the reason, and advice

_ANSWER: Final = "answer it in the MCP host, or with mcp-workflows tasks answer"
_REACHED: Final = (
    "see that the MCP server is served over HTTP where MCP_WORKFLOWS_URL of the workflow leads, and what its log says: "
    "it names each call that it refuses"
)
_BACKLOG: Final = (
    "it is queued: as many executions of the project run in this location as Google allows",
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
    callbacks, trouble = await _callbacks(client, name) if resource.state == ACTIVE else ((), None)
    reason, advice = _reason(execution, resource, callbacks)
    states = await explain_gates(client, name.workflow, resource, callbacks, trouble, execution, gates or {})
    return Explanation(reason=reason, facts=dict(_facts(resource, callbacks, trouble)), advice=advice, gates=states)


async def _callbacks(client: Client, name: ExecutionName) -> tuple[Sequence[Callback], str | None]:
    """Return the open callbacks, or the error that prevented it."""
    try:
        return await client.callbacks(name), None
    except EngineError as error:
        return (), str(error)


def _reason(execution: Execution, resource: ExecutionResource, callbacks: Sequence[Callback]) -> Reason:
    if execution.status is Status.INPUT_REQUIRED:
        return f"it waits for an answer{_at(resource)}", _ANSWER
    if tell := _STATE_REASONS.get(resource.state):
        return tell(resource)
    if resource.state != ACTIVE:
        return f"its state is one that is not known yet ({resource.state})", "see it in the console, and tell us"
    if any(callback.waiters for callback in callbacks):
        waits = f"it waits until somebody calls a callback of it{_at(resource)}"
        todo = "whoever got the callback's URL must call it; or make a gate of the step"
        return waits, f"{todo}, see: mcp-workflows docs google#gates"
    if resource.steps and all(calls_us(step) for step in resource.steps):
        return "it calls the MCP server (mcp_elicit, mcp_claim), and tries again until that takes the call", _REACHED
    return (f"it is{_at(resource)}" if resource.steps else "no step of it is told yet"), None


def _unavailable(resource: ExecutionResource) -> Reason:
    why = f": {resource.state_error}" if resource.state_error else ""
    return f"Google cannot show it now{why}", "give the Workflows service agent access to the key it is encrypted with"


_STATE_REASONS: Final[Mapping[int, Callable[[ExecutionResource], Reason]]] = {
    QUEUED: lambda _: _BACKLOG,
    UNAVAILABLE: _unavailable,
}


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
        taken = f", {callback.payloads} requests not taken yet" if callback.payloads else ""
        waits = "somebody waits" if callback.waiters else "nobody waits"
        yield "callback" if len(callbacks) == 1 else f"callback {number}", f"{callback.method}, {waits} for it{taken}"
    if trouble is not None:
        yield "callbacks", f"could not be told: {trouble}"


def _at(resource: ExecutionResource) -> str:
    steps = ", ".join(f"{step.routine}/{step.step}" for step in resource.steps)
    return f" at step {steps}" if steps else ""
