"""Adapters of tests, found as those of strangers are: by entry point, from a folder on the path."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from mcp_workflows.adapter import ENTRY_POINT_GROUP, Adapter


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, adapters: Mapping[str, type[Adapter]]) -> None:
    """Have them installed, for the length of a test."""
    place = folder / "site" / "strangers-0.dist-info"
    place.mkdir(parents=True)
    entries = [f"{name} = {kind.__module__}:{kind.__qualname__}" for name, kind in adapters.items()]
    (place / "entry_points.txt").write_text("\n".join([f"[{ENTRY_POINT_GROUP}]", *entries]))
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 0\n")
    monkeypatch.setattr("sys.path", [str(place.parent), *sys.path])
