"""`make bench`: the cost of a sidecar, beside the least one could write, and whether the goals are met.

Ratios compare between machines; milliseconds do not: see docs/why/benchmarks.md.
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
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from rich.console import Console
from rich.table import Table

from benchmarks import comparisons, durability, events, replicas
from benchmarks.load import Mode
from benchmarks.place import NotServingError, Place
from benchmarks.report import Line
from benchmarks.rounds import pin
from benchmarks.wire import BadReplyError
from tests.support.child_processes import ChildDiedError
from tests.support.environments import ROOT

RESULTS: Final = ROOT / "docs" / "why" / "benchmarks"  # of the last run that was kept
Measure: TypeAlias = Callable[[Place], Iterator[Line]]


GOALS: Final[Mapping[str, Mapping[str, Measure]]] = {
    "temporal": {
        "get-ended": comparisons.get_ended,
        "get-running": comparisons.get_running,
        "start": comparisons.start_workflow,
        "notification": comparisons.notification,
        "throughput": comparisons.throughput,
        "latency": comparisons.latency,
    },
    "stepfunctions": {
        "start": partial(comparisons.start_on_stub, engine="stepfunctions"),
        "poll": partial(comparisons.load, engine="stepfunctions", mode=Mode.POLL),
        "listen": partial(comparisons.load, engine="stepfunctions", mode=Mode.LISTEN),
        "events": partial(comparisons.load, engine="stepfunctions", mode=Mode.EVENTS),
    },
    "google": {
        "start": partial(comparisons.start_on_stub, engine="google"),
        "listen": partial(comparisons.load, engine="google", mode=Mode.LISTEN),
    },
    "http": {"describe": comparisons.describe, "listen": partial(comparisons.load, engine="http", mode=Mode.LISTEN)},
    "replicas": {
        "calls": replicas.calls,
        "takeover": replicas.takeover,
        "polled": replicas.polled,
        "store": replicas.store,
    },
    "events": {"delivery": events.delivery, "cost": events.cost},
    "dbos": {"throughput": durability.throughput, "kill": durability.kill},
}
"""The goals of each engine; where an engine makes no difference, they are Temporal's."""

console = Console(width=140, highlight=False)


def main() -> int:
    """Return 0 if everything could be measured and, with --strict, no goal is missed beyond doubt."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--engine", default="temporal", choices=sorted(GOALS))
    parser.add_argument("--only", help="goals, such as start,listen; default: all of the engine")
    parser.add_argument("--strict", action="store_true", help="fail if a goal is missed beyond doubt")
    parser.add_argument("--keep", action="store_true", help="keep the results in docs/why/benchmarks")
    given = parser.parse_args()
    goals = GOALS[given.engine]
    only: Sequence[str] = given.only.split(",") if given.only else list(goals)
    if unknown := set(only) - set(goals):
        parser.error(f"no goal {', '.join(sorted(unknown))} of {given.engine}; there is {', '.join(goals)}")
    if given.keep and given.only:
        parser.error("--keep is of all goals of an engine, in one run")
    pin(1)
    before, found = os.getloadavg(), dict[str, Sequence[Line]]()
    try:
        with tempfile.TemporaryDirectory() as folder, Place(Path(folder)) as place:
            for name in only:
                began = time.monotonic()
                found[name] = list(goals[name](place))
                title = f"{name}: {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}"
                console.print(_table(title, found[name]))
    except (NotServingError, ChildDiedError, BadReplyError) as problem:
        console.print(f"make bench: {problem}", markup=False)
        return 1
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": [before[0], os.getloadavg()[0]]}
    console.print(f"machine: {machine}; load before and after")
    if given.keep:
        kept = {name: [asdict(line) for line in lines] for name, lines in found.items()}
        written = {"on": time.strftime("%Y-%m-%d", time.gmtime()), **machine, "goals": kept}
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{given.engine}.json").write_text(json.dumps(written, indent=1) + "\n")
    return 1 if given.strict and any(line.surely_missed for lines in found.values() for line in lines) else 0


def _table(title: str, lines: Sequence[Line]) -> Table:
    table = Table("", "measured", "target", "", title=title, title_justify="left")
    for line in lines:
        verdict = {True: "met", False: "MISSED", None: ""}[line.met]
        table.add_row(line.what, line.measured, line.target, verdict)
    return table


if __name__ == "__main__":
    sys.exit(main())
