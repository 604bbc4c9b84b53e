"""A disk that takes no more writes for a while: one that is really full, or a connection that may only read."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mcp_workflows.store.sqlite.store import SQLiteStore

SIZE = "2m"
SAYS = {
    "full": "not saved: the store has no room left on its disk",
    "read-only": "not saved: the store cannot be written",
}


@dataclass(slots=True)
class Disk:
    """Where a store is, and how it is kept from being written."""

    folder: Path
    store: SQLiteStore
    kind: str

    @property
    def said(self) -> str:
        """What clients read."""
        return SAYS[self.kind]

    def refuse(self) -> None:
        """Take no more writes."""
        if self.kind == "full":
            self._fill()
        else:
            self._read_only(on=True)

    def recover(self) -> None:
        """Take writes again."""
        if self.kind == "full":
            self._filler.unlink()
        else:
            self._read_only(on=False)

    @property
    def _filler(self) -> Path:
        return self.folder / "filler"

    def _fill(self) -> None:
        size = 1 << 16
        with self._filler.open("ab", buffering=0) as file:
            while size:
                try:
                    file.write(b"x" * size)
                except OSError:
                    size //= 2

    def _read_only(self, *, on: bool) -> None:
        connection = self.store._opened  # pyright: ignore[reportPrivateUsage]
        assert connection is not None
        connection.execute(f"PRAGMA query_only = {'ON' if on else 'OFF'}")


@pytest.fixture(params=["full", "read-only"])
def disk(processes: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Disk]:
    """A disk of its own that is really full, where we may mount one; a connection that may only read."""
    folder, kind = tmp_path / "disk", str(request.param)
    folder.mkdir()
    mounted = kind == "full"
    if mounted:
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("no disk can be mounted here")
    try:
        yield Disk(folder, SQLiteStore(f"sqlite:///{folder}/tasks.db"), kind)
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)
