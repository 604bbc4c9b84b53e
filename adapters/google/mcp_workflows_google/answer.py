"""Answers, each sent once to the callback that waits for it.

Source: https://cloud.google.com/workflows/docs/creating-callback-endpoints
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mcp_workflows.adapter import JSON, Ref
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows_google.callback import check_callback
from mcp_workflows_google.client import Client
from mcp_workflows_google.input_requests import AnswerCall, answer_calls
from mcp_workflows_google.notes import ExecutionNotes, ExecutionRecord, is_unconfirmed
from mcp_workflows_google.projects import Projects
from mcp_workflows_google.resources import Callback, ExecutionResource, awaited_ids, unanswered_ids
from mcp_workflows_google.rest import DeliveryOutcome


async def answer(
    client: Client, notes: ExecutionNotes, projects: Projects, ref: Ref, responses: Mapping[str, JSON]
) -> None:
    """Send the answers to open questions; ignore all others.

    Raises:
        EngineRefused: the callback of a question does not belong to this execution.
        EngineUnavailable: an answer may not have arrived; others may have.
    """
    record, url = await notes.read(ref.handle), client.rest_url
    resource: ExecutionResource | None = None
    callbacks: Sequence[Callback] = ()
    if ref.gates and responses.keys() - record.questions.keys():
        resource, callbacks = await client.get(record.name, full=True), await client.callbacks(record.name)
    questions = record.questions
    found = answer_calls(record.name, questions, callbacks, ref.gates, responses, rest_url=url, resource=resource)
    if not found:
        await client.get(record.name, full=False)  # no question is open; raises if the execution does not exist
    refused: EngineRefused | None = None
    for delivery in found:
        try:
            fit = await _checked(client, projects, record, delivery)
        except EngineRefused as error:
            refused = error  # raised after the other questions are answered
        else:
            await _deliver(client, notes, record, fit)
    if refused is not None:
        raise refused


async def _checked(client: Client, projects: Projects, record: ExecutionRecord, delivery: AnswerCall) -> AnswerCall:
    """Check that the callback is at Google and in this execution: the access token is sent there."""
    path = check_callback(delivery.url, record.name, rest_url=client.rest_url)
    if not await projects.is_same(record.name, path.project):
        raise EngineRefused("the callback of the question is in another project than the execution: not answered")
    return replace(delivery, url=path.url)


async def _deliver(client: Client, notes: ExecutionNotes, record: ExecutionRecord, delivery: AnswerCall) -> None:
    """Send an answer, and record before that it was sent, so that it is not sent twice unless it is known to be lost.

    Raises:
        EngineUnavailable: it may not have arrived.
    """
    question = record.questions.get(delivery.key)
    if not (is_unconfirmed(question) and await _is_over(client, record, delivery)):
        if question is not None:
            await notes.mark_unconfirmed(record.name, delivery.key, question)
        outcome = await client.deliver(delivery.url, delivery.method, delivery.body)
        if outcome in {DeliveryOutcome.BUSY, DeliveryOutcome.UNKNOWN} and not await _has_arrived(
            client, record, delivery
        ):
            raise EngineUnavailable("it is not known whether the answer has arrived at the workflow")
    if question is not None:
        await notes.close_question(record.name, delivery.key, question)


async def _is_over(client: Client, record: ExecutionRecord, delivery: AnswerCall) -> bool:
    """Return whether no step waits for the callback some time after an answer was sent: then the answer was taken.

    Raises:
        EngineUnavailable: the callbacks cannot be listed.
    """
    try:
        return delivery.callback not in awaited_ids(await client.callbacks(record.name))
    except ExecutionNotFound:
        return True


async def _has_arrived(client: Client, record: ExecutionRecord, delivery: AnswerCall) -> bool:
    """Return whether the callback is gone, or holds a request that the workflow has not taken yet.

    Right after sending, the absence of a waiting step proves nothing: that step may not have begun.

    Raises:
        EngineUnavailable: the callbacks cannot be listed.
    """
    try:
        return delivery.callback not in unanswered_ids(await client.callbacks(record.name))
    except ExecutionNotFound:
        return True
