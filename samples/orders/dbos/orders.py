"""The order workflows: their steps, their question, and the undoing of an order that fails or is cancelled.

DBOS makes these functions durable; `PYTHONPATH=.. mcp-workflows dev orders.py` serves them.
"""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from dataclasses import dataclass

from dbos import DBOS, SetWorkflowID, WorkflowHandleAsync, error
from mcp_workflows_dbos import ask, progress
from shop import CardDeclinedError, Order, OrderCancelledError, OutOfStockError, Quote, Receipt, Shop

APPROVAL_LIMIT = 500.0  # EUR; more expensive orders need an approval
STEPS = 4
SHOP = Shop.from_environment()

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """The approval of an order."""

    approve: bool
    note: str = ""


def _is_retryable(problem: BaseException) -> bool:
    """True if another try of a step may succeed."""
    return not isinstance(problem, OutOfStockError | CardDeclinedError | OrderCancelledError)


step = DBOS.step(retries_allowed=True, max_attempts=5, should_retry=_is_retryable)


@step
async def look_up(order_id: str, express: bool) -> Order:
    return await SHOP.look_up(order_id, express)


@step
async def reserve(key: str, order: Order) -> None:
    await SHOP.reserve(key, order)


@step
async def charge(key: str, order: Order) -> None:
    await SHOP.charge(key, order)


@step
async def pack(key: str, order: Order, express: bool) -> None:
    await SHOP.pack(key, order, express)


@step
async def ship(key: str, order: Order) -> str:
    return await SHOP.ship(key, order)


@step
async def refund(key: str) -> None:
    await SHOP.refund(key)
    _log_undone(key, "refunded", "the card was refunded")


@step
async def release(key: str) -> None:
    await SHOP.release(key)
    _log_undone(key, "released", "the stock was released")


def _log_undone(key: str, entry: str, text: str) -> None:
    """Log a step that was undone, if the books have it: nothing of a shipped order is undone."""
    if entry in SHOP.books()["ledger"].get(key, {}):
        logger.info("undone: %s (%s)", text, key)


@DBOS.workflow()
async def quote_order(order_id: str, express: bool = False) -> Quote:
    """What an order would cost, and whether it needs an approval. Quick."""
    order = await look_up(order_id, express)
    return Quote(
        order_id=order.order_id,
        article=order.article,
        quantity=order.quantity,
        total=order.total,
        needs_approval=order.total > APPROVAL_LIMIT,
    )


@DBOS.workflow()
async def fulfil_order(order_id: str, express: bool = False, reason: str = "") -> Receipt:
    """Reserve stock, charge the card and ship. Takes minutes to days; dear orders wait for an approval."""
    order = await look_up(order_id, express)
    note = reason or None
    if order.total > APPROVAL_LIMIT:
        approved, note = await _ask_for_approval(order, reason)
        if not approved:
            return Receipt(order_id=order_id, status="rejected", total=order.total, note=note)
    key = str(DBOS.workflow_id)
    await asyncio.create_task(_watch(key), context=Context())  # no child, which a cancellation would end, too
    try:
        tracking = await _fulfil(key, order, express)
    except Exception:
        await _undo(key)
        raise
    return Receipt(order_id=order_id, status="shipped", total=order.total, tracking=tracking, note=note)


async def _watch(key: str) -> None:
    with SetWorkflowID(f"{key}-undo"):  # one for each order, also if the order begins again
        await DBOS.start_workflow_async(undo_if_cancelled, key)


@DBOS.workflow()
async def undo_if_cancelled(key: str) -> None:
    """Wait for the end of an order, and undo it if it was cancelled: a cancelled execution takes no more steps."""
    order: WorkflowHandleAsync[Receipt] = await DBOS.retrieve_workflow_async(key)
    try:
        await order.get_result(polling_interval_sec=0.5)
    except error.DBOSAwaitedWorkflowCancelledError:
        await _undo(key)
    except Exception:  # noqa: BLE001  # an order that fails has undone itself
        return


async def _fulfil(key: str, order: Order, express: bool) -> str:
    await progress(f"reserving {order.quantity} x {order.article}", 1, STEPS)
    await reserve(key, order)
    await progress(f"charging EUR {order.total:.2f}", 2, STEPS)
    await charge(key, order)
    await progress("packing", 3, STEPS)
    await pack(key, order, express)
    await progress("handing over to the carrier", 4, STEPS)
    return await ship(key, order)


async def _undo(key: str) -> None:
    """Undo the steps of an order, the last one first."""
    await refund(key)
    await release(key)


async def _ask_for_approval(order: Order, reason: str) -> tuple[bool, str | None]:
    """Ask a person, and return the decision and a note; this may take days."""
    await progress("waiting for approval", 0, STEPS)
    why = f" Reason given: {reason}." if reason else ""
    article = f"{order.quantity} x {order.article}"
    answer = await ask(f"Order {order.order_id}: {article} for EUR {order.total:.2f}.{why} Approve?", Approval)
    if not answer.accepted:
        return False, f"the question was answered with {answer.action!r}"
    return bool(answer.content["approve"]), answer.content.get("note")
