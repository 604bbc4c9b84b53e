"""Requests from workflows over HTTP: a question with its callback URL, and the claim of a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mcp_workflows.adapter import JSON, TERMINAL
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows.kit.change_hints import ChangeHints
from mcp_workflows_google.callback import check_callback
from mcp_workflows_google.client import Client
from mcp_workflows_google.names import KEY_LABEL, ExecutionName
from mcp_workflows_google.notes import ExecutionNotes, utc_now
from mcp_workflows_google.outcome import status_of
from mcp_workflows_google.projects import Projects
from mcp_workflows_google.questions import PostedClaim, PostedQuestion, read_question
from mcp_workflows_google.resources import ExecutionResource

MOST_OPEN: Final = 100  # open questions of one execution


async def receive_question(client: Client, notes: ExecutionNotes, hints: ChangeHints, body: JSON) -> JSON:
    """Store a question before the workflow gets a reply; repeating it changes nothing.

    The question may arrive before our CreateExecution call returns, so it is stored by the name of the execution.
    Google confirms that the execution exists; otherwise any permitted account could fill the store. The project of the
    callback is checked before an answer is sent: see `projects`.

    Raises:
        EngineRefused: it is no valid question, its callback is not one of this execution, or the execution has
            ended.
        EngineUnavailable: it could not be stored, or Google does not show the execution yet: the workflow tries
            again.
    """
    asked = PostedQuestion.read(body)
    name = asked.execution_name(await client.place())
    callback = check_callback(asked.callback_url, name, rest_url=client.rest_url)
    known = await notes.questions(name)
    if callback.id not in known:
        _check_how_many(known)
        if status_of((await _shown(client, name, full=False)).state) in TERMINAL:
            raise EngineRefused("this execution has ended: it can ask nothing")
    await notes.add_question(name, callback.id, asked.question(utc_now()), until=asked.until(utc_now()))
    hints.notify_by_name(name.note_prefix)
    return {"kept": True}


def _check_how_many(known: Mapping[str, JSON]) -> None:
    """Limit the open questions of an execution: each `describe` reads them all, and people see them all."""
    now = utc_now()
    opened = sum(question.open(now) for question in map(read_question, known.values()) if question is not None)
    if opened >= MOST_OPEN:
        raise EngineRefused(f"this execution has {MOST_OPEN} open questions, and no more are taken")


async def _shown(client: Client, name: ExecutionName, *, full: bool) -> ExecutionResource:
    try:
        return await client.get(name, full=full)
    except ExecutionNotFound as error:
        raise EngineUnavailable(str(error)) from None


async def receive_claim(client: Client, notes: ExecutionNotes, projects: Projects, body: JSON) -> JSON:
    """Return whether this execution may go on: true for the first of its key, and for executions without a key.

    The key comes from the labels that Google has of the execution, so that no execution can claim the key of another.

    Raises:
        EngineRefused: the request does not name an execution.
        EngineUnavailable: Google does not show the execution yet, or cannot be reached: the workflow tries again.
    """
    name = PostedClaim.read(body).execution_name(await client.place())
    resource = await _shown(client, name, full=True)
    key = resource.labels.get(KEY_LABEL)
    if key is None:
        return {"claimed": True}
    holder = await notes.claim(await projects.claim_key(name, key), ExecutionName.parse(resource.name))
    return {"claimed": holder.note_prefix == name.note_prefix}
