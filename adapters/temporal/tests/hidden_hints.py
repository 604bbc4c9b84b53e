"""A workflow whose hint exists only for type checkers: the SDK refuses it when it is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temporalio import workflow

if TYPE_CHECKING:
    from decimal import Decimal


@workflow.defn
class Hidden:
    @workflow.run
    async def run(self, value: Decimal) -> None: ...
