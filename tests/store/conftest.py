"""Fixtures of the stores' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.places import Place, PostgresSchema, SQLiteFile


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.process)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A new place of each kind."""
    if request.param == "sqlite":
        return SQLiteFile(tmp_path)
    return PostgresSchema(request.getfixturevalue("postgres_server"))
