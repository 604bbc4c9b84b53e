"""Gates in Temporal's words: when a workflow that was not written for us waits for a person, and how it is answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mcp_workflows.adapter import JSON, Gate, InputRequest
from mcp_workflows.errors import EngineRefused
from mcp_workflows_temporal.gate_history import Kind, Names, Trail, Word

CLOSED = 0  # no event has this id
BEGINNING = 1  # the event that starts a run


class When(BaseModel):
    """When the execution waits for a person; one of `after` and `query`."""

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
    def _is_one_of_both(self) -> Self:
        if (self.after is None) == (self.query is None):
            raise ValueError("write either {after: ActivityType} or {query: name, equals: value}")
        given = self.model_fields_set
        if self.after is not None and given & {"args", "equals"}:
            raise ValueError("args and equals belong to a query, not to after")
        if self.query is not None and "equals" not in given:
            raise ValueError(f"say what the query {self.query!r} gives while it waits: equals")
        return self


class Sending(BaseModel):
    """How an answer reaches the workflow; one of `signal` and `update`."""

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
    def _is_one_of_both(self) -> Self:
        if (self.signal is None) == (self.update is None):
            raise ValueError("write either {signal: name} or {update: name}; args, a list, may stand beside it")
        return self

    @property
    def word(self) -> Word:
        """What it is in the history."""
        kind = Kind.UPDATE if self.signal is None else Kind.SIGNAL
        return Word(kind=kind, name=self.signal or self.update or "")


class GateSettings(BaseModel):
    """What a gate may be on Temporal; texts may hold {{placeholders}}."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    when: When = Field(description="When the execution waits for a person.")
    send: Sending = Field(description="How the answer reaches it.")
    decline: Sending | None = Field(default=None, description="How a refusal does.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One gate, ready to be decided."""

    name: str
    when: When
    words: frozenset[Word]  # what answers it
    request: InputRequest

    def opened(self, trail: Trail) -> int | None:
        """The event that opened it, CLOSED, or None: what lies before this stretch must be read first.

        Of a query gate this is the event that would open it, if the query says that it waits.
        """
        answered = self.answered(trail)
        return self._after(trail, answered) if self.when.after is not None else self._queried(trail, answered)

    def answered(self, trail: Trail) -> int:
        """The event of the latest answer in this stretch, or CLOSED."""
        return max((trail.answers.get(word, CLOSED) for word in self.words), default=CLOSED)

    def _after(self, trail: Trail, answered: int) -> int | None:
        completed = trail.completed.get(self.when.after or "", CLOSED)
        latest = max(completed, answered)
        unsure = not trail.whole and (not latest or any(event > latest for event in trail.ended.values()))
        return None if unsure else (completed if completed > answered else CLOSED)

    def _queried(self, trail: Trail, answered: int) -> int | None:
        """After the latest answer a new round begins; one that waits for its workflow task is not heeded yet."""
        signals = (trail.answers.get(word, CLOSED) for word in self.words if word.kind is Kind.SIGNAL)
        if max(signals, default=CLOSED) > trail.handled:
            return CLOSED
        return answered or (BEGINNING if trail.whole else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What gates add to a look: questions, and what keeps them from being known."""

    requests: Mapping[str, InputRequest] = field(default_factory=dict[str, InputRequest])
    message: str | None = None
    needs_worker: bool = False  # no worker answered a query that decides one of them


def read_rules(gates: Mapping[str, Gate]) -> tuple[Rule, ...]:
    """The gates of a task, as they were frozen.

    Raises:
        EngineRefused: one of them is none, now that its placeholders are filled in; says which and why.
    """
    return tuple(_rule(name, gate) for name, gate in gates.items())


def _rule(name: str, gate: Gate) -> Rule:
    written = {"when": gate.when, "send": gate.send, "decline": gate.decline}
    try:
        settings = GateSettings.model_validate(written)
    except ValidationError as error:
        raise EngineRefused(f"gate {name}: {_complaint(error)}") from None
    sendings = (settings.send, settings.decline)
    words = frozenset(sending.word for sending in sendings if sending is not None)
    return Rule(name=name, when=settings.when, words=words, request=gate.request)


def read_sending(name: str, send: JSON) -> Sending:
    """How one answer is to be sent, filled in.

    Raises:
        EngineRefused: it is not a way to send.
    """
    try:
        return Sending.model_validate(send)
    except ValidationError as error:
        raise EngineRefused(f"gate {name}: {_complaint(error)}") from None


def _complaint(error: ValidationError) -> str:
    wrong = error.errors(include_input=False, include_url=False)[0]
    where, text = ".".join(map(str, wrong["loc"])), wrong["msg"].removeprefix("Value error, ")
    return f"{where}: {text}" if where else text


def names_of(rules: Iterable[Rule]) -> Names:
    """What of a history these gates are about."""
    listed = tuple(rules)
    activities = frozenset(rule.when.after for rule in listed if rule.when.after is not None)
    return Names(activities=activities, words=frozenset[Word]().union(*(rule.words for rule in listed)))


def key_of(gate: str, event: int, run_id: str, first_run_id: str) -> str:
    """The key of one round. Event ids begin again with each run of a chain, so later runs are named in it."""
    return f"{gate}.{event}" if run_id == first_run_id else f"{gate}.{event}.{run_id}"


def event_of(key: str, gate: str, run_id: str, first_run_id: str) -> int:
    """The event in a key of this gate and run; CLOSED if it is a key of another one."""
    number = key.removeprefix(f"{gate}.").partition(".")[0]
    event = int(number) if number.isascii() and number.isdigit() else CLOSED
    return event if key == key_of(gate, event, run_id, first_run_id) else CLOSED


def is_gates(key: str, gates: Mapping[str, Gate]) -> bool:
    """Whether a key is of a gate; the workflow's own questions have a UUID."""
    return any(key.startswith(f"{name}.") for name in gates)
