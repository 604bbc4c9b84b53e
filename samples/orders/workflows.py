"""How an order is fulfilled: the steps, who is asked, and what is undone when it does not work out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityCancellationType

with workflow.unsafe.imports_passed_through():
    from activities import HOPELESS
    from mcp_workflows_temporal_worker import elicit, progress
    from shop import Order, Quote, Receipt, Shop

APPROVAL_LIMIT = 500.0  # EUR; dearer orders need a person's word
STEPS = 4

APPROVAL = {
    "type": "object",
    "properties": {
        "approve": {"type": "boolean", "title": "Approve this order?"},
        "note": {"type": "string", "title": "A word for the books"},
    },
    "required": ["approve"],
}


@workflow.defn
class QuoteOrder:
    """A quick look at an order: no steps, no questions."""

    @workflow.run
    async def run(self, order_id: str, express: bool = False) -> Quote:
        """Price the order."""
        order = await _do(Shop.look_up, order_id, express)
        return Quote(
            order_id=order.order_id,
            article=order.article,
            quantity=order.quantity,
            total=order.total,
            needs_approval=order.total > APPROVAL_LIMIT,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """How one step is undone, and how that is told."""

    activity: Callable[[Shop, str], Coroutine[Any, Any, None]]
    doing: str
    done: str


@workflow.defn
class FulfilOrder:
    """Reserve stock, charge the card, pack and ship; refund and release if it is cancelled or fails."""

    def __init__(self) -> None:
        self._undo: list[Undo] = []

    @workflow.run
    async def run(self, order_id: str, express: bool = False, reason: str = "") -> Receipt:
        """Fulfil it, or say why not."""
        order = await _do(Shop.look_up, order_id, express)
        note = reason or None
        if order.total > APPROVAL_LIMIT:
            approved, note = await _ask_for_approval(order, reason)
            if not approved:
                return Receipt(order_id=order_id, status="rejected", total=order.total, note=note)
        try:
            tracking = await self._fulfil(order, express)
        except (asyncio.CancelledError, ActivityError):
            await self._compensate()
            raise
        return Receipt(order_id=order_id, status="shipped", total=order.total, tracking=tracking, note=note)

    async def _fulfil(self, order: Order, express: bool) -> str:
        """The four steps. How to undo a step is noted before it, for it may have happened even if we never hear."""
        key = workflow.info().workflow_id
        await progress(f"reserving {order.quantity} x {order.article}", 1, STEPS)
        self._undo.append(Undo(activity=Shop.release, doing="releasing the stock", done="stock released"))
        await _do(Shop.reserve, key, order)
        await progress(f"charging EUR {order.total:.2f}", 2, STEPS)
        euros = f"EUR {order.total:.2f}"
        self._undo.append(Undo(activity=Shop.refund, doing=f"refunding {euros}", done=f"{euros} refunded"))
        await _do(Shop.charge, key, order)
        await progress("packing", 3, STEPS)
        await _do(Shop.pack, key, order, express)
        await progress("handing over to the carrier", 4, STEPS)
        return await _do(Shop.ship, key, order, cancellation=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED)

    async def _compensate(self) -> None:
        """Undo what was done, the last step first."""
        for undo in reversed(self._undo):
            await progress(undo.doing)
            await _do(undo.activity, workflow.info().workflow_id)
        await progress("undone: " + ", ".join(undo.done for undo in reversed(self._undo)))


async def _ask_for_approval(order: Order, reason: str) -> tuple[bool, str | None]:
    """Wait for a person, days if need be."""
    await progress("waiting for approval", 0, STEPS)
    why = f" Reason given: {reason}." if reason else ""
    article = f"{order.quantity} x {order.article}"
    answer = await elicit(f"Order {order.order_id}: {article} for EUR {order.total:.2f}.{why} Approve?", APPROVAL)
    if not answer.accepted:
        return False, f"the question was answered with {answer.action!r}"
    form = answer.content
    return bool(form["approve"]), form.get("note")


async def _do(
    activity: Callable[..., Coroutine[Any, Any, Any]],
    *args: object,
    cancellation: ActivityCancellationType = ActivityCancellationType.TRY_CANCEL,
) -> Any:  # Any: what that activity returns
    return await workflow.execute_activity_method(
        activity,
        args=list(args),
        start_to_close_timeout=timedelta(seconds=30),
        retry_policy=RetryPolicy(maximum_attempts=5, non_retryable_error_types=HOPELESS),
        cancellation_type=cancellation,
    )
