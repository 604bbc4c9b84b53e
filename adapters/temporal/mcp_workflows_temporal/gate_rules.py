"""The rules of gates: when a workflow waits for a person, and the signal or update that answers it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mcp_workflows.adapter import JSON, Gate, InputRequest
from mcp_workflows.errors import EngineRefused
from mcp_workflows_temporal.gate_history import EventFilter, HistorySummary, Message, MessageKind

CLOSED = 0  # no event has this id
BEGINNING = 1  # the event that starts a run


class When(BaseModel):
    """The condition under which the execution waits for a person: one of `after` and `query`."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={"oneOf": [{"required": ["after"]}, {"required": ["query", "equals"]}]},
    )

    after: str | None = Field(
        default=None,
        min_length=1,
        description="An activity type: it waits once this activity completed, until an answer came. Needs no worker.",
    )
    query: str | None = Field(
        default=None, min_length=1, description="A query of the workflow: it waits while this gives `equals`."
    )
    args: list[Any] = Field(default_factory=list[Any], description="Arguments of the query.")  # any JSON values
    equals: Any = Field(default=None, description="What the query gives while it waits: any JSON value.")

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
    """The message that brings an answer to the workflow: one of `signal` and `update`."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, json_schema_extra={"oneOf": [{"required": ["signal"]}, {"required": ["update"]}]}
    )

    signal: str | None = Field(
        default=None, min_length=1, description="A signal: it is kept for the workflow even if no worker is up."
    )
    update: str | None = Field(
        default=None, min_length=1, description="An update: the workflow may refuse it; needs a live worker."
    )
    args: list[Any] = Field(default_factory=list[Any], description="Its arguments, in order.")  # any JSON values

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
    """The settings of a gate on Temporal; texts may hold {{placeholders}}."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    when: When = Field(description="When the execution waits for a person.")
    send: Sending = Field(description="How the answer reaches it.")
    decline: Sending | None = Field(default=None, description="How a refusal does.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One gate, with its settings read."""

    name: str
    when: When
    messages: frozenset[Message]  # that answer it
    request: InputRequest

    def opening_event(self, summary: HistorySummary) -> int | None:
        """Return the event that opened the gate, CLOSED, or None if older events must be read first.

        For a query gate this is the event that opens the gate if the query says that the workflow waits.
        """
        answered = self.answering_event(summary)
        return self._after(summary, answered) if self.when.after is not None else self._queried(summary, answered)

    def answering_event(self, summary: HistorySummary) -> int:
        """Return the event of the latest answer in this stretch, or CLOSED."""
        return max((summary.answers.get(message, CLOSED) for message in self.messages), default=CLOSED)

    def _after(self, summary: HistorySummary, answered: int) -> int | None:
        completed = summary.completed.get(self.when.after or "", CLOSED)
        latest = max(completed, answered)
        is_unknown = not summary.whole and (not latest or any(event > latest for event in summary.ended.values()))
        return None if is_unknown else (completed if completed > answered else CLOSED)

    def _queried(self, summary: HistorySummary, answered: int) -> int | None:
        """After the latest answer the gate may open again, once a workflow task has taken that answer."""
        signals = (
            summary.answers.get(message, CLOSED) for message in self.messages if message.kind is MessageKind.SIGNAL
        )
        if max(signals, default=CLOSED) > summary.handled:
            return CLOSED
        return answered or (BEGINNING if summary.whole else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRequests:
    """The questions of open gates, and a message about gates whose state is unknown."""

    requests: Mapping[str, InputRequest] = field(default_factory=dict[str, InputRequest])
    message: str | None = None
    needs_worker: bool = False  # no worker answered the query of one of them


def read_rules(gates: Mapping[str, Gate]) -> tuple[Rule, ...]:
    """Read the gates of a task.

    Raises:
        EngineRefused: a gate is invalid now that its placeholders are filled in; the message says which and why.
    """
    return tuple(_rule(name, gate) for name, gate in gates.items())


def _rule(name: str, gate: Gate) -> Rule:
    written = {"when": gate.when, "send": gate.send, "decline": gate.decline}
    try:
        settings = GateSettings.model_validate(written)
    except ValidationError as error:
        raise EngineRefused(f"gate {name}: {_complaint(error)}") from None
    sendings = (settings.send, settings.decline)
    messages = frozenset(sending.message for sending in sendings if sending is not None)
    return Rule(name=name, when=settings.when, messages=messages, request=gate.request)


def read_sending(name: str, send: JSON) -> Sending:
    """Read the message of one answer, with its placeholders filled in.

    Raises:
        EngineRefused: it is no valid message.
    """
    try:
        return Sending.model_validate(send)
    except ValidationError as error:
        raise EngineRefused(f"gate {name}: {_complaint(error)}") from None


def _complaint(error: ValidationError) -> str:
    wrong = error.errors(include_input=False, include_url=False)[0]
    where, text = ".".join(map(str, wrong["loc"])), wrong["msg"].removeprefix("Value error, ")
    return f"{where}: {text}" if where else text


def event_filter(rules: Iterable[Rule]) -> EventFilter:
    """Return the filter for the events that decide these gates."""
    listed = tuple(rules)
    activities = frozenset(rule.when.after for rule in listed if rule.when.after is not None)
    return EventFilter(activities=activities, messages=frozenset[Message]().union(*(rule.messages for rule in listed)))


def key_of(gate: str, event: int, run_id: str, first_run_id: str) -> str:
    """Return the key of a question. Event ids begin again with each run of a chain, so the key names later runs."""
    return f"{gate}.{event}" if run_id == first_run_id else f"{gate}.{event}.{run_id}"


def event_of(key: str, gate: str, run_id: str, first_run_id: str) -> int:
    """Return the event in a key of this gate and run; CLOSED for the key of another gate or run."""
    number = key.removeprefix(f"{gate}.").partition(".")[0]
    event = int(number) if number.isascii() and number.isdigit() else CLOSED
    return event if key == key_of(gate, event, run_id, first_run_id) else CLOSED


def is_gate_key(key: str, gates: Mapping[str, Gate]) -> bool:
    """Return whether a key is one of a gate; the workflow's own questions have a UUID."""
    return any(key.startswith(f"{name}.") for name in gates)
