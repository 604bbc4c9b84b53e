"""Results, errors and progress of executions, as text for people.

HTTP headers and bodies and the URLs of callbacks are left out: clients must not see them.

Source: https://cloud.google.com/workflows/docs/reference/syntax/error-types
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from mcp_workflows.adapter import Execution, ExecutionStep, Failure, Status
from mcp_workflows_google.error_payload import ErrorText, read_payload
from mcp_workflows_google.redaction import redact, shorten
from mcp_workflows_google.resources import ExecutionResource, Step

STATES: Final[Mapping[int, Status]] = {
    0: Status.RUNNING,  # STATE_UNSPECIFIED
    1: Status.RUNNING,  # ACTIVE
    2: Status.SUCCEEDED,
    3: Status.FAILED,
    4: Status.CANCELLED,
    5: Status.RUNNING,  # UNAVAILABLE: its data cannot be read now, and may be again
    6: Status.RUNNING,  # QUEUED
}
UNAVAILABLE: Final = 5
QUEUED: Final = 6
ELICIT_ROUTINE: Final = "mcp_elicit"  # our subworkflows, whose steps mean nothing to people
RETRY_ROUTINE: Final = "mcp_retry"
_OURS: Final[Mapping[str, str]] = {
    ELICIT_ROUTINE: "waiting for an answer",
    "mcp_claim": "claiming its key",
    RETRY_ROUTINE: "waiting for the MCP server",
}
_CALLING_US: Final = frozenset({"tell_question", "claim_key"})  # steps of ours that call the MCP server
_NOT_CALLED: Final[Mapping[str, str]] = {  # by the place of a final failure: the operation that failed
    'in step "not_told", routine "mcp_elicit"': "it could not ask the MCP server",
    'in step "claim_key", routine "mcp_claim"': "it could not claim its key at the MCP server",
}
_MOST_STEPS: Final = 4  # of branches that run at once, by name
_NOTHING_SAID: Final = "the execution failed without a reason"
_CONTEXT: Final = re.compile(r'in step "(?P<step>[^"\n]{1,128})", routine "(?P<routine>[^"\n]{1,128})"')


def status_of(state: int) -> Status:
    """Return our status of one of Google's states; an unknown state counts as running."""
    return STATES.get(state, Status.RUNNING)


def ended_execution(resource: ExecutionResource) -> Execution:
    """Return the outcome of an execution that has ended, read with the view FULL."""
    match status_of(resource.state):
        case Status.SUCCEEDED:
            return _succeeded(resource.result)
        case Status.CANCELLED:
            return Execution(status=Status.CANCELLED, message=_cancelled(resource))
        case _:
            return Execution(status=Status.FAILED, failure=read_failure(resource.payload, resource.context))


def running_execution(resource: ExecutionResource) -> Execution:
    """Return the progress of an execution that has not ended: its step, or the reason why it does not run."""
    words = _STATE_WORDS.get(resource.state)
    if words is None and resource.state not in STATES:
        words = f"in a state that this version does not know ({resource.state})"
    if words is None:
        return Execution(status=Status.RUNNING, message=describe_steps(resource.steps), steps=_steps(resource.steps))
    message = f"{words}: {shorten(redact(resource.state_error))}" if resource.state_error else words
    return Execution(status=Status.RUNNING, message=message)


_STATE_WORDS: Final[Mapping[int, str]] = {
    0: "in no state that Google tells",
    UNAVAILABLE: "its data cannot be read now",
    QUEUED: "queued (too many executions run at once)",
}


def describe_steps(steps: Sequence[Step]) -> str | None:
    """Return a short text with the current steps; those of `main` by their names alone."""
    own = [each for each in steps if each.routine not in _OURS]
    if not own:
        return next((_describe_own_step(each) for each in steps), None)
    names = [*dict.fromkeys(_name(each) for each in own)]
    shown, more = names[:_MOST_STEPS], len(names) - _MOST_STEPS
    return shorten(", ".join(shown)) + (f" and {more} more" if more > 0 else "")


def _name(step: Step) -> str:
    return step.step if step.routine == "main" else f"{step.step} in {step.routine}"


def _steps(steps: Sequence[Step]) -> tuple[ExecutionStep, ...]:
    """Return the steps that run now: Google does not tell those that have ended."""
    own = (each for each in steps if each.routine not in _OURS)
    return tuple(ExecutionStep(name=name, status=Status.RUNNING) for name in dict.fromkeys(map(_name, own)))


def calls_us(step: Step) -> bool:
    """Return whether a step belongs to our subworkflows and calls the MCP server, or waits to do so again."""
    return step.routine == RETRY_ROUTINE or (step.routine in _OURS and step.step in _CALLING_US)


def _describe_own_step(step: Step) -> str:
    return _OURS[RETRY_ROUTINE if step.routine == ELICIT_ROUTINE and calls_us(step) else step.routine]


def read_failure(payload: str | None, context: str | None) -> Failure:
    """Return the reason of a failure; payload and context may be missing."""
    found = read_payload(payload)
    if found.protocol is not None:
        return found.protocol
    text = found.text or redact(shorten((context or "").strip().partition("\n")[0])) or _NOTHING_SAID
    return Failure(text=_with_step(text, found, context), kind=found.kind)


def _with_step(text: str, found: ErrorText, context: str | None) -> str:
    """Append the step that failed, unless the workflow itself chose the words."""
    where = _where(context)
    if (what := _NOT_CALLED.get(where or "")) is not None:
        return f"{what} ({text}): that server's log, or `mcp-workflows check`, says why"
    told = where is None or where in text or bool(found.own and found.text)
    return text if told else f"{text} ({where})"


def _where(context: str | None) -> str | None:
    found = _CONTEXT.search(context or "")
    return None if found is None else f'in step "{found["step"]}", routine "{found["routine"]}"'


def _cancelled(resource: ExecutionResource) -> str:
    found = read_payload(resource.payload)
    return f"cancelled: {found.text}" if found.text else "cancelled"


def _succeeded(result: str) -> Execution:
    """Return a success with the result as JSON; an empty result means that the workflow returned nothing."""
    if not result:
        return Execution(status=Status.SUCCEEDED, output=None)
    try:
        return Execution(status=Status.SUCCEEDED, output=json.loads(result))
    except (ValueError, RecursionError) as error:
        what = "is nested too deeply" if isinstance(error, RecursionError) else "is no JSON"
        why = Failure(text=f"the execution succeeded, but its result {what}", kind="UndecodableResult")
        return Execution(status=Status.FAILED, failure=why)
