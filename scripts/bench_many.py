"""Goals (d), (e), (f) and (s) of `make bench`: many waiting tasks, and how soon clients are notified of their ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scripts.bench_goals import Line, beside, exactly, milliseconds, seconds, within
from scripts.bench_place import Place

_MEMORY = 3 * 1024  # bytes for each waiting task
_LISTENED = 8 * 1024  # the same with a listener
_NOTIFIED_P99 = 0.1  # seconds
_LAG_MAX = 0.05  # seconds, of the event loop
_SIZES = (10, 100, 1_000, 10_000)


def polled(place: Place) -> Iterator[Line]:
    """(d) Waiting tasks with a poller each, on an engine that can be swept."""
    by_size = {size: _load(place, "polled", str(size)) for size in _SIZES}
    found = by_size[_SIZES[-1]]
    rate, calls = found["polls_per_second"], {size: each["calls_per_second"] for size, each in by_size.items()}
    what = f"engine calls/s for {found['tasks']} waiting tasks with a poller each ({rate:.0f} polls/s)"
    cap: float = found["cap"]
    yield within("d", what, f"{found['calls_per_second']:.1f}", found["calls_per_second"], cap, f"<= {cap:g}")
    measured = ", ".join(f"{each:.1f}" for each in calls.values())
    sizes = ", ".join(f"{size:,}" for size in calls)
    yield Line(goal="d", what=f"engine calls/s for {sizes} tasks", measured=measured, series=calls)
    yield beside("d", "its busiest second", str(found["busiest_second"]))
    yield beside("d", "age of what pollers are told, p50 / p99 / max", seconds(found["age"]))
    yield beside("d", "from an end to its poller, p50 / p99 / max", seconds(found["noticed"]))
    yield exactly("d", "ends that no poller was told of", sum(each["missed"] for each in by_size.values()))
    yield beside("d", "told as pollIntervalMs; cores in use", f"{found['poll_interval_ms']}; {found['cores']:.2f}")
    found = _load(place, "polled", str(_SIZES[-1]), "packing")
    calls, noticed = found["calls_per_second"], seconds(found["noticed"])
    yield beside("d", "if all tell a step: engine calls/s; from an end to its poller", f"{calls:.1f}; {noticed}")
    yield beside("d", "of 100 ends in the first 20 s, not told within the 40 s", str(found["missed"]))


def memory(place: Place) -> Iterator[Line]:
    """(e) Memory of a waiting task."""
    for what, limit, words in (
        ("memory of a waiting task that is polled, slope over 1,000, 5,000 and 10,000", _MEMORY, ()),
        ("with a listener each", _LISTENED, ("listened",)),
    ):
        found = _load(place, "memory", *words)
        slope, target = found["slope"], f"<= {limit / 1024:.0f} kB"
        yield within("e", what, f"{slope / 1024:.1f} kB", slope, limit, target)
        sizes = {size: held / 2**20 for size, held in found["sizes"]}
        measured = ", ".join(f"{held:.0f}" for held in sizes.values())
        what = f"MiB of the process with {', '.join(f'{size:,}' for size in sizes)}"
        yield Line(goal="e", what=f"{what} {'listeners' if words else 'tasks'}", measured=measured, series=sizes)


def listened(place: Place) -> Iterator[Line]:
    """(s) How late the event loop is with 10,000 listeners."""
    found = _load(place, "listened")
    late = found["lag"]
    what = "event loop lag with 10,000 listeners, p50 / p99 / max"
    yield within("s", what, milliseconds(late), late["max"], _LAG_MAX, "max <= 50 ms")
    yield beside("s", "full garbage collections meanwhile", str(found["collections"]))


def notified(place: Place) -> Iterator[Line]:
    """(f) From an end to its notification, less what a direct `result()` of the engine's own client takes."""
    address = place.temporal.address
    found = place.run("bench_notified", str(place.serve("temporal").port), address)
    what = f"end to notification, less a direct result() waiter, of {found['count']} executions, p99"
    measured = f"{found['p99'] * 1e3:.0f} ms"
    yield within("f", what, measured, found["p99"], _NOTIFIED_P99, "<= 100 ms")
    yield beside("f", "its p50 / max", f"{found['p50'] * 1e3:.0f} / {found['max'] * 1e3:.0f} ms")
    yield exactly("f", "ends that were not told", found["missed"])


def _load(place: Place, name: str, *words: str) -> Any:  # any JSON value
    """Run it on a store that is on no disk, whose speed is not what is measured here."""
    with place.fast_folder() as folder:
        return place.run("bench_load", name, str(folder), *words)
