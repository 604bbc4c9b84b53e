"""Histories for operators: the newest events, the activities, and the messages of gates."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent, MarkerRecordedEventAttributes

from mcp_workflows.adapter import JSON, closest
from mcp_workflows_temporal.client import Frontend
from mcp_workflows_temporal.gate_rules import Message, MessageKind
from mcp_workflows_temporal.payloads import as_mapping

TAIL = 250  # events: one page

TASK_COMPLETED = "workflow_task_completed_event_attributes"
TASK_FAILED = "workflow_task_failed_event_attributes"
TASK_TIMED_OUT = "workflow_task_timed_out_event_attributes"
SIGNALED = "workflow_execution_signaled_event_attributes"
UPDATE_ACCEPTED = "workflow_execution_update_accepted_event_attributes"
CANCEL_REQUESTED = "workflow_execution_cancel_requested_event_attributes"
TIMER = "timer_started_event_attributes"
TIMER_ENDS = frozenset({"timer_fired_event_attributes", "timer_canceled_event_attributes"})

SHOWN = 10  # names
PARTS = ("send", "decline")

_SCHEDULED = "activity_task_scheduled_event_attributes"
_FAILED = frozenset({f"activity_task_{end}_event_attributes" for end in ("failed", "timed_out", "canceled")})
_MARKER = "marker_recorded_event_attributes"
_LOCAL = frozenset({"core_local_activity", "LocalActivity"})  # the markers of the SDKs on the Rust core, and of Go
_LOCAL_TYPE = ("activity_type", "ActivityType")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The newest events of a run, newest first."""

    events: Sequence[HistoryEvent]
    whole: bool  # there are no older events

    def newest(self, *kinds: str) -> HistoryEvent | None:
        """Return the newest event, optionally of these kinds."""
        return next((event for event in self.events if not kinds or event.WhichOneof("attributes") in kinds), None)

    @property
    def timers(self) -> Sequence[datetime]:
        """The times (UTC) at which the running timers fire, the next one first."""
        ended: set[int] = set()
        found: list[datetime] = []
        for event in self.events:
            kind = event.WhichOneof("attributes") or ""
            if kind in TIMER_ENDS:
                ended.add(getattr(event, kind).started_event_id)
            elif kind == TIMER and event.event_id not in ended:
                length = event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta()
                found.append(event.event_time.ToDatetime(UTC) + length)
        return sorted(found)


async def read_tail(frontend: Frontend, execution: WorkflowExecution, *, pages: int = 1) -> Tail:
    """Read the end of a run's history, in at most `pages` calls."""
    events: list[HistoryEvent] = []
    token = b""
    for _ in range(pages):
        page = await frontend.history_page(execution, TAIL, token)
        events += page.history.events
        token = page.next_page_token
        if not token:
            break
    return Tail(events=events, whole=not token)


def event_name(event: HistoryEvent) -> str:
    """Return `TimerStarted` for `timer_started_event_attributes`, as in Temporal's own UI."""
    kind = (event.WhichOneof("attributes") or "unknown").removesuffix("_event_attributes")
    return "".join(word.capitalize() for word in kind.split("_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityEvents:
    """The activity types of a history, in the order of their first appearance, each with its latest event."""

    scheduled: Mapping[str, int]
    failed: Mapping[str, int]  # including timed out and cancelled ones
    local: frozenset[str]


def read_activities(events: Iterable[HistoryEvent]) -> ActivityEvents:
    """Return the activities in these events, the oldest first; an end without its start has no type."""
    scheduled: dict[str, int] = {}
    failed: dict[str, int] = {}
    local: set[str] = set()
    types: dict[int, str] = {}
    for event in events:
        kind = event.WhichOneof("attributes") or ""
        if kind == _SCHEDULED:
            types[event.event_id] = name = event.activity_task_scheduled_event_attributes.activity_type.name
            scheduled[name] = event.event_id
        elif kind in _FAILED:
            if name := types.get(getattr(event, kind).scheduled_event_id, ""):
                failed[name] = event.event_id
        elif kind == _MARKER:
            local.update(_local(event.marker_recorded_event_attributes))
    return ActivityEvents(scheduled=scheduled, failed=failed, local=frozenset(local))


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
    """Return the known name most similar to this one, or None; names with other numbers do not count."""
    plain = {_plain(each): each for each in known if _DIGITS.findall(each) == _DIGITS.findall(name)}
    meant = closest(_plain(name), plain)
    return None if meant is None else plain[meant]


def is_typo(name: str, other: str) -> bool:
    """True if two names differ only by case, signs like `_`, or one missing, wrong or swapped letter.

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
    """Return the length of the common prefix."""
    differs = (place for place, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)
    return next(differs, min(len(one), len(two)))


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))


def format_names(names: Iterable[str]) -> str:
    """Return the first ten names as a list for people."""
    listed_names = list(names)
    shown = ", ".join(listed_names[:SHOWN]) or "none"
    return f"{shown}, and {len(listed_names) - SHOWN} more" if len(listed_names) > SHOWN else shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One configured message of a gate."""

    gate: str
    part: str  # send or decline
    message: Message
    args: Sequence[JSON]

    @property
    def where(self) -> str:
        """The setting in the tool."""
        return f"questions.{self.gate}.{self.part}.args"


def read_sent(gates: Mapping[str, Mapping[str, JSON]]) -> Sequence[Sent]:
    """Return the messages of these gates; skip invalid ones, which other checks report."""
    return [sent for gate, words in gates.items() for part in PARTS for sent in _sent(gate, part, words.get(part))]


def _sent(gate: str, part: str, written: JSON) -> Iterator[Sent]:
    found = as_mapping(written)
    args: JSON = found.get("args", [])
    for kind in MessageKind:
        name = found.get(kind)
        if isinstance(name, str) and isinstance(args, list):
            yield Sent(gate=gate, part=part, message=Message(kind=kind, name=name), args=cast("Sequence[JSON]", args))


def read_message(event: HistoryEvent) -> tuple[Message, int]:
    """Return the signal or update of an event, and the number of its arguments."""
    if event.WhichOneof("attributes") == SIGNALED:
        signaled = event.workflow_execution_signaled_event_attributes
        return Message(kind=MessageKind.SIGNAL, name=signaled.signal_name), len(signaled.input.payloads)
    given = event.workflow_execution_update_accepted_event_attributes.accepted_request.input
    return Message(kind=MessageKind.UPDATE, name=given.name), len(given.args.payloads)
