"""What the end of a history tells: the last event, what failed last, when it was asked to stop, which timers run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest

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
    whole: bool  # whether there are no others

    def newest(self, *kinds: str) -> HistoryEvent | None:
        """The newest, of these kinds if any are given."""
        return next((event for event in self.events if not kinds or event.WhichOneof("attributes") in kinds), None)

    @property
    def timers(self) -> Sequence[datetime]:
        """When each of the running timers fires, UTC, the next one first."""
        return sorted(_running_timers(self.events))


async def read_tail(frontend: Frontend, execution: WorkflowExecution, *, pages: int = 1) -> Tail:
    """The end of a run's history: at most so many calls, however long it is."""
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=frontend.client.namespace, execution=execution, maximum_page_size=TAIL
    )
    events: list[HistoryEvent] = []
    for _ in range(pages):
        page = await frontend.client.workflow_service.get_workflow_execution_history_reverse(
            request, retry=True, timeout=frontend.timeout
        )
        events += page.history.events
        request.next_page_token = page.next_page_token
        if not page.next_page_token:
            break
    return Tail(events=events, whole=not request.next_page_token)


def event_name(event: HistoryEvent) -> str:
    """`timer_started_event_attributes` -> `TimerStarted`, as Temporal's own UI says."""
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
