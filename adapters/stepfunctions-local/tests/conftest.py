"""Fixtures of the local engine's tests: nothing of this machine's AWS configuration counts."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def aws(any_aws_credentials: None) -> None:
    """No AWS configuration of this machine."""
