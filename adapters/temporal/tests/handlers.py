"""Workflows that were not written for us, with the handlers that tools may name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.common import RawValue


@workflow.defn(name="Shop.FulfilOrder")
class Gated:
    """Waits for `approve`; has a query and an update, too."""

    def __init__(self) -> None:
        self.approved = False

    @workflow.signal
    def approve(self) -> None:
        self.approved = True

    @workflow.query
    def status(self) -> str:
        return "shipped" if self.approved else "waiting"

    @workflow.update
    async def reject(self) -> None:
        self.approved = True

    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: self.approved)
        return self.status()


@workflow.defn(dynamic=True)
class Anything:
    """Takes every signal."""

    @workflow.signal(dynamic=True)
    def take(self, name: str, args: Sequence[RawValue]) -> None:
        """Nothing comes of it."""

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> None:
        await workflow.wait_condition(lambda: False)


@activity.defn(name="send_approval_mail")
async def send_approval_mail() -> None:
    """Nobody reads it."""


@activity.defn(name="WriteLog")
async def write_log() -> None:
    """It runs as a local activity."""


@workflow.defn
class Mailed:
    """Sends a mail, writes a log, and waits for `approve`."""

    def __init__(self) -> None:
        self.approved = False

    @workflow.signal
    def approve(self) -> None:
        self.approved = True

    @workflow.run
    async def run(self) -> None:
        await workflow.execute_local_activity(write_log, start_to_close_timeout=timedelta(seconds=10))
        await workflow.execute_activity(send_approval_mail, start_to_close_timeout=timedelta(seconds=10))
        await workflow.wait_condition(lambda: self.approved)


@dataclass
class Order:
    """What the workflows of a shop that knows nothing of us take."""

    order_id: str
    quantity: int
    note: str | None = None


@workflow.defn
class ShipParcel:
    """Only `FulfilOrder` starts it."""

    @workflow.run
    async def run(self, order: Order) -> str:
        return f"shipped {order.order_id}"


@workflow.defn
class FulfilOrder:
    """Ships each piece by itself."""

    @workflow.run
    async def run(self, order: Order) -> dict[str, list[str]]:
        run = workflow.info().workflow_id
        numbers = range(order.quantity)
        return {
            "parcels": [
                await workflow.execute_child_workflow(ShipParcel.run, order, id=f"{run}-{number}") for number in numbers
            ]
        }


@workflow.defn
class Quote:
    """Takes its arguments by position."""

    @workflow.run
    async def run(self, sku: str, price: float, tags: list[str]) -> float:
        return price + len(tags)


@workflow.defn
class Count:
    """Takes a map, whose keys are data."""

    @workflow.run
    async def run(self, stock: dict[str, int]) -> int:
        return sum(stock.values())


@workflow.defn
class Label:
    """Takes an argument that may be null, and a map."""

    @workflow.run
    async def run(self, note: str | None, labels: dict[str, str] | None) -> str:
        return f"{note}: {len(labels or {})}"


@workflow.defn
class Note:
    """Takes one argument, which may be null."""

    @workflow.run
    async def run(self, note: str | None) -> str:
        return f"noted {note}"
