"""Goals (a), (b), (c) and (g) of `make bench`: one server of ours beside another one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, cast

from scripts.bench_place import Place, Served
from scripts.bench_rounds import ROUNDS, Measured, Ratio, Side, alternate, interval, quantile, ratio
from scripts.bench_wire import BadReplyError, Wire
from tests.support.environments import FASTMCP, python_of

LOOKS = 200  # of one round
STARTS = 8  # of one round
SERVERS = 3  # of each kind: how a process happens to lie in memory makes a difference of its own
OTHERS = 2000  # ended tasks: more than are kept as they were rendered
CLIENTS = 16  # at once, for rates
SECONDS = 1.0  # of one round, for rates
Turn = Callable[[Wire], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the report."""

    goal: str
    what: str
    measured: str
    target: str = ""
    theirs: str = ""  # the same of what it is compared with
    met: bool | None = None  # None: for comparison only
    surely_missed: bool = False  # the interval lies beyond the target
    ratio: Ratio | None = None  # for a picture
    series: Mapping[int, float] | None = None  # for a picture: the value by the number of clients or tasks


def at_most(goal: str, what: str, found: Ratio, limit: float) -> Line:
    """A ratio that should not be greater than the target."""
    met, missed = found.median <= limit, found.low > limit
    target = f"<= {limit:.2f}"
    return Line(goal=goal, what=what, measured=str(found), target=target, met=met, surely_missed=missed, ratio=found)


def at_least(goal: str, what: str, found: Ratio, limit: float) -> Line:
    """A ratio that should not be smaller than the target."""
    met, missed = found.median >= limit, found.high < limit
    target = f">= {limit:.2f}"
    return Line(goal=goal, what=what, measured=str(found), target=target, met=met, surely_missed=missed, ratio=found)


def within(goal: str, what: str, measured: str, value: float, limit: float, target: str) -> Line:
    """A value that should not be greater than the target."""
    met = value <= limit
    return Line(goal=goal, what=what, measured=measured, target=target, met=met, surely_missed=not met)


def exactly(goal: str, what: str, count: int, wanted: int = 0) -> Line:
    """A count that must be this one."""
    met = count == wanted
    return Line(goal=goal, what=what, measured=str(count), target=str(wanted), met=met, surely_missed=not met)


def beside(goal: str, what: str, measured: str) -> Line:
    """Reported beside, without a target."""
    return Line(goal=goal, what=what, measured=measured)


def compared(goal: str, what: str, found: Ratio) -> Line:
    """A ratio without a target."""
    return Line(goal=goal, what=what, measured=str(found), ratio=found)


def seconds(found: Mapping[str, float]) -> str:
    """p50 / p99 / max."""
    return f"{found['p50']:.2f} / {found['p99']:.2f} / {found['max']:.2f} s"


def milliseconds(found: Mapping[str, float]) -> str:
    """p50 / p99 / max."""
    return " / ".join(f"{found[name] * 1e3:.{1 if name == 'p50' else 0}f}" for name in ("p50", "p99", "max")) + " ms"


def ended(place: Place) -> Iterator[Line]:
    """(a) An ended task, against the SDK's bare extension method with a dict."""
    pairs = [(place.serve("memory", number), place.serve("bare", number)) for number in range(SERVERS)]
    found = [_ended_beside(ours, bare) for ours, bare in pairs]
    shown, stored = _middle([each[0] for each in found]), _middle([each[1] for each in found])
    who = f"the median of {SERVERS} servers of each kind"
    yield at_most("a", f"tasks/get of an ended task, CPU, to the bare SDK's, {who}", shown, 1.10)
    what = f"the same if {OTHERS} are asked for in turn, so that each is read from the store"
    yield at_most("a", what, stored, 1.45)
    yield beside("a", "CPU of each of them, in us: ours, from the store, bare", "; ".join(each[2] for each in found))
    yield exactly("a", "engine calls meanwhile", sum(each[3] for each in found))


def _middle(found: Sequence[Ratio]) -> Ratio:
    return sorted(found, key=lambda each: each.median)[len(found) // 2]


def _ended_beside(ours: Served, bare: Served) -> tuple[Ratio, Ratio, str, int]:
    """Two ratios, the CPU of each in words, and the engine calls meanwhile."""
    task_id, wire, other = _ended_task(ours), ours.wire(), bare.wire()
    many = cycle([finished(wire, wire.call("echo", {"a": 1})["taskId"]) for _ in range(OTHERS)])
    before = ours.calls()
    sides = (
        Side(pid=ours.pid, do=lambda: wire.get(task_id)),
        Side(pid=bare.pid, do=lambda: other.get("bench")),
        Side(pid=ours.pid, do=lambda: wire.get(next(many))),
    )
    us, them, from_store = alternate(sides, times=LOOKS)
    asked = sum(ours.calls().values()) - sum(before.values())
    words = f"{_cpu(us)}, {_cpu(from_store)}, {_cpu(them)}"
    return ratio(us.cpu, them.cpu), ratio(from_store.cpu, them.cpu), words, asked


def profile_ended(place: Place) -> Sequence[str]:
    """What (a) is spent on."""
    return place.profile("a", "memory", _get_ended)


def _get_ended(served: Served) -> None:
    task_id, wire = _ended_task(served), served.wire()
    for _ in range(3000):
        wire.get(task_id)


def _ended_task(served: Served) -> str:
    wire = served.wire()
    return finished(wire, wire.call("echo", {"a": 1})["taskId"])


def running(place: Place) -> Iterator[Line]:
    """(b) A running execution, against one SELECT and one describe; no cache, then as shipped."""
    servers = [place.serve(kind) for kind in ("uncached", "naive", "temporal")]
    sides = [_running_side(server) for server in servers]
    us, them, shipped = alternate(sides, times=LOOKS // 2)
    what = "tasks/get of a running execution, no cache, p50, to a naive one's"
    yield at_most("b", what, ratio(us.wall, them.wall), 1.12)
    yield at_most("b", "its CPU, to a naive one's", ratio(us.cpu, them.cpu), 1.07)
    yield beside("b", "p50, CPU", f"{_ms(us)} to {_ms(them)} ms, {_cpu(us)} to {_cpu(them)} us")
    yield compared("b", "as shipped, p50, to a naive one's", ratio(shipped.wall, them.wall))
    yield compared("b", "as shipped, CPU, to a naive one's", ratio(shipped.cpu, them.cpu))


def profile_running(place: Place) -> Sequence[str]:
    """What (b) is spent on."""
    return place.profile("b", "uncached", _get_running)


def _get_running(served: Served) -> None:
    side = _running_side(served)
    for _ in range(1500):
        side.do()


def _running_side(server: Served) -> Side:
    wire = server.wire()
    task_id = _task_id(wire.call("slow", {"seconds": 3600}))
    time.sleep(0.5)  # until its worker has told that it computes
    return Side(pid=server.pid, do=lambda: wire.get(task_id))


def create(place: Place) -> Iterator[Line]:
    """(c) A new task, against a direct start; a look right after it."""
    unknown = 0

    def look(wire: Wire) -> Callable[[object], None]:
        def right_after(created: object) -> None:
            nonlocal unknown
            try:
                wire.get(_task_id(created))
            except BadReplyError:
                unknown += 1

        return right_after

    sides = [_creating_side(place.serve(kind), look) for kind in ("temporal", "naive")]
    us, them = alternate(sides, times=STARTS)
    what = "tools/call that starts a workflow, p50, to a direct start's"
    yield at_most("c", what, ratio(us.wall, them.wall), 1.25)
    yield at_most("c", "its CPU, to a direct start's", ratio(us.cpu, them.cpu), 1.60)
    yield beside("c", "p50, CPU", f"{_ms(us)} to {_ms(them)} ms, {_cpu(us)} to {_cpu(them)} us")
    yield beside("c", "one sync of this disk, p50 of 200", f"{_sync(place.folder) * 1e3:.2f} ms")
    yield exactly("c", f"of {STARTS * ROUNDS} tasks unknown to a tasks/get right after", unknown)


def _sync(folder: Path) -> float:
    """Seconds in which a page written to this disk is there."""
    found: list[float] = []
    with (folder / "sync").open("wb") as file:
        for _ in range(200):
            began = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fdatasync(file.fileno())
            found.append(time.perf_counter() - began)
    return quantile(found, 0.5)


def profile_create(place: Place) -> Sequence[str]:
    """What (c) is spent on."""
    return place.profile("c", "temporal", lambda served: [served.wire().call("parked", _FOREVER) for _ in range(200)])


_FOREVER: Mapping[str, object] = {"seconds": 3600}


def _creating_side(server: Served, look: Callable[[Wire], Callable[[object], None]]) -> Side:
    wire = server.wire()
    return Side(pid=server.pid, do=lambda: wire.call("parked", _FOREVER), after=look(wire))


def receiver(place: Place) -> Iterator[Line]:
    """(g) Tasks per second, to their result; beside FastMCP and the SDK alone, all with what runs them in memory."""
    ours, theirs, sdk = place.serve("volatile"), place.fastmcp(str(python_of("fastmcp", FASTMCP))), place.serve("bare")
    turns = ((ours, _ECHO), (theirs, _ECHO), (sdk, _pair))
    rounds = [tuple(turns_per_second(server, turn) for server, turn in turns) for _ in range(ROUNDS + 1)][1:]
    us, them, bare = zip(*rounds, strict=True)
    what = f"tasks to their result, {CLIENTS} clients, to FastMCP's"
    yield at_least("g", what, ratio(us, them), 3.0)
    yield at_least("g", "to pairs of requests that the SDK alone answers from a dict", ratio(us, bare), 0.52)
    rates = " to ".join(f"{interval(each).median:.0f}" for each in (us, them, bare))
    yield beside("g", "tasks/s: ours, FastMCP's, pairs of the SDK alone", rates)
    durable = interval([turns_per_second(place.serve("memory"), _ECHO) for _ in range(5)])
    yield beside("g", "tasks/s with the store on disk, as shipped", f"{durable.median:.0f}")
    real = interval([turns_per_second(place.serve("temporal"), to_result("slow", {"seconds": 0})) for _ in range(3)])
    yield beside("g", "tasks/s on Temporal's dev server, on the same cores", f"{real.median:.0f}")


def _pair(wire: Wire) -> object:
    return wire.get("bench"), wire.get("bench")


def profile_receiver(place: Place) -> Sequence[str]:
    """What (g) is spent on."""
    return place.profile("g", "volatile", lambda served: [turns_per_second(served, _ECHO) for _ in range(5)])


def to_result(tool: str, arguments: Mapping[str, object]) -> Turn:
    """One task to its result."""
    return lambda wire: finished(wire, wire.call(tool, arguments)["taskId"])


_ECHO = to_result("echo", {"a": 1})


def turns_per_second(served: Served, turn: Turn) -> float:
    """Turns per second of so many clients, each taking one after the other."""
    done: list[int] = []
    began = time.monotonic()
    threads = [
        threading.Thread(target=_take_turns, args=(served.wire(), turn, began + SECONDS, done)) for _ in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(done) < CLIENTS:
        raise BadReplyError(f"{CLIENTS - len(done)} of {CLIENTS} clients could not go on; see above")
    return sum(done) / (time.monotonic() - began)


def _take_turns(wire: Wire, turn: Turn, stop_at: float, done: list[int]) -> None:
    count = 0
    while time.monotonic() < stop_at:
        turn(wire)
        count += 1
    done.append(count)
    wire.close()


def finished(wire: Wire, task_id: str) -> str:
    while (seen := wire.get(task_id))["status"] == "working":
        pass
    if seen["status"] != "completed":
        raise BadReplyError(f"a task ended as {seen['status']}")
    return task_id


def _task_id(created: object) -> str:
    """Ours answers with a task, the naive server with a text."""
    found = cast("Mapping[str, Any]", created)
    name: str = found["taskId"] if "taskId" in found else found["content"][0]["text"]
    return name


def _ms(measured: Measured) -> str:
    return f"{interval(measured.wall).median * 1e3:.2f}"


def _cpu(measured: Measured) -> str:
    return f"{interval(measured.cpu).median * 1e6:.0f}"
