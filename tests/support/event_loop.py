"""The event loop of all suites."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Everything here runs on asyncio: temporalio, grpc and uvicorn know no other loop."""
    return "asyncio"
