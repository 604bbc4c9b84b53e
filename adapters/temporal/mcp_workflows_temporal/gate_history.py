"""The part of a run's history that decides gates, summarized by stretches that can be joined.

A replay reads forwards, and a look backwards from the newest event; both come to the same summary. A look reads only
the events that are new since the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce

from temporalio.api.history.v1 import HistoryEvent

from mcp_workflows.errors import EngineUnavailable
from mcp_workflows_temporal.client import Run

PAGE = 100  # events
PAGES_PER_LOOK = 100  # some 4 ms each; the next look continues where this one stopped
REMEMBERED_RUNS = 1000


class MessageKind(StrEnum):
    """The two kinds of messages that answer a gate."""

    SIGNAL = "signal"
    UPDATE = "update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A signal or an update, by its name."""

    kind: MessageKind
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """The activities and messages that matter to gates; events of all others are ignored."""

    activities: frozenset[str]
    messages: frozenset[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySummary:
    """The latest of the events that matter, among the events `low` to `high`."""

    low: int
    high: int
    completed: Mapping[str, int] = field(default_factory=dict[str, int])  # activity type: event
    begun: Mapping[int, str] = field(default_factory=dict[int, str])  # scheduled and not ended in here: type by event
    ended: Mapping[int, int] = field(default_factory=dict[int, int])  # by its scheduling, before `low`: 0 if it failed
    answers: Mapping[Message, int] = field(default_factory=dict[Message, int])
    handled: int = 0  # the last completed workflow task

    @property
    def whole(self) -> bool:
        """True if no event comes before it."""
        return self.low <= 1


def join(older: HistorySummary, newer: HistorySummary) -> HistorySummary:
    """Join the summaries of two neighbouring stretches."""
    joined = replace(older, high=newer.high, handled=max(older.handled, newer.handled))
    if not (newer.completed or newer.begun or newer.ended or newer.answers):
        return joined  # as for most events
    begun, completed = {**older.begun, **newer.begun}, dict(older.completed)
    for scheduled, event in newer.ended.items():
        if (activity := begun.pop(scheduled, None)) and event:
            completed[activity] = max(completed.get(activity, 0), event)
    for activity, event in newer.completed.items():
        completed[activity] = max(completed.get(activity, 0), event)
    before = {scheduled: event for scheduled, event in newer.ended.items() if scheduled < older.low}
    ended, answers = {**older.ended, **before}, {**older.answers, **newer.answers}
    return replace(joined, completed=completed, begun=begun, ended=ended, answers=answers)


def summarize(events: Iterable[HistoryEvent], wanted: EventFilter) -> HistorySummary | None:
    """Summarize neighbouring events, the oldest first; return None if there are none."""
    summaries = (summarize_event(event, wanted) for event in events)
    first = next(summaries, None)
    return None if first is None else reduce(join, summaries, first)


def summarize_event(event: HistoryEvent, wanted: EventFilter) -> HistorySummary:
    """Summarize a single event."""
    summary = HistorySummary(low=event.event_id, high=event.event_id)
    read = _READERS.get(event.WhichOneof("attributes") or "")
    return read(summary, event, wanted) if read else summary


def _scheduled(summary: HistorySummary, event: HistoryEvent, wanted: EventFilter) -> HistorySummary:
    activity = event.activity_task_scheduled_event_attributes.activity_type.name
    return replace(summary, begun={event.event_id: activity}) if activity in wanted.activities else summary


def _completed(summary: HistorySummary, event: HistoryEvent, wanted: EventFilter) -> HistorySummary:
    attributes = event.activity_task_completed_event_attributes
    return replace(summary, ended={attributes.scheduled_event_id: event.event_id}) if wanted.activities else summary


def _failed(summary: HistorySummary, event: HistoryEvent, wanted: EventFilter) -> HistorySummary:
    attributes = getattr(event, event.WhichOneof("attributes") or "")
    return replace(summary, ended={attributes.scheduled_event_id: 0}) if wanted.activities else summary


def _signalled(summary: HistorySummary, event: HistoryEvent, wanted: EventFilter) -> HistorySummary:
    name = event.workflow_execution_signaled_event_attributes.signal_name
    return _answered(summary, Message(kind=MessageKind.SIGNAL, name=name), wanted)


def _updated(summary: HistorySummary, event: HistoryEvent, wanted: EventFilter) -> HistorySummary:
    name = event.workflow_execution_update_accepted_event_attributes.accepted_request.input.name
    return _answered(summary, Message(kind=MessageKind.UPDATE, name=name), wanted)


def _answered(summary: HistorySummary, message: Message, wanted: EventFilter) -> HistorySummary:
    return replace(summary, answers={message: summary.high}) if message in wanted.messages else summary


def _handled(summary: HistorySummary, _event: HistoryEvent, _wanted: EventFilter) -> HistorySummary:
    return replace(summary, handled=summary.high)


_READERS: Mapping[str, Callable[[HistorySummary, HistoryEvent, EventFilter], HistorySummary]] = {
    "activity_task_scheduled_event_attributes": _scheduled,
    "activity_task_completed_event_attributes": _completed,
    "activity_task_failed_event_attributes": _failed,
    "activity_task_timed_out_event_attributes": _failed,
    "activity_task_canceled_event_attributes": _failed,
    "workflow_execution_signaled_event_attributes": _signalled,
    "workflow_execution_update_accepted_event_attributes": _updated,
    "workflow_task_completed_event_attributes": _handled,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedHistory:
    """The part of one run's history that was read."""

    summary: HistorySummary
    before: bytes  # the token of the page before it; empty: there is none


class HistoryReader:
    """The histories of one namespace, read from the end on; what it forgets it reads again."""

    def __init__(self) -> None:
        self._cache: dict[tuple[tuple[str, str], EventFilter], CachedHistory] = {}

    async def read(
        self, run: Run, wanted: EventFilter, is_enough: Callable[[HistorySummary], bool], *, patient: bool
    ) -> HistorySummary:
        """Summarize the history as far back as `is_enough` wants it; unless `patient`, only so many pages at a time.

        Sends no request if the history has not grown and enough of it is cached.
        """
        cached = self._cache.get((run.ids, wanted))
        if cached is None or cached.summary.high < run.length:
            cached = self._remember(run, wanted, await _newest(run, wanted, cached))
        pages = 0
        while cached.before and not is_enough(cached.summary):
            if pages == PAGES_PER_LOOK and not patient:
                break
            cached = self._remember(run, wanted, await _further_back(run, wanted, cached))
            pages += 1
        return cached.summary

    def _remember(self, run: Run, wanted: EventFilter, cached: CachedHistory) -> CachedHistory:
        self._cache.pop((run.ids, wanted), None)  # to the end, so that the least recently read one is dropped first
        self._cache[run.ids, wanted] = cached
        if len(self._cache) > REMEMBERED_RUNS:
            self._cache.pop(next(iter(self._cache)))
        return cached


async def _newest(run: Run, wanted: EventFilter, cached: CachedHistory | None) -> CachedHistory:
    """Join the events since the last look to the cached ones; drop these if too many are new to read at once."""
    high = cached.summary.high if cached else 0
    top: HistorySummary | None = None
    before = b""
    for _ in range(PAGES_PER_LOOK):
        page = await run.frontend.history_page(run.execution, min(PAGE, max(run.length - high, 1)), before)
        before = page.next_page_token
        new = summarize((event for event in page.history.events[::-1] if event.event_id > high), wanted)
        top = join(new, top) if new and top else (new or top)
        if cached is None or not before or top is None or top.low == high + 1:
            break
    if cached and (top is None or top.low == high + 1):
        return replace(cached, summary=join(cached.summary, top) if top else cached.summary)
    if top is None:
        raise EngineUnavailable(f"Temporal at {run.frontend.place.address}: it gave no history", silent=False)
    return CachedHistory(summary=top, before=before)


async def _further_back(run: Run, wanted: EventFilter, cached: CachedHistory) -> CachedHistory:
    page = await run.frontend.history_page(run.execution, PAGE, cached.before)
    older = summarize(page.history.events[::-1], wanted)
    summary = join(older, cached.summary) if older else cached.summary
    return CachedHistory(summary=summary, before=page.next_page_token)
