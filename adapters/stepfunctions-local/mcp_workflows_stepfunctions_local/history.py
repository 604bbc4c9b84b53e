"""The history of an execution: continuation after a redrive, the last event of an end, and a form without data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from moto.stepfunctions.parser.asl.eval.event.event_manager import EventManager

_DATA: Final = frozenset({"input", "inputDetails", "output", "outputDetails"})
_DETAILS: Final = "EventDetails"  # the end of the name of their field


def writer_after(events: Sequence[Mapping[str, Any]]) -> EventManager:
    """Return a writer of events that continues after these."""
    writer: Any = EventManager()
    writer._history_event_list.extend(events)  # noqa: SLF001 moto has no way to begin with some
    writer._event_id_gen._next_id = last_id(events) + 1  # noqa: SLF001
    return writer  # type: ignore[no-any-return]  # the private parts of moto have to be Any for the two lines above


def with_end(events: Sequence[Mapping[str, Any]], event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the history with the event of an external end; on AWS the event before ExecutionAborted has id 0."""
    return [*events, {**event, "id": last_id(events) + 1, "previousEventId": 0, "timestamp": datetime.now(tz=UTC)}]


def last_id(events: Sequence[Mapping[str, Any]]) -> int:
    """Return the id of the newest event, or 0 without events."""
    return max((int(event["id"]) for event in events), default=0)


def last_entered(events: Sequence[Mapping[str, Any]], definition: str) -> tuple[str, Any] | None:
    """Return the top-level state that was entered last, and its input, where a redrive continues."""
    top = json.loads(definition)["States"]
    for event in reversed(events):
        entered = event.get("stateEnteredEventDetails")
        if entered is not None and entered["name"] in top:
            return entered["name"], json.loads(entered["input"])
    return None


def without_data(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the events in the form of `includeExecutionData: false`, which moto ignores."""
    return [{name: _strip_data(name, value) for name, value in event.items()} for event in events]


def _strip_data(name: str, value: Any) -> Any:
    if not name.endswith(_DETAILS):
        return value
    details: Mapping[str, Any] = value
    return {key: data for key, data in details.items() if key not in _DATA}
