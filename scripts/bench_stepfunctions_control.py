"""What who measures tells the stub of AWS, and hears of it."""

from __future__ import annotations

import http.client
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.bench_stepfunctions_account import ACCOUNT, QUEUE, REGION

CREDENTIALS: Mapping[str, str] = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the stub was asked since it was told to forget."""

    calls: Sequence[tuple[str, float]]  # API, and when (monotonic)
    ages: Sequence[tuple[float, float]]  # when, and how old what was told of each that runs is (s); sampled
    started: int  # executions

    def times(self, api: str) -> Sequence[float]:
        """When this one was called."""
        return [at for name, at in self.calls if name == api]

    def busiest(self, api: str) -> int:
        """Most calls within any second."""
        times, first, most = sorted(self.times(api)), 0, 0
        for last, at in enumerate(times):
            while at - times[first] >= 1:
                first += 1
            most = max(most, last - first + 1)
        return most

    def counts(self) -> Mapping[str, int]:
        """How often each was called."""
        return Counter(name for name, _ in self.calls)


class Control:
    """A kept-alive connection to the stub at this port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.queue_url = f"{self.url}/{ACCOUNT}/{QUEUE}"
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def tell(self, **orders: Any) -> Mapping[str, Any]:
        """What its executions do now, see `bench_stepfunctions_stub`; Any: JSON."""
        return self._ask("POST", "/control", orders)

    def seed(self, machine: str, names: Iterable[str]) -> Sequence[str]:
        """The ARNs of executions that have been there for long."""
        arns: Sequence[str] = self.tell(seed={"machine": machine, "names": list(names)})["seed"]
        return arns

    def report(self) -> Report:
        """What it was asked."""
        found = self._ask("GET", "/report", None)
        calls = [(str(name), float(at)) for name, at in found["calls"]]
        return Report(calls=calls, ages=[(at, age) for at, age in found["ages"]], started=found["started"])

    def answers(self) -> bool:
        """Whether it listens."""
        try:
            self.report()
        except OSError:
            self._connection.close()
            return False
        return True

    def _ask(self, verb: str, path: str, orders: object) -> Mapping[str, Any]:
        self._connection.request(verb, path, json.dumps(orders))
        found: Mapping[str, Any] = json.loads(self._connection.getresponse().read())
        return found


def use_any_credentials() -> None:
    """For boto3 in this process: nobody checks them."""
    os.environ.update(CREDENTIALS)


def overdrawn(times: Sequence[float], bucket: float, refill: float) -> int:
    """How many calls a token bucket like this one would have refused, if they had come at these times."""
    level, before, refused = bucket, times[0] if times else 0.0, 0
    for at in times:
        level = min(bucket, level + (at - before) * refill)
        before = at
        refused += level < 1
        level -= level >= 1
    return refused
