"""The engines that `make bench` stubs: how our adapters reach them, their quotas, and the orders for the stubs."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

SHARE: Final = 0.5  # of the default quotas, as shipped
STEP: Final = "Packing"  # the step of all executions
MACHINE: Final = "parked"
REGION: Final = "us-east-1"
ACCOUNT: Final = "123456789012"
ARN: Final = f"arn:aws:states:{REGION}:{ACCOUNT}"
WORKFLOW_NAME: Final = f"projects/demo/locations/us-central1/workflows/{MACHINE}"
REPOSITORY: Final = {"owner": "acme", "repo": "shop"}
AWS_CREDENTIALS: Final[Mapping[str, str]] = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""For boto3; nobody checks them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A token bucket of an engine: the API (empty: all of them), calls per second, and the size of the bucket."""

    api: str
    refill: float
    bucket: float

    def refused(self, times: Sequence[float]) -> int:
        """Return the number of calls at these times that the bucket would refuse."""
        level, before, refused = self.bucket, times[0] if times else 0.0, 0
        for at in times:
            level = min(self.bucket, level + (at - before) * self.refill)
            before = at
            refused += level < 1
            level -= level >= 1
        return refused


QUOTAS: Final[Mapping[str, Sequence[Quota]]] = {
    "stepfunctions": [
        Quota(api="DescribeExecution", refill=15 * SHARE, bucket=300 * SHARE),
        Quota(api="GetExecutionHistory", refill=20 * SHARE, bucket=400 * SHARE),
        Quota(api="ListExecutions", refill=5 * SHARE, bucket=200 * SHARE),
    ],
    "google": [
        Quota(api="GetExecution", refill=100 * SHARE, bucket=6000 * SHARE),
        Quota(api="ListExecutions", refill=20 * SHARE, bucket=1200 * SHARE),
    ],
    "http": [Quota(api="", refill=5000 * SHARE / 3600, bucket=5000 * SHARE)],
}
"""Our share of the defaults: AWS's of us-east-1; Google's of a minute and GitHub's of an hour, as buckets."""


def settings(engine: str, port: int, *, events: bool = False) -> Mapping[str, Any]:
    """Return the settings of our adapter for the engine at this port, as a configuration has them."""
    url, quota = f"http://127.0.0.1:{port}", {"quota": {"share": SHARE}}
    queue = {"events": {"queue_url": f"{url}/{ACCOUNT}/bench"}} if events else {}
    aws = {"region": REGION, "account": ACCOUNT, "endpoint_url": url, **quota, **queue}
    google = {"location": "us-central1", "emulator": f"127.0.0.1:{port}", **quota}
    github = {"preset": "github-actions", "url": url, "vars": REPOSITORY, "auth": {"bearer": "t"}}
    return {
        "stepfunctions": {"adapter": "stepfunctions", **aws},
        "google": {"adapter": "google-workflows", **google},
        "http": {"adapter": "http", **github},
    }[engine]


class Control:
    """A client of the control port of a stub; `port` is that of the engine's API."""

    def __init__(self, port: int, control_port: int) -> None:
        self.port = port
        self.control_port = control_port
        self._connection = http.client.HTTPConnection("127.0.0.1", control_port, timeout=60)

    def order(self, **orders: Any) -> Sequence[str]:
        """Let executions be seeded, end or ask; return the names of all. See `benchmarks.stub.Stub.control`."""
        names: Sequence[str] = self._ask("POST", orders)
        return names

    def report(self) -> Mapping[str, Any]:
        """Return the calls (API, monotonic seconds), the ages of what was last read of those that run, and the ends.

        An end is the time of an execution's end, by its name, in seconds since 1970.
        """
        found: Mapping[str, Any] = self._ask("GET", None)
        return found

    def answers(self) -> bool:
        """Return True if the stub listens."""
        try:
            self.report()
        except OSError:
            self._connection.close()
            return False
        return True

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _ask(self, method: str, orders: Mapping[str, Any] | None) -> Any:  # any JSON value
        self._connection.request(method, "/", json.dumps(orders))
        return json.loads(self._connection.getresponse().read())
