"""Which executions a message of the events queue is about: pure, a body in, ARNs out.

Sources: https://docs.aws.amazon.com/eventbridge/latest/ref/events-ref-states.html (status changes), and
https://docs.aws.amazon.com/step-functions/latest/dg/connect-eventbridge.html (`resources` of what a state puts).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, cast

from mcp_workflows.errors import EngineRefused
from mcp_workflows_stepfunctions.arns import ExecutionName

SNS_MESSAGE: Final = "Notification"  # the `Type` of what a topic wraps, unless its delivery is raw
_LONGEST_ARN: Final = 256  # characters; https://docs.aws.amazon.com/step-functions/latest/apireference (Arn)
_MOST_VALUES: Final = 10_000  # looked at in one event


def hinted(body: str, region: str, account: str | None) -> frozenset[str]:
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
            named = ExecutionName.parse(text)
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
