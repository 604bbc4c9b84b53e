"""What the tests of other languages need and pip does not bring, installed once per machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

CACHE = Path(__file__).parents[3] / ".cache"


class CommandFailedError(Exception):
    """A command ended with an error; the message holds the end of what it said."""


def installed(name: str, install: Callable[[Path], object]) -> Path:
    """The folder of this name in the cache; made aside and moved into place, as others may run the tests at once."""
    home = CACHE / name
    if home.exists():
        return home
    aside = home.with_name(f"{home.name}-{os.getpid()}")
    aside.mkdir(parents=True)
    try:
        install(aside)
        with suppress(OSError):  # somebody else was faster
            aside.rename(home)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return home


def run(command: Sequence[str], folder: Path, seconds: float, env: Mapping[str, str] | None = None) -> str:
    """What it said; raises `CommandFailedError` if it ended with an error."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        raise CommandFailedError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout
