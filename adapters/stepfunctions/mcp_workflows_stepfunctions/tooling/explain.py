"""The reason why an execution still runs, from the newest events of its history, for the operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from mcp_workflows.adapter import Execution, Explanation, Ref, Status, rough_duration
from mcp_workflows_stepfunctions.client import Client
from mcp_workflows_stepfunctions.definition import WAITS_FOR_TOKEN
from mcp_workflows_stepfunctions.outcome import read_failure

LATEST: Final = 200  # events
_FAILED: Final = ("TaskFailed", "TaskTimedOut", "LambdaFunctionFailed", "LambdaFunctionTimedOut", "ActivityFailed")
_FAILED_TOO: Final = ("ActivityTimedOut", "TaskSubmitFailed", "TaskStartFailed", "LambdaFunctionScheduleFailed")
_TROUBLE: Final = frozenset({*_FAILED, *_FAILED_TOO})


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The type, the time and the details of an event. Any: JSON."""

    type: str
    at: datetime
    details: Mapping[str, Any]

    @classmethod
    def read(cls, event: Mapping[str, Any]) -> Event:
        """Read an event of a reply of boto3."""
        details = [value for key, value in event.items() if key.endswith("EventDetails")]
        return cls(type=event["type"], at=event["timestamp"], details=details[0] if details else {})


Reason = tuple[str, str | None]  # the reason, and a remedy

_ANSWER: Final = "answer it in the MCP host, or with mcp-workflows tasks answer"


async def explain(client: Client, ref: Ref, execution: Execution) -> Explanation:
    """Explain an execution; `execution` is the look just before."""
    if execution.terminal:
        why = execution.failure.text if execution.failure else execution.message
        return Explanation(reason=f"it has ended: {execution.status}" + (f", {why}" if why else ""))
    if execution.execution_id is None or not execution.execution_id.startswith("arn:"):
        return Explanation(reason="an Express execution: it ends within 5 minutes, and nothing can be seen of it")
    page = await client.call("get_execution_history", executionArn=ref.handle, reverseOrder=True, maxResults=LATEST)
    events = [Event.read(event) for event in page["events"]]
    reason, advice = _reason(execution, events)
    return Explanation(reason=reason, facts=dict(_facts(execution, events)), advice=advice)


def _reason(execution: Execution, events: Sequence[Event]) -> Reason:
    if execution.status is Status.INPUT_REQUIRED:
        return f"it waits for an answer in state {execution.message}", _ANSWER
    newest = next((event for event in events if not event.type.endswith("StateExited")), None)
    if newest is None:
        return "it has just been started", None
    explain_event = _REASONS.get(newest.type)
    return explain_event(newest) if explain_event else (f"its newest event is {newest.type}", None)


def _facts(execution: Execution, events: Sequence[Event]) -> Iterator[tuple[str, str]]:
    entered = next((event for event in events if event.type.endswith("StateEntered")), None)
    if entered is not None:
        yield "state", f"{entered.details.get('name')}, for {elapsed(entered.at)}"
    if events:
        yield "last event", f"{events[0].type}, {elapsed(events[0].at)} ago"
    if execution.progress is not None and execution.progress.total is not None:
        yield "progress", f"{execution.progress.value:.15g} of {execution.progress.total:.15g}"
    since = entered.at if entered else datetime.min.replace(tzinfo=UTC)
    failed = [event for event in events if event.type in _TROUBLE and event.at >= since]
    if failed:
        yield "failed attempts in this state", str(len(failed))
        yield "last failure", _failure(failed[0])


def _failure(event: Event) -> str:
    return read_failure("FAILED", event.details.get("error"), event.details.get("cause")).text


def _resource(event: Event) -> str:
    details = event.details
    return f"{details.get('resourceType', '')}:{details.get('resource', '')}".strip(":") or str(details.get("resource"))


def _task(event: Event) -> Reason:
    if str(event.details.get("resource", "")).endswith(WAITS_FOR_TOKEN):
        waits = f"it waits until somebody answers with the task token that went to {_resource(event)}"
        remedy = "whoever got the token must call SendTaskSuccess; or make a gate of the state"
        return waits, f"{remedy}, see: mcp-workflows docs gates"
    return f"{_resource(event)} is under way", None


def _activity(event: Event) -> Reason:
    activity = str(event.details.get("resource"))
    return f"no worker has taken its activity {activity}", f"start a worker that polls {activity}"


def _failed_attempt(event: Event) -> Reason:
    return f"an attempt has failed, and it will be tried again: {_failure(event)}", None


def _fixed_reason(text: str) -> Callable[[Event], Reason]:
    return lambda _: (text, None)


_REASONS: Final[Mapping[str, Callable[[Event], Reason]]] = {
    "ActivityScheduled": _activity,
    "ActivityStarted": lambda event: (f"worker {event.details.get('workerName', '')} has its activity", None),
    "TaskScheduled": _task,
    "TaskStarted": _task,
    "TaskSubmitted": _task,
    "LambdaFunctionScheduled": lambda event: (f"Lambda function {event.details.get('resource')} is to be called", None),
    "LambdaFunctionStarted": _fixed_reason("its Lambda function runs"),
    "WaitStateEntered": lambda event: (f"state {event.details.get('name')} waits for time to pass", None),
    "MapRunStarted": _fixed_reason("a distributed Map runs: its child executions have histories of their own"),
    "ExecutionRedriven": _fixed_reason("it was redriven just now"),
    **dict.fromkeys(_TROUBLE, _failed_attempt),
}


def elapsed(then: datetime) -> str:
    """Return the time since then, as `rough_duration` writes it."""
    return rough_duration(datetime.now(UTC) - then)
