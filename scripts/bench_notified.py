"""How soon the end of a workflow is told: `python -m scripts.bench_notified PORT TEMPORAL_ADDRESS`; prints JSON.

One process has both clocks: a listener of our notifications, and a direct `result()` for each of the same workflows.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import Mapping

from temporalio.client import Client

from scripts.bench_rounds import quantile
from scripts.bench_wire import Wire

COUNT = 150  # watched executions
ENDS = (12.0, 32.0)  # seconds after its start in which a workflow ends
PATIENCE = 60.0  # seconds


def _listen(port: int, ids: list[str], told: dict[str, float]) -> None:
    """Note when the end of each was told."""
    for frame in Wire(port).listen(ids):
        seen: Mapping[str, str] = frame.get("params", {})
        if seen.get("status") == "completed":
            told[seen["taskId"]] = time.monotonic()
        if len(told) == len(ids):
            return


async def measure(port: int, address: str) -> Mapping[str, float]:
    """The differences, in seconds."""
    wire, client = Wire(port), await Client.connect(address)
    ids = [wire.call("slow", {"seconds": random.uniform(*ENDS)})["taskId"] for _ in range(COUNT)]
    names = {task_id: wire.get(task_id)["_meta"]["mcp-workflows/executionId"] for task_id in ids}
    told: dict[str, float] = {}
    known: dict[str, float] = {}

    async def wait(task_id: str) -> None:
        await client.get_workflow_handle(names[task_id]).result()
        known[task_id] = time.monotonic()

    listener = threading.Thread(target=_listen, args=(port, ids, told), daemon=True)
    listener.start()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(wait(task_id) for task_id in ids))
    await asyncio.to_thread(listener.join, 10)
    lags = [told[task_id] - known[task_id] for task_id in ids if task_id in told]
    return {
        "count": COUNT,
        "missed": COUNT - len(lags),
        "p50": quantile(lags, 0.5),
        "p99": quantile(lags, 0.99),
        "max": max(lags),
    }


def main() -> None:
    """Measure; leave without the interpreter's farewell, which can hang with open requests of temporalio."""
    print(json.dumps(asyncio.run(measure(int(sys.argv[1]), sys.argv[2]))), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
