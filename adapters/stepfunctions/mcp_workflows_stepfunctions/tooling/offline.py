"""Functions that need no engine: states to copy, the request of a start, and the replay of an exported history."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import Any, Final, cast

from mcp_workflows.adapter import JSON, Gate, Start
from mcp_workflows.errors import ConfigError
from mcp_workflows.kit.tooling import Replayed
from mcp_workflows_stepfunctions.describe import ended_execution, running_execution
from mcp_workflows_stepfunctions.gates import read_rules
from mcp_workflows_stepfunctions.history import Event, History
from mcp_workflows_stepfunctions.settings import StepFunctionsOptions
from mcp_workflows_stepfunctions.start import Machines, read_input, start_request

FILES: Final[Mapping[str, str]] = {
    "asl": "ask.asl.json",
    "asl-jsonata": "ask-jsonata.asl.json",
    "asl-sqs": "ask-sqs.asl.json",
    "asl-sqs-jsonata": "ask-sqs-jsonata.asl.json",
    "asl-lambda": "ask-lambda.asl.json",
    "asl-lambda-jsonata": "ask-lambda-jsonata.asl.json",
}


def read_embedded_files() -> Mapping[str, str]:
    """Return the text of each file, by language."""
    folder = resources.files("mcp_workflows_stepfunctions") / "embedded"
    return {language: (folder / name).read_text("utf-8") for language, name in FILES.items()}


def preview(start: Start, machines: Machines) -> Mapping[str, JSON]:
    """Return the request as JSON, with the input as a value; an account known only to AWS stays open.

    Raises:
        EngineRefused: it would be refused before anything is sent.
    """
    ready = start_request(start, machines.find_offline(start.workflow), read_input(start.arguments))
    operation = "StartSyncExecution" if StepFunctionsOptions.read(start.options).express else "StartExecution"
    return {"operation": operation, **ready.params, "input": json.loads(ready.input)}


EXPORT: Final = "export one with: aws stepfunctions get-execution-history --execution-arn ARN > history.json"
_DETAILS: Final = "EventDetails"
_FIRST: Final = "ExecutionStarted"

_Details = Mapping[str, Any]  # Any: the details of an event


def replay(history: JSON, gates: Mapping[str, Gate]) -> Sequence[Replayed]:
    """Return each change that a client would have seen, up to the first end: a redrive does not reopen a task.

    Raises:
        ConfigError: not a history of a Step Functions execution, or a gate is invalid.
    """
    if wrong := read_rules(gates)[1]:
        raise ConfigError("\n".join(wrong))
    return list(_changes(_events(history), gates))


def _events(history: JSON) -> Sequence[Event]:
    found = cast("_Details", history).get("events") if isinstance(history, dict) else None
    if not isinstance(found, list) or not all(map(_is_event, cast("list[object]", found))):
        raise ConfigError(f"this is not a Step Functions history, an object with a list of events; {EXPORT}")
    events = sorted(cast("list[Event]", found), key=lambda event: event["id"])  # or it was exported in reverse
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
        kind = str(event["type"])
        if (status := _ENDS.get(kind)) is None:
            seen = running_execution(history, gates)
        else:
            seen = ended_execution(status, event.get(f"{kind[0].lower()}{kind[1:]}{_DETAILS}") or {})
        shown = replace(seen, steps=())  # the message names the state, too
        if shown != last:
            yield Replayed(event=str(event["id"]), execution=seen)
        if seen.terminal:
            return
        last = shown


_ENDS: Final[Mapping[str, str]] = {
    "ExecutionSucceeded": "SUCCEEDED",
    "ExecutionFailed": "FAILED",
    "ExecutionTimedOut": "TIMED_OUT",
    "ExecutionAborted": "ABORTED",
}
