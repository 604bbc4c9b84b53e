"""What EventBridge tells through a queue about executions that may have changed: each message is worth one look.

Delivery is best effort and out of order, so nothing but the ARN is taken from a message; sweeps and looks on demand
go on beside it. A message reaches one consumer only, so each replica wants a queue of its own: see
`mcp-workflows docs stepfunctions-events`.
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

POLL_SECONDS: Final = 20  # the longest that SQS waits for a message
BATCH: Final = 10  # the most that SQS hands out at once

_log = logging.getLogger(__name__)


async def receive_hints(client: Client, settings: StepFunctionsSettings, changed: Callable[[str], None]) -> None:
    """Call `changed` with each execution a message names, until cancelled; see `Hints.hints`.

    A message is deleted after that: who is cancelled in between gets it again, which does no harm.

    Raises:
        EngineError: the queue is not there, may not be read, or does not answer.
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
    """The executions of a batch, each once. What a message says goes into no log: it may hold a task token."""
    by_message: list[frozenset[str]] = []
    for message in messages:
        by_message.append(named_executions(str(message.get("Body", "")), region, account))
        await anyio.lowlevel.checkpoint()  # whoever may write to the queue may write 256 KiB
    if useless := sum(not arns for arns in by_message):
        _log.debug("%d of %d messages of the events queue name no execution of ours", useless, len(messages))
    return sorted(frozenset[str]().union(*by_message))


SNS_MESSAGE: Final = "Notification"  # the `Type` of what a topic wraps, unless its delivery is raw
_LONGEST_ARN: Final = 256  # characters; https://docs.aws.amazon.com/step-functions/latest/apireference (Arn)
_MOST_VALUES: Final = 10_000  # looked at in one event


def named_executions(body: str, region: str, account: str | None) -> frozenset[str]:
    """The ARNs of this Region's (and account's, if it is known) executions that a message names; empty: none.

    Of an event that says which execution it is about (`detail.executionArn`), that one; else those it is about as
    EventBridge has it (`resources`), else those that are named anywhere in it. What else is in it is not looked at:
    inputs, outputs, task tokens.
    """
    found = (frozenset(_executions(look, region, account)) for look in _looks(_opened(body)))
    return next((arns for arns in found if arns), frozenset[str]())


def _looks(event: object) -> Iterator[object]:
    """Where to look, the best place first. A rule may pass on less than the whole event."""
    if not isinstance(event, dict):
        yield event
        return
    whole = cast("dict[str, object]", event)
    detail = whole.get("detail")
    about = cast("dict[str, object]", detail) if isinstance(detail, dict) else whole
    yield from (about.get("executionArn"), whole.get("resources"), about)


def _opened(body: object) -> object:
    """The event in a body, also if an SNS topic has wrapped it; a text that is no JSON is itself."""
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
    """Standard ones: of Express executions nobody has a task."""
    for text in _texts(value):
        try:
            named = ExecutionArn.parse(text)
        except EngineRefused:
            continue
        if not named.express and named.place.region == region and account in (None, named.place.account):
            yield text


def _texts(value: object) -> Iterator[str]:
    """All strings in it that might be an execution ARN."""
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
