"""What a check is, what can become of it, and how a scenario collects its checks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

JSON: TypeAlias = Any  # Any: whatever the server sent; judging it is what this suite is for
Need: TypeAlias = "Role | Feature"
Subject = TypeVar("Subject")


class Level(StrEnum):
    """How binding a check is."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"
    INTEROP = "INTEROP"  # no keyword of RFC 2119: the page says it in prose, or clients in use rely on it


class State(StrEnum):
    """What became of a check."""

    PASSED = "passed"
    FAILED = "failed"
    BLOCKED = "blocked"  # it could not be reached: an earlier step went wrong
    SKIPPED = "skipped"  # the server lacks what it needs, or never did what it judges


class Role(StrEnum):
    """The part that a tool of the server plays."""

    PLAIN = "plain"
    QUICK = "quick"
    SLOW = "slow"
    LONG = "long"
    FAILS = "fails"
    BREAKS = "breaks"
    ASKS = "asks"
    ASKS_TWO = "asks-two"
    COUNTS = "counts"


class Feature(StrEnum):
    """What else a check may need."""

    TASKS = "tasks"
    LIST = "list"
    CANCEL = "cancel"
    OTHER = "other"  # a second identity


class When(StrEnum):
    """Checks that act do so together, to be quick."""

    TOGETHER = "together"
    ALONE = "alone"  # one by one, when the others are done
    AFTER = "after"  # only looks at what the others sent and got


class CheckError(Exception):
    """A check ends here; the message says why."""


class ViolationError(CheckError):
    """The server does not do what the check says."""


class SkippedError(CheckError):
    """The check says nothing about this server."""


class BlockedError(CheckError):
    """An earlier step went wrong, so that the check could not be reached."""


def expect(holds: object, otherwise: str) -> None:
    """Raise `ViolationError` unless it holds."""
    if not holds:
        raise ViolationError(otherwise)


def need(holds: object, otherwise: str) -> None:
    """Raise `SkippedError` unless it holds."""
    if not holds:
        raise SkippedError(otherwise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing a server does or does not; its text is the docstring of what runs it."""

    scenario: str
    name: str
    level: Level
    section: str  # of the page of tasks, unless it names another page
    needs: Sequence[Need]
    run: Callable[[Any], Awaitable[None]]  # Any: a Site; a Traffic for what runs after
    when: When

    @property
    def id(self) -> str:
        """As `--only` takes it."""
        return f"{self.scenario}.{self.name}"

    @property
    def text(self) -> str:
        """What it says of a server."""
        return " ".join((self.run.__doc__ or "").split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one check, and why."""

    check: Check
    state: State
    detail: str = ""

    @property
    def missed(self) -> bool:
        """Whether the server was not seen to do it, though it should have been."""
        return self.state in (State.FAILED, State.BLOCKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Checks that belong together."""

    name: str
    title: str
    checks: list[Check] = field(default_factory=list[Check])

    def check(
        self, level: Level, section: str, *needs: Need, when: When = When.TOGETHER
    ) -> Callable[[Callable[[Subject], Awaitable[None]]], Callable[[Subject], Awaitable[None]]]:
        """Make a function a check: it returns, or it raises a `CheckError`; it is named as the function is."""

        def keep(run: Callable[[Subject], Awaitable[None]]) -> Callable[[Subject], Awaitable[None]]:
            name = str(getattr(run, "__name__", "")).replace("_", "-")
            self.checks.append(
                Check(scenario=self.name, name=name, level=level, section=section, needs=needs, run=run, when=when)
            )
            return run

        return keep


STATES: Mapping[type[CheckError], State] = {
    ViolationError: State.FAILED,
    SkippedError: State.SKIPPED,
    BlockedError: State.BLOCKED,
}
"""What became of a check that raised."""
