"""The definition of a check, its possible results, and the scenarios that group checks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

JSON: TypeAlias = Any  # Any: a server may send any JSON value, and judging that value is the purpose of this suite
Need: TypeAlias = "ToolRole | Feature"
Subject = TypeVar("Subject")


class Level(StrEnum):
    """The keyword of RFC 2119 that a check enforces."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"
    INTEROP = "INTEROP"  # no keyword: the specification says it in prose, or clients in use rely on it


class Verdict(StrEnum):
    """The result of a check, as one word."""

    PASSED = "passed"
    FAILED = "failed"
    BLOCKED = "blocked"  # an earlier step failed, so the check was not reached
    SKIPPED = "skipped"  # the server lacks a prerequisite, or never did what the check judges


class ToolRole(StrEnum):
    """The behaviour that the suite needs of a tool of the server."""

    PLAIN = "plain"
    QUICK = "quick"
    SLOW = "slow"
    LONG = "long"
    FAILS = "fails"
    BREAKS = "breaks"
    ASKS = "asks"
    ASKS_TWO = "asks-two"
    COUNTS = "counts"
    FIRES = "fires"


class Feature(StrEnum):
    """A prerequisite of a check other than a tool."""

    TASKS = "tasks"
    LIST = "list"
    CANCEL = "cancel"
    SECOND_IDENTITY = "other"
    EVENTS = "events"
    EVENT = "event"
    POLL = "poll"
    PUSH = "push"
    WEBHOOK = "webhook"
    CALLBACK = "callback"
    HEARTBEAT = "heartbeat"


class Phase(StrEnum):
    """The part of a run in which a check runs."""

    CONCURRENT = "concurrent"  # together with other checks, to save time
    SEQUENTIAL = "sequential"  # one check at a time, after the concurrent ones
    PASSIVE = "passive"  # last: sends nothing, and judges the recorded traffic of the other checks


class CheckError(Exception):
    """A check ended early; the message says why."""


class ViolationError(CheckError):
    """The server does not behave as the check demands."""


class SkippedError(CheckError):
    """The check does not apply to this server."""


class BlockedError(CheckError):
    """An earlier step failed, so the check was not reached."""


UNEXPECTED = (AttributeError, LookupError, TypeError, ValueError)  # of a check that reads what a server sent


def unexpected(error: Exception) -> str:
    """Return the reason for a failure by an error that is no `CheckError`."""
    return f"the server sent what nobody could expect here: {type(error).__name__}: {error}"


VERDICTS: Mapping[type[CheckError], Verdict] = {
    ViolationError: Verdict.FAILED,
    SkippedError: Verdict.SKIPPED,
    BlockedError: Verdict.BLOCKED,
}
"""The verdict on a check that raised."""


def expect(condition: object, otherwise: str) -> None:
    """Raise `ViolationError` with this message unless the condition is truthy."""
    if not condition:
        raise ViolationError(otherwise)


def skip_unless(condition: object, otherwise: str) -> None:
    """Raise `SkippedError` with this message unless the condition is truthy."""
    if not condition:
        raise SkippedError(otherwise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One requirement on a server, and the function that checks it; the docstring of that function is its text."""

    scenario: str
    name: str
    level: Level
    section: str  # of the page on tasks, unless it names another page, or Events, the draft of that extension
    needs: Sequence[Need]
    run: Callable[[Any], Awaitable[None]]  # Any: a ServerUnderTest; the recorded Traffic in the passive phase
    phase: Phase

    @property
    def id(self) -> str:
        """The id that `--only` accepts: `scenario.name`."""
        return f"{self.scenario}.{self.name}"

    @property
    def text(self) -> str:
        """The requirement in one sentence."""
        return " ".join((self.run.__doc__ or "").split())


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The verdict on one check, and the reason for it."""

    check: Check
    verdict: Verdict
    detail: str = ""

    @property
    def is_missed(self) -> bool:
        """True if the check failed or was blocked."""
        return self.verdict in (Verdict.FAILED, Verdict.BLOCKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A group of checks on one subject."""

    name: str
    title: str
    checks: list[Check] = field(default_factory=list[Check])

    def check(
        self, level: Level, section: str, *needs: Need, phase: Phase = Phase.CONCURRENT
    ) -> Callable[[Callable[[Subject], Awaitable[None]]], Callable[[Subject], Awaitable[None]]]:
        """Return a decorator that adds a function to the scenario as a check of the same name.

        The check passes if the function returns; otherwise the function raises a `CheckError`.
        """

        def register(run: Callable[[Subject], Awaitable[None]]) -> Callable[[Subject], Awaitable[None]]:
            name = str(getattr(run, "__name__", "")).replace("_", "-")
            self.checks.append(
                Check(scenario=self.name, name=name, level=level, section=section, needs=needs, run=run, phase=phase)
            )
            return run

        return register
