"""Fixtures of the whole suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mcp_workflows.receiver.log_limits import LINES
from tests.support.event_loop import anyio_backend

__all__ = ["anyio_backend", "fresh_log_limits", "pytest_terminal_summary"]


@pytest.fixture(autouse=True)
def fresh_log_limits() -> Iterator[None]:
    """Lines that one test causes are not those that another one must not cause."""
    yield
    LINES.tell()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell how many inputs fuzzing has tried (tests/support/fuzzing.py), and what tests have to say (`said`)."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    told = [pair for report in reports for pair in getattr(report, "user_properties", ())]
    counts = [count for name, count in told if name == "fuzzed"]
    if counts:
        terminalreporter.write_line(f"fuzzing: {sum(counts):,} inputs in {len(counts)} tests")
    for line in dict.fromkeys(line for name, line in told if name == "said"):
        terminalreporter.write_line(line)
