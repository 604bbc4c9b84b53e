"""Makes the test suites of the core and of every adapter one: the engines' fixtures are shared."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from tests.support.entry_points import remember_entry_points  # the path comes first

remember_entry_points()
pytest_plugins = [
    "tests.support.dev_server",
    "tests.support.event_loop",
    "tests.support.google_engine",
    "tests.support.postgres_server",
    "tests.support.processes",
    "tests.support.stepfunctions_engine",
    "tests.support.tokens",
    "adapters.temporal.tests.typescript_worker",
]
