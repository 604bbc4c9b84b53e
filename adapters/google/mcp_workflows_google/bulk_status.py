"""The status of many executions at once, from the list of running ones and the recorded questions.

Source:
https://cloud.google.com/workflows/docs/reference/executions/rest/v1/projects.locations.workflows.executions/list
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mcp_workflows.adapter import JSON, Execution, Ref
from mcp_workflows.errors import EngineRefused
from mcp_workflows.kit.bulk_status import ListEntry, Listings, RunningNames, gently
from mcp_workflows_google.client import Client
from mcp_workflows_google.input_requests import with_questions
from mcp_workflows_google.names import ExecutionName, Place, WorkflowName, note_prefix_of
from mcp_workflows_google.notes import ExecutionNotes, is_unconfirmed

_RUNNING = ("ACTIVE", "QUEUED")


def listings(client: Client) -> Listings:
    """Return the running executions by workflow, one list for each state: `OR` is not documented."""

    async def running(workflow: str) -> RunningNames:
        named = WorkflowName.parse(workflow, Place(project="", location=""))
        lists = [await client.executions(named, only=f'state="{state}"') for state in _RUNNING]
        return RunningNames.in_pages({note_prefix_of(row.name) for rows in lists async for row in gently(rows)})

    return Listings(running, _listed, lambda: client.refill("list_executions") / len(_RUNNING))


async def describe_many(known: Listings, notes: ExecutionNotes, refs: Sequence[Ref]) -> Mapping[str, Execution]:
    """Return the executions that still run, by handle, with their questions; see `Sweeps.describe_many`.

    Executions with an answer that may not have arrived are left out: only `describe` can tell their open questions.

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


def _listed(handle: str) -> ListEntry | None:
    try:
        found = ExecutionName.parse(handle)
    except EngineRefused:
        return None
    return ListEntry(workflow=found.workflow.name, name=found.note_prefix)
