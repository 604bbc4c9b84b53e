"""Goal (r) of `make bench`: many clients create at once on one sidecar, its store on disk."""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from scripts.bench_goals import CLIENTS, Line, beside, milliseconds, within
from scripts.bench_place import Place, listens
from scripts.bench_rounds import on_core_0, quantile, spread
from scripts.bench_wire import BadReplyError, Wire
from tests.support.child_processes import Command, free_port
from tests.support.environments import ROOT
from tests.support.local_engines import BIN

MANY = 64
COUNTS = (1, 4, CLIENTS, MANY)
SECONDS = 8.0  # of each
_PROBE = 0.05  # seconds between two probes
_CREATE_P99 = 0.250  # seconds
_HEALTHZ_P99 = 0.020  # seconds
UNREACHED = {"tasks_per_principal": 1_000_000, "creates_per_minute": 1_000_000, "polls_per_minute": 1_000_000_000}
"""Limits that are checked and not reached."""
_SWITCH = 0.0005  # seconds until another thread of ours gets its turn


def clients(place: Place) -> Iterator[Line]:
    """(r) Creates of 64 clients, and a probe beside them; how long a create takes with fewer."""
    port = free_port()
    with place.running(_sidecar(place.folder, port), lambda: listens(port)):
        found = {count: _creates(port, count) for count in COUNTS}
        times, alive = found[MANY]
    took = spread(times)
    what = f"{MANY} clients that create on one sidecar: a create, p50 / p99 / max"
    yield within("r", what, milliseconds(took), took["p99"], _CREATE_P99, "p99 <= 250 ms")
    yield within(
        "r", "/healthz beside them, p50 / p99 / max", milliseconds(alive), alive["p99"], _HEALTHZ_P99, "p99 <= 20 ms"
    )
    yield beside("r", "creates/s", ", ".join(f"{len(each) / SECONDS:.0f}" for each, _ in found.values()))
    for share in (0.5, 0.99):
        series = {count: quantile(each, share) * 1e3 for count, (each, _) in found.items()}
        measured = ", ".join(f"{value:.1f}" for value in series.values())
        what = f"a create in ms, p{share * 100:.0f}, with {', '.join(str(count) for count in series)} clients"
        yield Line(goal="r", what=what, measured=measured, series=series)


def _sidecar(folder: Path, port: int) -> Command:
    """What starts it, as users have it but for the caps, which are checked and not reached."""
    config = folder / "clients.yaml"
    written = {
        "server": {"name": "bench", "drain": "0s"},
        "store": f"sqlite:///{folder / 'clients.db'}",
        "limits": UNREACHED,
        "engines": {"engine": {"adapter": "memory"}},
        "tools": {"echo": {"engine": "engine", "workflow": "echo"}},
    }
    config.write_text(json.dumps(written))  # JSON is YAML
    argv = on_core_0(str(BIN / "mcp-workflows"), "serve", str(config), "--http", f"127.0.0.1:{port}")
    return Command(name="sidecar of many clients", argv=argv, cwd=ROOT, env={})


def _creates(port: int, count: int) -> tuple[Sequence[float], Mapping[str, float]]:
    """The seconds of each create, and those of the probes meanwhile."""
    by_client: list[Sequence[float]] = []
    alive: list[float] = []
    stop_at = time.monotonic() + SECONDS
    works: list[Callable[[], None]] = [lambda: by_client.append(_create(port, stop_at)) for _ in range(count)]
    threads = [threading.Thread(target=work) for work in (*works, lambda: _probe(port, stop_at, alive))]
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(before)
    if len(by_client) < count or not alive:
        raise BadReplyError(f"some of {count} clients could not go on; see above")
    return [each for times in by_client for each in times], spread(alive)


def _create(port: int, stop_at: float) -> Sequence[float]:
    times: list[float] = []
    wire = Wire(port)
    wire.call("echo", {"a": 1})  # uvloop accepts one new connection in each turn of its loop
    while (began := time.monotonic()) < stop_at:
        wire.call("echo", {"a": 1})
        times.append(time.monotonic() - began)
    wire.close()
    return times


def _probe(port: int, stop_at: float, alive: list[float]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.connect()
    time.sleep(SECONDS / 8)  # until all clients are there
    while (began := time.monotonic()) < stop_at:
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        alive.append(time.monotonic() - began)
        time.sleep(_PROBE)
    connection.close()
