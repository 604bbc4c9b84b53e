"""EventBridge events for each status change of a Standard execution; moto sends none."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final

from moto.events.models import events_backends

from mcp_workflows_stepfunctions_local.execution import LocalExecution

SOURCE: Final = "aws.states"
DETAIL_TYPE: Final = "Step Functions Execution Status Change"
_LEFT_OUT: Final = frozenset({"traceHeader"})

log = logging.getLogger(__name__)


class EventPublisher:
    """The sender of events, in one thread: they arrive in order, and a full queue delays no execution."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="event-publisher")

    def publish(self, execution: LocalExecution) -> None:
        """Send an event with the current status of an execution."""
        if not execution.is_express:
            entry = event_entry(execution.description())
            sent = self._executor.submit(_send, execution.account_id, execution.region_name, entry)
            sent.add_done_callback(_log_loss)


def event_entry(description: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an entry of PutEvents from the reply of DescribeExecution, with dates in milliseconds and explicit
    nulls."""
    empty = dict.fromkeys(("stopDate", "output", "error", "cause"))
    detail = {**empty, **{name: _millis(value) for name, value in description.items() if name not in _LEFT_OUT}}
    return {
        "Source": SOURCE,
        "DetailType": DETAIL_TYPE,
        "Detail": json.dumps(detail),
        "Resources": [description["executionArn"]],
    }


def _send(account: str, region: str, entry: Mapping[str, Any]) -> None:
    events_backends[account][region].put_events([dict(entry)])


def _log_loss(sent: Future[None]) -> None:
    error = sent.exception()
    if error is not None:  # for example a deleted queue; EventBridge itself only promises best effort
        log.warning("an event was lost: %s", error)


def _millis(value: Any) -> Any:
    return int(value.timestamp() * 1000) if isinstance(value, datetime) else value
