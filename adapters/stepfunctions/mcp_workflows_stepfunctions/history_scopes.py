"""The structure of a history: sequences of states, and the Parallel states and Maps that contain them.

Each event names the one before it, but parallel events are in one list. A sequence runs one state after the other:
the execution itself, a branch of a Parallel, an iteration of a Map.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """The kinds of scopes, named as in event types."""

    EXECUTION = "Execution"
    PARALLEL = "ParallelState"
    MAP = "MapState"
    ITERATION = "MapIteration"


@dataclass(slots=True, kw_only=True, eq=False)
class Scope:
    """The execution, one pass of a Parallel or a Map, or one iteration of a Map: its end is the end of all in it."""

    kind: Kind
    name: str | None = None  # of the state; an iteration has its Map's
    outer: Scope | None = None  # the scope around it
    owner: StateSequence | None = None  # of a Parallel or Map: the sequence that contains it
    ended: bool = False
    sequences: list[StateSequence] = field(default_factory=list["StateSequence"], repr=False)
    inner: dict[int, Scope] = field(default_factory=dict[int, "Scope"], repr=False)  # by the event that started it
    iterations: dict[int, Scope] = field(default_factory=dict[int, "Scope"], repr=False)  # of a Map, by index
    total: int | None = None  # items of a Map, if the history has the number
    done: set[int] = field(default_factory=set[int], repr=False)  # indexes of the iterations that succeeded

    @property
    def ancestry(self) -> Iterator[Scope]:
        """This scope and those around it, from the inside out."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    @property
    def has_ended(self) -> bool:
        """True if nothing in it can wait any more."""
        return any(scope.ended for scope in self.ancestry)

    def walk(self) -> Iterator[Scope]:
        """Return this scope and all in it."""
        yield self
        for scope in (*self.inner.values(), *self.iterations.values()):
            yield from scope.walk()

    @property
    def all_sequences(self) -> Iterator[StateSequence]:
        """The sequences in it, at any depth."""
        return (sequence for scope in self.walk() for sequence in scope.sequences)

    def running(self, kind: Kind) -> Scope | None:
        """Return the innermost scope of this kind around or at this one that has not ended."""
        return next((scope for scope in self.ancestry if scope.kind is kind and not scope.ended), None)


@dataclass(slots=True, kw_only=True, eq=False)
class StateSequence:
    """One sequence of states, and its present state."""

    scope: Scope
    state: str | None = None  # the present state, or the last one
    kind: str = ""  # of the present state, as in event types: TaskState, ParallelState
    entered: int | None = None  # the event with which the present state was entered
    has_failed: bool = False  # the last try of the present state
    wait: int | None = None  # the event of its open wait for a task token
    ids: list[int] = field(default_factory=list[int], repr=False)  # the ids of its events that later ones may name
