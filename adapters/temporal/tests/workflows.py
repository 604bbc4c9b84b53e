"""Workflows that the tests of the Temporal adapter run on real workers; some run in the sandbox, too."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from mcp_workflows_temporal_worker import elicit, progress
from pydantic import BaseModel
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ApplicationError

APPROVAL = {
    "type": "object",
    "properties": {"size": {"type": "string", "enum": ["S", "M"]}, "count": {"type": "integer", "minimum": 1}},
    "required": ["size"],
}
ONCE = RetryPolicy(maximum_attempts=1)


class Note(BaseModel):
    text: str
    tone: Literal["kind", "firm"] = "kind"


@dataclass
class Order:
    sku: str
    count: int = 1


@workflow.defn
class Typed:
    """Works only if its arguments come as what their hints say."""

    @workflow.run
    async def run(self, orders: list[Order], note: Note | None = None, limit: int = 3) -> dict[str, Any]:
        return {"count": sum(order.count for order in orders), "note": note and note.text, "limit": limit}


class GoesOn:
    """Waits for the signal `go`."""

    def __init__(self) -> None:
        self.going = False

    @workflow.signal
    def go(self) -> None:
        self.going = True


@activity.defn
async def charge(card: str) -> str:
    if card == "declined":
        raise ApplicationError("the card was declined", type="CardDeclined", non_retryable=True)
    if card == "protocol":
        raise ApplicationError("no such card", -32602, {"field": "card"}, type="McpError", non_retryable=True)
    return f"charged {card}"


@activity.defn
async def never_ends() -> None:
    await asyncio.Event().wait()


@workflow.defn
class Echo:
    @workflow.run
    async def run(self, value: Any = None) -> Any:  # Any: any JSON value
        return value


@workflow.defn
class Ask:
    """One question, with progress around it."""

    @workflow.run
    async def run(self, who: str) -> dict[str, Any]:
        await progress(f"asking {who}", 1, 2)
        answer = await elicit(f"Which size, {who}?", APPROVAL)
        await progress("asked", 2, 2)
        return {"action": answer.action, "content": answer.content, "accepted": answer.accepted}


@workflow.defn
class AskTwice:
    """Two questions at the same time, from classes."""

    @workflow.run
    async def run(self) -> list[Any]:
        answers = await asyncio.gather(elicit("first", Note), elicit("second", Order))
        return [answer.content for answer in answers]


@workflow.defn
class Approve:
    """So many questions at once, answered with `{"answer": ...}`."""

    @workflow.run
    async def run(self, questions: int) -> list[Any]:
        schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
        answers = await asyncio.gather(*(elicit(f"Approve {number}?", schema) for number in range(questions)))
        return [answer.content for answer in answers]


@workflow.defn
class AskBadly:
    @workflow.run
    async def run(self) -> None:
        await elicit("?", {"type": "object", "properties": {"nested": {"type": "object"}}})


@workflow.defn
class AskThenContinue(GoesOn):
    """Leaves a question in the memo and continues as new; the next run waits for `go`."""

    @workflow.run
    async def run(self, again: bool = True, keep_memo: bool = False) -> str:
        if again:
            self.question = asyncio.create_task(elicit("left behind", APPROVAL))
            await workflow.wait_condition(lambda: self.going)
            workflow.continue_as_new(args=[False], memo=workflow.memo() if keep_memo else None)
        await workflow.wait_condition(lambda: self.going)
        return "the end"


@workflow.defn
class AskThenFail(GoesOn):
    """Fails its first attempt with a question open; the second waits for `go`."""

    @workflow.run
    async def run(self) -> str:
        if workflow.info().attempt > 1:
            await workflow.wait_condition(lambda: self.going)
            return "second attempt"
        self.question = asyncio.create_task(elicit("left behind", APPROVAL))
        await workflow.wait_condition(lambda: self.going)
        raise ApplicationError("first attempt")


@workflow.defn
class CancelTheQuestion:
    """Takes its question back and goes on."""

    @workflow.run
    async def run(self) -> str:
        question = asyncio.create_task(elicit("never mind", APPROVAL))
        await workflow.sleep(1)
        question.cancel()
        await asyncio.gather(question, return_exceptions=True)
        await workflow.wait_condition(lambda: False)
        return "unreachable"


@workflow.defn
class Waits(GoesOn):
    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: self.going)
        return "gone"


@workflow.defn
class Stubborn(GoesOn):
    """Does not obey a cancel until it is told `go`."""

    @workflow.run
    async def run(self) -> str:
        while not self.going:
            try:
                await workflow.wait_condition(lambda: self.going)
            except asyncio.CancelledError:
                continue
        return "did it anyway"


@workflow.defn
class Charges:
    @workflow.run
    async def run(self, card: str, words: str | None = None) -> str:
        try:
            return await workflow.execute_activity(
                charge, card, start_to_close_timeout=timedelta(seconds=5), retry_policy=ONCE
            )
        except Exception as error:
            if words is None:
                raise
            raise ApplicationError(words, type="Wrapped") from error


@workflow.defn
class Parent:
    @workflow.run
    async def run(self) -> str:
        return await workflow.execute_child_workflow(Charges.run, args=["declined"])


@workflow.defn
class SlowStep:
    @workflow.run
    async def run(self, child: bool = False) -> None:
        if child:
            await workflow.execute_child_workflow(Waits.run, run_timeout=timedelta(seconds=1))
        await workflow.execute_activity(never_ends, start_to_close_timeout=timedelta(seconds=1), retry_policy=ONCE)


@workflow.defn
class Fails:
    """Raises an ApplicationError of this text, type and details."""

    @workflow.run
    async def run(self, text: str, kind: str | None = None, details: list[Any] | None = None) -> None:
        try:
            raise KeyError("an inner secret")
        except KeyError as error:
            raise ApplicationError(text, *(details or []), type=kind, non_retryable=True) from error


@workflow.defn
class TimesOut:
    """Continues as new into a run that is too short for it: how one workflow limits itself."""

    @workflow.run
    async def run(self, short: bool = False) -> None:
        if not short:
            workflow.continue_as_new(True, run_timeout=timedelta(seconds=1))
        await workflow.wait_condition(lambda: False)


@workflow.defn
class ForeignMemo(GoesOn):
    """Writes payloads that nobody here can read, into the memo and as its result."""

    @workflow.run
    async def run(self) -> RawValue:
        foreign = RawValue(Payload(metadata={"encoding": b"binary/foreign"}, data=b"?"))
        workflow.upsert_memo({"mcp.status": foreign, "mcp.input": foreign, "other": foreign})
        await workflow.wait_condition(lambda: self.going)
        return foreign


@workflow.defn
class Basket:
    """Takes messages until it is closed; knows nothing of MCP."""

    def __init__(self) -> None:
        self.items: list[str] = []
        self.is_open = True
        self.is_renewed = False

    @workflow.run
    async def run(self, first: str | None = None) -> list[str]:
        self.items += [first] if first else []
        await workflow.wait_condition(lambda: not self.is_open and workflow.all_handlers_finished())
        if self.is_renewed:
            workflow.continue_as_new()
        return self.items

    @workflow.update
    async def add(self, item: str) -> int:
        if item == "slow":
            await workflow.execute_activity(charge, "ok", start_to_close_timeout=timedelta(seconds=30))
        if item == "gone":
            raise ApplicationError("it is sold out", {"left": 0}, type="SoldOut")
        self.items.append(item)
        return len(self.items)

    @add.validator
    def is_known(self, item: str) -> None:
        if item == "nonsense":
            raise ApplicationError("there is no such item")

    @workflow.signal
    def put(self, item: str) -> None:
        self.items.append(item)

    @workflow.signal
    def close(self) -> None:
        self.is_open = False

    @workflow.signal
    def renew(self) -> None:
        """Go on in a new run, with no items."""
        self.is_open, self.is_renewed = False, True

    @workflow.query
    def state(self) -> dict[str, Any]:
        return {"items": self.items, "done": len(self.items), "total": 4}

    @workflow.query
    def received(self) -> list[str]:
        return self.items

    @workflow.query
    def broken(self) -> None:
        raise ApplicationError("an inner reason")


@workflow.defn
class Sells:
    """Waits for a basket of its own."""

    @workflow.run
    async def run(self) -> list[str]:
        return await workflow.execute_child_workflow(Basket.run, "first", id=f"{workflow.info().workflow_id}-basket")


WORKFLOWS = [
    Basket,
    Sells,
    ForeignMemo,
    Echo,
    Ask,
    AskTwice,
    Approve,
    AskBadly,
    AskThenContinue,
    AskThenFail,
    CancelTheQuestion,
    Waits,
    Stubborn,
    Charges,
    Parent,
    SlowStep,
    Fails,
    TimesOut,
    Typed,
]
ACTIVITIES = [charge, never_ends]


@workflow.defn
class StopsBySignal:
    """Waits until it is told to stop."""

    def __init__(self) -> None:
        self._reason: str | None = None

    @workflow.signal
    def stop(self, reason: str) -> None:
        self._reason = reason

    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: self._reason is not None)
        return f"stopped {self._reason}"
