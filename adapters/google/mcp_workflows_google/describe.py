"""The state of executions: of one, from GetExecution and the notes on its questions, and of many, from ListExecutions.

Source: https://cloud.google.com/workflows/docs/reference/executions/rest/v1/projects.locations.workflows.executions
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import quote

from mcp_workflows.adapter import JSON, TERMINAL, Execution, Failure, Gate, Ref, Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows.kit.bulk_status import ListEntry, Listings, RunningNames, gently
from mcp_workflows_google.client import Client
from mcp_workflows_google.input_requests import is_at_gate, open_requests, problems, with_questions
from mcp_workflows_google.notes import ExecutionNotes, ExecutionRecord, is_unconfirmed, utc_now
from mcp_workflows_google.outcome import UNAVAILABLE, ended_execution, redact, running_execution, shorten, status_of
from mcp_workflows_google.resources import (
    KEY_LABEL,
    Callback,
    ExecutionName,
    ExecutionResource,
    Place,
    WorkflowName,
    awaited_ids,
    note_prefix_of,
)
from mcp_workflows_google.settings import GoogleOptions, GoogleSettings

GOOGLE_CONSOLE: Final = "https://console.cloud.google.com"
_RUNNING: Final = ("ACTIVE", "QUEUED")


def console_page(settings: GoogleSettings, execution: ExecutionName) -> str | None:
    """Return the URL of an execution's page in the console; None for a local engine, which has no console."""
    root = (settings.console_url or "").rstrip("/") or (None if settings.emulator else GOOGLE_CONSOLE)
    if root is None:
        return None
    workflow = execution.workflow
    path = f"workflow/{workflow.place.location}/{workflow.workflow}/execution/{execution.execution}/summary"
    return f"{root}/workflows/{path}?project={quote(workflow.place.project, safe='')}"


async def describe_execution(client: Client, notes: ExecutionNotes, settings: GoogleSettings, ref: Ref) -> Execution:
    """Describe an execution with one call, or two if it has ended and the first view was BASIC.

    If it has lost the claim of its key, the holder of the claim is described.

    Raises:
        ExecutionNotFound: Google does not know it.
        EngineUnavailable: Google does not answer, or cannot show the execution now.
    """
    record = await notes.read(ref.handle)
    full = bool(ref.gates) or GoogleOptions.read(ref.options).progress
    resource = await client.get(record.name, full=full)
    has_ended = status_of(resource.state) in TERMINAL
    if has_ended and not full:
        resource = await client.get(record.name, full=True)
    key = resource.labels.get(KEY_LABEL)
    claimed = await client.claim_key(record.name, key) if has_ended and key is not None else None
    if claimed is not None and await notes.record_lost_claim(claimed, record.name):
        return await describe_execution(client, notes, settings, ref)
    if record.unavailable and resource.state != UNAVAILABLE:
        await notes.clear_unavailable(record.name)
    if resource.state == UNAVAILABLE:
        found = await _unreadable(notes, record, resource, settings)
    elif has_ended:
        found = ended_execution(resource)
    else:
        found = await _running(client, record, resource, ref.gates)
    return replace(found, execution_id=resource.name, url=console_page(settings, record.name))


async def _running(
    client: Client, record: ExecutionRecord, resource: ExecutionResource, gates: Mapping[str, Gate]
) -> Execution:
    doubted = {callback for callback, question in record.questions.items() if is_unconfirmed(question)}
    listed = doubted or is_at_gate(resource, gates)  # callbacks have a separate, smaller quota
    callbacks: Sequence[Callback] = await client.callbacks(record.name) if listed else ()
    over = doubted - awaited_ids(callbacks)
    questions = {callback: question for callback, question in record.questions.items() if callback not in over}
    found = running_execution(resource)
    requests = open_requests(questions, resource, callbacks, gates, now=utc_now())
    if requests:
        return replace(found, status=Status.INPUT_REQUIRED, requests=requests)
    wrong = problems(questions, resource, callbacks, gates)
    return replace(found, message="; ".join(wrong)) if wrong else found


async def _unreadable(
    notes: ExecutionNotes, record: ExecutionRecord, resource: ExecutionResource, settings: GoogleSettings
) -> Execution:
    """Treat an execution with unreadable data as running: a revoked encryption key may be restored.

    Raises:
        EngineUnavailable: the data has been unreadable for less than the grace period.
    """
    since, why = await notes.unavailable_since(record.name), shorten(redact(resource.state_error)) or "no reason given"
    if utc_now() - since < settings.grace:
        raise EngineUnavailable(f"Google cannot show the execution now (UNAVAILABLE: {why})", silent=False)
    text = f"Google has not shown the execution since {since:%Y-%m-%d %H:%M} UTC: its outcome is not known ({why})"
    return Execution(status=Status.FAILED, failure=Failure(text=text, kind="Unavailable"))


def listings(client: Client) -> Listings:
    """Return the running executions by workflow, with one list per state, as `OR` is not documented."""

    async def running(workflow: str) -> RunningNames:
        named = WorkflowName.parse(workflow, Place(project="", location=""))
        lists = [await client.executions(named, only=f'state="{state}"') for state in _RUNNING]
        return RunningNames.in_pages({note_prefix_of(row.name) for rows in lists async for row in gently(rows)})

    def entry(handle: str) -> ListEntry | None:
        try:
            found = ExecutionName.parse(handle)
        except EngineRefused:
            return None
        return ListEntry(workflow=found.workflow.name, name=found.note_prefix)

    return Listings(running, entry, lambda: client.refill("list_executions") / len(_RUNNING))


async def describe_many(known: Listings, notes: ExecutionNotes, refs: Sequence[Ref]) -> Mapping[str, Execution]:
    """Return the executions that still run, by handle, with their questions; see `DescribesMany.describe_many`.

    Executions with an answer that may not have arrived are omitted: only `describe` can determine their open questions.

    Raises:
        EngineUnavailable: Google does not answer.
    """
    found = dict(await known.describe_many(refs))
    prefixes = {handle: note_prefix_of(handle) async for handle in gently(found)}
    asked: dict[str, Mapping[str, JSON]] = {}
    for workflow in {prefix[: prefix.rindex("/", 0, -1) + 1] for prefix in prefixes.values()}:
        asked.update(await notes.questions_under(workflow))
    async for handle in gently([handle for handle, prefix in prefixes.items() if prefix in asked]):
        questions = asked[prefixes[handle]]
        if any(is_unconfirmed(each) for each in questions.values()):
            del found[handle]
        else:
            found[handle] = with_questions(found[handle], questions)
    return found
