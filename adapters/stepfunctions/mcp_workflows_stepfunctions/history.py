"""The state of an execution from its history: its open waits for a token, its current state, the progress of a Map.

Pure and incremental: a history in pages gives the same result as a whole one. Only the last events of each sequence are
kept; the longest possible history (25,000 events) takes 0.1 to 0.2 s.
Source: https://docs.aws.amazon.com/step-functions/latest/apireference/API_HistoryEvent.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Final

from mcp_workflows.adapter import JSON, MAX_STEPS, ExecutionStep, Progress, Status
from mcp_workflows_stepfunctions.definition import WAITS_FOR_TOKEN, TokenPlace
from mcp_workflows_stepfunctions.questions import Question, find_question, read_parameters

Event = Mapping[str, Any]  # Any: an event of boto3, or of an export

_BEGINNING: Final = 0  # the previous id in the first event
_ENTERED, _EXITED = "StateEntered", "StateExited"
_SCHEDULED: Final = "TaskScheduled"
_FAILED: Final = ("Failed", "TimedOut")
_SUCCEEDED: Final = "Succeeded"
_CLOSING: Final = ("Succeeded", "Failed", "TimedOut", "Aborted", "Exited", "Entered", "Scheduled")
"""The ends of event types that end a wait: all except Started and Submitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWait:
    """A state that waits for an answer with its task token."""

    event: int  # the id of its TaskScheduled event; each attempt and each visit has a separate one
    state: str
    resource: str  # the called resource: `sqs:sendMessage.waitForTaskToken`
    parameters: JSON = field(repr=False)  # with values filled in, without long texts; includes the token
    question: Question  # its question in `mcpInput`


class History:
    """The state of one execution after the events fed so far."""

    def __init__(self) -> None:
        self.last_id = 0
        self.state: str | None = None  # the last entered state
        self.ended = False
        self.token_places: Mapping[str, Sequence[TokenPlace]] | None = (
            None  # by state; None: the definition was not read
        )
        self.unread: str | None = None  # the reason why the definition could not be read
        self._waiting: dict[int, TokenWait] = {}
        self._steps: dict[int, ExecutionStep] = {}  # states by the event that entered them
        self._root = Scope(kind=Kind.EXECUTION)
        self._sequences: dict[int, StateSequence] = {_BEGINNING: StateSequence(scope=self._root)}  # by event
        self._scopes: dict[int, Scope] = {}  # open Parallels and Maps, by the event that started them

    @property
    def waiting(self) -> Mapping[int, TokenWait]:
        """The open waits by event id, oldest first."""
        return MappingProxyType(self._waiting)

    @property
    def progress(self) -> Progress | None:
        """The progress of the outermost running Map; of parallel ones, that of the first started."""
        running = [scope for scope in self._scopes.values() if scope.total and not scope.has_ended]
        if self.ended or not running:
            return None
        outermost = min(running, key=lambda scope: len(list(scope.ancestry)))
        return Progress(value=len(outermost.done), total=outermost.total)

    @property
    def steps(self) -> tuple[ExecutionStep, ...]:
        """The last entered states in order."""
        return tuple(self._steps.values())

    def feed(self, events: Iterable[Event]) -> None:
        """Process events in ascending id order; events that were processed before are skipped."""
        for event in events:
            if event["id"] > self.last_id:
                self._HANDLERS.get(event["type"], History._step)(self, event)
                self.last_id = event["id"]

    def _step(self, event: Event) -> None:
        """Process an event of one sequence, of a type without a separate handler."""
        sequence, kind = self._sequence_before(event), str(event["type"])
        if kind.endswith(_CLOSING):
            self._close(sequence)
        if kind.endswith((*_FAILED, _SUCCEEDED)):
            sequence.has_failed = not kind.endswith(_SUCCEEDED)
        if kind.endswith(_ENTERED):
            self.state = sequence.state = _details(event, "stateEnteredEventDetails").get("name")
            sequence.kind = kind.removesuffix("Entered")
            self._enter(sequence, event)
            self._forget_events(sequence)
        elif kind.endswith(_EXITED):
            sequence.kind = ""
            self._leave(sequence, event)
            self._forget_events(sequence)
        elif kind == _SCHEDULED:
            self._forget_events(sequence, keep=1)  # earlier attempts
            self._wait(sequence, event)
        self._record(event, sequence)

    def _enter(self, sequence: StateSequence, event: Event) -> None:
        self._leave(sequence, event)
        sequence.entered, sequence.has_failed = event["id"], False
        self._steps[event["id"]] = ExecutionStep(name=sequence.state or "", status=Status.RUNNING, at=_time(event))
        if len(self._steps) > MAX_STEPS:
            del self._steps[next(iter(self._steps))]

    def _leave(self, sequence: StateSequence, event: Event) -> None:
        """Record the end of the current state; after a caught failure, it has failed."""
        entered = sequence.entered
        if entered is not None and entered in self._steps:
            status = Status.FAILED if sequence.has_failed else Status.SUCCEEDED
            self._steps[entered] = replace(self._steps[entered], status=status, at=_time(event))
        sequence.entered = None

    def _wait(self, sequence: StateSequence, event: Event) -> None:
        found = _details(event, "taskScheduledEventDetails")
        resource = str(found.get("resource", ""))
        if not resource.endswith(WAITS_FOR_TOKEN) or self.ended or sequence.scope.has_ended:
            return
        sequence.wait = event["id"]
        state, parameters = sequence.state or self.state or "", read_parameters(found.get("parameters"))
        self._waiting[event["id"]] = TokenWait(
            event=event["id"],
            state=state,
            resource=f"{found.get('resourceType', '')}:{resource}",
            parameters=parameters,
            question=find_question(parameters, state),
        )

    def _scope_started(self, event: Event) -> None:
        """Start a pass of a Parallel or Map; a retry may name any event of the previous pass."""
        kind = _scope_kind(event, "Started")
        owner = self._sequence_before(event)
        if owner.kind != kind and (failed_scope := owner.scope.running(kind)):
            self._end(failed_scope)
            owner = failed_scope.owner or owner
        for earlier in owner.scope.inner.values():
            if earlier.owner is owner:  # a sequence is in one state at a time
                self._end(earlier)
        length = _details(event, "mapStateStartedEventDetails").get("length")
        total = length if isinstance(length, int) else None
        owner.has_failed = False
        scope = Scope(kind=kind, name=owner.state, outer=owner.scope, owner=owner, total=total)
        owner.scope.inner[event["id"]] = self._scopes[event["id"]] = scope
        self._record(event, owner)

    def _scope_failed(self, event: Event) -> None:
        """End a failed or aborted Parallel or Map with everything in it; a retry or an exit follows."""
        scope = self._scope_before(event).running(_scope_kind(event, "Failed", "Aborted"))
        if scope is None or scope.owner is None:
            return self._step(event)
        self._end(scope)
        scope.owner.has_failed = True
        return self._record(event, scope.owner)

    def _scope_exited(self, event: Event) -> None:
        """Leave a Parallel or Map by its name, as the previous event may be of any branch."""
        name = _details(event, "stateExitedEventDetails").get("name")
        scope = self._scope_named(event, _scope_kind(event, "Exited"), name)
        if scope is None or scope.owner is None or scope.outer is None:
            return self._step(event)
        passes = scope.outer.inner
        for event_id in [key for key, each in passes.items() if each.owner is scope.owner]:  # including failed passes
            self._discard(passes.pop(event_id))
            del self._scopes[event_id]
        scope.owner.kind = ""
        self._leave(scope.owner, event)
        self._forget_events(scope.owner)
        return self._record(event, scope.owner)

    def _iteration_started(self, event: Event) -> None:
        found = _details(event, "mapIterationStartedEventDetails")
        of = self._scope_named(event, Kind.MAP, found.get("name"))
        if of is None:
            return self._step(event)
        index = _index(found)
        if index in of.iterations:  # again, after a redrive
            self._discard(of.iterations.pop(index))
        of.iterations[index] = scope = Scope(kind=Kind.ITERATION, name=of.name, outer=of)
        return self._record(event, self._new_sequence(scope))

    def _iteration_succeeded(self, event: Event) -> None:
        """End an iteration, but keep its last event for the Map, as the next iteration may name it."""
        found = _details(event, "mapIterationSucceededEventDetails")
        of = self._scope_named(event, Kind.MAP, found.get("name"))
        if of is None:
            return self._step(event)
        index = _index(found)
        of.done.add(index)
        if index in of.iterations:
            self._discard(of.iterations.pop(index))
        tail = of.sequences[0] if of.sequences else self._new_sequence(of)
        before = event.get("previousEventId", _BEGINNING)
        if before not in self._sequences:  # just forgotten
            self._record({"id": before}, tail)
        return self._record(event, tail)

    def _iteration_failed(self, event: Event) -> None:
        kind = str(event["type"])
        found = _details(event, f"{kind[0].lower()}{kind[1:]}EventDetails")
        of = self._scope_named(event, Kind.MAP, found.get("name"))
        scope = of.iterations.get(_index(found)) if of else None
        if scope is not None:
            self._end(scope)
        self._step(event)

    def _map_run_started(self, event: Event) -> None:
        """Drop the total of a distributed Map: its iterations are executions with separate histories."""
        if found := self._scope_before(event).running(Kind.MAP):
            found.total = None
        self._step(event)

    def _execution_ended(self, event: Event) -> None:
        self.ended = True
        self._waiting.clear()
        self._record(event, self._sequence_before(event))

    def _redriven(self, event: Event) -> None:
        """Reopen everything that failed: the execution continues from there."""
        self.ended = False
        for scope in self._root.walk():
            scope.ended = False
        self._record(event, self._sequence_before(event))

    def _sequence_before(self, event: Event) -> StateSequence:
        """Return the sequence of the previous event, or a new one if that event started a Parallel or Map."""
        before = event.get("previousEventId", _BEGINNING)
        if before in self._scopes:
            return self._new_sequence(self._scopes[before])
        return self._sequences.get(before) or self._new_sequence(self._root)

    def _new_sequence(self, scope: Scope) -> StateSequence:
        sequence = StateSequence(scope=scope, state=self.state)
        scope.sequences.append(sequence)
        return sequence

    def _scope_before(self, event: Event) -> Scope:
        """Return the scope of the previous event."""
        before = event.get("previousEventId", _BEGINNING)
        sequence = self._sequences.get(before)
        return self._scopes.get(before) or (sequence.scope if sequence else self._root)

    def _scope_named(self, event: Event, kind: Kind, name: str | None) -> Scope | None:
        """Return the Parallel or Map of a name around the previous event, or else the latest of that name."""
        around = (scope for scope in self._scope_before(event).ancestry if scope.kind is kind and scope.name == name)
        anywhere = (scope for scope in reversed(self._scopes.values()) if scope.kind is kind and scope.name == name)
        return next(around, None) or next(anywhere, None)

    def _record(self, event: Event, sequence: StateSequence) -> None:
        self._sequences[event["id"]] = sequence
        sequence.ids.append(event["id"])

    def _forget_events(self, sequence: StateSequence, keep: int = 0) -> None:
        """Forget the events of a sequence except the first `keep`, as no later event names them."""
        for event_id in sequence.ids[keep:]:
            self._sequences.pop(event_id, None)
        del sequence.ids[keep:]

    def _close(self, sequence: StateSequence) -> None:
        if sequence.wait is not None:
            self._waiting.pop(sequence.wait, None)
            sequence.wait = None

    def _end(self, scope: Scope) -> None:
        scope.ended = True
        for sequence in scope.all_sequences:
            self._close(sequence)

    def _discard(self, scope: Scope) -> None:
        self._end(scope)
        for sequence in scope.all_sequences:
            self._forget_events(sequence)
        for each in scope.walk():
            for event_id in each.inner:
                self._scopes.pop(event_id, None)

    _HANDLERS: ClassVar[Mapping[str, Callable[[Any, Event], None]]] = {  # Any: a History, not yet defined here
        "ParallelStateStarted": _scope_started,
        "ParallelStateFailed": _scope_failed,
        "ParallelStateAborted": _scope_failed,
        "ParallelStateExited": _scope_exited,
        "MapStateStarted": _scope_started,
        "MapStateFailed": _scope_failed,
        "MapStateAborted": _scope_failed,
        "MapStateExited": _scope_exited,
        "MapIterationStarted": _iteration_started,
        "MapIterationSucceeded": _iteration_succeeded,
        "MapIterationFailed": _iteration_failed,
        "MapIterationAborted": _iteration_failed,
        "MapRunStarted": _map_run_started,
        "ExecutionSucceeded": _execution_ended,
        "ExecutionFailed": _execution_ended,
        "ExecutionAborted": _execution_ended,
        "ExecutionTimedOut": _execution_ended,
        "ExecutionRedriven": _redriven,
    }


def _scope_kind(event: Event, *ends: str) -> Kind:
    return Kind(next(event["type"].removesuffix(end) for end in ends if event["type"].endswith(end)))


def _time(event: Event) -> datetime | None:
    """Return the time of an event, or None in an export, which has it as a text."""
    at = event.get("timestamp")
    return at if isinstance(at, datetime) else None


def _index(details: Mapping[str, Any]) -> int:
    index = details.get("index")
    return index if isinstance(index, int) else 0


def _details(event: Event, name: str) -> Mapping[str, Any]:
    return event.get(name) or {}


class Kind(StrEnum):
    """The kinds of scopes, named as in event types."""

    EXECUTION = "Execution"
    PARALLEL = "ParallelState"
    MAP = "MapState"
    ITERATION = "MapIteration"


@dataclass(slots=True, kw_only=True, eq=False)
class Scope:
    """The execution, one pass of a Parallel or a Map, or one iteration of a Map; its end also ends everything in it."""

    kind: Kind
    name: str | None = None  # the state's; an iteration has its Map's
    outer: Scope | None = None  # the scope around it
    owner: StateSequence | None = None  # of a Parallel or Map: the sequence that contains it
    ended: bool = False
    sequences: list[StateSequence] = field(default_factory=list["StateSequence"], repr=False)
    inner: dict[int, Scope] = field(default_factory=dict[int, "Scope"], repr=False)  # by the event that started it
    iterations: dict[int, Scope] = field(default_factory=dict[int, "Scope"], repr=False)  # of a Map, by index
    total: int | None = None  # items of a Map, if the history has the number
    done: set[int] = field(default_factory=set[int], repr=False)  # indexes of successful iterations

    @property
    def ancestry(self) -> Iterator[Scope]:
        """This scope and those around it, innermost first."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    @property
    def has_ended(self) -> bool:
        """True if nothing in it can still wait."""
        return any(scope.ended for scope in self.ancestry)

    def walk(self) -> Iterator[Scope]:
        """Yield this scope and all scopes in it."""
        yield self
        for scope in (*self.inner.values(), *self.iterations.values()):
            yield from scope.walk()

    @property
    def all_sequences(self) -> Iterator[StateSequence]:
        """The sequences in it, at any depth."""
        return (sequence for scope in self.walk() for sequence in scope.sequences)

    def running(self, kind: Kind) -> Scope | None:
        """Return the innermost running scope of this kind, starting with this one."""
        return next((scope for scope in self.ancestry if scope.kind is kind and not scope.ended), None)


@dataclass(slots=True, kw_only=True, eq=False)
class StateSequence:
    """One sequence of states, and its current state."""

    scope: Scope
    state: str | None = None  # the current or last state
    kind: str = ""  # of the current state, as in event types: TaskState, ParallelState
    entered: int | None = None  # the event that entered the current state
    has_failed: bool = False  # the last attempt of the current state
    wait: int | None = None  # the event of its open wait for a task token
    ids: list[int] = field(default_factory=list[int], repr=False)  # the ids of its events that later ones may name
