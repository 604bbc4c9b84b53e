"""`make conformance`: the official MCP suite against the sidecar, whose tools are real workflows."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from scripts.processes import ChildDiedError, free_port
from scripts.stack import Plan, Stack, UnusableError
from scripts.suite import Outcome, run_suite

EXPECTED = {
    "tasks-lifecycle": 9,
    "tasks-capability-negotiation": 5,
    "tasks-wire-fields": 4,
    "tasks-request-state-removal": 3,
    "tasks-mrtr-input": 4,
    "tasks-request-headers": 5,
    "tasks-dispatch-and-envelope": 9,
    "tasks-status-notifications": 0,  # the suite always skips it: it has no harness for subscriptions
    "tasks-required-task-error": 3,
    "tasks-mrtr-composition": 2,
}
"""The checks of each scenario, all of which must pass: 44."""

ALWAYS_SKIPPED = {"tasks-status-notifications": 1}
MISSES = Path(__file__).with_name("conformance_misses.json")

console = Console(width=110)


def main() -> int:
    """Exit code 0 if everything passed that must."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        try:
            plan = Plan(engine=arguments.engine, sample="conformance", port=free_port(), state=Path(folder) / "state")
            with Stack(plan) as stack:
                return _judge(stack.url, Path(folder) / "out", arguments.requirements)
        except (UnusableError, ChildDiedError) as problem:
            _say(f"make conformance: {problem}")
            return 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    parser.add_argument("--engine", default="temporal")
    parser.add_argument("--requirements", metavar="REVISION", help="what this revision of MCP requires of any server")
    return parser.parse_args()


def _judge(url: str, out: Path, revision: str | None) -> int:
    out.mkdir()
    if revision is None:
        return _judge_tasks(url, out)
    return _judge_revision(run_suite(url, out, "--requirements", revision), revision)


def _judge_tasks(url: str, out: Path) -> int:
    """The ten scenarios about tasks: every check must pass."""
    outcomes = [outcome for name in EXPECTED for outcome in run_suite(url, _below(out, name), "--scenario", name)]
    _show(outcomes)
    wrong = [line for name in EXPECTED for line in _wrong(name, outcomes)]
    passed = sum(outcome.counts.get("SUCCESS", 0) for outcome in outcomes)
    _say(*wrong, f"{passed} of {sum(EXPECTED.values())} checks passed")
    return 1 if wrong else 0


def _below(folder: Path, name: str) -> Path:
    below = folder / name
    below.mkdir()
    return below


def _wrong(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    outcome = next((outcome for outcome in outcomes if outcome.scenario == name), None)
    if outcome is None:
        return [f"{name}: the suite wrote no result"]
    expected = {"SUCCESS": EXPECTED[name], "SKIPPED": ALWAYS_SKIPPED.get(name, 0)}
    counts = {status: count for status, count in outcome.counts.items() if status != "INFO"}
    if counts == {status: count for status, count in expected.items() if count}:
        return []
    return [f"{name}: {counts}, expected {expected}", *(f"  {complaint}" for complaint in outcome.complaints)]


def _judge_revision(outcomes: Sequence[Outcome], revision: str) -> int:
    """What the revision requires of any server: a miss must be one that is explained, and still be a miss."""
    explained = _explained(revision)
    _show(outcomes)
    missed = {outcome.scenario: outcome for outcome in outcomes if not outcome.passed}
    _say(*(f"missed, explained: {name}: {explained[name]}" for name in sorted(missed.keys() & explained.keys())))
    wrong = [f"missed, not explained: {name}: {missed[name].complaints}" for name in missed.keys() - explained.keys()]
    wrong += [f"explained, but not missed: {name}" for name in explained.keys() - missed.keys()]
    if not outcomes:
        wrong.append(f"the suite wrote no results; does it know {revision!r}?")
    scored = [outcome for outcome in outcomes if outcome.unscored is None]
    summary = f"{sum(outcome.passed for outcome in scored)} of {len(scored)} scored scenarios passed"
    _say(*sorted(wrong), summary)
    return 1 if wrong else 0


def _explained(revision: str) -> Mapping[str, str]:
    reasons: dict[str, dict[str, str]] = json.loads(MISSES.read_text())
    return reasons.get(revision, {})


def _show(outcomes: Sequence[Outcome]) -> None:
    table = Table("scenario", "passed", "failed", "skipped", "warnings", "")
    for outcome in outcomes:
        counts = [str(outcome.counts.get(status, 0)) for status in ("SUCCESS", "FAILURE", "SKIPPED", "WARNING")]
        note = f"not scored ({outcome.unscored})" if outcome.unscored else ""
        table.add_row(outcome.scenario, *counts, note)
    console.print(table)


def _say(*lines: str) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
