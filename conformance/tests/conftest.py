"""Fixtures of the suite's own tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Return the event loop that uvicorn runs on."""
    return "asyncio"
