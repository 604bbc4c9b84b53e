"""Answers: SendTaskSuccess or SendTaskFailure with the token that is read back from the history.

Source: https://docs.aws.amazon.com/step-functions/latest/apireference/API_SendTaskSuccess.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mcp_workflows.adapter import JSON, Ref
from mcp_workflows.errors import EngineRefused
from mcp_workflows_stepfunctions.asking import Delivery, deliveries
from mcp_workflows_stepfunctions.calls import AnsweredError, Calls
from mcp_workflows_stepfunctions.reading import Histories

_OVER: Final = "TaskTimedOut"  # AWS knows the token, and its task has been answered, has timed out or was stopped
_CLOSED: Final = frozenset({_OVER, "TaskDoesNotExist", "InvalidToken"})


async def answer(calls: Calls, histories: Histories, ref: Ref, responses: Mapping[str, JSON]) -> None:
    """Deliver what answers an open question; what is not open (any more) is ignored.

    Raises:
        EngineRefused: an answer is too large, or the engine does not know the token that was found.
    """
    for delivery in deliveries(await histories.read(ref.handle), ref.gates, responses):
        try:
            await calls.call(delivery.operation, known=_CLOSED, **delivery.params)
        except AnsweredError as answered:
            if answered.code != _OVER:  # the history may be a moment behind
                await _refuse_if_open(histories, ref, delivery)


async def _refuse_if_open(histories: Histories, ref: Ref, delivery: Delivery) -> None:
    """It was answered, has timed out or was stopped meanwhile: or else the token is not the one of this state."""
    fold = await histories.read(ref.handle)
    waiting = fold.waiting.get(int(delivery.key))
    if waiting is not None and not fold.ended:
        raise EngineRefused(
            f"Step Functions does not know the task token that was found in state {waiting.state}: "
            "check where the state puts it (for a gate: when.token)"
        )
