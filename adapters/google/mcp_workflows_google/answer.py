"""Answers: sent to the callback that waits for them, once.

Source: https://cloud.google.com/workflows/docs/creating-callback-endpoints
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mcp_workflows.adapter import JSON, Ref
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows_google.callback import checked
from mcp_workflows_google.client import Calls
from mcp_workflows_google.input_requests import Delivery, deliveries
from mcp_workflows_google.notes import Noted, Noting, is_doubted
from mcp_workflows_google.projects import Projects
from mcp_workflows_google.resources import Callback, Seen, awaited, waiting
from mcp_workflows_google.rest import Delivered


async def answer(calls: Calls, noting: Noting, projects: Projects, ref: Ref, responses: Mapping[str, JSON]) -> None:
    """Deliver what answers an open question; what is not open (any more) is ignored.

    Raises:
        EngineRefused: the callback of a question is not one of this execution.
        EngineUnavailable: an answer may not have arrived; others may.
    """
    noted, url = await noting.of(ref.handle), calls.rest_url
    seen: Seen | None = None
    callbacks: Sequence[Callback] = ()
    if ref.gates and responses.keys() - noted.questions.keys():
        seen, callbacks = await calls.get(noted.name, full=True), await calls.callbacks(noted.name)
    questions = noted.questions
    found = deliveries(noted.name, questions, callbacks, ref.gates, responses, rest_url=url, seen=seen)
    if not found:
        await calls.get(noted.name, full=False)  # nothing is open, if the execution is there at all
    refused: EngineRefused | None = None
    for delivery in found:
        try:
            fit = await _checked(calls, projects, noted, delivery)
        except EngineRefused as error:
            refused = error  # which keeps no other question from being answered
        else:
            await _deliver(calls, noting, noted, fit)
    if refused is not None:
        raise refused


async def _checked(calls: Calls, projects: Projects, noted: Noted, delivery: Delivery) -> Delivery:
    """Our token goes there: only to Google, and only into this execution."""
    path = checked(delivery.url, noted.name, rest_url=calls.rest_url)
    if not await projects.same(noted.name, path.project):
        raise EngineRefused("the callback of the question is in another project than the execution: not answered")
    return replace(delivery, url=path.url)


async def _deliver(calls: Calls, noting: Noting, noted: Noted, delivery: Delivery) -> None:
    """Send it; that it was sent is noted before, so that it is never sent again unless it has certainly not arrived.

    Raises:
        EngineUnavailable: it may not have arrived.
    """
    question = noted.questions.get(delivery.key)
    if not (is_doubted(question) and await _is_over(calls, noted, delivery)):
        if question is not None:
            await noting.doubt(noted.name, delivery.key, question)
        outcome = await calls.deliver(delivery.url, delivery.method, delivery.body)
        if outcome in {Delivered.BUSY, Delivered.UNKNOWN} and not await _has_arrived(calls, noted, delivery):
            raise EngineUnavailable("it is not known whether the answer has arrived at the workflow")
    if question is not None:
        await noting.answered(noted.name, delivery.key, question)


async def _is_over(calls: Calls, noted: Noted, delivery: Delivery) -> bool:
    """Whether nobody waits any more, some time after an answer was sent: then it was taken.

    Raises:
        EngineUnavailable: it cannot be told.
    """
    try:
        return delivery.callback not in awaited(await calls.callbacks(noted.name))
    except ExecutionNotFound:
        return True


async def _has_arrived(calls: Calls, noted: Noted, delivery: Delivery) -> bool:
    """Whether the callback is gone, or holds what came and is not taken yet.

    Right after it was sent that nobody waits proves nothing: the step that waits may not have begun.

    Raises:
        EngineUnavailable: it cannot be told.
    """
    try:
        return delivery.callback not in waiting(await calls.callbacks(noted.name))
    except ExecutionNotFound:
        return True
