"""The worker: an ordinary Temporal worker, it knows nothing of MCP."""

from __future__ import annotations

import asyncio
import os
import signal

from temporalio.client import Client
from temporalio.worker import Worker
from workflows import Deploy, Rollout, build, canary, deploy


async def main() -> None:
    """Work until SIGTERM or SIGINT."""
    client = await Client.connect(os.environ.get("TEMPORAL_ADDRESS", "localhost:7233"))
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with Worker(client, task_queue="approvals", workflows=[Deploy, Rollout], activities=[build, canary, deploy]):
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(main())
