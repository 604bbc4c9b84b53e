"""The state of one execution, from GetExecution and the notes on its questions.

Source: https://cloud.google.com/workflows/docs/reference/executions/rest/v1/projects.locations.workflows.executions/get
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final
from urllib.parse import quote

from mcp_workflows.adapter import TERMINAL, Execution, Failure, Gate, Ref, Status
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows_google.client import Client
from mcp_workflows_google.input_requests import is_at_gate, open_requests, problems
from mcp_workflows_google.names import KEY_LABEL, ExecutionName
from mcp_workflows_google.notes import ExecutionNotes, ExecutionRecord, is_unconfirmed, utc_now
from mcp_workflows_google.options import GoogleOptions
from mcp_workflows_google.outcome import UNAVAILABLE, ended_execution, running_execution, status_of
from mcp_workflows_google.projects import Projects
from mcp_workflows_google.redaction import redact, shorten
from mcp_workflows_google.resources import Callback, ExecutionResource, awaited_ids
from mcp_workflows_google.settings import GoogleSettings

GOOGLE_CONSOLE: Final = "https://console.cloud.google.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """Links to the Google Cloud console; `root` is None if there is no console, as for a local engine."""

    root: str | None

    @classmethod
    def of(cls, settings: GoogleSettings) -> Console:
        """Return the console of the settings; by default Google's, and none for a local engine."""
        return cls(root=settings.console_url or (None if settings.emulator else GOOGLE_CONSOLE))

    def page(self, execution: ExecutionName) -> str | None:
        """Return the URL of an execution's page."""
        if self.root is None:
            return None
        workflow = execution.workflow
        of_workflow = f"{self.root}/workflows/workflow/{workflow.place.location}/{workflow.workflow}"
        project = quote(workflow.place.project, safe="")
        return f"{of_workflow}/execution/{execution.execution}/summary?project={project}"


async def describe_execution(
    client: Client, notes: ExecutionNotes, projects: Projects, console: Console, ref: Ref, *, grace: timedelta
) -> Execution:
    """Describe an execution with one call; with two if it has ended and the first view was BASIC."""
    record = await notes.read(ref.handle)
    full = bool(ref.gates) or GoogleOptions.read(ref.options).progress
    resource = await client.get(record.name, full=full)
    if not full and status_of(resource.state) in TERMINAL:
        resource = await client.get(record.name, full=True)
    if status_of(resource.state) in TERMINAL and await _has_lost_claim(notes, projects, record.name, resource):
        return await describe_execution(
            client, notes, projects, console, ref, grace=grace
        )  # the execution that holds the claim
    found = await _unreadable(notes, record, resource, grace) if resource.state == UNAVAILABLE else None
    if record.unavailable and resource.state != UNAVAILABLE:
        await notes.clear_unavailable(record.name)
    if found is None:
        found = (
            ended_execution(resource)
            if status_of(resource.state) in TERMINAL
            else await _running(client, record, resource, ref.gates)
        )
    return replace(found, execution_id=resource.name, url=console.page(record.name))


async def _has_lost_claim(
    notes: ExecutionNotes, projects: Projects, name: ExecutionName, resource: ExecutionResource
) -> bool:
    key = resource.labels.get(KEY_LABEL)
    return key is not None and await notes.record_lost_claim(await projects.claim_key(name, key), name)


async def _running(
    client: Client, record: ExecutionRecord, resource: ExecutionResource, gates: Mapping[str, Gate]
) -> Execution:
    doubted = {callback for callback, question in record.questions.items() if is_unconfirmed(question)}
    listed = doubted or is_at_gate(resource, gates)  # callbacks have a quota of their own, a smaller one
    callbacks: Sequence[Callback] = await client.callbacks(record.name) if listed else ()
    over = doubted - awaited_ids(callbacks)
    questions = {callback: question for callback, question in record.questions.items() if callback not in over}
    found, now = running_execution(resource), utc_now()
    asked = open_requests(questions, resource, callbacks, gates, now=now)
    if asked:
        return replace(found, status=Status.INPUT_REQUIRED, requests=asked)
    told = problems(questions, resource, callbacks, gates)
    return replace(found, message="; ".join(told)) if told else found


async def _unreadable(
    notes: ExecutionNotes, record: ExecutionRecord, resource: ExecutionResource, grace: timedelta
) -> Execution:
    """Treat an execution with unreadable data as running: a revoked encryption key may be restored.

    Raises:
        EngineUnavailable: the data has been unreadable for less than the grace period.
    """
    since, why = await notes.unavailable_since(record.name), shorten(redact(resource.state_error)) or "no reason given"
    if utc_now() - since < grace:
        raise EngineUnavailable(f"Google cannot show the execution now (UNAVAILABLE: {why})", silent=False)
    text = f"Google has not shown the execution since {since:%Y-%m-%d %H:%M} UTC: its outcome is not known ({why})"
    return Execution(status=Status.FAILED, failure=Failure(text=text, kind="Unavailable"))
