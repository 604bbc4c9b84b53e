"""Starts by CreateExecution, labelled with the key, and the search for executions by that label.

Google does not deduplicate, so a start is never sent twice. Google's list may be late, and its filter on labels is not
documented: the labels of each row are checked here, and until the filter has returned one of our executions, all
executions since the start are read. The oldest counts; later ones are cancelled.

Source:
https://cloud.google.com/workflows/docs/reference/executions/rest/v1/projects.locations.workflows.executions/create
https://cloud.google.com/workflows/docs/reference/executions/rest/v1/projects.locations.workflows.executions/list
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, cast

from mcp_workflows.adapter import JSON, Start
from mcp_workflows.errors import EngineRefused, StartConflict
from mcp_workflows_google.client import Client
from mcp_workflows_google.notes import ExecutionNotes
from mcp_workflows_google.resources import (
    KEY_LABEL,
    MORE_LABEL,
    OWNER_LABEL,
    TOOL_LABEL,
    TRACE_LABEL,
    ExecutionName,
    ExecutionResource,
    Place,
    WorkflowName,
    label,
)
from mcp_workflows_google.settings import DEMO, GoogleSettings

MAX_ARGUMENT: Final = 32 * 1024  # bytes of UTF-8
CLOCKS_DIFFER: Final = timedelta(minutes=5)  # the largest difference between Google's clock and ours
_LABEL: Final = re.compile(r"[a-z0-9_-]{1,63}")
_KNOWN: Final = frozenset({"tool", "owner", "principal", "issuer", "client", "traceparent", "tracestate", "baggage"})
_TRACE: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_NO_LABEL: Final = re.compile(r"[^a-z0-9_-]")
_LAST: Final = datetime.max.replace(tzinfo=UTC)  # queued executions have no start time


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequest:
    """A start as a request of the API."""

    workflow: WorkflowName
    argument: str = field(repr=False)  # canonical JSON
    labels: Mapping[str, str]


def build_request(start: Start, place: Place) -> StartRequest:
    """Return the request of a start.

    Raises:
        EngineRefused: the name of the workflow or the argument is invalid.
    """
    workflow = WorkflowName.parse(start.workflow, place)
    return StartRequest(workflow=workflow, argument=encode_argument(start.arguments), labels=labels(start))


def preview(start: Start, settings: GoogleSettings) -> Mapping[str, JSON]:
    """Return the request as JSON, with the argument not encoded; a project from the credentials is a placeholder.

    Raises:
        EngineRefused: the start would be refused before anything is sent.
    """
    project = settings.project or (DEMO if settings.emulator else "unknown-project")
    ready = build_request(start, Place(project=project, location=settings.location))
    parent = ready.workflow.name.replace("projects/unknown-project/", "projects/PROJECT/", 1)
    execution: dict[str, JSON] = {"labels": dict(ready.labels), "argument": json.loads(ready.argument)}
    return {"operation": "CreateExecution", "parent": parent, "execution": execution}


def labels(start: Start) -> Mapping[str, str]:
    """Return the labels: the key, and for people the tool, the owner, the trace and the tool's own labels.

    Characters that labels do not permit become dashes.
    """
    tool, owner = start.context.get("tool"), start.context.get("owner")
    named = {TOOL_LABEL: _NO_LABEL.sub("-", tool.lower())[:63]} if tool else {}
    owned = {OWNER_LABEL: label_value(owner)} if owner else {}
    more = {f"{MORE_LABEL}{key}": label_value(text) for key, text in start.context.items() if key not in _KNOWN}
    trace = start.context.get("traceparent", "")
    traced = {TRACE_LABEL: trace} if _TRACE.fullmatch(trace) else {}
    return {KEY_LABEL: label(start.key), **named, **owned, **more, **traced}


def label_value(text: str) -> str:
    """Return a text as a label value; an invalid text gets a digest, so that values stay unique."""
    if _LABEL.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{_NO_LABEL.sub('-', text.lower())[: 63 - 9]}-{digest}"


def encode_argument(arguments: JSON) -> str:
    """Return the argument of an execution as canonical JSON; without one an empty object, as null is not a map.

    Raises:
        EngineRefused: there are several arguments, they are not JSON, or too large.
    """
    positional = cast("Sequence[JSON]", arguments) if isinstance(arguments, list) else [arguments]
    if len(positional) > 1:
        raise EngineRefused("a workflow takes one argument: write args: [{...}], a list of one", final=True)
    value: JSON = positional[0] if positional else {}
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
        size = len(text.encode())
    except (ValueError, TypeError, RecursionError) as error:  # half a surrogate pair is also a ValueError
        raise EngineRefused(f"the argument is no JSON that can be sent ({type(error).__name__})", final=True) from None
    if size > MAX_ARGUMENT:
        raise EngineRefused(
            f"the argument has {size:,} bytes, and Google Cloud Workflows takes at most {MAX_ARGUMENT:,}: pass a "
            "reference to it, such as the name of an object in Cloud Storage",
            final=True,
        )
    return text


class KeySearch:
    """Search for the execution of a key; remembers whether Google's filter on labels works."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._filter_works = False

    async def find(self, start: Start, notes: ExecutionNotes) -> str | None:
        """Return the handle of the execution of this key; see `Finds.find`.

        The holder of the key's claim is returned, even if it is not the oldest. If there is none, the oldest gets the
        claim before the others are cancelled, so that none of them claims it in between.

        Raises:
            StartConflict: the execution has another argument.
            EngineRefused, EngineUnavailable: Google's list cannot be read, or a duplicate could not be cancelled.
        """
        wanted, key = build_request(start, await self._client.place()), label(start.key)
        found = await self._executions(wanted.workflow, key, start.created - CLOCKS_DIFFER)
        if not found:
            return await notes.claim_holder(f"{wanted.workflow.name}/{key}")
        if not _is_same(found[0].argument, wanted.argument):
            raise StartConflict("the key belongs to an execution with another argument")
        names = [ExecutionName.parse(each.name) for each in found]
        holder = names[0]
        if len(names) > 1:
            listed = ExecutionName(workflow=wanted.workflow, execution=holder.execution)  # in the project of the list
            holder = await notes.claim(await self._client.claim_key(listed, key), holder)
        for other in names:
            if other.note_prefix != holder.note_prefix:
                await self._client.cancel(other)
        return holder.name

    async def _executions(self, workflow: WorkflowName, key: str, since: datetime) -> Sequence[ExecutionResource]:
        """Return the executions of this key since a time, oldest first."""
        ours: Sequence[ExecutionResource] = ()
        try:
            only = f'labels.{KEY_LABEL}="{key}"'
            ours = _with_key(await self._client.executions(workflow, only=only, full=True, since=since), key)
        except EngineRefused:
            if self._filter_works:
                raise  # otherwise Google does not accept the filter
        self._filter_works = self._filter_works or bool(ours)
        if self._filter_works:
            return ours
        return _with_key(await self._client.executions(workflow, full=True, since=since), key)


def _with_key(found: Sequence[ExecutionResource], key: str) -> Sequence[ExecutionResource]:
    ours = {each.name: each for each in found if each.labels.get(KEY_LABEL) == key}
    return sorted(ours.values(), key=lambda each: (each.start_time or _LAST, each.name))


def _is_same(found: str, wanted: str) -> bool:
    """Return whether two texts are the same JSON: Google may format it differently; older versions sent no `{}`."""
    try:
        return bool(json.loads(found or "{}") == json.loads(wanted))
    except ValueError:
        return found == wanted
