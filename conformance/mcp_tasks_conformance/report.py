"""The output of the suite: results as tables and as JSON, and the list of checks as text and as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcp_tasks_conformance.check import JSON, Check, CheckResult, Level, Scenario, ToolRole, Verdict
from mcp_tasks_conformance.fixtures import ROLE_DESCRIPTIONS
from mcp_tasks_conformance.runner import CHECKS, SCENARIOS, has_failed
from mcp_tasks_conformance.server_under_test import RunSettings
from mcp_tasks_conformance.session import VERSION

PAGE: Final = "https://modelcontextprotocol.io/specification/2025-11-25/basic/utilities/tasks"
EVENTS_PAGE: Final = (
    "https://github.com/modelcontextprotocol/experimental-ext-triggers-events"  # docs/design-sketch-proposal.md
)
COLOURS: Final[Mapping[Verdict, str]] = {
    Verdict.PASSED: "green",
    Verdict.FAILED: "red",
    Verdict.BLOCKED: "red",
    Verdict.SKIPPED: "dim",
}
WARNINGS: Final[Mapping[Level, str]] = {Level.SHOULD: "warning", Level.MAY: "note", Level.INTEROP: "warning"}
"""The label of a failed check that does not fail the run."""


def print_report(console: Console, settings: RunSettings, results: Sequence[CheckResult], *, strict: bool) -> None:
    """Print a table for each scenario, and a summary."""
    for scenario in SCENARIOS:
        found = [result for result in results if result.check.scenario == scenario.name]
        if found:
            console.print(_table(scenario, found, strict=strict))
    for line in _missing_roles(settings, results):
        console.print(line, markup=False, highlight=False)
    for level in Level:
        counts = Counter(_label(one, strict=strict) for one in results if one.check.level is level)
        if counts:
            summary = ", ".join(f"{count} {label}" for label, count in sorted(counts.items()))
            console.print(f"{level}: {summary}", markup=False, highlight=False)
    conclusion = "failed" if has_failed(results, strict=strict) else "passed"
    skipped = sum(one.verdict is Verdict.SKIPPED for one in results)
    conclusion += f"; {skipped} of {len(results)} checks say nothing about it" if skipped else ""
    console.print(f"{settings.url}: {conclusion}", markup=False, highlight=False, soft_wrap=True)


def to_json(settings: RunSettings, results: Sequence[CheckResult], *, strict: bool) -> JSON:
    """Return the report as a JSON object."""
    return {
        "url": settings.url,
        "revision": VERSION,
        "page": PAGE,
        "eventsPage": EVENTS_PAGE,
        "passed": not has_failed(results, strict=strict),
        "strict": strict,
        "checks": [
            {**_check_to_json(one.check), "state": str(one.verdict), **({"detail": one.detail} if one.detail else {})}
            for one in results
        ],
    }


def checks_as_text(checks: Sequence[Check] = CHECKS) -> str:
    """Return the list of checks for a terminal."""
    return "\n".join(f"{check.id}\n  {check.level}, {check.section}\n  {check.text}" for check in checks)


def checks_as_markdown(checks: Sequence[Check] = CHECKS) -> str:
    """Return the list of checks as Markdown tables."""
    used = {check.scenario for check in checks}
    return "\n\n".join(_markdown(scenario, checks) for scenario in SCENARIOS if scenario.name in used)


def _label(result: CheckResult, *, strict: bool) -> str:
    if result.verdict is Verdict.FAILED and not strict:
        return WARNINGS.get(result.check.level, str(result.verdict))
    return str(result.verdict)


def _table(scenario: Scenario, results: Sequence[CheckResult], *, strict: bool) -> Table:
    table = Table(title=scenario.title, title_justify="left", expand=True, box=SIMPLE, show_header=False)
    table.add_column(width=max(len(check.name) for one in SCENARIOS for check in one.checks))
    table.add_column(width=7)
    table.add_column(width=7)
    table.add_column(ratio=1, overflow="fold")
    for one in results:
        label = _label(one, strict=strict)
        colour = "yellow" if label in WARNINGS.values() else COLOURS[one.verdict]
        table.add_row(one.check.name, str(one.check.level), Text(label, style=colour), Text(_explain(one)))
    return table


def _explain(result: CheckResult) -> str:
    """Return the detail; for a missed check, the requirement and its section too."""
    if not result.is_missed:
        return result.detail
    return f"{result.check.text}\n[{result.check.section}] {result.detail}"


def _missing_roles(settings: RunSettings, results: Sequence[CheckResult]) -> Iterator[str]:
    """Yield a hint for each role without a tool."""
    skipped = [one for one in results if one.verdict is Verdict.SKIPPED]
    for role in ToolRole:
        without = [one for one in skipped if f"--tool {role}=" in one.detail]
        if without:
            tool = settings.fixtures[role].tool
            count = "1 check needs" if len(without) == 1 else f"{len(without)} checks need"
            yield f"{count} --tool {role}=..., {ROLE_DESCRIPTIONS[role]}: there is no tool {tool!r}"


def _check_to_json(check: Check) -> Mapping[str, JSON]:
    return {"id": check.id, "level": str(check.level), "section": check.section, "text": check.text}


def _markdown(scenario: Scenario, checks: Sequence[Check]) -> str:
    rows = [
        f"| `{check.id}` | {check.level} | {check.section} | {', '.join(map(str, check.needs)) or '-'} | {check.text} |"
        for check in checks
        if check.scenario == scenario.name
    ]
    return "\n".join(
        [f"### {scenario.title}", "", "| id | level | section | needs | text |", "|---|---|---|---|---|", *rows]
    )
