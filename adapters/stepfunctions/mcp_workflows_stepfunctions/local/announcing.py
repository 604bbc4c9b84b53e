"""EventBridge hears of every change of status of a Standard execution; moto sends nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final

from moto.events.models import events_backends

from mcp_workflows_stepfunctions.local.execution import LocalExecution

SOURCE: Final = "aws.states"
DETAIL_TYPE: Final = "Step Functions Execution Status Change"
_LEFT_OUT: Final = frozenset({"traceHeader"})

log = logging.getLogger(__name__)


class Announcer:
    """Sends the events from one thread, so that they come in order and a full queue delays no execution."""

    def __init__(self) -> None:
        self._sender = ThreadPoolExecutor(max_workers=1, thread_name_prefix="announcer")

    def __call__(self, execution: LocalExecution) -> None:
        """Say which status it has now."""
        if not execution.express:
            sent = self._sender.submit(_send, execution.account_id, execution.region_name, event(execution.described()))
            sent.add_done_callback(_complain)


def event(described: Mapping[str, Any]) -> Mapping[str, Any]:
    """An entry of PutEvents, made of what DescribeExecution says; dates are milliseconds there, and null is written."""
    empty = dict.fromkeys(("stopDate", "output", "error", "cause"))
    detail = {**empty, **{name: _millis(value) for name, value in described.items() if name not in _LEFT_OUT}}
    return {
        "Source": SOURCE,
        "DetailType": DETAIL_TYPE,
        "Detail": json.dumps(detail),
        "Resources": [described["executionArn"]],
    }


def _send(account: str, region: str, entry: Mapping[str, Any]) -> None:
    events_backends[account][region].put_events([dict(entry)])


def _complain(sent: Future[None]) -> None:
    error = sent.exception()
    if error is not None:  # a queue that was deleted; EventBridge promises no more than its best effort either
        log.warning("an event was lost: %s", error)


def _millis(value: Any) -> Any:
    return int(value.timestamp() * 1000) if isinstance(value, datetime) else value
