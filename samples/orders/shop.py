"""A pretend shop: what it sells, its stock and till in one JSON file, and the steps that work on them.

Every step may run twice (engines retry), so each is written down under the key of the execution that asked for it.
What was undone under a key can no longer be done: a late charge cannot follow its own refund. What was shipped can no
longer be undone. The shop knows no engine: each runs its steps in its own way.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

PRICES = {"coffee mug": 12.50, "espresso machine": 1240.00}  # EUR
EXPRESS_FEE = 9.90  # EUR
_STOCK = {"coffee mug": 1000, "espresso machine": 20}


class OutOfStockError(Exception):
    """The shelf is empty; trying again is of no use."""


class CardDeclinedError(Exception):
    """The bank says no; trying again is of no use."""


class OrderCancelledError(Exception):
    """Too late: the order was undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a customer ordered, and whether their card is any good."""

    order_id: str
    article: str
    quantity: int
    total: float  # EUR
    card: str = "good"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The price of an order, in EUR. Expensive orders need an approval."""

    order_id: str
    article: str
    quantity: int
    total: float
    needs_approval: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The outcome of an order. `total` is in EUR."""

    order_id: str
    status: str  # shipped, rejected
    total: float
    tracking: str | None = None
    note: str | None = None


_ORDERS = {
    "A-1001": ("coffee mug", 2, "good"),
    "A-1002": ("espresso machine", 1, "good"),
    "A-1003": ("coffee mug", 4, "declined"),
}
_ANY_OTHER = ("coffee mug", 1, "good")


def find_order(order_id: str, *, express: bool) -> Order:
    """The order of that id; ids nobody knows are orders of one mug, so that you can try as often as you like."""
    article, quantity, card = _ORDERS.get(order_id, _ANY_OTHER)
    total = round(PRICES[article] * quantity + (EXPRESS_FEE if express else 0), 2)
    return Order(order_id=order_id, article=article, quantity=quantity, total=total, card=card)


class Shop:
    """Stock and till. `pace` is how long a step takes, in seconds."""

    def __init__(self, file: Path, pace: float) -> None:
        self._file = file
        self._pace = pace

    @classmethod
    def from_environment(cls) -> Shop:
        """`SHOP_FILE` (default shop.json) and `SHOP_PACE` (seconds, default 1.5)."""
        return cls(Path(os.environ.get("SHOP_FILE", "shop.json")), float(os.environ.get("SHOP_PACE", "1.5")))

    async def look_up(self, order_id: str, express: bool) -> Order:
        """Find the order and its price."""
        return find_order(order_id, express=express)

    async def reserve(self, key: str, order: Order) -> None:
        """Take the goods off the shelf for this order."""
        await asyncio.sleep(self._pace)
        books = self.books()
        if not _first_time(books, key, "reserved"):
            return
        if books["stock"][order.article] < order.quantity:
            raise OutOfStockError(f"{order.article} is out of stock")
        books["stock"][order.article] -= order.quantity
        self._write(books, key, reserved=[order.article, order.quantity])

    async def charge(self, key: str, order: Order) -> None:
        """Charge the customer's card."""
        await asyncio.sleep(self._pace)
        books = self.books()
        if not _first_time(books, key, "charged"):
            return
        if order.card != "good":
            raise CardDeclinedError("the card was declined")
        books["till"] = round(books["till"] + order.total, 2)
        self._write(books, key, charged=order.total)

    async def pack(self, key: str, order: Order, express: bool) -> None:
        """Put it into a box: twice as fast if it is urgent."""
        await asyncio.sleep(self._pace if express else 2 * self._pace)

    async def ship(self, key: str, order: Order) -> str:
        """Hand it over to the carrier and return the tracking number: from here on there is no way back."""
        await asyncio.sleep(self._pace)
        tracking = f"TRK-{crc32(key.encode()):010d}"
        books = self.books()
        if _first_time(books, key, "shipped"):
            self._write(books, key, shipped=tracking)
        return tracking

    async def refund(self, key: str) -> None:
        """Undo `charge`, whether it happened or not; what was shipped is paid for."""
        await asyncio.sleep(self._pace)
        books = self.books()
        entry = books["ledger"].get(key, {})
        if not {"refunded", "shipped"} & entry.keys():
            books["till"] = round(books["till"] - entry.get("charged", 0.0), 2)
            self._write(books, key, refunded=True, undone=True)

    async def release(self, key: str) -> None:
        """Undo `reserve`, whether it happened or not; what was shipped is gone."""
        await asyncio.sleep(self._pace)
        books = self.books()
        entry = books["ledger"].get(key, {})
        if not {"released", "shipped"} & entry.keys():
            article, quantity = entry.get("reserved") or ("coffee mug", 0)
            books["stock"][article] += quantity
            self._write(books, key, released=True, undone=True)

    def books(self) -> dict[str, Any]:  # Any: JSON
        """Everything that is written down: `stock`, `till` (EUR) and `ledger` (by key)."""
        if not self._file.exists():
            return {"stock": dict(_STOCK), "till": 0.0, "ledger": {}}
        books: dict[str, Any] = json.loads(self._file.read_text())
        return books

    def _write(self, books: dict[str, Any], key: str, **entry: object) -> None:
        books["ledger"].setdefault(key, {}).update(entry)
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps(books, indent=2))
        draft.replace(self._file)


def _first_time(books: dict[str, Any], key: str, step: str) -> bool:
    """Whether this step is still to be done under this key; an undone order takes no more steps."""
    entry = books["ledger"].get(key, {})
    if entry.get("undone"):
        raise OrderCancelledError("this order was cancelled")
    return step not in entry
