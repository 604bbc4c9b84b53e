"""Workflows that the hosts call: a fast one, a slow one, one that asks, and one with a long result."""

from __future__ import annotations

from pathlib import Path

from dbos import DBOS
from mcp_workflows_dbos import ask, progress
from pydantic import BaseModel


class Order(BaseModel):
    """What a person answers."""

    sure: bool


@DBOS.workflow()
async def greet(name: str) -> dict[str, str]:
    """Greet a person."""
    return {"greeting": f"hello {name}"}


@DBOS.workflow()
async def build(seconds: int) -> dict[str, str]:
    """Build a release."""
    Path("running").touch()  # noqa: ASYNC240  # for the script that interrupts the host, and no wait
    for second in range(seconds):
        await progress("compiling", second, seconds)
        await DBOS.sleep_async(1)
    return {"built": f"in {seconds} s"}


@DBOS.workflow()
async def order(item: str) -> dict[str, str]:
    """Order an item, once a person agrees."""
    answer = await ask(f"Order {item}?", Order)
    agreed = answer.accepted and answer.content["sure"]
    return {"ordered": item if agreed else "nothing", "answer": answer.action}


@DBOS.workflow()
async def report(lines: int) -> str:
    """Report on a release, at length."""
    return "\n".join(f"line {line} of {lines} " + "." * 80 for line in range(1, lines + 1))


@DBOS.workflow()
async def ship(item: str) -> dict[str, str]:
    """Ship an item, once a person agrees: there is no form, only accept and decline."""
    answer = await ask(f"Ship {item}?")
    return {"shipped": item if answer.accepted else "nothing", "answer": answer.action}
