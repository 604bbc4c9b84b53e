"""What a stretch of a run's history says about gates; stretches are joined, whichever way they were read.

Forwards (a replay) and backwards (a look, from the newest event on) come to the same, because joining does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce

from temporalio.api.history.v1 import HistoryEvent


class Kind(StrEnum):
    """How an answer comes."""

    SIGNAL = "signal"
    UPDATE = "update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One way to answer: a signal or update by its name."""

    kind: Kind
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Which activities and answers are of interest; all others leave no trace."""

    activities: frozenset[str]
    words: frozenset[Word]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trail:
    """The events `low` to `high`: the latest of what is of interest in them."""

    low: int
    high: int
    completed: Mapping[str, int] = field(default_factory=dict[str, int])  # activity type: event
    begun: Mapping[int, str] = field(default_factory=dict[int, str])  # scheduled and not ended in here: type by event
    ended: Mapping[int, int] = field(default_factory=dict[int, int])  # by its scheduling, before `low`: 0 if it failed
    answers: Mapping[Word, int] = field(default_factory=dict[Word, int])
    handled: int = 0  # the last completed workflow task

    @property
    def whole(self) -> bool:
        """Whether nothing lies before it."""
        return self.low <= 1


def join(older: Trail, newer: Trail) -> Trail:
    """Two neighbouring stretches as one."""
    joined = replace(older, high=newer.high, handled=max(older.handled, newer.handled))
    if not (newer.completed or newer.begun or newer.ended or newer.answers):
        return joined  # most events are of no interest
    begun, completed = {**older.begun, **newer.begun}, dict(older.completed)
    for scheduled, event in newer.ended.items():
        if (activity := begun.pop(scheduled, None)) and event:
            completed[activity] = max(completed.get(activity, 0), event)
    for activity, event in newer.completed.items():
        completed[activity] = max(completed.get(activity, 0), event)
    before = {scheduled: event for scheduled, event in newer.ended.items() if scheduled < older.low}
    ended, answers = {**older.ended, **before}, {**older.answers, **newer.answers}
    return replace(joined, completed=completed, begun=begun, ended=ended, answers=answers)


def fold(events: Iterable[HistoryEvent], names: Names) -> Trail | None:
    """The stretch of these events, the oldest first; None if there are none."""
    stretches = (trail(event, names) for event in events)
    first = next(stretches, None)
    return None if first is None else reduce(join, stretches, first)


def trail(event: HistoryEvent, names: Names) -> Trail:
    """The stretch of a single event."""
    stretch = Trail(low=event.event_id, high=event.event_id)
    read = _READERS.get(event.WhichOneof("attributes") or "")
    return read(stretch, event, names) if read else stretch


def _scheduled(stretch: Trail, event: HistoryEvent, names: Names) -> Trail:
    activity = event.activity_task_scheduled_event_attributes.activity_type.name
    return replace(stretch, begun={event.event_id: activity}) if activity in names.activities else stretch


def _completed(stretch: Trail, event: HistoryEvent, names: Names) -> Trail:
    attributes = event.activity_task_completed_event_attributes
    return replace(stretch, ended={attributes.scheduled_event_id: event.event_id}) if names.activities else stretch


def _failed(stretch: Trail, event: HistoryEvent, names: Names) -> Trail:
    attributes = getattr(event, event.WhichOneof("attributes") or "")
    return replace(stretch, ended={attributes.scheduled_event_id: 0}) if names.activities else stretch


def _signalled(stretch: Trail, event: HistoryEvent, names: Names) -> Trail:
    name = event.workflow_execution_signaled_event_attributes.signal_name
    return _answered(stretch, Word(kind=Kind.SIGNAL, name=name), names)


def _updated(stretch: Trail, event: HistoryEvent, names: Names) -> Trail:
    name = event.workflow_execution_update_accepted_event_attributes.accepted_request.input.name
    return _answered(stretch, Word(kind=Kind.UPDATE, name=name), names)


def _answered(stretch: Trail, word: Word, names: Names) -> Trail:
    return replace(stretch, answers={word: stretch.high}) if word in names.words else stretch


def _handled(stretch: Trail, _event: HistoryEvent, _names: Names) -> Trail:
    return replace(stretch, handled=stretch.high)


_READERS: Mapping[str, Callable[[Trail, HistoryEvent, Names], Trail]] = {
    "activity_task_scheduled_event_attributes": _scheduled,
    "activity_task_completed_event_attributes": _completed,
    "activity_task_failed_event_attributes": _failed,
    "activity_task_timed_out_event_attributes": _failed,
    "activity_task_canceled_event_attributes": _failed,
    "workflow_execution_signaled_event_attributes": _signalled,
    "workflow_execution_update_accepted_event_attributes": _updated,
    "workflow_task_completed_event_attributes": _handled,
}
