"""The workflows of `make bench ENGINE=dbos`; the bench copies this file beside its configuration."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from dbos import DBOS

HERE = Path(__file__).parent
DONE = "done"  # the file with a line for each first step of `work` that ran
GATE = "gate"  # the file that `work` waits for


@DBOS.workflow()
async def echo(a: int) -> dict[str, int]:
    """Return the argument."""
    return {"a": a}


@DBOS.workflow()
async def stepped(a: int) -> dict[str, int]:
    """Return the argument, passed through a step."""
    return {"a": await same(a)}


@DBOS.step()
async def same(a: int) -> int:
    """Return the argument."""
    return a


@DBOS.workflow()
async def brief(seconds: float) -> dict[str, float]:
    """Sleep, and return the time of the end."""
    await asyncio.sleep(seconds)
    return {"ended": time.time()}


@DBOS.workflow()
async def work(a: int) -> dict[str, int]:
    """Run a step, and wait for the file `GATE` before the end."""
    await note(a)
    while not (HERE / GATE).exists():  # noqa: ASYNC110  # another process makes it
        await asyncio.sleep(0.02)
    return {"a": a}


@DBOS.step()
async def note(a: int) -> None:
    """Append a line to the file `DONE`."""
    with (HERE / DONE).open("a") as file:
        file.write(f"{a}\n")
