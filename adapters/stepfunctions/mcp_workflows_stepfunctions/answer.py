"""Answers: SendTaskSuccess or SendTaskFailure with the task token in the history.

Source: https://docs.aws.amazon.com/step-functions/latest/apireference/API_SendTaskSuccess.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mcp_workflows.adapter import JSON, Ref
from mcp_workflows.errors import EngineRefused
from mcp_workflows_stepfunctions.client import Client, ExpectedCodeError
from mcp_workflows_stepfunctions.history_reader import HistoryReader
from mcp_workflows_stepfunctions.questions import AnswerCall, answer_calls

_OVER: Final = "TaskTimedOut"  # AWS knows the token; its task was answered, timed out or was stopped
_CLOSED: Final = frozenset({_OVER, "TaskDoesNotExist", "InvalidToken"})


async def send_answers(client: Client, reader: HistoryReader, ref: Ref, responses: Mapping[str, JSON]) -> None:
    """Send the answers to open questions; ignore those to questions that are not open, or not any more.

    Raises:
        EngineRefused: an answer is too large, or the engine does not know the token in the history.
    """
    for delivery in answer_calls(await reader.read(ref.handle, ref.gates), ref.gates, responses):
        if not await _send(client, delivery):
            await _retry_other_token(client, reader, ref, delivery, responses)


async def _send(client: Client, delivery: AnswerCall) -> bool:
    """Make the call; return False if the engine does not know the token, or not any more."""
    try:
        await client.call(delivery.operation, known=_CLOSED, **delivery.params)
    except ExpectedCodeError as answered:
        return answered.code == _OVER
    return True


async def _retry_other_token(
    client: Client, reader: HistoryReader, ref: Ref, delivery: AnswerCall, responses: Mapping[str, JSON]
) -> None:
    """Send an answer with the token that the definition points to, if the question is still open.

    The engine does not know a token if the question was answered, timed out or was stopped meanwhile, or if another
    value in the parameters has the name of a task token.

    Raises:
        EngineRefused: the question is open, and no other token is known.
    """
    history = await reader.read(ref.handle, ref.gates)  # it was read before the call
    waiting = history.waiting.get(int(delivery.key))
    if waiting is None or history.ended:
        return
    if ref.gates:
        await reader.locate(ref.handle, history)
    others = [
        each for each in answer_calls(history, ref.gates, responses) if each.key == delivery.key and each != delivery
    ]
    if not others or not await _send(client, others[0]):
        raise EngineRefused(
            f"Step Functions does not know the task token that was found in state {waiting.state}: "
            "check where the state puts it (for a gate: when.token)"
        )
