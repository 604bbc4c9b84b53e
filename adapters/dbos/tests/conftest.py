"""Fixtures of the DBOS adapter's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from adapters.dbos.tests.postgres_server import binaries, postgres


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a PostgreSQL server, without a database; started once for all tests that ask for it."""
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed here")
    with postgres(programs) as url:
        yield url
