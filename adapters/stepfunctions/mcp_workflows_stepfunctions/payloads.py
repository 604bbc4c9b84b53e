"""What is given to an execution, its input and answers: canonical JSON, no more than Step Functions takes."""

from __future__ import annotations

import json

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import EngineRefused
from mcp_workflows_stepfunctions.names import MAX_PAYLOAD


def payload(value: JSON, what: str, if_larger: str) -> str:
    """The text to send; `what` it is and what to do `if_larger` are for people.

    Raises:
        EngineRefused: it is no JSON, or too large.
    """
    text = canonical(value, what)
    if (size := len(text.encode())) > MAX_PAYLOAD:
        told = f"the {what} is {size} bytes of JSON, Step Functions takes {MAX_PAYLOAD}: {if_larger}"
        raise EngineRefused(told, final=True)
    return text


def canonical(value: JSON, what: str) -> str:
    """The same text for the same JSON value.

    Raises:
        EngineRefused: it has what JSON has not: NaN, half a surrogate pair.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, RecursionError):
        raise EngineRefused(f"the {what} cannot be written as JSON", final=True) from None
    return text
