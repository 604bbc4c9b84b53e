"""Hints from EventBridge through a queue: each message names executions that may have changed.

Delivery is best effort and out of order, so only the ARN of a message is used, and polling continues. A message reaches
only one consumer, so each replica needs a separate queue: see `docs/engines/stepfunctions-events.md`.
Sources: https://docs.aws.amazon.com/eventbridge/latest/ref/events-ref-states.html (status changes), and
https://docs.aws.amazon.com/step-functions/latest/dg/connect-eventbridge.html (`resources` of an event from a state).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import anyio.lowlevel

from mcp_workflows.errors import EngineRefused
from mcp_workflows_stepfunctions.arns import ExecutionArn
from mcp_workflows_stepfunctions.client import Client
from mcp_workflows_stepfunctions.settings import StepFunctionsSettings

POLL_SECONDS: Final = 20  # the longest wait of SQS for a message
BATCH: Final = 10  # the largest batch of SQS

_log = logging.getLogger(__name__)


async def receive_hints(client: Client, settings: StepFunctionsSettings, changed: Callable[[str], None]) -> None:
    """Call `changed` with each execution that a message names, until cancelled; see `Hints.hints`.

    A message is then deleted; one whose processing was cancelled is received again, which is harmless.

    Raises:
        EngineError: the queue does not exist, may not be read, or does not answer.
    """
    if settings.events is None:
        return
    queue = settings.events.queue_url
    while True:
        found = await client.queue(
            "receive_message", QueueUrl=queue, MaxNumberOfMessages=BATCH, WaitTimeSeconds=POLL_SECONDS
        )
        messages = cast("Sequence[Mapping[str, Any]]", found.get("Messages", ()))  # Any: replies of boto3
        for arn in await _named_in(messages, client.region, settings.known_account):
            changed(arn)
        if messages:
            entries = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(messages)]
            await client.queue("delete_message_batch", QueueUrl=queue, Entries=entries)


async def _named_in(messages: Sequence[Mapping[str, Any]], region: str, account: str | None) -> Sequence[str]:
    """Return the distinct executions of a batch. No message is logged, as it may contain a task token."""
    by_message: list[frozenset[str]] = []
    for message in messages:
        by_message.append(named_executions(str(message.get("Body", "")), region, account))
        await anyio.lowlevel.checkpoint()  # a message may have 256 KiB
    if useless := sum(not arns for arns in by_message):
        _log.debug("%d of %d messages of the events queue name no execution of ours", useless, len(messages))
    return sorted(frozenset[str]().union(*by_message))


SNS_MESSAGE: Final = "Notification"  # the `Type` of a wrapped message, unless delivery is raw
_LONGEST_ARN: Final = 256  # characters; https://docs.aws.amazon.com/step-functions/latest/apireference (Arn)
_MOST_VALUES: Final = 10_000  # values searched in one event


def named_executions(body: str, region: str, account: str | None) -> frozenset[str]:
    """Return the ARNs of this Region's executions (and this account's, if known) that a message names.

    The first of these with any ARN counts: `detail.executionArn`, EventBridge's `resources`, the rest of the event.
    Inputs, outputs and task tokens are not read.
    """
    found = (frozenset(_executions(detail, region, account)) for detail in _details(_opened(body)))
    return next((arns for arns in found if arns), frozenset[str]())


def _details(event: object) -> Iterator[object]:
    """Yield the parts of an event to search, the best first. A rule may forward only a part of the event."""
    if not isinstance(event, dict):
        yield event
        return
    whole = cast("dict[str, object]", event)
    detail = whole.get("detail")
    about = cast("dict[str, object]", detail) if isinstance(detail, dict) else whole
    yield from (about.get("executionArn"), whole.get("resources"), about)


def _opened(body: object) -> object:
    """Return the event in a body, also from a message of SNS; a text that is not JSON is unchanged."""
    value = _json(body)
    if not isinstance(value, dict):
        return value
    event = cast("dict[str, object]", value)
    return _json(event.get("Message")) if event.get("Type") == SNS_MESSAGE else event


def _json(text: object) -> object:
    try:
        value: object = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return text
    return value


def _executions(value: object, region: str, account: str | None) -> Iterator[str]:
    """Yield the Standard executions; no task has an Express one."""
    for text in _texts(value):
        try:
            named = ExecutionArn.parse(text)
        except EngineRefused:
            continue
        if not named.express and named.place.region == region and account in (None, named.place.account):
            yield text


def _texts(value: object) -> Iterator[str]:
    """Yield all texts that could be an execution ARN."""
    left: list[object] = [value]
    for _ in range(_MOST_VALUES):
        if not left:
            return
        value = left.pop()
        if isinstance(value, str) and value.startswith("arn:") and len(value) <= _LONGEST_ARN:
            yield value
        elif isinstance(value, dict):
            left.extend(cast("dict[str, object]", value).values())
        elif isinstance(value, list):
            left.extend(cast("list[object]", value))
