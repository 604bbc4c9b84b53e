"""The end of a history: the last event, the last failure, a requested cancellation, the running timers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent

from mcp_workflows_temporal.client import Frontend

TAIL = 250  # events: one page

TASK_COMPLETED = "workflow_task_completed_event_attributes"
TASK_FAILED = "workflow_task_failed_event_attributes"
TASK_TIMED_OUT = "workflow_task_timed_out_event_attributes"
SIGNALED = "workflow_execution_signaled_event_attributes"
UPDATE_ACCEPTED = "workflow_execution_update_accepted_event_attributes"
CANCEL_REQUESTED = "workflow_execution_cancel_requested_event_attributes"
TIMER = "timer_started_event_attributes"
TIMER_ENDS = frozenset({"timer_fired_event_attributes", "timer_canceled_event_attributes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The newest events of a run, newest first."""

    events: Sequence[HistoryEvent]
    whole: bool  # there are no older events

    def newest(self, *kinds: str) -> HistoryEvent | None:
        """Return the newest event, of these kinds if any are given."""
        return next((event for event in self.events if not kinds or event.WhichOneof("attributes") in kinds), None)

    @property
    def timers(self) -> Sequence[datetime]:
        """The times at which the running timers fire, UTC, the next one first."""
        return sorted(_running_timers(self.events))


async def read_tail(frontend: Frontend, execution: WorkflowExecution, *, pages: int = 1) -> Tail:
    """Read the end of a run's history, in at most `pages` calls."""
    events: list[HistoryEvent] = []
    token = b""
    for _ in range(pages):
        page = await frontend.history_page(execution, TAIL, token)
        events += page.history.events
        token = page.next_page_token
        if not token:
            break
    return Tail(events=events, whole=not token)


def event_name(event: HistoryEvent) -> str:
    """Return `TimerStarted` for `timer_started_event_attributes`, as in Temporal's own UI."""
    kind = (event.WhichOneof("attributes") or "unknown").removesuffix("_event_attributes")
    return "".join(word.capitalize() for word in kind.split("_"))


def _running_timers(events: Sequence[HistoryEvent]) -> Iterator[datetime]:
    ended: set[int] = set()
    for event in events:
        kind = event.WhichOneof("attributes") or ""
        if kind in TIMER_ENDS:
            ended.add(getattr(event, kind).started_event_id)
        elif kind == TIMER and event.event_id not in ended:
            length = event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta()
            yield event.event_time.ToDatetime(UTC) + length
