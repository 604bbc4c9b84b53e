"""10,000 executions of Google Cloud Workflows with a listener each, in one process; prints JSON.

`python -m scripts.bench_google_load PORT FOLDER`; PORT is that of the stub. What is measured is the official client and
all that lies above it, but for HTTP towards clients. It begins as after a restart: all executions are known from the
store.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import psutil
from mcp_workflows_google import GoogleAdapter, GoogleSettings

from mcp_workflows.adapter import JSON
from mcp_workflows.task import Task
from scripts.bench_rounds import lags, pin, spread
from scripts.bench_stepfunctions_load import Listeners, Size, known, service

SHARE: Final = 0.5  # of Google's default quotas
WHOLE: Final = Size()
_MINUTE: Final = 60.0
_QUOTAS: Mapping[str, float] = {"GetExecution": 6000, "ListExecutions": 1200}  # per minute


class Control:
    """What who measures tells the stub at this port, and hears of it."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self._channel: Any = grpc.insecure_channel(self.address, options=[("grpc.max_receive_message_length", -1)])

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    def tell(self, **orders: JSON) -> Sequence[str]:
        """What its executions do now; the names of all."""
        found: Sequence[str] = self._ask("Tell", orders)
        return found

    def report(self) -> Mapping[str, Any]:
        """The calls since it was told to forget (API, when), and how old what was told of each that runs is (s)."""
        found: Mapping[str, Any] = self._ask("Report", None)
        return found

    def answers(self) -> bool:
        """Whether it listens."""
        try:
            self.report()
        except grpc.RpcError:
            return False
        return True

    def _ask(self, method: str, orders: JSON) -> Any:
        call = self._channel.unary_unary(f"/bench.Control/{method}")
        return json.loads(call(json.dumps(orders).encode(), timeout=10))


def adapter(control: Control) -> GoogleAdapter:
    """The adapter in front of the stub, with as much of Google's quotas as is shipped."""
    given = {"location": "us-central1", "emulator": control.address, "quota": {"share": SHARE}}
    return GoogleAdapter(GoogleSettings.model_validate(given))


async def followed(control: Control, folder: Path, *, size: Size = WHOLE) -> Mapping[str, JSON]:
    """A listener each; some executions end."""
    tasks = [known(name, name.rpartition("/")[2]) for name in control.tell(seed=size.tasks, forget=True)]
    async with service(folder, adapter(control), tasks) as there:
        listeners, empty = Listeners(there), _memory()
        following = [asyncio.create_task(listeners.follow(task)) for task in tasks]
        await asyncio.sleep(size.settling)
        memory = (_memory() - empty) / size.tasks
        with lags() as late:
            since, cpu = time.monotonic(), time.process_time()
            settled = len((await asyncio.to_thread(control.report))["calls"])
            ended = await _end(control, random.sample(tasks, size.ending), size)
            await asyncio.sleep(since + size.measured - time.monotonic())
            cpu = time.process_time() - cpu
        report = await asyncio.to_thread(control.report)
        for listener in following:
            listener.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    return {
        "tasks": size.tasks,
        "seconds": size.measured,
        "apis": _apis(report["calls"], settled, size.measured),
        "age": spread(report["ages"]),
        "end": spread([at - ended[name] for name, at in listeners.ends.items()]),
        "ends": size.ending,
        "ends_untold": size.ending - len(listeners.ends),
        "poll_interval_ms": listeners.poll_interval,
        "cores": cpu / size.measured,
        "lag": spread(late),
        "memory": memory,  # bytes of each
    }


def _memory() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


async def _end(control: Control, tasks: Sequence[Task], size: Size) -> Mapping[str, float]:
    """These end, evenly over the first half; when each did."""
    times: dict[str, float] = {}
    for task in tasks:
        await asyncio.sleep(size.measured / 2 / len(tasks))
        times[task.id] = time.monotonic()
        await asyncio.to_thread(control.tell, end=[task.handle])
    return times


def _apis(calls: Sequence[tuple[str, float]], settled: int, seconds: float) -> Mapping[str, JSON]:
    """By API: calls per minute once it had settled, those of the busiest minute, and our share of the quota."""
    return {
        api: {
            "per_minute": sum(name == api for name, _ in calls[settled:]) / seconds * _MINUTE,
            "busiest": _busiest([at for name, at in calls if name == api]),
            "quota": quota * SHARE,
        }
        for api, quota in _QUOTAS.items()
    }


def _busiest(times: Sequence[float]) -> int:
    """Most within any minute."""
    first, most = 0, 0
    for last, at in enumerate(times):
        while at - times[first] >= _MINUTE:
            first += 1
        most = max(most, last - first + 1)
    return most


def main() -> None:
    """Measure, on core 0."""
    port, folder = sys.argv[1:]
    pin(0)
    print(json.dumps(asyncio.run(followed(Control(int(port)), Path(folder)))))


if __name__ == "__main__":
    main()
