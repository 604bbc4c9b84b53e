"""Workflows that do not get on, in the ways operators know."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from mcp_workflows_temporal_worker import progress
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from adapters.temporal.tests.workflows import GoesOn

AT_ONCE = RetryPolicy(initial_interval=timedelta(milliseconds=10), backoff_coefficient=1)
SOON = timedelta(seconds=30)


@activity.defn(name="ChargeCard")
async def charge_card() -> None:
    try:
        raise TimeoutError("an inner secret")
    except TimeoutError as error:
        raise ApplicationError("the card service gave no answer\nand a second line", type="CardService") from error


@activity.defn(name="Ship")
async def ship() -> None:
    await asyncio.Event().wait()


@workflow.defn
class Order:
    """Charges a card, which fails for ever; says so if it is told to."""

    @workflow.run
    async def run(self, words: str | None = None) -> None:
        if words:
            await progress(words, 1, 3)
        await workflow.execute_activity(charge_card, start_to_close_timeout=SOON, retry_policy=AT_ONCE)


@workflow.defn
class Shipment:
    """A step that runs for ever."""

    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(ship, start_to_close_timeout=timedelta(hours=1))


@workflow.defn
class Elsewhere:
    """A step on a task queue that nobody polls."""

    @workflow.run
    async def run(self, queue: str) -> None:
        await workflow.execute_activity(ship, start_to_close_timeout=SOON, task_queue=queue)


@workflow.defn
class Sleeper:
    """Two timers, one of them taken back."""

    @workflow.run
    async def run(self) -> None:
        short = asyncio.create_task(asyncio.sleep(3600))
        await asyncio.sleep(0.01)
        short.cancel()
        await asyncio.sleep(7200)


@workflow.defn
class Waiter:
    """Waits for a signal that has no handler."""

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)


@workflow.defn
class Guardian:
    """Waits for its child."""

    @workflow.run
    async def run(self) -> None:
        await workflow.execute_child_workflow(Waiter.run)


@workflow.defn
class Broken:
    @workflow.run
    async def run(self) -> None:
        raise KeyError("order_id")


@workflow.defn
class Undecoded:
    """Fails as the SDK for Go does if it cannot read the arguments."""

    @workflow.run
    async def run(self) -> None:
        said = "unable to decode the workflow function input payload with error: payload item 0: unable to decode"
        raise ApplicationError(said, type="wrapError")


@workflow.defn
class Again(GoesOn):
    """So many runs in one chain, then waits for `go`."""

    @workflow.run
    async def run(self, more: int) -> str:
        if more:
            workflow.continue_as_new(more - 1)
        await progress("the last run")
        await workflow.wait_condition(lambda: self.going)
        return "done"


WORKFLOWS: Sequence[type[Any]] = (Order, Shipment, Elsewhere, Sleeper, Waiter, Guardian, Broken, Undecoded, Again)


def troubled_worker(client: Client, queue: str) -> Worker:
    """Return a worker without the sandbox, which would import every module again for every workflow."""
    return Worker(
        client,
        task_queue=queue,
        workflows=WORKFLOWS,
        activities=[charge_card, ship],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
