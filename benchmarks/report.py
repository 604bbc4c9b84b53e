"""The lines of the report: a measured value, its target, and whether it is met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.rounds import Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the report."""

    what: str
    measured: str
    target: str = ""
    met: bool | None = None  # None: for comparison only
    surely_missed: bool = False  # the interval lies beyond the target


def at_most(what: str, found: Ratio, limit: float) -> Line:
    """Return the line of a ratio that should not exceed the target."""
    target, met, missed = f"<= {limit:.2f}", found.median <= limit, found.low > limit
    return Line(what=what, measured=str(found), target=target, met=met, surely_missed=missed)


def at_least(what: str, found: Ratio, limit: float) -> Line:
    """Return the line of a ratio that should reach the target."""
    target, met, missed = f">= {limit:.2f}", found.median >= limit, found.high < limit
    return Line(what=what, measured=str(found), target=target, met=met, surely_missed=missed)


def within(what: str, measured: str, value: float, limit: float, target: str) -> Line:
    """Return the line of a value that should not exceed the limit, which `target` shows with its unit."""
    met = value <= limit
    return Line(what=what, measured=measured, target=target, met=met, surely_missed=not met)


def exactly(what: str, count: int, wanted: int = 0) -> Line:
    """Return the line of a count that must be this one."""
    return Line(what=what, measured=str(count), target=str(wanted), met=count == wanted, surely_missed=count != wanted)


def beside(what: str, measured: object) -> Line:
    """Return a line without a target."""
    return Line(what=what, measured=str(measured))


def seconds(found: Mapping[str, float]) -> str:
    """Return p50 / p99 / max in seconds."""
    return f"{found['p50']:.2f} / {found['p99']:.2f} / {found['max']:.2f} s"


def milliseconds(found: Mapping[str, float]) -> str:
    """Return p50 / p99 / max in milliseconds."""
    return " / ".join(f"{found[name] * 1e3:.{1 if name == 'p50' else 0}f}" for name in ("p50", "p99", "max")) + " ms"
