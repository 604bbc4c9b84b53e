"""A workflow without MCP code, which docs/use/watching.md watches, and its worker."""

import asyncio
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker


@activity.defn(name="NotifyAccounting")
async def notify_accounting(date: str) -> None:
    """Send a mail."""


@workflow.defn
class NightlyBilling:
    def __init__(self) -> None:
        self.released: bool | None = None

    @workflow.signal
    def release(self, ok: bool) -> None:
        self.released = ok

    @workflow.run
    async def run(self, date: str) -> dict[str, object]:
        await workflow.execute_activity(notify_accounting, date, start_to_close_timeout=timedelta(minutes=1))
        await workflow.wait_condition(lambda: self.released is not None)
        return {"date": date, "released": self.released}


async def main() -> None:
    client = await Client.connect("localhost:7233")
    await Worker(client, task_queue="billing", workflows=[NightlyBilling], activities=[notify_accounting]).run()


if __name__ == "__main__":
    asyncio.run(main())
