"""Each status of an execution that clients would have seen, from its exported history alone.

History, questions and gates are read by the same code as in a look.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from mcp_workflows.adapter import JSON, Execution, Gate, Replayed
from mcp_workflows.errors import ConfigError
from mcp_workflows_stepfunctions.describe import ended_execution, running_execution
from mcp_workflows_stepfunctions.gates import read_rules
from mcp_workflows_stepfunctions.history import Event, History

EXPORT: Final = "export one with: aws stepfunctions get-execution-history --execution-arn ARN > history.json"
_DETAILS: Final = "EventDetails"
_FIRST: Final = "ExecutionStarted"

_Details = Mapping[str, Any]  # Any: what an event tells


def replay(history: JSON, gates: Mapping[str, Gate]) -> Sequence[Replayed]:
    """Return each change that a client would have seen, up to the first end: a redrive does not reopen a task.

    Raises:
        ConfigError: this is no history of a Step Functions execution, or a gate is not valid.
    """
    if wrong := read_rules(gates)[1]:
        raise ConfigError("\n".join(wrong))
    return list(_changes(_events(history), gates))


def _events(history: JSON) -> Sequence[Event]:
    found = cast("_Details", history).get("events") if isinstance(history, dict) else None
    if not isinstance(found, list) or not all(map(_is_event, cast("list[object]", found))):
        raise ConfigError(f"this is not a Step Functions history, an object with a list of events; {EXPORT}")
    events = sorted(cast("list[Event]", found), key=lambda event: event["id"])  # or it was exported in reverse order
    if not events or events[0]["type"] != _FIRST:
        raise ConfigError(f"this is not a whole Step Functions history: it does not begin with its start; {EXPORT}")
    return events


def _is_event(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    event = cast("_Details", value)
    numbers = (event.get("id"), event.get("previousEventId", 0))
    right = (*(isinstance(number, int) for number in numbers), isinstance(event.get("type"), str))
    details = (item for name, item in event.items() if name.endswith(_DETAILS))
    return all(right) and all(item is None or isinstance(item, dict) for item in details)


def _changes(events: Sequence[Event], gates: Mapping[str, Gate]) -> Iterator[Replayed]:
    history, last = History(), None
    for event in events:
        history.feed([event])
        seen = _seen(history, event, gates)
        told = replace(seen, steps=())  # the message names the state, too
        if told != last:
            yield Replayed(event=str(event["id"]), execution=seen)
        if seen.terminal:
            return
        last = told


def _seen(history: History, event: Event, gates: Mapping[str, Gate]) -> Execution:
    kind = str(event["type"])
    status = _ENDS.get(kind)
    if status is None:
        return running_execution(history, gates)
    return ended_execution(status, event.get(f"{kind[0].lower()}{kind[1:]}{_DETAILS}") or {})


_ENDS: Final[Mapping[str, str]] = {
    "ExecutionSucceeded": "SUCCEEDED",
    "ExecutionFailed": "FAILED",
    "ExecutionTimedOut": "TIMED_OUT",
    "ExecutionAborted": "ABORTED",
}
