"""Goals (d), (e) and (f) of `make bench`: many waiting tasks, and how soon their ends are told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from scripts.bench_goals import Line, beside, exactly
from scripts.bench_place import Place

_MEMORY = 4096  # bytes for each waiting task
_LAG = 0.1  # seconds
_IN_MEMORY = Path("/dev/shm")  # a disk's speed is not what is measured here


def polled(place: Place) -> Iterator[Line]:
    """(d) 10,000 waiting tasks with a poller each, on an engine that can be swept."""
    found = place.run("bench_load", "polled", str(_folder(place)))
    cap, calls = found["cap"], found["calls_per_second"]
    tasks, rate = found["tasks"], found["polls_per_second"]
    met = calls <= cap
    what = f"engine calls/s for {tasks} waiting tasks with a poller each ({rate:.0f} polls/s)"
    yield Line(goal="d", what=what, measured=f"{calls:.1f}", target=f"<= {cap:g}", met=met, surely_missed=not met)
    yield beside("d", "its busiest second", str(found["busiest_second"]))
    yield beside("d", "age of what pollers are told, p50 / p99 / max", _spread(found["age"]))
    yield beside("d", "from an end to its poller, p50 / p99 / max", _spread(found["noticed"]))
    yield exactly("d", "ends that no poller was told of", found["missed"])
    yield beside("d", "told as pollIntervalMs; cores in use", f"{found['poll_interval_ms']}; {found['cores']:.2f}")
    found = place.run("bench_load", "polled", str(_folder(place)), "packing")
    calls, noticed = found["calls_per_second"], _spread(found["noticed"])
    yield beside("d", "if all tell a step: engine calls/s; from an end to its poller", f"{calls:.1f}; {noticed}")
    yield exactly("d", "ends that no poller was told of", found["missed"])


def memory(place: Place) -> Iterator[Line]:
    """(e) Memory of a waiting task."""
    looked_at = place.run("bench_load", "memory", str(_folder(place)))["slope"]
    met = looked_at <= _MEMORY
    what = "memory of a waiting task that is polled, slope over 1,000, 5,000 and 10,000"
    measured = f"{looked_at / 1024:.1f} kB"
    yield Line(goal="e", what=what, measured=measured, target="<= 4 kB", met=met, surely_missed=not met)
    listened = place.run("bench_load", "memory", str(_folder(place)), "listened")["slope"]
    yield beside("e", "with a listener each", f"{listened / 1024:.1f} kB")


def notified(place: Place) -> Iterator[Line]:
    """(f) From an end to its notification, less what a direct `result()` of the engine's own client takes."""
    address = place.temporal.address
    found = place.run("bench_notified", str(place.serve("temporal").port), address)
    met = found["p99"] <= _LAG
    what = f"end to notification, less a direct result() waiter, of {found['count']} executions, p99"
    measured = f"{found['p99'] * 1e3:.0f} ms"
    yield Line(goal="f", what=what, measured=measured, target="<= 100 ms", met=met, surely_missed=not met)
    yield beside("f", "its p50 / max", f"{found['p50'] * 1e3:.0f} / {found['max'] * 1e3:.0f} ms")
    yield exactly("f", "ends that were not told", found["missed"])


def _folder(place: Place) -> Path:
    return _IN_MEMORY if _IN_MEMORY.is_dir() else place.folder


def _spread(found: Mapping[str, float]) -> str:
    return f"{found['p50']:.2f} / {found['p99']:.2f} / {found['max']:.2f} s"
