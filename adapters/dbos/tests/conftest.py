"""Fixtures of the DBOS adapter's tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest

from tests.support.postgres_server import Postgres, postgres


@pytest.fixture(scope="session")
def listening_postgres() -> Iterator[Postgres]:
    """A PostgreSQL server on a port; started once for all tests that ask for it."""
    with postgres(tcp=True) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url(listening_postgres: Postgres) -> str:
    """The URL of that server, without a database: `postgresql://postgres@127.0.0.1:PORT`."""
    return listening_postgres.address


def new_database(url: str) -> str:
    """Return the URL of a new database on a server."""
    name = f"flows_{uuid.uuid4().hex}"
    with psycopg.connect(f"{url}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{url}/{name}"
