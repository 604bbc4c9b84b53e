"""Fixtures of the Google adapter's tests: nothing of this machine's Google configuration counts."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from mcp_workflows_google import GoogleAdapter

from adapters.google.tests.cloud import GoogleCloud
from adapters.google.tests.injecting import Injecting, injecting
from adapters.google.tests.stubbed import opened
from mcp_workflows.testing import MemoryNotes
from tests.support.google_engine import GoogleEngine

_SETTINGS = ("GOOGLE_", "GCLOUD_", "CLOUDSDK_", "GCE_METADATA_")


@pytest.fixture(autouse=True)
def google(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials, and no file, variable or metadata server that could bring some."""
    for name in [name for name in os.environ if name.startswith(_SETTINGS)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.fixture
def cloud(google_engine: GoogleEngine) -> GoogleCloud:
    """The local engine, for the shared suites."""
    return GoogleCloud(google_engine)


@pytest.fixture
def own_cloud(own_google_engine: GoogleEngine) -> GoogleCloud:
    """One to kill."""
    return GoogleCloud(own_google_engine)


@pytest.fixture(scope="session")
def running_stub() -> Iterator[Injecting]:
    """One for all tests."""
    with injecting() as server:
        yield server


@pytest.fixture
def stub(running_stub: Injecting) -> Iterator[Injecting]:
    """A server that does as it is told, as new."""
    running_stub.clear()
    yield running_stub
    running_stub.clear()


@pytest.fixture
def notes() -> MemoryNotes:
    """What the adapter remembers."""
    return MemoryNotes()


@pytest.fixture
async def adapter(stub: Injecting, notes: MemoryNotes) -> AsyncIterator[GoogleAdapter]:
    """In front of that server, whose clock stands still."""
    async with opened(stub, notes) as made:
        yield made
