"""`make bench`: what a look at a task costs, beside the least one could write (`scripts/bench_reference.py`).

Both answer the same request over HTTP, in processes of their own; rounds alternate, so that a busy machine hurts
both. Take the ratios with you, not the milliseconds.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from scripts.processes import Child, ChildDiedError, Command, free_port, stop_all
from scripts.stack import ROOT, Plan, Stack, UnusableError

VERSION = "2026-07-28"
ROUNDS = 7
LOOKS = 150  # per round
POLLERS = 50
POLLED_FOR = 5.0  # seconds

console = Console(width=100, highlight=False)


class Wire:
    """One kept-alive connection to a server that speaks MCP."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def send(self, method: str, header: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """One request, `header` being its Mcp-Name, and its result."""
        meta: Mapping[str, Any] = {
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "0"},
            "io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}},
        }
        body: Mapping[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        headers |= {"mcp-protocol-version": VERSION, "mcp-method": method, "mcp-name": header}
        self._connection.request("POST", "/mcp", json.dumps(body), headers)
        text = self._connection.getresponse().read().decode()
        answer = json.loads(next((line[5:] for line in text.splitlines() if line.startswith("data:")), text))
        if "result" not in answer:
            raise UnusableError(f"{method} {header}: {answer.get('error')}")
        result: Mapping[str, Any] = answer["result"]
        return result

    def start(self, seconds: float) -> str:
        """Start a workflow that takes so long; the id of its task."""
        call = {"name": "slow_compute", "arguments": {"seconds": seconds}}
        task_id: str = self.send("tools/call", "slow_compute", call)["taskId"]
        return task_id

    def get(self, task_id: str) -> Mapping[str, Any]:
        """`tasks/get`."""
        return self.send("tasks/get", task_id, {"taskId": task_id})


def main() -> int:
    """Exit code 0 if everything could be measured."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--engine", default="temporal")
    engine = parser.parse_args().engine
    with tempfile.TemporaryDirectory() as folder:
        try:
            plan = Plan(engine=engine, sample="conformance", port=free_port(), state=Path(folder))
            with Stack(plan) as stack:
                _measure(stack, plan)
        except (UnusableError, ChildDiedError) as problem:
            console.print(f"make bench: {problem}", markup=False)
            return 1
    return 0


def _measure(stack: Stack, plan: Plan) -> None:
    port = free_port()
    command = Command(
        name="reference",
        argv=[sys.executable, "-m", "scripts.bench_reference", str(port)],
        cwd=ROOT,
        env=stack.engine.environment(),
    )
    reference = Child(command, plan.state / "reference.log")
    try:
        _wait_for(port, reference)
        _compare(Wire(plan.port), Wire(port))
        _count(stack, plan.port)
    finally:
        stop_all([reference])


def _wait_for(port: int, child: Child) -> None:
    while True:
        child.check()
        try:
            http.client.HTTPConnection("127.0.0.1", port, timeout=10).connect()
        except OSError:
            time.sleep(0.05)
        else:
            return


def _compare(ours: Wire, naive: Wire) -> None:
    """One client, one request at a time."""
    running, ended = ours.start(3600), ours.start(0)
    while ours.get(ended)["status"] != "completed":
        time.sleep(0.05)
    table = Table("tasks/get, one client", "sidecar, median", "reference, median", "ratio", title="p50 in ms")
    for name, task_id in (("of a running task", running), ("of an ended task", ended)):
        workflow_id: str = ours.get(task_id)["_meta"]["mcp-workflows/executionId"]
        pairs = [_round(ours, task_id, naive, workflow_id) for _ in range(ROUNDS)]
        ratios = [a / b for a, b in pairs]
        ours_ms, naive_ms = (statistics.median(column) * 1000 for column in zip(*pairs, strict=True))
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        table.add_row(name, f"{ours_ms:.2f}", f"{naive_ms:.2f}", spread)
    console.print(table)
    console.print("The sidecar answers from its last look while that is fresh (1 s at most) and keeps what has ended;")
    console.print("the reference asks the engine every time, and does not fetch the result of what has ended.\n")


def _round(ours: Wire, task_id: str, naive: Wire, workflow_id: str) -> tuple[float, float]:
    """The median seconds of both, look by look in turn."""
    pairs = [(_seconds(ours.get, task_id), _seconds(naive.get, workflow_id)) for _ in range(LOOKS)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def _seconds(get: Callable[[str], object], task_id: str) -> float:
    began = time.perf_counter()
    get(task_id)
    return time.perf_counter() - began


def _count(stack: Stack, port: int) -> None:
    """How often the engine is asked while many poll one task as fast as they can."""
    task_id = Wire(port).start(3600)
    before = _settled(stack.engine.looks)
    stop_at = time.monotonic() + POLLED_FOR
    looks: list[int] = []
    threads = [threading.Thread(target=_poll, args=(Wire(port), task_id, stop_at, looks)) for _ in range(POLLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asked = _settled(stack.engine.looks) - before
    console.print(f"{POLLERS} clients polled one running task for {POLLED_FOR:g} s: {sum(looks)} answers,")
    console.print(f"{asked} calls of the engine; the reference makes one for each answer")


def _settled(count: Callable[[], int]) -> int:
    """A count once it has stopped changing: servers publish theirs every second or so."""
    seen = -1
    while seen != (now := count()):
        seen = now
        time.sleep(2.5)
    return seen


def _poll(wire: Wire, task_id: str, stop_at: float, looks: list[int]) -> None:
    count = 0
    while time.monotonic() < stop_at:
        wire.get(task_id)
        count += 1
    looks.append(count)


if __name__ == "__main__":
    sys.exit(main())
