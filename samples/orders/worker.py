"""The worker: the process that runs the order workflows. An ordinary Temporal worker, it knows nothing of MCP."""

from __future__ import annotations

import asyncio
import os
import signal

from activities import STEPS
from shop import Shop
from temporalio.client import Client
from temporalio.worker import Worker
from workflows import FulfilOrder, QuoteOrder


async def main() -> None:
    """Work until SIGTERM or SIGINT."""
    client = await Client.connect(os.environ.get("TEMPORAL_ADDRESS", "localhost:7233"))
    shop = Shop.from_environment()
    activities = [getattr(shop, step.__name__) for step in STEPS]
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with Worker(client, task_queue="orders", workflows=[FulfilOrder, QuoteOrder], activities=activities):
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(main())
