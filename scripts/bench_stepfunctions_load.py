"""10,000 executions of AWS Step Functions with a listener each, in one process; prints JSON.

`python -m scripts.bench_stepfunctions_load followed PORT FOLDER [hints]`, or `concurrent PORT` for the event loop's lag
while 50 executions are looked at at once. PORT is that of the stub. What is measured is all that lies above boto3 and
boto3 itself, but for HTTP towards clients. It begins as after a restart: all executions are known from the store.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from mcp_workflows_stepfunctions import StepFunctionsAdapter, StepFunctionsSettings

from mcp_workflows.access import ANONYMOUS
from mcp_workflows.adapter import JSON, Adapter, Execution, Ref, Status
from mcp_workflows.engines.registry import Engines
from mcp_workflows.store.protocol import Store, open_store
from mcp_workflows.task import Task
from mcp_workflows.tasks.executions import Executions
from mcp_workflows.tasks.service import TaskService
from mcp_workflows.tools.tool import Tool
from mcp_workflows.units import utc_now
from mcp_workflows.wire.commands import TaskView
from scripts.bench_rounds import lags, pin, spread
from scripts.bench_stepfunctions_account import ACCOUNT, PARKED, REGION, STEP
from scripts.bench_stepfunctions_control import Control, Report, overdrawn, use_any_credentials

SHARE = 0.5  # of AWS's default quotas
LATENCY = 0.02  # seconds to AWS and back
CONCURRENT = 50  # looks at once
LOOKING = 5.0  # seconds
RETENTION = timedelta(days=1)
ENGINE = "engine"
_QUOTAS: Mapping[str, tuple[float, float]] = {  # us-east-1: bucket, refill per second
    "DescribeExecution": (300, 15),
    "GetExecutionHistory": (400, 20),
    "ListExecutions": (200, 5),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many, and for how long (seconds)."""

    tasks: int = 10_000
    settling: float = 15.0
    measured: float = 45.0
    ending: int = 100  # tasks that end meanwhile
    asking: int = 20  # tasks that ask meanwhile


WHOLE: Final = Size()


def adapter(control: Control, *, hints: bool = False, quota: bool = True) -> StepFunctionsAdapter:
    """The adapter in front of the stub, with as much of AWS's quotas as is shipped."""
    given = {
        "region": REGION,
        "account": ACCOUNT,
        "endpoint_url": control.url,
        "quota": {"share": SHARE} if quota else None,
        "events": {"queue_url": control.queue_url} if hints else None,
    }
    return StepFunctionsAdapter(StepFunctionsSettings.model_validate(given))


@asynccontextmanager
async def service(folder: Path, there: Adapter, tasks: Sequence[Task]) -> AsyncGenerator[TaskService]:
    """All above the engine and below HTTP, with these tasks in its store."""
    tool = Tool(name="order", engine=ENGINE, workflow=PARKED)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(f"sqlite:///{folder}/load-{os.getpid()}.db"))
        await _fill(store, tasks)
        engines = await stack.enter_async_context(Engines({ENGINE: there}))
        executions = await stack.enter_async_context(Executions(store=store, engines=engines, retention=RETENTION))
        yield TaskService(tools={tool.name: tool}, executions=executions, retention=RETENTION)


async def _fill(store: Store, tasks: Sequence[Task]) -> None:
    for task in tasks:
        await store.create(task)


def known(handle: str, name: str) -> Task:
    """A task as it is in the store while its execution runs."""
    now = utc_now()
    return Task(
        id=name,
        owner=ANONYMOUS.id,
        tool="order",
        engine=ENGINE,
        workflow=PARKED,
        key=name,
        input=None,
        created=now - timedelta(minutes=10),
        updated=now - timedelta(minutes=9),
        expires=None,
        max_result=100_000,
        fingerprint="-",
        attempts=1,
        handle=handle,
        execution=Execution(status=Status.RUNNING, message=STEP, execution_id=handle),
    )


class Listeners:
    """One for each task; what they are told of an end or a question is noted with its time."""

    def __init__(self, there: TaskService) -> None:
        self._there = there
        self.ends: dict[str, float] = {}
        self.questions: dict[str, float] = {}
        self.poll_interval = 0  # the longest that was told, in ms
        self.notifications = 0

    async def follow(self, task: Task) -> None:
        """Until it ends."""

        async def told(view: TaskView) -> None:
            self.notifications += 1
            self.poll_interval = max(self.poll_interval, view.poll_interval_ms)
            if view.status is Status.SUCCEEDED:
                self.ends[task.id] = time.monotonic()
            elif view.status is Status.INPUT_REQUIRED:
                self.questions.setdefault(task.id, time.monotonic())

        await self._there.follow(task, told, ANONYMOUS)


async def followed(control: Control, folder: Path, *, hints: bool, size: Size = WHOLE) -> Mapping[str, JSON]:
    """A listener each; some executions end, some ask."""
    control.tell(latency=LATENCY)
    seeded = control.seed(PARKED, (f"order-{n}" for n in range(size.tasks)))
    tasks = [known(arn, arn.rpartition(":")[2]) for arn in seeded]
    control.tell(forget=True)
    async with service(folder, adapter(control, hints=hints), tasks) as there:
        listeners = Listeners(there)
        following = [asyncio.create_task(listeners.follow(task)) for task in tasks]
        with lags() as beginning:
            await asyncio.sleep(size.settling)
        with lags() as late:
            settled = len(await asyncio.to_thread(lambda: control.report().calls))
            since, cpu = time.monotonic(), time.process_time()
            ended, asked = await _happen(control, random.sample(tasks, size.ending + size.asking), size)
            await asyncio.sleep(since + size.measured - time.monotonic())
            cpu = time.process_time() - cpu
        report = await asyncio.to_thread(control.report)
        for listener in following:
            listener.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    return {
        "tasks": size.tasks,
        "seconds": size.measured,
        "apis": _apis(report, settled, size.measured),
        "age": spread([age for at, age in report.ages if at >= since]),
        "end": spread([at - ended[name] for name, at in listeners.ends.items()]),
        "ends": size.ending,
        "ends_untold": size.ending - len(listeners.ends),
        "question": spread([at - asked[name] for name, at in listeners.questions.items()]),
        "questions": size.asking,
        "questions_untold": size.asking - len(listeners.questions),
        "poll_interval_ms": listeners.poll_interval,
        "cores": cpu / size.measured,
        "lag": spread(late),
        "lag_at_first": spread(beginning),
    }


async def _happen(
    control: Control, tasks: Sequence[Task], size: Size
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """These end or ask, evenly over the first half; when each did."""
    times: tuple[dict[str, float], dict[str, float]] = ({}, {})
    asking = set(random.sample(range(len(tasks)), size.asking))
    for number, task in enumerate(tasks):
        await asyncio.sleep(size.measured / 2 / len(tasks))
        times[number in asking][task.id] = time.monotonic()
        await asyncio.to_thread(control.tell, **{"ask" if number in asking else "end": task.handle})
    return times


def _apis(report: Report, settled: int, seconds: float) -> Mapping[str, JSON]:
    """By API: calls per second once it had settled, the busiest second, what our share of the quota would refuse."""
    found: dict[str, JSON] = {}
    for api, (bucket, refill) in _QUOTAS.items():
        late = sum(name == api for name, _ in report.calls[settled:])
        found[api] = {
            "calls": report.counts().get(api, 0),
            "per_second": late / seconds,
            "busiest": report.busiest(api),
            "bucket": bucket * SHARE,
            "refill": refill * SHARE,
            "refused": overdrawn(report.times(api), bucket * SHARE, refill * SHARE),
        }
    return found


async def concurrent(control: Control) -> Mapping[str, JSON]:
    """The event loop's lag while it waits for 50 looks at once, each far away."""
    control.tell(latency=LATENCY)
    arns = control.seed(PARKED, (f"look-{n}" for n in range(CONCURRENT)))
    async with adapter(control, quota=False) as there:
        looks: list[float] = []

        async def look(arn: str) -> None:
            while time.monotonic() < until:
                began = time.monotonic()
                await there.describe(Ref(workflow=PARKED, handle=arn))
                looks.append(time.monotonic() - began)

        with lags() as idle:
            await asyncio.sleep(1)
        until = time.monotonic() + LOOKING
        with lags() as late:
            await asyncio.gather(*(look(arn) for arn in arns))
    return {
        "looks": len(looks) / LOOKING,
        "look": spread(looks),
        "lag": spread(late),
        "idle": spread(idle),
        "concurrent": CONCURRENT,
    }


def main() -> None:
    """Measure, on core 0."""
    what, port, *more = sys.argv[1:]
    pin(0)
    use_any_credentials()
    control = Control(int(port))
    found = concurrent(control) if what == "concurrent" else followed(control, Path(more[0]), hints="hints" in more)
    print(json.dumps(asyncio.run(found)))


if __name__ == "__main__":
    main()
