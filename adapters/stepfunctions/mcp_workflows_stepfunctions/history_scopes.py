"""Which events of a history belong together: strands, and the Parallel states and Maps that they run in.

Each event names one before it, and what runs side by side is told in one list. A strand runs one state after the
other: the execution itself, a branch of a Parallel, an iteration of a Map.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What a scope is, in the words of the event types."""

    EXECUTION = "Execution"
    PARALLEL = "ParallelState"
    MAP = "MapState"
    ITERATION = "MapIteration"


@dataclass(slots=True, kw_only=True, eq=False)
class Scope:
    """The execution, one pass of a Parallel or a Map, or one iteration of a Map: when it ends, all in it ends."""

    kind: Kind
    name: str | None = None  # of the state; an iteration has its Map's
    outer: Scope | None = None  # what it is in
    owner: StateSequence | None = None  # of a Parallel or Map: the strand that entered it, and goes on after it
    ended: bool = False
    sequences: list[StateSequence] = field(default_factory=list["StateSequence"], repr=False)
    inner: dict[int, Scope] = field(default_factory=dict[int, "Scope"], repr=False)  # by the event that started it
    iterations: dict[int, Scope] = field(default_factory=dict[int, "Scope"], repr=False)  # of a Map, by index
    total: int | None = None  # items of a Map, where the history tells
    done: set[int] = field(default_factory=set[int], repr=False)  # indexes of the iterations that succeeded

    @property
    def ancestry(self) -> Iterator[Scope]:
        """Itself and what it is in, from the inside out."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer

    @property
    def has_ended(self) -> bool:
        """Whether nothing in it can wait any more."""
        return any(scope.ended for scope in self.ancestry)

    def walk(self) -> Iterator[Scope]:
        """Itself and all that is in it."""
        yield self
        for scope in (*self.inner.values(), *self.iterations.values()):
            yield from scope.walk()

    @property
    def all_sequences(self) -> Iterator[StateSequence]:
        """The strands in it, at any depth."""
        return (sequence for scope in self.walk() for sequence in scope.sequences)

    def running(self, kind: Kind) -> Scope | None:
        """The innermost of this kind that it is in, or is, and that did not end."""
        return next((scope for scope in self.ancestry if scope.kind is kind and not scope.ended), None)


@dataclass(slots=True, kw_only=True, eq=False)
class StateSequence:
    """One sequence of states, and where it is."""

    scope: Scope
    state: str | None = None  # the one it is in, or was in last
    kind: str = ""  # of the state it is in, in the words of the event types: TaskState, ParallelState
    wait: int | None = None  # the event of its open wait for a task token
    ids: list[int] = field(default_factory=list[int], repr=False)  # its events that later ones may name
