"""Programs of other projects: Chromium, and clients and servers with their own pins, installed below .cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
PYENV = Path.home() / ".pyenv" / "versions"
NODE = ROOT / "node_modules" / "node" / "bin" / "node"
INSPECTOR = ROOT / "tests" / "clients" / "programs" / "inspector" / "package.json"

FASTMCP: Final = ("fastmcp==4.1.0", "fastmcp-tasks==4.1.0")
_OURS: Final = (".", "adapters/temporal-worker", "adapters/temporal")
FASTMCP_ATTACHED: Final = ("fastmcp==4.2.3", *(word for each in _OURS for word in ("--editable", str(ROOT / each))))
MCP_1X: Final = ("mcp==1.30.0",)
BUILDBOT: Final = ("buildbot[bundle]==4.3.0", "buildbot-worker==4.3.0", "setuptools<81")
TOIL: Final = ("toil[server,cwl]==9.6.0", "boto3", "boto3-stubs", "mypy-boto3-iam")
PREFECT: Final = ("prefect==3.8.8", "fastapi==0.139.0")  # newer ones have no Body(min_items=), which Prefect uses
AIRFLOW: Final = ("apache-airflow==3.3.2", "apache-airflow-providers-standard==1.21.0")
MCP_JENKINS: Final = ("mcp-jenkins==3.6.0", "fastmcp==4.2.3")
AIRFLOW_MCP: Final = ("astro-airflow-mcp==0.9.1", "fastmcp==3.4.11")
MATPLOTLIB: Final = ("matplotlib==3.11.2",)  # brings Pillow, for docs/pictures/card.gif
_NPM: Final = ("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")

_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
LAUNCH: Final = ("--no-sandbox", "--font-render-hinting=none") if os.geteuid() == 0 else ("--font-render-hinting=none",)
"""Arguments for Chromium; it refuses to start as root with its sandbox."""


def chromium() -> str | None:
    """Return the path of a Chromium, or None; `scripts/install-browser` installs Debian's."""
    return next(filter(None, map(shutil.which, _BROWSERS)), None)


def pythons() -> Mapping[tuple[int, int], str]:
    """Return the interpreters on this machine that the project supports, one of each minor version, oldest first.

    They come from the path and from pyenv, whose shims on the path run only what its global version names.
    """
    found = {sys.version_info[:2]: sys.executable}
    for minor in range(11, 20):
        name = f"python3.{minor}"
        for each in (shutil.which(name), *map(str, PYENV.glob(f"*/bin/{name}"))):
            if each and not subprocess.run([each, "--version"], capture_output=True, check=False).returncode:
                found.setdefault((3, minor), each)
    return dict(sorted(found.items()))


def python_of(name: str, requirements: Sequence[str]) -> Path:
    """The interpreter of a virtual environment with these; installed once, half a minute."""
    folder = CACHE / name
    python = folder / "bin" / "python"
    with _once(folder, "\n".join(requirements)) as missing:
        if missing:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            install = [str(python), "-m", "pip", "install", "--quiet", *requirements]
            subprocess.run(install, check=True, stderr=subprocess.DEVNULL)
    return python


def mcpdo() -> Path:
    """The Inspector's program for the terminal; installed once, half a minute."""
    return npm_packages("inspector", INSPECTOR) / ".bin" / "mcpdo"


def npm_packages(name: str, package: Path) -> Path:
    """The node_modules of this package.json; installed once, half a minute."""
    folder = CACHE / name
    with _once(folder, package.read_text()) as missing:
        if missing:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            shutil.copy(package, folder)
            subprocess.run(_NPM, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / "node_modules"


@contextmanager
def _once(folder: Path, wanted: str) -> Generator[bool]:
    """Whether what is wanted is missing there; one process at a time, and what failed half-way is done again."""
    CACHE.mkdir(exist_ok=True)
    ready = folder / ".ready"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = not ready.exists() or ready.read_text() != wanted
        yield missing
        if missing:
            ready.write_text(wanted)
