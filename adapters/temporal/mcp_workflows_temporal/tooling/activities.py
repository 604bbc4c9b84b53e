"""The activities in histories, and whether recent histories have those that gates wait for.

An activity that runs only sometimes may be in no recent history, so its absence alone is no error. It is one if a
name that differs by a typo is there instead, or if the activity runs as a local one, which gates cannot see.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent, MarkerRecordedEventAttributes
from temporalio.api.workflow.v1 import WorkflowExecutionInfo

from mcp_workflows.adapter import Finding, closest
from mcp_workflows_temporal.client import Frontend, quoted
from mcp_workflows_temporal.history import read_tail
from mcp_workflows_temporal.labels import as_mapping

CLOSED_EXECUTIONS = 20  # read if the latest executions do not show every name
PAGES = 2  # of 250 events, the newest of each execution
SHARE = 0.2  # of the total time, for all histories together
SHOWN = 10  # names

_SCHEDULED = "activity_task_scheduled_event_attributes"
_COMPLETED = "activity_task_completed_event_attributes"
_FAILED = frozenset({f"activity_task_{end}_event_attributes" for end in ("failed", "timed_out", "canceled")})
_MARKER = "marker_recorded_event_attributes"
_LOCAL = frozenset({"core_local_activity", "LocalActivity"})  # the markers of the SDKs on the Rust core, and of Go
_LOCAL_TYPE = ("activity_type", "ActivityType")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityEvents:
    """The activity types of a history, in the order of their first appearance, each with its latest event."""

    scheduled: Mapping[str, int]
    completed: Mapping[str, int]
    failed: Mapping[str, int]  # timed out and cancelled ones too
    local: frozenset[str]


def read_activities(events: Iterable[HistoryEvent]) -> ActivityEvents:
    """Return the activities in these events, the oldest first; an end without its beginning has no type."""
    scheduled: dict[str, int] = {}
    completed: dict[str, int] = {}
    failed: dict[str, int] = {}
    local: set[str] = set()
    types: dict[int, str] = {}
    for event in events:
        kind = event.WhichOneof("attributes") or ""
        if kind == _SCHEDULED:
            types[event.event_id] = name = event.activity_task_scheduled_event_attributes.activity_type.name
            scheduled[name] = event.event_id
        elif kind == _COMPLETED or kind in _FAILED:
            if name := types.get(getattr(event, kind).scheduled_event_id, ""):
                (completed if kind == _COMPLETED else failed)[name] = event.event_id
        elif kind == _MARKER:
            local.update(_local(event.marker_recorded_event_attributes))
    return ActivityEvents(scheduled=scheduled, completed=completed, failed=failed, local=frozenset(local))


def _local(marker: MarkerRecordedEventAttributes) -> Iterator[str]:
    """Yield the type of a local activity, if its SDK writes it in JSON."""
    if marker.marker_name not in _LOCAL:
        return
    for payload in marker.details["data"].payloads if "data" in marker.details else ():
        try:
            data: Any = json.loads(payload.data)  # Any: JSON
        except ValueError:
            continue
        found = as_mapping(data)
        yield from (str(found[key]) for key in _LOCAL_TYPE if isinstance(found.get(key), str))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most like this one, or None; names with other numbers in them do not count."""
    plain = {_plain(each): each for each in known if _DIGITS.findall(each) == _DIGITS.findall(name)}
    meant = closest(_plain(name), plain)
    return None if meant is None else plain[meant]


def is_typo(name: str, other: str) -> bool:
    """Return whether two names differ only by case, signs like `_`, or one missing, wrong or swapped letter.

    A different last letter makes another name: `ShipA` and `ShipB`, `ChargeCard` and `ChargeCards` may both exist.
    """
    one, two = _plain(name), _plain(other)
    if one == two:
        return True
    start = _shared(one, two)
    one, two = one[start:], two[start:]
    end = _shared(one[::-1], two[::-1])
    one, two = one[: len(one) - end], two[: len(two) - end]
    one_letter, swapped = max(len(one), len(two)) == 1, len(one) == 2 and one == two[::-1]
    return end > 0 and (one_letter or swapped)


def _shared(one: str, two: str) -> int:
    """Return the length of the common beginning."""
    differs = (place for place, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
    return next(differs, min(len(one), len(two)))


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))


def format_names(names: Iterable[str]) -> str:
    """Return the first ten names as a list for people."""
    listed_names = list(names)
    shown = ", ".join(listed_names[:SHOWN]) or "none"
    return f"{shown}, and {len(listed_names) - SHOWN} more" if len(listed_names) > SHOWN else shown


@dataclass(slots=True, kw_only=True)
class _Sample:
    """The activities in the histories that were read."""

    types: dict[str, None]  # in the order in which they were found
    local: set[str]
    executions: int = 0


async def verify_activities(
    frontend: Frontend, workflow: str, latest: Sequence[WorkflowExecutionInfo], awaited: Mapping[str, str]
) -> Sequence[Finding]:
    """Look in recent histories for the activities that gates wait for: `awaited` has types by settings.

    Reads at most the `latest` executions and `CLOSED_EXECUTIONS` ended ones, `PAGES` pages each, until all are found.
    """
    names = frozenset(awaited.values())
    sample = _Sample(types={}, local=set())
    with anyio.move_on_after(frontend.timeout.total_seconds() * SHARE):
        async for execution in _executions(frontend, workflow, latest):
            if names <= sample.types.keys():
                break
            found = read_activities(reversed((await read_tail(frontend, execution, pages=PAGES)).events))
            sample.types.update(dict.fromkeys(found.scheduled))
            sample.local |= found.local
            sample.executions += 1
    return [_judge(workflow, where, name, names, sample) for where, name in awaited.items() if name not in sample.types]


async def _executions(
    frontend: Frontend, workflow: str, latest: Sequence[WorkflowExecutionInfo]
) -> AsyncIterator[WorkflowExecution]:
    """Yield the latest executions, then ended ones, as those that have just begun show nothing."""
    for row in latest:
        yield row.execution
    known = {row.execution.run_id for row in latest}
    query = f"WorkflowType = {quoted(workflow)} AND ExecutionStatus != 'Running'"
    async for row in frontend.list_executions(query, page=CLOSED_EXECUTIONS, pages=1):
        if row.execution.run_id not in known:
            yield row.execution


def _judge(workflow: str, where: str, name: str, names: frozenset[str], sample: _Sample) -> Finding:
    """Return the finding for an activity that no history has."""
    if name in sample.local:
        text = f"{where}: {name!r} runs as a local activity, and no gate can see that"
        return Finding(
            ok=False, text=text, hint=f"correct {where}: another activity, or a query; see: mcp-workflows docs gates"
        )
    names_seen = format_names(sample.types)
    if not sample.executions or not sample.types:
        text = f"no history of workflow {workflow} shows any activity yet"
        return Finding(ok=None, text=f"{where}: could not be verified (activity {name}): {text}")
    number = f"the latest {sample.executions} executions" if sample.executions > 1 else "the latest execution"
    text = f"no activity {name!r} in {number} of workflow {workflow}"
    others = [each for each in sample.types if each not in names]  # not a name that another gate waits for
    near = nearest(name, others)
    suggestion = f"; did you mean {near!r}?" if near else ""
    if near and is_typo(name, near):
        hint = f"correct {where}, or let {name} run once if it is new"
        return Finding(ok=False, text=f"{where}: {text}{suggestion} (seen: {names_seen})", hint=hint)
    return Finding(ok=None, text=f"{where}: could not be verified: {text}{suggestion} (seen: {names_seen})")
