"""Makes the test suites of the core and of every adapter one: the engines' fixtures are shared."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_workflows.log_limits import LINES

sys.path.insert(0, str(Path(__file__).parent))

pytest_plugins = [
    "tests.dev_server",
    "tests.google_engine",
    "tests.stepfunctions_engine",
    "tests.tokens",
    "adapters.temporal.tests.typescript_worker",
]


@pytest.fixture(autouse=True)
def fresh_log_limits() -> Iterator[None]:
    """Lines that one test causes are not those that another one must not cause."""
    yield
    LINES.tell()
