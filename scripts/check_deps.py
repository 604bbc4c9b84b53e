"""Report known vulnerabilities of the packages in constraints.txt, and the packages that pip-audit could not look up.

Without its database, pip-audit reports nothing; this script then prints a note and succeeds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CONSTRAINTS = Path("constraints.txt")
FOUND = Path(".cache/audit.json")
PATIENCE = 300  # seconds


def main() -> int:
    """Return 1 if a package has a known vulnerability."""
    audit = Path(sys.argv[1]) / "pip-audit"
    options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    FOUND.unlink(missing_ok=True)
    done: subprocess.CompletedProcess[str] | None = None
    try:
        command = [str(audit), "-r", str(CONSTRAINTS), *options, "--output", str(FOUND)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
        packages: Sequence[Mapping[str, Any]] = json.loads(FOUND.read_text())["dependencies"]
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        said = done.stderr.strip().splitlines()[-1:] if done else []
        print(f"not checked: pip-audit gave no report: {said[0] if said else repr(error)}")
        return 0
    lines, wrong = report(packages)
    print("\n".join(lines))
    return 1 if wrong else 0


def report(packages: Sequence[Mapping[str, Any]]) -> tuple[Sequence[str], bool]:
    """Return the report as lines, and True if a package has a known vulnerability."""
    skipped = [each for each in packages if "skip_reason" in each]
    wrong = [each for each in packages if each.get("vulns")]
    lines = [
        f"{each['name']} {each['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'no release'}"
        for each in wrong
        for flaw in each["vulns"]
    ]
    if len(skipped) == len(packages):
        lines.append("not checked: the database knows none of these packages, or cannot be reached from here")
    else:
        checked = len(packages) - len(skipped)
        lines.append(f"{checked} of {len(packages)} packages checked: {len(wrong)} have known vulnerabilities")
        lines += [f"not checked: {each['name']}" for each in skipped]
    return lines, bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
