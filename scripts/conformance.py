"""`make conformance`: the official MCP suite against the sidecar, whose tools are real workflows.

The official suite has no scenario for Events: for those it is `mcp-tasks-conformance`, with one identified caller.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.support.child_processes import ChildDiedError, free_port
from tests.support.environments import NODE, ROOT
from tests.support.stack import Plan, Stack, UnusableError

SUITE = ROOT / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
PATIENCE = 600.0  # seconds for one invocation; the suite also limits the time of each scenario

_FOLDER = re.compile(r"^server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z$")
_UNSCORED = re.compile(r"^\s+[✓✗] (\S+) \(([\w-]+)\)$", re.MULTILINE)

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
"""The number of checks per scenario; all must pass."""

EVENTS = ("events", "polling", "streaming", "subscribing", "delivering")
"""The scenarios of `mcp-tasks-conformance` about Events."""

HEARTBEAT = 30  # seconds to wait for one
ALWAYS_SKIPPED = {"tasks-status-notifications": 1}
MISSES = Path(__file__).with_name("conformance_misses.json")

console = Console(width=110)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one scenario: the number of checks by status, and the messages of those that failed."""

    scenario: str
    counts: Mapping[str, int]
    complaints: Sequence[str]
    unscored: str | None = None  # why it does not count, by the suite

    @property
    def passed(self) -> bool:
        """True if at least one check was made and none failed."""
        return not self.counts.get("FAILURE", 0) and bool(self.counts)


def run_suite(url: str, folder: Path, *options: str) -> Sequence[Outcome]:
    """Run the scenarios that the options select; the suite writes its results below `folder`."""
    argv = [str(NODE), str(SUITE), "server", "--url", url, "-o", str(folder), *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False, stdin=subprocess.DEVNULL)
    unscored = dict(_UNSCORED.findall(done.stdout))
    found = [(match["scenario"], path) for path in sorted(folder.iterdir()) if (match := _FOLDER.match(path.name))]
    return [_read(scenario, path / "checks.json", unscored.get(scenario)) for scenario, path in found]


def _read(scenario: str, file: Path, unscored: str | None) -> Outcome:
    checks = json.loads(file.read_text())
    counts = Counter(str(check["status"]) for check in checks)
    complaints = [
        f"{check['id']}: {check.get('errorMessage') or check['description']}"
        for check in checks
        if check["status"] == "FAILURE"
    ]
    return Outcome(scenario=scenario, counts=counts, complaints=complaints, unscored=unscored)


def main() -> int:
    """Return 0 if every required check passed."""
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    parser.add_argument("--engine", default="temporal")
    parser.add_argument("--requirements", metavar="REVISION", help="the requirements of this revision of MCP")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            out = Path(folder) / "out"
            out.mkdir()
            plan = Plan(engine=given.engine, sample="conformance", port=free_port(), state=Path(folder) / "state")
            with Stack(plan) as stack:
                if given.requirements:
                    return _judge_revision(stack.url, out, given.requirements)
                missed = _judge_tasks(stack.url, out)
            known = replace(plan, port=free_port(), state=Path(folder) / "known", single_user=True)
            with Stack(known) as stack:
                return max(missed, _judge_events(stack.url, out))
        except (UnusableError, ChildDiedError) as problem:
            _say(f"make conformance: {problem}")
            return 1


def _judge_tasks(url: str, out: Path) -> int:
    """Run the ten scenarios about tasks, whose checks must all pass; return the exit code."""
    outcomes: list[Outcome] = []
    for name in EXPECTED:
        (out / name).mkdir()
        outcomes += run_suite(url, out / name, "--scenario", name)
    _show(outcomes)
    wrong = [line for name in EXPECTED for line in _wrong(name, outcomes)]
    passed = sum(outcome.counts.get("SUCCESS", 0) for outcome in outcomes)
    _say(*wrong, f"{passed} of {sum(EXPECTED.values())} checks passed")
    return 1 if wrong else 0


def _judge_events(url: str, out: Path) -> int:
    """Run the checks of Events; return 0 if none failed."""
    file = out / "events.json"
    argv = [sys.executable, "-m", "mcp_tasks_conformance", url, "--only", ",".join(EVENTS), "--json", str(file)]
    argv += ["--strict", "--callback", "http://127.0.0.1:0", "--heartbeat", str(HEARTBEAT)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False, stdin=subprocess.DEVNULL)
    _say(done.stdout.rstrip(), done.stderr.rstrip())
    if not file.exists():
        return 1
    counts = Counter(check["state"] for check in json.loads(file.read_text())["checks"])
    _say(f"Events: {counts['passed']} of {counts.total()} checks passed, {counts['skipped']} were skipped")
    return done.returncode


def _wrong(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    outcome = next((outcome for outcome in outcomes if outcome.scenario == name), None)
    if outcome is None:
        return [f"{name}: the suite wrote no result"]
    expected = {"SUCCESS": EXPECTED[name], "SKIPPED": ALWAYS_SKIPPED.get(name, 0)}
    counts = {status: count for status, count in outcome.counts.items() if status != "INFO"}
    if counts == {status: count for status, count in expected.items() if count}:
        return []
    return [f"{name}: {counts}, expected {expected}", *(f"  {complaint}" for complaint in outcome.complaints)]


def _judge_revision(url: str, out: Path, revision: str) -> int:
    """Run the requirements of a revision; return 0 if the scenarios that fail are exactly those explained."""
    outcomes = run_suite(url, out, "--requirements", revision)
    explained: Mapping[str, str] = json.loads(MISSES.read_text()).get(revision, {})
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
