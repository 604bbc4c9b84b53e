"""The goals that compare a server of ours with the least one could write, and with FastMCP; and its latencies."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any, Final
from urllib.request import urlopen

import boto3
import grpc
import httpx2
from google.cloud.workflows.executions_v1 import ExecutionsClient
from google.cloud.workflows.executions_v1.services.executions.transports import ExecutionsGrpcTransport
from temporalio.client import Client

from benchmarks.control import ARN, MACHINE, REGION, WORKFLOW_NAME, Control, settings
from benchmarks.load import WORKFLOWS, Mode, adapter, handle_of, load_lines
from benchmarks.place import Place, Served
from benchmarks.report import Line, at_least, at_most, beside, exactly, milliseconds, within
from benchmarks.rounds import ROUNDS, Measured, Side, alternate, ratio, spread
from benchmarks.servers import QUEUE
from benchmarks.wire import BadReplyError, Wire
from mcp_workflows.adapter import Ref
from tests.support.child_processes import Command, free_port
from tests.support.environments import FASTMCP, ROOT, python_of

FASTMCP_SERVER: Final = ROOT / "tests" / "clients" / "programs" / "fastmcp_tasks_server.py"
READS: Final = 200  # of one round
STARTS: Final = 8  # of one round
OTHERS: Final = 2500  # ended tasks: more than the store keeps decoded
CLIENTS: Final = 16  # at once
MANY_CLIENTS: Final = 64
EXECUTIONS: Final = 200  # whose ends are awaited
_RATE_SECONDS: Final = 1.0  # of one round, for rates
_LATENCY_SECONDS: Final = 8.0
_SWITCH: Final = 0.0005  # seconds until another thread of ours gets its turn
_STARTING: Final = 20.0  # seconds that the starts of `EXECUTIONS` may take
_ENDS: Final = (2, 25)  # seconds after `_STARTING` in which they end
_PATIENCE: Final = 30.0  # seconds
_FOREVER: Final[Mapping[str, object]] = {"seconds": 3600}
_SECONDS: Final = {"type": "object", "properties": {"seconds": {"type": "number"}}, "required": ["seconds"]}
Turn = Callable[[Wire], object]


def get_ended(place: Place) -> Iterator[Line]:
    """Compare `tasks/get` of an ended task with the SDK's bare extension method, which answers from a dict."""
    ours, bare = place.serve("memory"), place.serve("bare")
    wire, other = ours.wire(), bare.wire()
    task_id = wire.complete("echo", {"a": 1})
    many = cycle([wire.complete("echo", {"a": 1}) for _ in range(OTHERS)])
    before = _engine_calls(ours)
    us, them, stored = alternate(
        (
            Side(pid=ours.pid, do=lambda: wire.get(task_id)),
            Side(pid=bare.pid, do=lambda: other.get("bench")),
            Side(pid=ours.pid, do=lambda: wire.get(next(many))),
        ),
        times=READS,
    )
    yield beside("CPU, to the bare SDK's, of one task", ratio(us.cpu, them.cpu))
    yield at_most(f"the same with {OTHERS} tasks in turn, from the database", ratio(stored.cpu, them.cpu), 1.45)
    yield beside("CPU in us: ours, from the database, bare", f"{us.cpu_us}, {stored.cpu_us}, {them.cpu_us}")
    yield exactly("engine calls meanwhile", _engine_calls(ours) - before)


def _engine_calls(served: Served) -> int:
    with urlopen(f"http://127.0.0.1:{served.port}/calls") as reply:
        return sum(json.load(reply).values())


def get_running(place: Place) -> Iterator[Line]:
    """Compare `tasks/get` of a running workflow of Temporal with one SELECT and one describe."""
    sides: list[Side] = []
    for kind in ("uncached", "naive", "temporal"):
        served = place.serve(kind)
        wire = served.wire()
        created = wire.call("slow", _FOREVER)
        task_id: str = created["taskId"] if "taskId" in created else created["content"][0]["text"]  # the naive server's
        time.sleep(0.5)  # until its worker has set the memo
        sides.append(Side(pid=served.pid, do=partial(wire.get, task_id)))
    us, them, shipped = alternate(sides, times=READS // 2)
    yield at_most("without a cache, p50, to a naive server's", ratio(us.wall, them.wall), 1.12)
    yield at_most("without a cache, CPU, to a naive server's", ratio(us.cpu, them.cpu), 1.10)
    yield beside("p50 in ms, CPU in us: ours, naive", f"{us.ms}, {them.ms}; {us.cpu_us}, {them.cpu_us}")
    yield beside("as shipped, p50, to a naive server's", ratio(shipped.wall, them.wall))
    yield beside("as shipped, CPU, to a naive server's", ratio(shipped.cpu, them.cpu))


def start_workflow(place: Place) -> Iterator[Line]:
    """Compare `tools/call` that starts a workflow of Temporal with a direct start."""
    sides: list[Side] = []
    for kind in ("temporal", "naive"):
        served = place.serve(kind)
        sides.append(Side(pid=served.pid, do=partial(served.wire().call, "parked", _FOREVER)))
    us, them = alternate(sides, times=STARTS)
    yield at_most("p50, to a direct start's", ratio(us.wall, them.wall), 1.25)
    yield at_most("CPU, to a direct start's", ratio(us.cpu, them.cpu), 1.65)
    yield beside("p50 in ms, CPU in us: ours, direct", f"{us.ms}, {them.ms}; {us.cpu_us}, {them.cpu_us}")


def start_on_stub(place: Place, engine: str) -> Iterator[Line]:
    """Compare `tools/call` that starts an execution with the vendor's client; and the calls for an ended task."""
    tool = {"order": {"workflow": MACHINE}}
    with (
        place.stub(engine) as control,
        place.fast_folder() as folder,
        place.sidecar(settings(engine, control.port), tool, f"sqlite:///{folder}/tasks.db") as served,
    ):
        wire, bare = served.wire(), _starter(engine, control.port)
        ours = Side(pid=served.pid, do=lambda: wire.call("order", {}))
        us, them = alternate([ours, Side(pid=served.pid, do=bare)], times=STARTS)
        task_id = wire.call("order", {})["taskId"]
        control.order(end=control.order())
        deadline = time.monotonic() + _PATIENCE
        while wire.get(task_id)["status"] != "completed":
            if time.monotonic() > deadline:
                raise BadReplyError(f"a task does not end within {_PATIENCE:g} s")
            time.sleep(0.2)
        control.order(forget=True)
        for _ in range(READS):
            wire.get(task_id)
        calls = [api for api, _ in control.report()["calls"] if api not in {"ListExecutions"}]
    yield at_most("p50, to that of the vendor's client, 20 ms from the engine", ratio(us.wall, them.wall), 1.25)
    yield beside("p50 in ms: ours, the vendor's client; CPU of ours in us", f"{us.ms}, {them.ms}; {us.cpu_us}")
    yield exactly(f"engine calls for {READS} tasks/get of an ended task", len(calls))


def _starter(engine: str, port: int) -> Callable[[], object]:
    """Return a function that starts an execution with the vendor's own client."""
    if engine == "google":
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        google: Any = ExecutionsClient(transport=ExecutionsGrpcTransport(channel=channel))  # Any: typed in part only
        return lambda: google.create_execution(parent=WORKFLOW_NAME, timeout=10)
    session: Any = boto3.Session("test", "test", region_name=REGION)  # Any: boto3's clients have no types
    aws = session.client("stepfunctions", endpoint_url=f"http://127.0.0.1:{port}")
    return lambda: aws.start_execution(stateMachineArn=f"{ARN}:stateMachine:{MACHINE}", input="{}")


def throughput(place: Place) -> Iterator[Line]:
    """Compare tasks per second to their result with FastMCP's, and with the SDK alone; nothing is on disk."""
    port = free_port()
    argv = [str(python_of("fastmcp", FASTMCP)), str(FASTMCP_SERVER), str(port)]
    theirs = place.start(Command(name="fastmcp", argv=argv, cwd=place.folder, env={}), port)
    ours, sdk, on_disk = (place.serve(kind) for kind in ("volatile", "bare", "memory"))
    turns: list[tuple[Served, Turn]] = [(ours, echo), (theirs, echo), (on_disk, echo)]
    us, them, durable, bare = rates([*turns, (sdk, lambda wire: (wire.get("bench"), wire.get("bench")))])
    yield at_least(f"to FastMCP's, {CLIENTS} clients", ratio(us, them), 2.8)
    yield at_least("to pairs of requests that the SDK alone answers from a dict", ratio(us, bare), 0.50)
    words = ", ".join(f"{statistics.median(each):.0f}" for each in (us, them, bare, durable))
    yield beside("tasks/s: ours, FastMCP's, pairs of the SDK alone, ours with the store on disk", words)


def echo(wire: Wire) -> object:
    """Run a task to its result."""
    return wire.complete("echo", {"a": 1})


def rates(turns: Sequence[tuple[Served, Turn]]) -> Sequence[Sequence[float]]:
    """Return the turns per second of each server, in rounds of alternating order; the first round only warms up."""
    found: list[list[float]] = [[] for _ in turns]
    for number in range(ROUNDS + 1):
        order = list(zip(turns, found, strict=True))
        for (served, turn), into in order if number % 2 else reversed(order):
            into.append(turns_per_second(served, turn))
    return [each[1:] for each in found]


def turns_per_second(served: Served, turn: Turn) -> float:
    """Return the turns per second of `CLIENTS` clients; each client takes its turns one after the other."""
    return CLIENTS / statistics.mean(run_clients(served.port, CLIENTS, turn, _RATE_SECONDS))


def run_clients(port: int, count: int, turn: Turn, seconds: float) -> Sequence[float]:
    """Run so many clients in threads for this time, each for one turn at least; return the seconds of each turn."""
    by_client: list[Sequence[float]] = []
    ready = threading.Barrier(count)

    def run() -> None:
        wire, durations = Wire(port), list[float]()
        turn(wire)  # uvloop accepts one new connection in each turn of its loop
        ready.wait(_PATIENCE)
        until = time.monotonic() + seconds
        while (began := time.monotonic()) < until or not durations:
            turn(wire)
            durations.append(time.monotonic() - began)
        by_client.append(durations)
        wire.close()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(by_client) < count:
        raise BadReplyError(f"{count - len(by_client)} of {count} clients could not go on; see above")
    return [each for durations in by_client for each in durations]


def latency(place: Place) -> Iterator[Line]:
    """Measure a create by one and by many clients of one sidecar, its store on disk, and its health beside them."""
    store, tools = f"sqlite:///{place.folder}/clients.db", {"echo": {"workflow": "echo"}}
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH)
    with place.sidecar({"adapter": "memory"}, tools, store) as served:
        for count in (1, CLIENTS, MANY_CLIENTS):
            with place.beside("benchmarks.health", str(served.port)) as health:
                found = run_clients(served.port, count, lambda wire: wire.call("echo", {"a": 1}), _LATENCY_SECONDS)
            took, what = spread(found), f"a create of one of {count}, p50 / p99 / max; creates/s"
            words = f"{milliseconds(took)}; {len(found) / _LATENCY_SECONDS:.0f}"
            yield within(what, words, took["p99"], 0.250, "p99 <= 250 ms")
            took = spread([float(line) for line in health.read_text().split()])
            yield within(f"/healthz beside {count}", milliseconds(took), took["p99"], 0.020, "p99 <= 20 ms")
    sys.setswitchinterval(before)


def load(place: Place, engine: str, mode: Mode) -> Iterator[Line]:
    """Run the load generator: many tasks with a client each."""
    with place.fast_folder() as folder, place.stub(engine) as control:
        ports = (str(control.port), str(control.control_port))
        found = place.run("benchmarks.load", engine, *ports, str(folder), mode)
    yield from load_lines(found, mode)


def describe(place: Place) -> Iterator[Line]:
    """Compare the CPU of describing a run of GitHub Actions with that of the same requests by a bare client."""
    with place.stub("http") as control:
        us, bare = asyncio.run(_compare_describes(control))
    yield at_most("CPU, to the same requests of a bare client", ratio(us.cpu, bare.cpu), 1.20)
    yield beside("CPU in us: ours, bare", f"{us.cpu_us}, {bare.cpu_us}")


async def _compare_describes(control: Control) -> tuple[Measured, Measured]:
    control.order(seed=2, latency=0.0)
    run = f"http://127.0.0.1:{control.port}/repos/acme/shop/actions/runs/2"
    unlimited = {"calls": 1e9}
    async with adapter("http", control.port, rate=unlimited) as there, httpx2.AsyncClient() as client:
        ref = Ref(workflow=WORKFLOWS["http"], handle=handle_of("http", "2"))

        async def send_bare() -> None:
            for path in ("", "/jobs?filter=latest&per_page=100"):
                (await client.get(run + path, headers={"authorization": "Bearer t"})).json()

        us, bare = Measured(), Measured()
        for number in range(ROUNDS + 1):
            for measured in (us, bare) if number % 2 else (bare, us):
                began = time.process_time()
                for _ in range(READS // 4):
                    await (there.describe(ref) if measured is us else send_bare())
                measured.cpu.append((time.process_time() - began) / (READS // 4))
    return Measured(cpu=us.cpu[1:]), Measured(cpu=bare.cpu[1:])


def notification(place: Place) -> Iterator[Line]:
    """Measure from the end of a workflow, by Temporal's clock, to its notification over HTTP."""
    address = place.temporal.address
    engine = {"adapter": "temporal", "address": address, "task_queue": QUEUE}
    tools = {"slow": {"workflow": "SlowCompute", "args": ["{{seconds}}"], "input": _SECONDS}}
    with place.fast_folder() as folder, place.sidecar(engine, tools, f"sqlite:///{folder}/tasks.db") as served:
        wire, ids = served.wire(), list[str]()
        until = time.monotonic() + _STARTING
        for _ in range(EXECUTIONS):
            delay = max(0.0, until - time.monotonic()) + random.uniform(*_ENDS)
            ids.append(wire.call("slow", {"seconds": delay})["taskId"])
        notified: dict[str, float] = {}
        listener = threading.Thread(target=_listen, args=(served.port, ids, notified), daemon=True)
        listener.start()
        listener.join(_STARTING + _ENDS[1] + _PATIENCE)
        ends = asyncio.run(_ends(address, list(notified)))
    found = spread([at - ends[name] for name, at in notified.items()])
    what = f"end to notification of {EXECUTIONS} workflows, p50 / p99 / max"
    yield within(what, milliseconds(found), found["p99"], 0.1, "p99 <= 100 ms")
    yield exactly("ends that were not notified", EXECUTIONS - len(notified))


def _listen(port: int, ids: Sequence[str], notified: dict[str, float]) -> None:
    """Store when the end of each was notified, by its execution (seconds since 1970)."""
    for frame in Wire(port).listen(ids):
        seen: Mapping[str, Any] = frame.get("params", {})
        if seen.get("status") == "completed":
            notified[seen["_meta"]["mcp-workflows/executionId"]] = time.time()
        if len(notified) == len(ids):
            return


async def _ends(address: str, names: Sequence[str]) -> Mapping[str, float]:
    """Return the ends of these workflows, in seconds since 1970."""
    client = await Client.connect(address)
    described = [await client.get_workflow_handle(name).describe() for name in names]
    return {each.id: each.close_time.timestamp() for each in described if each.close_time}
