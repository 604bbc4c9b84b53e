"""Tests that start processes say so, and `make quick` leaves them out.

A test that starts a process (an engine, a worker, a sidecar, a command) uses the fixture `processes`, directly or by
way of another fixture. It has the marker `process` then. Any other test that is not `slow` fails when it starts one.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Final

import pytest

from tests.support.commands import SERVER

_EVENTS: Final = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
_TOLD: Final = 'a test that starts a process needs @pytest.mark.usefixtures("processes")'
_RUNNING: Final = pytest.StashKey[pytest.Item]()


@pytest.fixture(scope="session")
def processes() -> None:
    """Permit a test, or a fixture and all tests that use it, to start processes."""


@pytest.hookimpl(tryfirst=True)  # before the tests are selected by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that may start processes."""
    for item in items:
        if "processes" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.process)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse processes to the test that runs, unless it may start some."""

    def refuse(event: str, _: tuple[object, ...]) -> None:
        running = config.stash.get(_RUNNING, None) if event in _EVENTS else None
        if running is not None and not any(running.get_closest_marker(name) for name in ("process", "slow")):
            raise RuntimeError(f"{running.nodeid}: {_TOLD}")

    sys.addaudithook(refuse)


def pytest_unconfigure() -> None:
    """Stop the server that has started commands."""
    SERVER.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    """Remember the test that runs."""
    item.config.stash[_RUNNING] = item
    try:
        return (yield)
    finally:
        del item.config.stash[_RUNNING]
