"""What EventBridge tells through a queue about executions that may have changed: each message is worth one look.

Delivery is best effort and out of order, so nothing but the ARN is taken from a message; sweeps and looks on demand
go on beside it. A message reaches one consumer only, so each replica wants a queue of its own: see
`mcp-workflows docs stepfunctions-events`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import anyio.lowlevel

from mcp_workflows_stepfunctions.calls import Calls
from mcp_workflows_stepfunctions.hinting import hinted
from mcp_workflows_stepfunctions.settings import StepFunctionsSettings

POLL_SECONDS: Final = 20  # the longest that SQS waits for a message
BATCH: Final = 10  # the most that SQS hands out at once

_log = logging.getLogger(__name__)


async def hints(calls: Calls, settings: StepFunctionsSettings, changed: Callable[[str], None]) -> None:
    """Call `changed` with each execution a message names, until cancelled; see `Hints.hints`.

    A message is deleted after that: who is cancelled in between gets it again, which does no harm.

    Raises:
        EngineError: the queue is not there, may not be read, or does not answer.
    """
    if settings.events is None:
        return
    queue = settings.events.queue_url
    while True:
        found = await calls.queue(
            "receive_message", QueueUrl=queue, MaxNumberOfMessages=BATCH, WaitTimeSeconds=POLL_SECONDS
        )
        messages = cast("Sequence[Mapping[str, Any]]", found.get("Messages", ()))  # Any: replies of boto3
        for arn in await _named_in(messages, calls.region, settings.known_account):
            changed(arn)
        if messages:
            entries = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(messages)]
            await calls.queue("delete_message_batch", QueueUrl=queue, Entries=entries)


async def _named_in(messages: Sequence[Mapping[str, Any]], region: str, account: str | None) -> Sequence[str]:
    """The executions of a batch, each once. What a message says goes into no log: it may hold a task token."""
    by_message: list[frozenset[str]] = []
    for message in messages:
        by_message.append(hinted(str(message.get("Body", "")), region, account))
        await anyio.lowlevel.checkpoint()  # whoever may write to the queue may write 256 KiB
    if useless := sum(not arns for arns in by_message):
        _log.debug("%d of %d messages of the events queue name no execution of ours", useless, len(messages))
    return sorted(frozenset[str]().union(*by_message))
