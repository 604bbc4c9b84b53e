"""One look: GetExecution, and what our notes say it asks.

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
from mcp_workflows_google.client import Calls
from mcp_workflows_google.input_requests import complaints, may_wait, requests
from mcp_workflows_google.names import KEY_LABEL, ExecutionName
from mcp_workflows_google.notes import Noted, Noting, is_doubted, utc_now
from mcp_workflows_google.options import GoogleOptions
from mcp_workflows_google.outcome import UNAVAILABLE, ended, status_of, working
from mcp_workflows_google.projects import Projects
from mcp_workflows_google.redaction import hidden, short
from mcp_workflows_google.resources import Callback, Seen, awaited
from mcp_workflows_google.settings import GoogleSettings

GOOGLES: Final = "https://console.cloud.google.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """Where the console is; `root` None: there is none, as for a local engine."""

    root: str | None

    @classmethod
    def of(cls, settings: GoogleSettings) -> Console:
        """As set, or Google's own, unless the engine is a local one."""
        return cls(root=settings.console_url or (None if settings.emulator else GOOGLES))

    def page(self, execution: ExecutionName) -> str | None:
        """The page of an execution."""
        if self.root is None:
            return None
        workflow = execution.workflow
        of_workflow = f"{self.root}/workflows/workflow/{workflow.place.location}/{workflow.workflow}"
        project = quote(workflow.place.project, safe="")
        return f"{of_workflow}/execution/{execution.execution}/summary?project={project}"


async def look(
    calls: Calls, noting: Noting, projects: Projects, console: Console, ref: Ref, *, grace: timedelta
) -> Execution:
    """One call for an execution that runs or, if its tool wants its steps, has ended; otherwise two."""
    noted = await noting.of(ref.handle)
    full = bool(ref.gates) or GoogleOptions.read(ref.options).progress
    seen = await calls.get(noted.name, full=full)
    if not full and status_of(seen.state) in TERMINAL:
        seen = await calls.get(noted.name, full=True)
    if status_of(seen.state) in TERMINAL and await _overtaken(noting, projects, noted.name, seen):
        return await look(calls, noting, projects, console, ref, grace=grace)  # at the one that goes on
    found = await _unreadable(noting, noted, seen, grace) if seen.state == UNAVAILABLE else None
    if noted.unavailable and seen.state != UNAVAILABLE:
        await noting.available(noted.name)
    if found is None:
        found = ended(seen) if status_of(seen.state) in TERMINAL else await _running(calls, noted, seen, ref.gates)
    return replace(found, execution_id=seen.name, url=console.page(noted.name))


async def _overtaken(noting: Noting, projects: Projects, name: ExecutionName, seen: Seen) -> bool:
    key = seen.labels.get(KEY_LABEL)
    return key is not None and await noting.overtaken(await projects.claimed(name, key), name)


async def _running(calls: Calls, noted: Noted, seen: Seen, gates: Mapping[str, Gate]) -> Execution:
    doubted = {callback for callback, question in noted.questions.items() if is_doubted(question)}
    listed = doubted or may_wait(seen, gates)  # they have a quota of their own, a smaller one
    callbacks: Sequence[Callback] = await calls.callbacks(noted.name) if listed else ()
    over = doubted - awaited(callbacks)
    questions = {callback: question for callback, question in noted.questions.items() if callback not in over}
    found, now = working(seen), utc_now()
    asked = requests(questions, seen, callbacks, gates, now=now)
    if asked:
        return replace(found, status=Status.INPUT_REQUIRED, requests=asked)
    told = complaints(questions, seen, callbacks, gates)
    return replace(found, message="; ".join(told)) if told else found


async def _unreadable(noting: Noting, noted: Noted, seen: Seen, grace: timedelta) -> Execution:
    """Its data cannot be read, which may pass (a key that is revoked, and given back): so it has not ended.

    Raises:
        EngineUnavailable: it goes on for less than the grace period.
    """
    since, why = await noting.unavailable_since(noted.name), short(hidden(seen.state_error)) or "no reason given"
    if utc_now() - since < grace:
        raise EngineUnavailable(f"Google cannot show the execution now (UNAVAILABLE: {why})", silent=False)
    text = f"Google has not shown the execution since {since:%Y-%m-%d %H:%M} UTC: its outcome is not known ({why})"
    return Execution(status=Status.FAILED, failure=Failure(text=text, kind="Unavailable"))
