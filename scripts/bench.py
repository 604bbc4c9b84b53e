"""`make bench`: what the sidecar costs, beside the least one could write, and whether that is what we aim for.

Take the ratios with you, not the milliseconds: see docs/benchmarks.md. What is missed is reported with a profile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from scripts import (
    bench_clients,
    bench_dbos,
    bench_goals,
    bench_google,
    bench_google_asked,
    bench_google_started,
    bench_http,
    bench_many,
    bench_stepfunctions,
)
from scripts.bench_goals import Line
from scripts.bench_place import NotServingError, Place
from scripts.bench_rounds import ROUNDS, pin
from scripts.bench_wire import BadReplyError
from tests.support.child_processes import ChildDiedError
from tests.support.environments import ROOT

RESULTS = ROOT / "docs" / "benchmarks"  # of the last run that was kept, with its pictures

console = Console(width=140, highlight=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """How one goal is measured, and what shows where the time goes if it is missed."""

    measure: Callable[[Place], Iterator[Line]]
    profile: Callable[[Place], Sequence[str]] | None = None


_TEMPORAL: Mapping[str, Goal] = {
    "a": Goal(measure=bench_goals.ended, profile=bench_goals.profile_ended),
    "b": Goal(measure=bench_goals.running, profile=bench_goals.profile_running),
    "c": Goal(measure=bench_goals.create, profile=bench_goals.profile_create),
    "d": Goal(measure=bench_many.polled),
    "e": Goal(measure=bench_many.memory),
    "f": Goal(measure=bench_many.notified),
    "g": Goal(measure=bench_goals.receiver, profile=bench_goals.profile_receiver),
    "r": Goal(measure=bench_clients.clients),
    "s": Goal(measure=bench_many.listened),
}
_STEPFUNCTIONS: Mapping[str, Goal] = {
    "h": Goal(measure=bench_stepfunctions.followed),
    "i": Goal(measure=bench_stepfunctions.hinted),
    "j": Goal(measure=bench_stepfunctions.notified),
    "k": Goal(measure=bench_stepfunctions.concurrent),
    "l": Goal(measure=bench_stepfunctions.compared),
}
_GOOGLE: Mapping[str, Goal] = {
    "m": Goal(measure=bench_google.followed),
    "n": Goal(measure=bench_google.notified),
    "o": Goal(measure=bench_google_asked.asked),
    "p": Goal(measure=bench_google_started.started),
    "q": Goal(measure=bench_google_asked.let_in),
}
_HTTP: Mapping[str, Goal] = {"t": Goal(measure=bench_http.followed), "u": Goal(measure=bench_http.looked)}
_DBOS: Mapping[str, Goal] = {
    "v": Goal(measure=bench_dbos.compared_with_fastmcp),
    "w": Goal(measure=bench_dbos.memory),
    "x": Goal(measure=bench_dbos.notification_lags),
}
GOALS: Mapping[str, Mapping[str, Goal]] = {
    "dbos": _DBOS,
    "google": _GOOGLE,
    "http": _HTTP,
    "stepfunctions": _STEPFUNCTIONS,
    "temporal": _TEMPORAL,
}
"""By engine; where an engine makes no difference, they are Temporal's."""


def main() -> int:
    """Exit code 0 if everything could be measured; with --strict, only if no goal is surely missed."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--engine", default="temporal", choices=sorted(GOALS))
    parser.add_argument("--only", help="goals, such as a,c; default: all of the engine")
    parser.add_argument("--strict", action="store_true", help="fail if a goal is missed beyond doubt")
    parser.add_argument("--keep", action="store_true", help="keep the results for `make pictures`")
    given = parser.parse_args()
    goals = GOALS[given.engine]
    only = given.only.split(",") if given.only else list(goals)
    if strangers := set(only) - set(goals):
        parser.error(f"no goal {', '.join(sorted(strangers))} of {given.engine}; there is {', '.join(goals)}")
    if given.keep and given.only:
        parser.error("--keep is of all goals of an engine, in one run")
    load = os.getloadavg()
    pin(1)
    try:
        with tempfile.TemporaryDirectory() as folder, Place(Path(folder), ROOT / "out") as place:
            lines = [line for name in only for line in _measured(name, goals[name], place)]
    except (NotServingError, ChildDiedError, BadReplyError) as problem:
        console.print(f"make bench: {problem}", markup=False)
        return 1
    console.print(_table(lines))
    if given.keep:
        _keep(given.engine, lines, load)
    return 1 if given.strict and any(line.surely_missed for line in lines) else 0


def _keep(engine: str, lines: Sequence[Line], load: tuple[float, float, float]) -> None:
    """The results as JSON, with what they were measured on, and its load before."""
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": load}
    found = {"on": time.strftime("%Y-%m-%d", time.gmtime()), **machine, "lines": [asdict(line) for line in lines]}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{engine}.json").write_text(json.dumps(found, indent=1) + "\n")


def _measured(name: str, goal: Goal, place: Place) -> Sequence[Line]:
    """The lines of one goal; where it is missed, what the time is spent on is printed."""
    began = time.monotonic()
    lines = list(goal.measure(place))
    console.print(_table(lines))
    profile = goal.profile
    if profile and any(line.met is False for line in lines):
        console.print(f"({name}) is missed; out/bench-{name}.txt has where the time goes. Its top (calls, own time):")
        for line in profile(place):
            console.print(f"  {line}", markup=False)
    console.print(f"({name}) took {time.monotonic() - began:.0f} s\n")
    return lines


def _table(lines: Sequence[Line]) -> Table:
    rounds = any(line.goal in _TEMPORAL or line.ratio for line in lines)
    title = f"median of {ROUNDS} paired rounds (95 % interval)" if rounds else "see docs/benchmarks.md"
    compared = any(line.theirs for line in lines)
    headers = ("", "", "ours", "theirs", "target", "") if compared else ("", "", "measured", "target", "")
    table = Table(*headers, title=title, title_justify="left")
    for line in lines:
        verdict = {True: "met", False: "MISSED", None: ""}[line.met]
        theirs = (line.theirs,) if compared else ()
        table.add_row(line.goal, line.what, line.measured, *theirs, line.target, verdict)
    return table


if __name__ == "__main__":
    sys.exit(main())
