"""The tasks of the queue: Huey, on SQLite."""

from __future__ import annotations

import os
from typing import Any

from huey import SqliteHuey

from payments.runs import Run, Runs

FOLDER = os.environ.get("PAYMENTS_FOLDER", ".")
huey: Any = SqliteHuey(filename=f"{FOLDER}/queue.db", timeout=2, results=False)  # Any: huey has no types
runs = Runs(f"{FOLDER}/runs.db")

APPROVAL = {"type": "object", "properties": {"approved": {"type": "boolean"}}, "required": ["approved"]}


@huey.task()
@runs.tracked
def pay(run: Run, invoice: str, amount: int) -> dict[str, Any]:
    """Pay an invoice; a person approves more than 1,000."""
    if amount > 1000:
        answer = run.ask("approve", f"Pay {amount} for invoice {invoice}?", APPROVAL)
        if not (answer and answer["approved"]):
            raise ValueError("the payment was not approved")
    return {"invoice": invoice, "paid": amount}


@huey.task()
@runs.tracked
def refund(run: Run, invoice: str, approvers: list[str] | None = None) -> dict[str, Any]:
    """Pay an invoice back; all of these people approve it, in any order."""
    for name in approvers or []:
        run.put(name, f"{name}: refund invoice {invoice}?", APPROVAL)
    answers = [run.wait_for(name) for name in approvers or []]
    if not answers or not all(answer and answer["approved"] for answer in answers):
        raise ValueError(f"nobody approved a refund of {invoice}")
    return {"invoice": invoice, "refunded": True}


@huey.task()
@runs.tracked
def watch(run: Run, invoice: str) -> None:
    """Wait for a payment that never comes."""
    while True:
        run.pause(60)


TASKS = {"pay": pay, "refund": refund, "watch": watch}
