"""The command line in this process, which is quicker: the same entry point, the same streams."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcp_workflows.sidecar.cli.app import main


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output as JSON."""
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class Terminal:
    """Runs commands in a folder."""

    folder: Path
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def run(self, *words: str) -> Ended:
        """`mcp-workflows WORDS`."""
        self.monkeypatch.setattr(sys, "argv", ["mcp-workflows", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        logging.getLogger("dbos").handlers.clear()  # DBOS makes one that keeps the captured stream
        printed = self.capsys.readouterr()
        assert "Traceback" not in printed.err
        return Ended(code=int(ended.value.code or 0), out=printed.out, err=printed.err)
