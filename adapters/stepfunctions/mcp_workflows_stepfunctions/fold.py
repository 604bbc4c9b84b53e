"""What the history of an execution comes to: who waits for an answer, the state it is in, how far a Map is.

Pure and incremental: a history fed in pages comes to the same as one fed at once. It remembers the ends of chains only;
the longest history there can be (25,000 events) takes 0.1 to 0.2 s.
Source: https://docs.aws.amazon.com/step-functions/latest/apireference/API_HistoryEvent.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Final

from mcp_workflows.adapter import JSON, Progress
from mcp_workflows_stepfunctions.chains import Kind, Scope, Strand
from mcp_workflows_stepfunctions.definition import WAITS_FOR_TOKEN
from mcp_workflows_stepfunctions.envelope import Asked, asked_in, read_parameters
from mcp_workflows_stepfunctions.token_places import Place

Event = Mapping[str, Any]  # Any: an event of boto3, or of an export

_BEGINNING: Final = 0  # what the first event names as the event before it
_ENTERED, _EXITED = "StateEntered", "StateExited"
_SCHEDULED: Final = "TaskScheduled"
_CLOSING: Final = ("Succeeded", "Failed", "TimedOut", "Aborted", "Exited", "Entered", "Scheduled")
"""The ends of event types after which a strand does not wait any more: whatever comes but Started and Submitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A state that waits for somebody to answer with its task token."""

    event: int  # the id of its TaskScheduled event: another attempt, or another visit, has another
    state: str
    resource: str  # what it called: `sqs:sendMessage.waitForTaskToken`
    parameters: JSON = field(repr=False)  # as they were resolved, but for long texts; the token is in there
    own: Asked  # what it asks in our words


class Fold:
    """One execution, as far as its history was fed."""

    def __init__(self) -> None:
        self.last_id = 0
        self.state: str | None = None  # the one entered last
        self.ended = False
        self.token_places: Mapping[str, Sequence[Place]] | None = None  # by state; None: the definition was not read
        self.unread: str | None = None  # why it could not be read
        self._waiting: dict[int, Waiting] = {}
        self._root = Scope(kind=Kind.EXECUTION)
        self._strands: dict[int, Strand] = {_BEGINNING: Strand(scope=self._root)}  # by event
        self._scopes: dict[int, Scope] = {}  # Parallels and Maps that were not left, by the event that started them

    @property
    def waiting(self) -> Mapping[int, Waiting]:
        """What waits for an answer now, by event id, the oldest first."""
        return MappingProxyType(self._waiting)

    @property
    def progress(self) -> Progress | None:
        """How far the outermost Map that runs is; of several side by side the one that started first."""
        running = [scope for scope in self._scopes.values() if scope.total and not scope.dead]
        if self.ended or not running:
            return None
        outermost = min(running, key=lambda scope: len(list(scope.chain)))
        return Progress(value=len(outermost.done), total=outermost.total)

    def feed(self, events: Iterable[Event]) -> None:
        """Take events in, by ascending id; those it has already are passed over."""
        for event in events:
            if event["id"] > self.last_id:
                self._EFFECTS.get(event["type"], Fold._step)(self, event)
                self.last_id = event["id"]

    def _step(self, event: Event) -> None:
        """An event of one strand, of any type that is not told apart below."""
        strand, kind = self._strand(event), str(event["type"])
        if kind.endswith(_CLOSING):
            self._close(strand)
        if kind.endswith(_ENTERED):
            self.state = strand.state = _details(event, "stateEnteredEventDetails").get("name")
            strand.kind = kind.removesuffix("Entered")
            self._shed(strand)
        elif kind.endswith(_EXITED):
            strand.kind = ""
            self._shed(strand)
        elif kind == _SCHEDULED:
            self._shed(strand, keep=1)  # earlier attempts
            self._wait(strand, event)
        self._record(event, strand)

    def _wait(self, strand: Strand, event: Event) -> None:
        found = _details(event, "taskScheduledEventDetails")
        resource = str(found.get("resource", ""))
        if not resource.endswith(WAITS_FOR_TOKEN) or self.ended or strand.scope.dead:
            return
        strand.wait = event["id"]
        state, parameters = strand.state or self.state or "", read_parameters(found.get("parameters"))
        self._waiting[event["id"]] = Waiting(
            event=event["id"],
            state=state,
            resource=f"{found.get('resourceType', '')}:{resource}",
            parameters=parameters,
            own=asked_in(parameters, state),
        )

    def _started(self, event: Event) -> None:
        """A pass of a Parallel or Map begins; a retry may name any event of the pass before it."""
        kind = _kind(event, "Started")
        owner = self._strand(event)
        if owner.kind != kind and (failed := owner.scope.running(kind)):
            self._end(failed)
            owner = failed.owner or owner
        for earlier in owner.scope.inner.values():
            if earlier.owner is owner:  # a strand is in one state at a time
                self._end(earlier)
        length = _details(event, "mapStateStartedEventDetails").get("length")
        total = length if isinstance(length, int) else None
        scope = Scope(kind=kind, name=owner.state, outer=owner.scope, owner=owner, total=total)
        owner.scope.inner[event["id"]] = self._scopes[event["id"]] = scope
        self._record(event, owner)

    def _failed(self, event: Event) -> None:
        """A Parallel or Map failed or was aborted: so was all in it. Then it is tried again, or left."""
        scope = self._scope(event).running(_kind(event, "Failed", "Aborted"))
        if scope is None or scope.owner is None:
            return self._step(event)
        self._end(scope)
        return self._record(event, scope.owner)

    def _left(self, event: Event) -> None:
        """A Parallel or Map is left, by the name of the state: the event before it is one of any branch."""
        name = _details(event, "stateExitedEventDetails").get("name")
        scope = self._named(event, _kind(event, "Exited"), name)
        if scope is None or scope.owner is None or scope.outer is None:
            return self._step(event)
        passes = scope.outer.inner
        for event_id in [key for key, each in passes.items() if each.owner is scope.owner]:  # those that failed too
            self._discard(passes.pop(event_id))
            del self._scopes[event_id]
        scope.owner.kind = ""
        self._shed(scope.owner)
        return self._record(event, scope.owner)

    def _iteration_started(self, event: Event) -> None:
        found = _details(event, "mapIterationStartedEventDetails")
        of = self._named(event, Kind.MAP, found.get("name"))
        if of is None:
            return self._step(event)
        index = _index(found)
        if index in of.iterations:  # once more, after a redrive
            self._discard(of.iterations.pop(index))
        of.iterations[index] = scope = Scope(kind=Kind.ITERATION, name=of.name, outer=of)
        return self._record(event, self._new(scope))

    def _iteration_succeeded(self, event: Event) -> None:
        """The next iteration may name the last event of this one, so that stays, as one of the Map."""
        found = _details(event, "mapIterationSucceededEventDetails")
        of = self._named(event, Kind.MAP, found.get("name"))
        if of is None:
            return self._step(event)
        index = _index(found)
        of.done.add(index)
        if index in of.iterations:
            self._discard(of.iterations.pop(index))
        tail = of.strands[0] if of.strands else self._new(of)
        before = event.get("previousEventId", _BEGINNING)
        if before not in self._strands:  # forgotten just now
            self._record({"id": before}, tail)
        return self._record(event, tail)

    def _iteration_failed(self, event: Event) -> None:
        kind = str(event["type"])
        found = _details(event, f"{kind[0].lower()}{kind[1:]}EventDetails")
        of = self._named(event, Kind.MAP, found.get("name"))
        scope = of.iterations.get(_index(found)) if of else None
        if scope is not None:
            self._end(scope)
        self._step(event)

    def _distributed(self, event: Event) -> None:
        """Its iterations are executions of their own: this history does not tell how far they are."""
        if found := self._scope(event).running(Kind.MAP):
            found.total = None
        self._step(event)

    def _over(self, event: Event) -> None:
        self.ended = True
        self._waiting.clear()
        self._record(event, self._strand(event))

    def _redriven(self, event: Event) -> None:
        """It goes on from where it failed, so what failed there is open again."""
        self.ended = False
        for scope in self._root.walk():
            scope.over = False
        self._record(event, self._strand(event))

    def _strand(self, event: Event) -> Strand:
        """The strand of the event before; a new one if that was the start of a Parallel or Map."""
        before = event.get("previousEventId", _BEGINNING)
        if before in self._scopes:
            return self._new(self._scopes[before])
        return self._strands.get(before) or self._new(self._root)

    def _new(self, scope: Scope) -> Strand:
        strand = Strand(scope=scope, state=self.state)
        scope.strands.append(strand)
        return strand

    def _scope(self, event: Event) -> Scope:
        """What the event before is in."""
        before = event.get("previousEventId", _BEGINNING)
        strand = self._strands.get(before)
        return self._scopes.get(before) or (strand.scope if strand else self._root)

    def _named(self, event: Event, kind: Kind, name: str | None) -> Scope | None:
        """The Parallel or Map of that name that the event before is in, or else the latest there is."""
        around = (scope for scope in self._scope(event).chain if scope.kind is kind and scope.name == name)
        anywhere = (scope for scope in reversed(self._scopes.values()) if scope.kind is kind and scope.name == name)
        return next(around, None) or next(anywhere, None)

    def _record(self, event: Event, strand: Strand) -> None:
        self._strands[event["id"]] = strand
        strand.ids.append(event["id"])

    def _shed(self, strand: Strand, keep: int = 0) -> None:
        """Forget its events but for the first few: nothing that comes now names the others."""
        for event_id in strand.ids[keep:]:
            self._strands.pop(event_id, None)
        del strand.ids[keep:]

    def _close(self, strand: Strand) -> None:
        if strand.wait is not None:
            self._waiting.pop(strand.wait, None)
            strand.wait = None

    def _end(self, scope: Scope) -> None:
        scope.over = True
        for strand in scope.all_strands:
            self._close(strand)

    def _discard(self, scope: Scope) -> None:
        self._end(scope)
        for strand in scope.all_strands:
            self._shed(strand)
        for each in scope.walk():
            for event_id in each.inner:
                self._scopes.pop(event_id, None)

    _EFFECTS: ClassVar[Mapping[str, Callable[[Any, Event], None]]] = {  # Any: a Fold; its own body does not know it
        "ParallelStateStarted": _started,
        "ParallelStateFailed": _failed,
        "ParallelStateAborted": _failed,
        "ParallelStateExited": _left,
        "MapStateStarted": _started,
        "MapStateFailed": _failed,
        "MapStateAborted": _failed,
        "MapStateExited": _left,
        "MapIterationStarted": _iteration_started,
        "MapIterationSucceeded": _iteration_succeeded,
        "MapIterationFailed": _iteration_failed,
        "MapIterationAborted": _iteration_failed,
        "MapRunStarted": _distributed,
        "ExecutionSucceeded": _over,
        "ExecutionFailed": _over,
        "ExecutionAborted": _over,
        "ExecutionTimedOut": _over,
        "ExecutionRedriven": _redriven,
    }


def _kind(event: Event, *ends: str) -> Kind:
    return Kind(next(event["type"].removesuffix(end) for end in ends if event["type"].endswith(end)))


def _index(details: Mapping[str, Any]) -> int:
    index = details.get("index")
    return index if isinstance(index, int) else 0


def _details(event: Event, name: str) -> Mapping[str, Any]:
    return event.get(name) or {}
