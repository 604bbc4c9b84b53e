"""The workflows of `make bench ENGINE=dbos`; the bench copies this file beside its configuration."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dbos import DBOS

HERE = Path(__file__).parent


@DBOS.workflow()
async def echo(a: int) -> dict[str, int]:
    """Return the argument."""
    return {"a": a}


@DBOS.workflow()
async def work(a: int) -> dict[str, int]:
    """Run a step, and wait for the file `gate` before the end."""
    await note(a)
    while not (HERE / "gate").exists():  # noqa: ASYNC110  # another process makes it
        await asyncio.sleep(0.02)
    return {"a": a}


@DBOS.step()
async def note(a: int) -> None:
    """Append a line to the file `done`."""
    with (HERE / "done").open("a") as file:
        file.write(f"{a}\n")
