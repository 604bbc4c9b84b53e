"""The official conformance suite, run as a program and read from the files it writes."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.stack import ROOT

NODE = ROOT / "node_modules" / "node" / "bin" / "node"
SUITE = ROOT / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
PATIENCE = 600.0  # seconds for one invocation; it has time limits of its own per scenario

_FOLDER = re.compile(r"^server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z$")
_UNSCORED = re.compile(r"^\s+[✓✗] (\S+) \(([\w-]+)\)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one scenario: how many checks ended how, and what was said about those that failed."""

    scenario: str
    counts: Mapping[str, int]
    complaints: Sequence[str]
    unscored: str | None = None  # why it does not count, by the suite

    @property
    def passed(self) -> bool:
        """Whether no check of it failed, and at least one was made."""
        return not self.counts.get("FAILURE", 0) and bool(self.counts)


def run_suite(url: str, folder: Path, *options: str) -> Sequence[Outcome]:
    """Run the scenarios the options select; what the suite writes goes below `folder`."""
    argv = [str(NODE), str(SUITE), "server", "--url", url, "-o", str(folder), *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE, check=False, stdin=subprocess.DEVNULL)
    unscored = dict(_UNSCORED.findall(done.stdout))
    found = [(match["scenario"], path) for path in sorted(folder.iterdir()) if (match := _FOLDER.match(path.name))]
    return [_read(scenario, path / "checks.json", unscored.get(scenario)) for scenario, path in found]


def _read(scenario: str, file: Path, unscored: str | None) -> Outcome:
    checks = json.loads(file.read_text())
    counts = Counter(str(check["status"]) for check in checks)
    complaints = [
        f"{check['id']}: {check.get('errorMessage') or check['description']}"
        for check in checks
        if check["status"] == "FAILURE"
    ]
    return Outcome(scenario=scenario, counts=counts, complaints=complaints, unscored=unscored)
