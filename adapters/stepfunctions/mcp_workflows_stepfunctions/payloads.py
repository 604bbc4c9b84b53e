"""Inputs and answers of executions: canonical JSON, within the limit of Step Functions."""

from __future__ import annotations

import json

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import EngineRefused
from mcp_workflows_stepfunctions.names import MAX_PAYLOAD


def payload(value: JSON, what: str, if_larger: str) -> str:
    """Return the text to send. `what` names it, and `if_larger` gives a remedy, both for messages.

    Raises:
        EngineRefused: it cannot be written as JSON, or is too large.
    """
    text = canonical(value, what)
    if (size := len(text.encode())) > MAX_PAYLOAD:
        message = f"the {what} is {size} bytes of JSON, Step Functions takes {MAX_PAYLOAD}: {if_larger}"
        raise EngineRefused(message, final=True)
    return text


def canonical(value: JSON, what: str) -> str:
    """Return the same text for the same JSON value.

    Raises:
        EngineRefused: it contains NaN or half a surrogate pair.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, RecursionError):
        raise EngineRefused(f"the {what} cannot be written as JSON", final=True) from None
    return text
