"""Workflows of the tests: those that the contract of adapters needs, and some as users write them."""

from __future__ import annotations

import asyncio
from datetime import datetime, time
from typing import Any

from dbos import DBOS
from mcp_workflows_dbos import ask, progress
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

FORM = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}


class CardError(Exception):
    """The card was declined."""


class Receipt(BaseModel):
    """What the customer gets."""

    order_id: str
    amount: int
    paid: bool = True


@DBOS.workflow()
async def echo(text: str) -> dict[str, str]:
    """Return the text."""
    return {"text": text}


@DBOS.workflow()
async def clock(when: datetime, at: time) -> dict[str, datetime | time]:
    """Return the times."""
    return {"when": when, "at": at}


@DBOS.workflow()
def echo_without_async(text: str) -> dict[str, str]:
    """Return the text, in a thread."""
    return {"text": text}


@DBOS.step()
async def charge(amount: int) -> int:
    """Charge the card."""
    if amount < 0:
        raise CardError("the card was declined")
    return amount


@DBOS.workflow()
async def declines() -> None:
    """Fail."""
    await charge(-1)


@DBOS.workflow()
async def forever() -> None:
    """Never end."""
    await DBOS.sleep_async(10_000_000)


@DBOS.workflow()
async def inbox() -> list[str]:
    """Take messages until `close`, and show them in an event."""
    received: list[str] = []
    while (text := await DBOS.recv_async("put", 10_000_000)) != "close":
        received.append(text)
        await DBOS.set_event_async("received", received)
    return received


@DBOS.workflow()
async def approve() -> dict[str, Any]:
    """Ask one question."""
    answer = await ask("Ship it?", FORM)
    return {"answers": [answer.content]}


@DBOS.workflow()
async def approve_twice() -> dict[str, Any]:
    """Ask two questions at once."""
    await charge(1)
    answers = await asyncio.gather(ask("Ship it?", FORM), ask("Wrap it?", FORM))
    return {"answers": [answer.content for answer in answers]}


@DBOS.workflow()
async def buy(order_id: str, amount: int = 3) -> Receipt:
    """Charge a card and return a receipt.

    A second paragraph.
    """
    await progress("charging", 1, 2)
    charged = await charge(amount)
    await progress("packing", 2, 2)
    return Receipt(order_id=order_id, amount=charged)


class Scan(BaseModel):
    """A receipt in bytes."""

    image: bytes
    kind: bytes = b"png"


@DBOS.workflow()
async def scan() -> Scan:
    """Return bytes that are no text."""
    return Scan(image=b"\x89PNG")


class Sale(BaseModel):
    """A model with aliases."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)
    order_id: str


@DBOS.workflow()
async def sell() -> Sale:
    """Return a model with aliases."""
    return Sale(order_id="A-1")
