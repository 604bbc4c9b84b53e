"""The workflows of `make bench ENGINE=dbos`; copied beside the configuration that names it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from dbos import DBOS

HERE = Path(__file__).parent
DONE = "done"  # the file of first steps that were done, one line each
GATE = "gate"  # the file for which `work` waits


@DBOS.workflow()
async def echo(a: int) -> dict[str, int]:
    """Return what it is given."""
    return {"a": a}


@DBOS.workflow()
async def stepped(a: int) -> dict[str, int]:
    """Return it from a step."""
    return {"a": await same(a)}


@DBOS.step()
async def same(a: int) -> int:
    """Return what it is given."""
    return a


@DBOS.workflow()
async def brief(seconds: float) -> dict[str, float]:
    """Sleep, and return the time of the end."""
    await asyncio.sleep(seconds)
    return {"ended": time.time()}


@DBOS.workflow()
async def work(a: int) -> dict[str, int]:
    """Do something once, and wait for a file before the end."""
    await note(a)
    while not (HERE / GATE).exists():  # noqa: ASYNC110  # another process makes it
        await asyncio.sleep(0.02)
    return {"a": a}


@DBOS.step()
async def note(a: int) -> None:
    """Note that it was done."""
    with (HERE / DONE).open("a") as file:
        file.write(f"{a}\n")
