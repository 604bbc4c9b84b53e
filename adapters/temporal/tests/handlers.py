"""Workflows that were not written for us, with the handlers that tools may name."""

from __future__ import annotations

from collections.abc import Sequence

from temporalio import workflow
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
