"""Waiting for an execution to end by a long poll: one open call, answered within milliseconds of the end.

A namespace allows 1,200 of them (server 1.32), those of all other clients included, so the core opens few.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio.api.enums.v1 import HistoryEventFilterType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest

from mcp_workflows_temporal.client import Call, Frontend, Handle

LONGEST_POLL = timedelta(seconds=60)  # Temporal itself answers with an empty page after some 20 s

_CLOSE_EVENT = HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT


async def wait(frontend: Frontend, handle: Handle) -> None:
    """Wait until the chain may have ended; a run that is followed by another one is not its end.

    Raises:
        EngineError: waiting is not possible now.
    """
    token = b""
    while True:
        request = GetWorkflowExecutionHistoryRequest(
            namespace=frontend.client.namespace,
            execution=handle.execution,
            history_event_filter_type=_CLOSE_EVENT,
            wait_new_event=True,
            skip_archival=True,
            next_page_token=token,
        )
        async with Call(frontend.place, LONGEST_POLL.total_seconds()):
            page = await frontend.client.workflow_service.get_workflow_execution_history(
                request, retry=True, timeout=LONGEST_POLL
            )
        if page.history.events and not _next_run(page.history.events[-1]):
            frontend.remember_end(handle.workflow_id, page.history.events[-1])
            return
        token = b"" if page.history.events else page.next_page_token


def _next_run(event: HistoryEvent) -> str:
    """Return the id of the run that follows after continue-as-new, a retry or a cron run; empty if there is none."""
    attributes = getattr(event, event.WhichOneof("attributes") or "", None)
    return str(getattr(attributes, "new_execution_run_id", ""))
