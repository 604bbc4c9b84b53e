"""What the suite found, for people and as JSON; and what it checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcp_workflows.conformance_2025.check import JSON, Check, Level, Outcome, Role, Scenario, State
from mcp_workflows.conformance_2025.fixtures import WHAT
from mcp_workflows.conformance_2025.run import CHECKS, SCENARIOS, failed
from mcp_workflows.conformance_2025.session import VERSION
from mcp_workflows.conformance_2025.site import Settings

PAGE: Final = "https://modelcontextprotocol.io/specification/2025-11-25/basic/utilities/tasks"
COLOURS: Final[Mapping[State, str]] = {
    State.PASSED: "green",
    State.FAILED: "red",
    State.BLOCKED: "red",
    State.SKIPPED: "dim",
}
WARNED: Final[Mapping[Level, str]] = {Level.SHOULD: "warning", Level.MAY: "note", Level.INTEROP: "warning"}


def word(outcome: Outcome, *, strict: bool) -> str:
    """The state, as the run takes it: what need not fail it is a warning or a note."""
    if outcome.state is State.FAILED and not strict:
        return WARNED.get(outcome.check.level, str(outcome.state))
    return str(outcome.state)


def show(console: Console, settings: Settings, outcomes: Sequence[Outcome], *, strict: bool) -> None:
    """One table per scenario, and a line that says how it ended."""
    for scenario in SCENARIOS:
        found = [outcome for outcome in outcomes if outcome.check.scenario == scenario.name]
        if found:
            console.print(_table(scenario, found, strict=strict))
    for line in _skipped_roles(settings, outcomes):
        console.print(line, markup=False, highlight=False)
    for level in Level:
        counts = Counter(word(one, strict=strict) for one in outcomes if one.check.level is level)
        if counts:
            told = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
            console.print(f"{level}: {told}", markup=False, highlight=False)
    verdict = "failed" if failed(outcomes, strict=strict) else "passed"
    skipped = sum(one.state is State.SKIPPED for one in outcomes)
    verdict += f"; {skipped} of {len(outcomes)} checks say nothing about it" if skipped else ""
    console.print(f"{settings.url}: {verdict}", markup=False, highlight=False, soft_wrap=True)


def _table(scenario: Scenario, outcomes: Sequence[Outcome], *, strict: bool) -> Table:
    table = Table(title=scenario.title, title_justify="left", expand=True, box=SIMPLE, show_header=False)
    table.add_column(width=max(len(check.name) for one in SCENARIOS for check in one.checks))
    table.add_column(width=7)
    table.add_column(width=7)
    table.add_column(ratio=1, overflow="fold")
    for one in outcomes:
        said = word(one, strict=strict)
        colour = "yellow" if said in WARNED.values() else COLOURS[one.state]
        table.add_row(one.check.name, str(one.check.level), Text(said, style=colour), Text(_why(one)))
    return table


def _why(outcome: Outcome) -> str:
    """What was seen, and for what is missed also what the page says of it."""
    if not outcome.missed:
        return outcome.detail
    return f"{outcome.check.text}\n[{outcome.check.section}] {outcome.detail}"


def _skipped_roles(settings: Settings, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What to do about roles that no tool of the server plays."""
    skipped = [one for one in outcomes if one.state is State.SKIPPED]
    for role in Role:
        without = [one for one in skipped if f"--tool {role}=" in one.detail]
        if without:
            tool = settings.fixtures[role].tool
            need = "1 check needs" if len(without) == 1 else f"{len(without)} checks need"
            yield f"{need} --tool {role}=..., {WHAT[role]}: there is no tool {tool!r}"


def as_json(settings: Settings, outcomes: Sequence[Outcome], *, strict: bool) -> JSON:
    """The whole outcome."""
    return {
        "url": settings.url,
        "revision": VERSION,
        "page": PAGE,
        "passed": not failed(outcomes, strict=strict),
        "strict": strict,
        "checks": [
            {**_as_json(one.check), "state": str(one.state), **({"detail": one.detail} if one.detail else {})}
            for one in outcomes
        ],
    }


def _as_json(check: Check) -> Mapping[str, JSON]:
    return {"id": check.id, "level": str(check.level), "section": check.section, "text": check.text}


def listed(checks: Sequence[Check] = CHECKS) -> str:
    """What is checked, for a terminal."""
    return "\n".join(f"{check.id}\n  {check.level}, {check.section}\n  {check.text}" for check in checks)


def markdown(checks: Sequence[Check] = CHECKS) -> str:
    """What is checked, for a document."""
    here = {check.scenario for check in checks}
    return "\n\n".join(_markdown(scenario, checks) for scenario in SCENARIOS if scenario.name in here)


def _markdown(scenario: Scenario, checks: Sequence[Check]) -> str:
    rows = [
        f"| `{check.id}` | {check.level} | {check.section} | {', '.join(map(str, check.needs)) or '-'} | {check.text} |"
        for check in checks
        if check.scenario == scenario.name
    ]
    return "\n".join(
        [f"### {scenario.title}", "", "| id | level | section | needs | text |", "|---|---|---|---|---|", *rows]
    )
