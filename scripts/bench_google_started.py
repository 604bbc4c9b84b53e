"""Goal (p) of `make bench ENGINE=google`: what a start costs, with and without its reply; what an ended task does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import grpc
from google.cloud.workflows.executions_v1 import ExecutionsClient
from google.cloud.workflows.executions_v1.services.executions.transports import ExecutionsGrpcTransport

from scripts.bench_goals import Line, beside, exactly, seconds
from scripts.bench_google_load import Control
from scripts.bench_google_place import Sidecar, sidecar, stub
from scripts.bench_google_stub import LATENCY, WORKFLOW
from scripts.bench_place import Place
from scripts.bench_rounds import Side, alternate, interval, ratio
from scripts.bench_stepfunctions_load import spread
from scripts.bench_wire import BadReplyError, Wire

STARTS: Final = 5  # of one round
LOOKS: Final = 500  # at an ended task
LOST: Final = 10  # starts whose reply is lost
LAGS: Final = (0.0, 5.0)  # seconds until lists show an execution
PATIENCE: Final = 90.0  # seconds
_TOOLS: Final = {"order": {"workflow": WORKFLOW.rpartition("/")[2]}}
_EXECUTION: Final = "mcp-workflows/executionId"


def started(place: Place) -> Iterator[Line]:
    """(p) Starts, beside the official client's; and the calls that ended tasks take."""
    with (
        stub(place) as control,
        place.fast_folder() as folder,
        sidecar(place, folder / "tasks.db", control.address, _TOOLS) as running,
    ):
        yield from _ended(control, Wire(running.port))
        yield from _created(control, running)
        for lag in LAGS:
            yield from _lost(control, Wire(running.port), lag)


def _ended(control: Control, wire: Wire) -> Iterator[Line]:
    task = wire.call("order", {})["taskId"]
    control.tell(end=control.tell())
    _until(lambda: wire.get(task)["status"] == "completed", "a task does not end")
    control.tell(forget=True)
    for _ in range(LOOKS):
        wire.get(task)
    yield exactly("p", f"calls of Google for {LOOKS} looks at an ended task", len(control.report()["calls"]))


def _created(control: Control, running: Sidecar) -> Iterator[Line]:
    wire = Wire(running.port)
    with grpc.insecure_channel(control.address) as channel:
        client: Any = ExecutionsClient(transport=ExecutionsGrpcTransport(channel=channel))  # Any: typed in part only
        ours = Side(pid=running.pid, do=lambda: wire.call("order", {}))
        bare = Side(pid=os.getpid(), do=lambda: client.create_execution(parent=WORKFLOW, timeout=10))
        us, them = alternate([ours, bare], times=STARTS)
    what = f"tools/call that starts an execution, p50, to a bare CreateExecution's ({LATENCY * 1e3:.0f} ms away)"
    yield beside("p", what, str(ratio(us.wall, them.wall)))
    ms, cpu = [f"{interval(side.wall).median * 1e3:.1f}" for side in (us, them)], interval(us.cpu).median * 1e3
    yield beside("p", "p50; CPU of ours", f"{ms[0]} to {ms[1]} ms; {cpu:.1f} ms")


def _lost(control: Control, wire: Wire, lag: float) -> Iterator[Line]:
    """Those whose CreateExecution is done, and nobody hears of it."""
    control.tell(forget=True, lose=LOST, lag=lag)
    began: dict[str, float] = {}
    for _ in range(LOST):
        at = time.monotonic()
        began[wire.call("order", {})["taskId"]] = at
    adopted: dict[str, float] = {}

    def all_adopted() -> bool:
        for task in began.keys() - adopted.keys():
            if _EXECUTION in _meta(wire.get(task)):
                adopted[task] = time.monotonic() - began[task]
        return len(adopted) == LOST

    _until(all_adopted, "a start whose reply was lost is not found")
    creates = sum(api == "CreateExecution" for api, _ in control.report()["calls"])
    lists = sum(api == "ListExecutions" for api, _ in control.report()["calls"])
    words = f"{LOST} starts whose reply is lost, listed after {lag:g} s"
    yield beside("p", f"{words}: until adopted, p50 / p99 / max", seconds(spread(list(adopted.values()))))
    yield beside("p", f"{words}: ListExecutions", str(lists))
    yield exactly("p", f"{words}: second starts", creates - LOST)


def _meta(seen: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = seen.get("_meta") or {}
    return found


def _until(condition: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise BadReplyError(f"{complaint} within {PATIENCE:g} s")
        time.sleep(0.2)
