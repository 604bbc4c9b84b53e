"""The rules of gates, pure: when a workflow waits for a person, and the signal or update that answers it.

The events of a history that decide gates are summarized in ranges that can be joined. A replay reads forwards, and a
poll reads backwards from the newest event; both produce the same summary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import reduce
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from temporalio.api.history.v1 import HistoryEvent

from mcp_workflows.adapter import JSON, Gate, InputRequest
from mcp_workflows.errors import EngineRefused

CLOSED = 0  # no event has this id
BEGINNING = 1  # the event that starts a run

Settings = TypeVar("Settings", bound=BaseModel)


class MessageKind(StrEnum):
    """The two kinds of messages that answer a gate."""

    SIGNAL = "signal"
    UPDATE = "update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A signal or an update, identified by its name."""

    kind: MessageKind
    name: str


class When(BaseModel):
    """The condition on which the execution waits for a person: either `after` or `query`."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={"oneOf": [{"required": ["after"]}, {"required": ["query", "equals"]}]},
    )

    after: str | None = Field(
        default=None,
        min_length=1,
        description="An activity type. The workflow waits from the completion of this activity until an answer. "
        "Needs no worker.",
    )
    query: str | None = Field(
        default=None,
        min_length=1,
        description="A query of the workflow. The workflow waits while the query returns `equals`.",
    )
    args: list[Any] = Field(default_factory=list[Any], description="The arguments of the query.")  # any JSON values
    equals: Any = Field(default=None, description="The query's result while the workflow waits: any JSON value.")

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Self:
        if (self.after is None) == (self.query is None):
            raise ValueError("write either {after: ActivityType} or {query: name, equals: value}")
        given = self.model_fields_set
        if self.after is not None and given & {"args", "equals"}:
            raise ValueError("args and equals belong to a query, not to after")
        if self.query is not None and "equals" not in given:
            raise ValueError(f"say what the query {self.query!r} gives while it waits: equals")
        return self


class Sending(BaseModel):
    """The message that delivers an answer to the workflow: either `signal` or `update`."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, json_schema_extra={"oneOf": [{"required": ["signal"]}, {"required": ["update"]}]}
    )

    signal: str | None = Field(
        default=None, min_length=1, description="A signal, which Temporal keeps even if no worker runs."
    )
    update: str | None = Field(
        default=None, min_length=1, description="An update, which the workflow can refuse. It needs a running worker."
    )
    args: list[Any] = Field(default_factory=list[Any], description="The positional arguments.")  # any JSON values

    @field_validator("signal", "update")
    @classmethod
    def _is_plain(cls, name: str | None) -> str | None:
        if name is not None and "{{" in name:
            raise ValueError("the name must be plain, without {{placeholders}}: it is looked for in the history")
        return name

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Self:
        if (self.signal is None) == (self.update is None):
            raise ValueError("write either {signal: name} or {update: name}; args, a list, may stand beside it")
        return self

    @property
    def message(self) -> Message:
        """The message in the history."""
        kind = MessageKind.UPDATE if self.signal is None else MessageKind.SIGNAL
        return Message(kind=kind, name=self.signal or self.update or "")


class GateSettings(BaseModel):
    """The settings of a gate on Temporal; texts may contain {{placeholders}}."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    when: When = Field(description="The condition on which the execution waits for a person.")
    send: Sending = Field(description="How the answer reaches the execution.")
    decline: Sending | None = Field(default=None, description="How a refusal reaches the execution.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """The activities and messages that matter to gates; other events are ignored."""

    activities: frozenset[str]
    messages: frozenset[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySummary:
    """The latest of the relevant events, among the events `low` to `high`."""

    low: int
    high: int
    completed: Mapping[str, int] = field(default_factory=dict[str, int])  # activity type: event
    begun: Mapping[int, str] = field(default_factory=dict[int, str])  # scheduled, not ended here: type by event
    ended: Mapping[int, int] = field(default_factory=dict[int, int])  # by scheduling event before `low`: 0 if it failed
    answers: Mapping[Message, int] = field(default_factory=dict[Message, int])
    handled: int = 0  # the last completed workflow task

    @property
    def whole(self) -> bool:
        """True if no event precedes it."""
        return self.low <= 1


def join(older: HistorySummary, newer: HistorySummary) -> HistorySummary:
    """Join the summaries of two adjacent ranges."""
    joined = replace(older, high=newer.high, handled=max(older.handled, newer.handled))
    if not (newer.completed or newer.begun or newer.ended or newer.answers):
        return joined  # true for most events
    begun, completed = {**older.begun, **newer.begun}, dict(older.completed)
    for scheduled, event in newer.ended.items():
        if (activity := begun.pop(scheduled, None)) and event:
            completed[activity] = max(completed.get(activity, 0), event)
    for activity, event in newer.completed.items():
        completed[activity] = max(completed.get(activity, 0), event)
    before = {scheduled: event for scheduled, event in newer.ended.items() if scheduled < older.low}
    ended, answers = {**older.ended, **before}, {**older.answers, **newer.answers}
    return replace(joined, completed=completed, begun=begun, ended=ended, answers=answers)


def summarize(events: Iterable[HistoryEvent], wanted: EventFilter) -> HistorySummary | None:
    """Summarize adjacent events, the oldest first; return None if there are none."""
    summaries = (summarize_event(event, wanted) for event in events)
    first = next(summaries, None)
    return None if first is None else reduce(join, summaries, first)


def summarize_event(event: HistoryEvent, wanted: EventFilter) -> HistorySummary:
    """Summarize a single event."""
    summary = HistorySummary(low=event.event_id, high=event.event_id)
    kind = event.WhichOneof("attributes") or ""
    match kind:
        case "activity_task_scheduled_event_attributes":
            activity = event.activity_task_scheduled_event_attributes.activity_type.name
            return replace(summary, begun={event.event_id: activity}) if activity in wanted.activities else summary
        case _ if kind in _ACTIVITY_ENDS and wanted.activities:
            end = event.event_id if kind == _COMPLETED else 0
            return replace(summary, ended={getattr(event, kind).scheduled_event_id: end})
        case "workflow_execution_signaled_event_attributes":
            name = event.workflow_execution_signaled_event_attributes.signal_name
            message = Message(kind=MessageKind.SIGNAL, name=name)
        case "workflow_execution_update_accepted_event_attributes":
            name = event.workflow_execution_update_accepted_event_attributes.accepted_request.input.name
            message = Message(kind=MessageKind.UPDATE, name=name)
        case "workflow_task_completed_event_attributes":
            return replace(summary, handled=event.event_id)
        case _:
            return summary
    return replace(summary, answers={message: event.event_id}) if message in wanted.messages else summary


_COMPLETED = "activity_task_completed_event_attributes"
_ACTIVITY_ENDS = frozenset(
    {_COMPLETED, *(f"activity_task_{end}_event_attributes" for end in ("failed", "timed_out", "canceled"))}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One gate, with its validated settings."""

    name: str
    when: When
    messages: frozenset[Message]  # those that answer it
    request: InputRequest

    def opening_event(self, summary: HistorySummary) -> int | None:
        """Return the event that opened the gate, CLOSED, or None if older events must be read first.

        For a query gate, this event opens the gate if the query reports that the workflow waits.
        """
        answered = self.answering_event(summary)
        return self._after(summary, answered) if self.when.after is not None else self._queried(summary, answered)

    def answering_event(self, summary: HistorySummary) -> int:
        """Return the event of the latest answer in this range, or CLOSED."""
        return max((summary.answers.get(message, CLOSED) for message in self.messages), default=CLOSED)

    def is_answered_and_not_taken(self, summary: HistorySummary) -> bool:
        """True if a signal answers the gate that no workflow task has taken yet."""
        signals = (message for message in self.messages if message.kind is MessageKind.SIGNAL)
        return max((summary.answers.get(each, CLOSED) for each in signals), default=CLOSED) > summary.handled

    def _after(self, summary: HistorySummary, answered: int) -> int | None:
        completed = summary.completed.get(self.when.after or "", CLOSED)
        latest = max(completed, answered)
        is_unknown = not summary.whole and (not latest or any(event > latest for event in summary.ended.values()))
        return None if is_unknown else (completed if completed > answered else CLOSED)

    def _queried(self, summary: HistorySummary, answered: int) -> int | None:
        """After the latest answer the gate may open again, once a workflow task has taken that answer."""
        if self.is_answered_and_not_taken(summary):
            return CLOSED
        return answered or (BEGINNING if summary.whole else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRequests:
    """The questions of open gates, and a message about gates whose state is unknown."""

    requests: Mapping[str, InputRequest] = field(default_factory=dict[str, InputRequest])
    message: str | None = None
    needs_worker: bool = False  # no worker answered the query of one of them


def read_rules(gates: Mapping[str, Gate]) -> tuple[Rule, ...]:
    """Validate the gates of a task.

    Raises:
        EngineRefused: a gate is invalid after its placeholders were filled in; the message names the gate and the
            error.
    """
    rules: list[Rule] = []
    for name, gate in gates.items():
        settings = _read(GateSettings, name, {"when": gate.when, "send": gate.send, "decline": gate.decline})
        sendings = (settings.send, settings.decline)
        messages = frozenset(sending.message for sending in sendings if sending is not None)
        rules.append(Rule(name=name, when=settings.when, messages=messages, request=gate.request))
    return tuple(rules)


def read_sending(name: str, send: JSON) -> Sending:
    """Validate the message of one answer, with its placeholders filled in.

    Raises:
        EngineRefused: not a valid message.
    """
    return _read(Sending, name, send)


def _read(model: type[Settings], name: str, written: JSON) -> Settings:
    try:
        return model.model_validate(written)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        location, text = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise EngineRefused(f"gate {name}: {location}: {text}" if location else f"gate {name}: {text}") from None


def event_filter(rules: Iterable[Rule]) -> EventFilter:
    """Return the filter for the events that decide these gates."""
    listed = tuple(rules)
    activities = frozenset(rule.when.after for rule in listed if rule.when.after is not None)
    return EventFilter(activities=activities, messages=frozenset[Message]().union(*(rule.messages for rule in listed)))


def key_of(gate: str, event: int, run_id: str, first_run_id: str) -> str:
    """Return the key of a question. Event ids restart with each run of a chain, so the key contains later runs."""
    return f"{gate}.{event}" if run_id == first_run_id else f"{gate}.{event}.{run_id}"


def event_of(key: str, gate: str, run_id: str, first_run_id: str) -> int:
    """Return the event in a key of this gate and run; CLOSED for the key of another gate or run."""
    number = key.removeprefix(f"{gate}.").partition(".")[0]
    event = int(number) if number.isascii() and number.isdigit() else CLOSED
    return event if key == key_of(gate, event, run_id, first_run_id) else CLOSED


def is_gate_key(key: str, gates: Mapping[str, Gate]) -> bool:
    """True if a key belongs to a gate; the workflow's own questions have a UUID."""
    return any(key.startswith(f"{name}.") for name in gates)
