"""Fixtures of the tests of the whole system."""

from __future__ import annotations

import pytest

from tests.support.oidc import providers as providers


@pytest.fixture(autouse=True)
def whole_system(processes: None) -> None:
    """Permit every test here to start processes: sidecars, engines, workers and clients run as they do for users."""
