"""Fixtures of the whole suite."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Everything here runs on asyncio: temporalio and uvicorn know no other loop."""
    return "asyncio"
