"""Files whose content may change under us: certificates and secrets that somebody rotates."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from mcp_workflows.errors import ConfigError

LOOK_EVERY = 2.0  # seconds

Stamp = tuple[int, int, int, int] | None  # when, how large, which file; None: it is not there


class Files:
    """Some files, looked at no more often than every few seconds."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._stamps = self._look()
        self._looked = time.monotonic()

    def changed(self) -> bool:
        """Whether any is another one than when this was asked last."""
        now = time.monotonic()
        if not self._paths or now - self._looked < LOOK_EVERY:
            return False
        before, self._stamps, self._looked = self._stamps, self._look(), now
        return self._stamps != before

    def _look(self) -> Sequence[Stamp]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino  # ctime: who may read it has changed


def read_secret(path: Path, setting: str) -> str:
    """One line of text, without the white space around it.

    Raises:
        ConfigError: it cannot be read, is empty, or is more than a line; nothing of it is repeated.
    """
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{setting}: {path} is no text") from None
    if not secret or not secret.isprintable() or not secret.isascii():
        raise ConfigError(
            f"{setting}: {path} must hold one line of text (ASCII), and {'more' if secret else 'nothing'} is there"
        )
    return secret
