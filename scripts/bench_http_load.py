"""1,000 runs of GitHub Actions with a listener each, in one process; prints JSON.

`python -m scripts.bench_http_load PORT FOLDER`; PORT is that of the stub. What is measured is all that lies above
HTTP towards GitHub, but for HTTP towards clients. It begins as after a restart: all runs are known from the store.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx2
from mcp_workflows_http import HttpAdapter, HttpSettings

from mcp_workflows.access import ANONYMOUS
from mcp_workflows.adapter import JSON
from mcp_workflows.task import Task
from mcp_workflows.tasks.service import TaskService
from mcp_workflows.wire.commands import Get
from scripts.bench_rounds import lags, pin, spread
from scripts.bench_stepfunctions_load import Listeners, Size, known, service

WHOLE: Final = Size(tasks=1000, settling=120.0, measured=480.0, ending=40, asking=10)
WORKFLOW: Final = "deploy.yml"
VARS: Final = {"owner": "acme", "repo": "shop"}
_AGE: Final = re.compile(r"as of (\d+) s ago")
_GETS: Final = 100  # tasks that are asked for at the end


class Control:
    """The stub at this port."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def tell(self, **orders: JSON) -> Sequence[str]:
        """Say what its runs do now; return the ids of all."""
        found: Sequence[str] = httpx2.post(f"{self.url}/bench/tell", json=orders).json()
        return found

    def report(self) -> Mapping[str, Any]:
        """Return the calls since it was told to forget (kind, when), those refused, and how old what was told is."""
        found: Mapping[str, Any] = httpx2.get(f"{self.url}/bench/report").json()
        return found

    def answers(self) -> bool:
        """Return True if it listens."""
        try:
            self.report()
        except httpx2.TransportError:
            return False
        return True


def settings(url: str, **more: Any) -> HttpSettings:
    """The preset as it is shipped, in front of the stub."""
    written = {"preset": "github-actions", "url": url, "vars": VARS, "auth": {"bearer": "t"}}
    return HttpSettings.model_validate({**written, **more})


def handle_of(run: str) -> str:
    """Return the handle of a run."""
    parts = {"run": run, "workflow": WORKFLOW, "at": 0.0, "vars": VARS, "definition": "", "reply": None}
    return json.dumps({"v": 1, **parts})


def _task(run: str) -> Task:
    return replace(known(handle_of(run), f"run-{run}"), workflow=WORKFLOW)


async def followed(control: Control, folder: Path, *, size: Size = WHOLE) -> Mapping[str, JSON]:
    """A listener each; some runs end, some ask."""
    runs = control.tell(seed=size.tasks, forget=True)
    tasks = {run: _task(run) for run in runs}
    async with HttpAdapter(settings(control.url)) as there, service(folder, there, list(tasks.values())) as tended:
        listeners = Listeners(tended)
        following = [asyncio.create_task(listeners.follow(task)) for task in tasks.values()]
        await asyncio.sleep(size.settling)
        with lags() as late:
            since, cpu = time.monotonic(), time.process_time()
            chosen = random.sample(runs, size.ending + size.asking)
            changed = await _happen(control, chosen, size)
            await asyncio.sleep(max(0.0, since + size.measured - time.monotonic()))
            cpu, took = time.process_time() - cpu, time.monotonic() - since
        report = await asyncio.to_thread(control.report)
        told = [await _age(tended, tasks[run]) for run in random.sample(sorted(set(runs) - set(chosen)), _GETS)]
        for listener in following:
            listener.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    calls = report["calls"]
    ends, asks = chosen[: size.ending], chosen[size.ending :]
    return {
        "tasks": size.tasks,
        "seconds": took,
        "whole": size.settling + took,
        "calls": len(calls),
        "an_hour": _an_hour([at for _, at in calls], size.settling + took),
        "by_kind": Counter(kind for kind, _ in calls),
        "busiest_minute": _busiest([at for _, at in calls]),
        "refused": report["refused"],
        "end": spread(_delays(changed, listeners.ends, ends)),
        "ends_untold": sum(f"run-{run}" not in listeners.ends for run in ends),
        "ends": len(ends),
        "question": spread(_delays(changed, listeners.questions, asks)),
        "questions_untold": sum(f"run-{run}" not in listeners.questions for run in asks),
        "questions": len(asks),
        "age": spread(told),
        "listed": spread(report["told"]),
        "poll_interval_ms": listeners.poll_interval,
        "cores": cpu / took,
        "lag": spread(late),
    }


def _delays(changed: Mapping[str, float], seen: Mapping[str, float], runs: Sequence[str]) -> Sequence[float]:
    return [seen[f"run-{run}"] - changed[run] for run in runs if f"run-{run}" in seen]


def _an_hour(times: Sequence[float], seconds: float) -> float:
    """Calls of the hour that begins as this did: those there were, and then as many as in the last quarter of it."""
    late = sum(at > times[-1] - seconds / 4 for at in times)
    return len(times) + late * (3600 - seconds) / (seconds / 4)


async def _age(there: TaskService, task: Task) -> float:
    """How old its state is, as a client that polls is told; 0: nothing is told below ten seconds."""
    found = await there.get(Get(task_id=task.id), ANONYMOUS)
    told = _AGE.search(found.task.message or "")
    return float(told[1]) if told else 0.0


async def _happen(control: Control, runs: Sequence[str], size: Size) -> Mapping[str, float]:
    """These end, and the last of them ask, evenly over the first half; when each did."""
    times: dict[str, float] = {}
    for run in random.sample(runs, len(runs)):
        await asyncio.sleep(size.measured / 2 / len(runs))
        times[run] = time.monotonic()
        await asyncio.to_thread(control.tell, **{"ask" if run in runs[size.ending :] else "end": [run]})
    return times


def _busiest(times: Sequence[float]) -> int:
    """Most within any minute."""
    first, most = 0, 0
    for last, at in enumerate(times):
        while at - times[first] >= 60:
            first += 1
        most = max(most, last - first + 1)
    return most


def main() -> None:
    """Measure, on core 0."""
    port, folder, *seconds = sys.argv[1:]
    pin(0)
    size = replace(WHOLE, measured=float(seconds[0])) if seconds else WHOLE
    print(json.dumps(asyncio.run(followed(Control(int(port)), Path(folder), size=size))))


if __name__ == "__main__":
    main()
