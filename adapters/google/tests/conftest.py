"""Fixtures of the Google adapter's tests: nothing of this machine's Google configuration counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_SETTINGS = ("GOOGLE_", "GCLOUD_", "CLOUDSDK_", "GCE_METADATA_")


@pytest.fixture(autouse=True)
def google(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials, and no file, variable or metadata server that could bring some."""
    for name in [name for name in os.environ if name.startswith(_SETTINGS)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
