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
    for delivery in deliveries(await histories.read(ref.handle, ref.gates), ref.gates, responses):
        if not await _is_known(calls, delivery):
            await _answer_elsewhere(calls, histories, ref, delivery, responses)


async def _is_known(calls: Calls, delivery: Delivery) -> bool:
    """Send it. False: the engine does not know the token, or not any more."""
    try:
        await calls.call(delivery.operation, known=_CLOSED, **delivery.params)
    except AnsweredError as answered:
        return answered.code == _OVER
    return True


async def _answer_elsewhere(
    calls: Calls, histories: Histories, ref: Ref, delivery: Delivery, responses: Mapping[str, JSON]
) -> None:
    """It was answered, has timed out or was stopped meanwhile: or else the token is not the one of this state.

    Something else may have the name of a task token; the definition says which one it is.
    """
    fold = await histories.read(ref.handle, ref.gates)  # which was a moment behind
    waiting = fold.waiting.get(int(delivery.key))
    if waiting is None or fold.ended:
        return
    if ref.gates:
        await histories.locate(ref.handle, fold)
    others = [each for each in deliveries(fold, ref.gates, responses) if each.key == delivery.key and each != delivery]
    if not others or not await _is_known(calls, others[0]):
        raise EngineRefused(
            f"Step Functions does not know the task token that was found in state {waiting.state}: "
            "check where the state puts it (for a gate: when.token)"
        )
