"""Workflows as a shop has them, waiting for a person in ways of their own; only the last has something of ours."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from mcp_workflows_temporal_worker import elicit
from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError

SOON = timedelta(seconds=10)


@activity.defn(name="NotifyApprover")
async def notify_approver(order_id: str) -> str:
    return f"somebody was told about {order_id}"


@workflow.defn
class ShipOrder:
    """Notifies an approver, so many times, and waits each time for `approve` or `reject`."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any]] = []

    @workflow.signal
    def approve(self, ok: bool = True, who: Any = None) -> None:
        self.answers.append({"ok": ok, "who": who})

    @workflow.signal
    def reject(self) -> None:
        self.answers.append({"ok": False, "who": None})

    @workflow.signal
    def noise(self) -> None:
        """Something that has nothing to do with the approval."""

    @workflow.run
    async def run(self, order_id: str, rounds: int = 1, late: bool = False) -> list[dict[str, Any]]:
        if late:
            await workflow.wait_condition(lambda: bool(self.answers))
        for number in range(rounds):
            await workflow.execute_activity(notify_approver, order_id, start_to_close_timeout=SOON)
            await workflow.wait_condition(lambda number=number: len(self.answers) > number)  # type: ignore[misc]
        return self.answers


@workflow.defn
class ShipForEver:
    """One approval, then again as a new run, until it is told not to."""

    def __init__(self) -> None:
        self.decision: bool | None = None

    @workflow.signal
    def approve(self, ok: bool) -> None:
        self.decision = ok

    @workflow.run
    async def run(self, order_id: str) -> str:
        await workflow.execute_activity(notify_approver, order_id, start_to_close_timeout=SOON)
        await workflow.wait_condition(lambda: self.decision is not None)
        if self.decision:
            workflow.continue_as_new(order_id)
        return "enough"


@workflow.defn
class ShipByUpdate:
    """Takes its approval as an update that it may refuse, before or after it accepted it."""

    def __init__(self) -> None:
        self.who: str | None = None

    @workflow.update(unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def approve(self, who: str) -> str:
        if who == "carol":
            raise ApplicationError("carol may not approve", type="NotAllowed")
        if who == "slow":
            await asyncio.sleep(4)
        self.who = who
        if who == "last":
            await asyncio.sleep(4)  # the workflow does not wait for it
        return "thanks"

    @approve.validator
    def check_approve(self, who: str) -> None:
        if not who:
            raise ApplicationError("who approves?", type="Nobody")

    @workflow.run
    async def run(self, order_id: str) -> str | None:
        await workflow.execute_activity(notify_approver, order_id, start_to_close_timeout=SOON)
        await workflow.wait_condition(lambda: self.who is not None)
        await workflow.wait_condition(lambda: self.who == "last" or workflow.all_handlers_finished())
        return self.who


@workflow.defn
class ShipByStatus:
    """Tells by a query that it waits; nothing in its history does."""

    def __init__(self) -> None:
        self.answers: list[bool] = []
        self.waiting = False

    @workflow.query
    def status(self) -> dict[str, Any]:
        return {"state": "awaiting_approval" if self.waiting else "working", "round": len(self.answers)}

    @workflow.query
    def state(self) -> str:
        return "awaiting_approval" if self.waiting else "working"

    @workflow.signal
    def approve(self, ok: bool) -> None:
        self.answers.append(ok)
        self.waiting = False

    @workflow.signal
    def waits(self, yes: bool) -> None:
        """Something else made it stop waiting, a deadline, or wait again."""
        self.waiting = yes

    @workflow.run
    async def run(self, rounds: int = 1, pause: float = 0) -> list[bool]:
        for number in range(rounds):
            if pause:
                await workflow.sleep(pause)
            self.waiting = True
            await workflow.wait_condition(lambda number=number: len(self.answers) > number)  # type: ignore[misc]
        return self.answers


@workflow.defn
class ShipAndAsk:
    """Waits for `approve`, and asks through our library at the same time."""

    def __init__(self) -> None:
        self.who: str | None = None

    @workflow.signal
    def approve(self, ok: bool, who: str) -> None:
        self.who = who

    @workflow.run
    async def run(self, order_id: str) -> dict[str, Any]:
        await workflow.execute_activity(notify_approver, order_id, start_to_close_timeout=SOON)
        answer = await elicit("Which size?", {"type": "object", "properties": {"size": {"type": "string"}}})
        await workflow.wait_condition(lambda: self.who is not None)
        return {"size": answer.content.get("size"), "who": self.who}


@workflow.defn
class AskByHand:
    """Asks without our library, under a key that begins like one of a gate."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] | None = None

    @workflow.update
    def mcp_answer(self, key: str, response: dict[str, Any]) -> None:
        self.answer = response

    @workflow.run
    async def run(self) -> dict[str, Any] | None:
        form = {"mode": "form", "message": "Which size?", "requestedSchema": {"type": "object"}}
        requests = {"approve.size": {"method": "elicitation/create", "params": form}}
        workflow.upsert_memo({"mcp.input": {"run": workflow.info().run_id, "requests": requests}})
        await workflow.wait_condition(lambda: self.answer is not None)
        return self.answer


@workflow.defn
class ShipByVote:
    """Waits for a signal or an update of two arguments, one of which may be left out; nothing checks them before."""

    def __init__(self) -> None:
        self.votes: list[dict[str, Any]] = []

    @workflow.query
    def state(self) -> str:
        return "done" if self.votes else "awaiting_approval"

    @workflow.signal
    def approve(self, ok: bool, who: str, note: str = "") -> None:
        self.votes.append({"ok": ok, "who": who})
        if who == "mallory":
            notify_approver()  # type: ignore[call-arg]  # a mistake of the workflow's own, and not of the signal

    @workflow.update
    def vote(self, ok: bool, who: str) -> None:
        self.votes.append({"ok": ok, "who": who})

    @workflow.run
    async def run(self) -> list[dict[str, Any]]:
        await workflow.wait_condition(lambda: bool(self.votes))
        return self.votes


SHOP = [ShipOrder, ShipForEver, ShipByUpdate, ShipByStatus, ShipAndAsk, AskByHand, ShipByVote]
