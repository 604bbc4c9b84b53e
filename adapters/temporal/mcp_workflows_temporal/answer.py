"""Answers to the questions that a workflow asks with `elicit`; `gates` sends those to gates."""

from __future__ import annotations

from collections.abc import Mapping

from mcp_workflows_temporal_worker.contract import ANSWER_SIGNAL, ANSWER_UPDATE, BAD_ANSWER, UNKNOWN_QUESTION
from temporalio.service import RPCError, RPCStatusCode

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import EngineRefused
from mcp_workflows_temporal.client import Frontend, Handle
from mcp_workflows_temporal.describe import open_questions


async def answer(frontend: Frontend, handle: Handle, responses: Mapping[str, JSON]) -> None:
    """Deliver each answer to an open question as an update; as a signal once no worker takes an update in time.

    Raises:
        EngineRefused: the workflow does not accept an answer.
    """
    questions = await open_questions(frontend, handle)
    has_worker = True
    for key in responses.keys() & questions.keys():
        has_worker = has_worker and await _update(frontend, handle, key, responses[key])
        if not has_worker:
            await _signal(frontend, handle, key, responses[key])


async def _update(frontend: Frontend, handle: Handle, key: str, response: JSON) -> bool:
    """Return False if no worker took the update in time, or the workflow has no handler for it yet."""
    try:
        refusal = await frontend.update(handle.execution, ANSWER_UPDATE, [key, response], key, handle.first_run_id)
    except RPCError:
        return False  # an error that is more than a missing worker comes back with the signal
    kind = refusal.application_failure_info.type if refusal else None
    if refusal and kind == BAD_ANSWER:
        raise EngineRefused(f"the workflow does not accept this answer: {refusal.message}")
    return refusal is None or kind == UNKNOWN_QUESTION


async def _signal(frontend: Frontend, handle: Handle, key: str, response: JSON) -> None:
    try:
        await frontend.signal(handle.execution, ANSWER_SIGNAL, [{"key": key, "response": response}])
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        # It was open a moment ago: it has ended, and the answer is not needed any more.
