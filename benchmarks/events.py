"""The goals of `make bench ENGINE=events`: a thousand subscriptions to MCP Events, and fifty ends a second.

`python -m benchmarks.events PORT` is the endpoint of all of them: it prints a line of JSON for each event that it gets.
"""

from __future__ import annotations

import base64
import json
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.control import MACHINE, Control, settings
from benchmarks.place import PATIENCE, Place, Served
from benchmarks.report import Line, at_most, beside, exactly, milliseconds, within
from benchmarks.rounds import ROUNDS, Measured, Side, cpu_seconds, pin, ratio, run_round, spread
from benchmarks.stub import Reply, serve_http
from benchmarks.wire import BadReplyError
from tests.support.child_processes import Command, free_port
from tests.support.environments import ROOT

SUBSCRIPTIONS: Final = 1000
RATE: Final = 50  # ends a second
READS: Final = 800  # of one slice of `cost`
_SLICE: Final = 2 * RATE  # ends
_FLOWING: Final = 0.6  # seconds after the first end of a slice: by then events are delivered
_SETTLING: Final = 5.0  # seconds until new tasks are observed, and until a second delivery would have come
_URLS: Final = 20  # so many may be confirmed in a minute
_OTHERS: Final = [f"other-{number}" for number in range(13)]  # tools that nobody calls
_STATUSES: Final = ("completed", "failed", "cancelled", "")
_SECRET: Final = f"whsec_{base64.b64encode(bytes(32)).decode()}"


@dataclass(slots=True, kw_only=True)
class Ending:
    """A sidecar, and the engine that ends its executions."""

    served: Served
    control: Control
    running: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # names of executions, ids of tasks
    heard: dict[str, float] = field(default_factory=dict[str, float])  # when listeners were notified of an end, by id

    def start(self, count: int) -> None:
        """Start so many executions, and listen to their tasks in threads."""
        with closing(self.served.wire()) as wire:
            ids = [wire.call("order", {})["taskId"] for _ in range(count)]
        self.running += zip(self.control.order()[-count:], ids, strict=True)
        for begin in range(0, count, 500):
            threading.Thread(target=self._listen, args=(ids[begin : begin + 500],), daemon=True).start()

    def _listen(self, ids: Sequence[str]) -> None:
        with closing(self.served.wire()) as wire, suppress(BadReplyError):  # at the end of the server
            for frame in wire.listen(ids):
                if (seen := frame.get("params", {})).get("status") == "completed":
                    self.heard[seen["taskId"]] = time.time()

    def end(self, count: int) -> Sequence[tuple[str, str]]:
        """Let so many executions end, one after the other, and return them at once."""
        ending, self.running = self.running[:count], self.running[count:]
        self.control.order(end=[name for name, _ in ending], every=1 / RATE)
        return ending


def delivery(place: Place, ends: int = 30 * RATE, subscriptions: int = SUBSCRIPTIONS) -> Iterator[Line]:
    """Measure from the ends of executions to the requests that an endpoint gets."""
    (url, log), seconds = _endpoint(place), ends / RATE
    with _serving(place) as side:
        took = _subscribe(side.served, url, subscriptions)
        side.start(ends)
        time.sleep(_SETTLING)
        cpu = cpu_seconds(side.served.pid)
        ended, deadline = side.end(ends), time.monotonic() + seconds + PATIENCE
        time.sleep(seconds)
        cpu = cpu_seconds(side.served.pid) - cpu
        while len(log.read_text().splitlines()) < ends and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(_SETTLING)
        at = side.control.report()["ends"]
    got: Sequence[tuple[float, Mapping[str, Any]]] = [json.loads(line) for line in log.read_text().splitlines()]
    first = {content["data"]["taskId"]: came for came, content in reversed(got)}
    times = [(at[name], side.heard.get(task, at[name]), first[task]) for name, task in ended if task in first]
    found = spread([came - end for end, _, came in times])
    yield within("from an end to its request, p50 / p99 / max", milliseconds(found), found["p99"], 0.5, "p99 <= 500 ms")
    yield beside("from an end to its notification", milliseconds(spread([heard - end for end, heard, _ in times])))
    yield beside("from there to the request", milliseconds(spread([came - heard for _, heard, came in times])))
    yield exactly(f"events lost of {ends}", ends - len(first))
    yield beside("events delivered again", len(got) - len({content["eventId"] for _, content in got}))
    rate = (len(got) - 1) / (got[-1][0] - got[0][0]) if len(got) > 1 else 0.0
    yield beside("deliveries/s; cores in use", f"{rate:.1f}; {cpu / seconds:.2f}")
    yield beside(f"until {subscriptions:,} subscriptions had begun", f"{took:.0f} s")


def cost(place: Place) -> Iterator[Line]:
    """Compare `tasks/get` with and without event deliveries; listeners are notified of the same ends in both."""
    (url, _), sides = _endpoint(place), list[tuple[Ending, str, Measured]]()
    with _serving(place) as with_events, _serving(place) as without:
        _subscribe(with_events.served, url, SUBSCRIPTIONS)
        for side in (with_events, without):
            side.start(1 + _SLICE * ROUNDS)
            sides += [(side, task_id, Measured()) for _, task_id in side.end(1)]
        time.sleep(_SETTLING)
        for number in range(ROUNDS):
            for side, task_id, measured in sides if number % 2 else reversed(sides):
                side.end(_SLICE)
                time.sleep(_FLOWING)
                with closing(side.served.wire()) as wire:
                    run_round(Side(pid=side.served.pid, do=partial(wire.get, task_id)), READS, measured)
                time.sleep(max(0.0, _SLICE / RATE - _FLOWING))  # until the last event is delivered
    us, them = (measured for _, _, measured in sides)
    yield at_most("p50, to that without subscriptions", ratio(us.wall, them.wall), 1.05)
    yield beside("mean", ratio(us.mean, them.mean))
    yield beside("CPU of the server, deliveries included", ratio(us.cpu, them.cpu))
    yield beside("p50 in ms, CPU in us: with, without", f"{us.ms}, {them.ms}; {us.cpu_us}, {them.cpu_us}")


def _subscribe(served: Served, url: str, count: int) -> float:
    """Make a subscription to all ends, and others that no event fits; return the seconds that it takes."""
    began, ended = time.monotonic(), "task.ended"
    wanted: list[tuple[str, Mapping[str, str]]] = [("task.input_required", {})]
    for tool, status in product(_OTHERS, _STATUSES):
        wanted.append((ended, {"tool": tool, **({"status": status} if status else {})}))
    others = islice(product(wanted, range(_URLS)), count - 1)
    with closing(served.wire()) as wire:
        for (name, arguments), number in [((ended, {"tool": "order"}), 0), *others]:
            hook = {"mode": "webhook", "url": f"{url}/{number}", "secret": _SECRET}
            wire.send("events/subscribe", "", {"name": name, "arguments": arguments, "delivery": hook, "cursor": None})
    return time.monotonic() - began


@contextmanager
def _serving(place: Place) -> Generator[Ending]:
    """Run a sidecar whose limits are not reached, on a stub of Step Functions, which sends hints."""
    rate = {"refill": 8 * RATE, "bucket": 20 * RATE}  # AWS's default allows no 50 ends a second
    quota = {"describe_execution": rate, "get_execution_history": rate}
    tools = {name: {"workflow": MACHINE} for name in ("order", *_OTHERS)}
    most = {"subscriptions_per_principal": SUBSCRIPTIONS, "deliveries_per_minute": 60 * 20 * RATE}
    server = {"single_user": True, "max_polls_per_second": 20 * RATE, "events": {"allow_private": True, **most}}
    with place.stub("stepfunctions") as control, place.fast_folder() as folder:
        engine = {**settings("stepfunctions", control.port, events=True), "quota": quota}
        with place.sidecar(engine, tools, f"sqlite:///{folder}/tasks.db", **server) as served:
            yield Ending(served=served, control=control)


def _endpoint(place: Place) -> tuple[str, Path]:
    """Run an endpoint of a client; return its URL, and the file that has what it got."""
    port = free_port()
    argv = [sys.executable, "-m", "benchmarks.events", str(port)]
    place.start(Command(name=f"endpoint {port}", argv=argv, cwd=ROOT, env={}), port)
    return f"http://127.0.0.1:{port}", place.folder / f"endpoint-{port}.log"


async def _take(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
    at, content = time.time(), json.loads(body)
    if content.get("type") == "verification":
        return 200, {}, {"challenge": content["challenge"]}
    print(json.dumps([at, content]), flush=True)
    return 200, {}, {}


if __name__ == "__main__":
    pin(1)
    uvloop.run(serve_http(int(sys.argv[1]), _take))
