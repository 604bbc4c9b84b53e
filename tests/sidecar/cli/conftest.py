"""A folder and the command line in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.sidecar.cli.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return Terminal(tmp_path, capsys, monkeypatch)
