"""How soon the end of an execution is told, on the local engine.

`python -m scripts.bench_stepfunctions_notified PORT ENDPOINT` prints JSON; PORT is the sidecar's. The time of an end is
the engine's own (stopDate); both clocks are this machine's.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

import boto3

from scripts.bench_rounds import pin, quantile
from scripts.bench_stepfunctions_account import BRIEF, REGION
from scripts.bench_stepfunctions_control import use_any_credentials
from scripts.bench_wire import BadReplyError, Wire

COUNT = 200  # executions
ENDS = (2, 25)  # seconds after all have been started in which they end
STARTING = 20.0  # seconds that the starts may take
PATIENCE = 30.0  # seconds


def _listen(port: int, ids: list[str], told: dict[str, float]) -> None:
    """Note when the end of each was told, by its execution."""
    for frame in Wire(port).listen(ids):
        seen: Mapping[str, Any] = frame.get("params", {})
        if seen.get("status") == "completed":
            told[seen["_meta"]["mcp-workflows/executionId"]] = time.time()
        if len(told) == len(ids):
            return


Ends: TypeAlias = Callable[[Iterable[str]], Mapping[str, float]]
"""When each of these executions ended, by the engine; seconds since 1970."""


def measure(port: int, tool: str, ends_of: Ends) -> Mapping[str, Any]:
    """The differences, in seconds; Any: JSON."""
    wire, ids = Wire(port), list[str]()
    until = time.monotonic() + STARTING
    for _ in range(COUNT):
        seconds = round(max(0.0, until - time.monotonic())) + random.randint(*ENDS)
        ids.append(wire.call(tool, {"seconds": seconds})["taskId"])
    if (late := time.monotonic() - until) > 0:
        raise BadReplyError(f"it took {late:.0f} s too long to start {COUNT} executions")
    told: dict[str, float] = {}
    listener = threading.Thread(target=_listen, args=(port, ids, told), daemon=True)
    listener.start()
    time.sleep(max(0.0, until - time.monotonic()) + ENDS[1])
    listener.join(PATIENCE)
    ends = ends_of(told)
    lags = [at - ends[arn] for arn, at in told.items()] or [float("inf")]
    found = {"p50": quantile(lags, 0.5), "p99": quantile(lags, 0.99), "max": max(lags)}
    return {**found, "count": COUNT, "missed": COUNT - len(told)}


def _ends(endpoint: str, arns: Iterable[str]) -> Mapping[str, float]:
    """When each ended, by the engine; seconds since 1970."""
    session: Any = boto3.Session(region_name=REGION)
    engine = session.client("stepfunctions", endpoint_url=endpoint)
    return {arn: engine.describe_execution(executionArn=arn)["stopDate"].timestamp() for arn in arns}


def main() -> None:
    """Measure, on core 1: the server is on the other one."""
    pin(1)
    use_any_credentials()
    print(json.dumps(measure(int(sys.argv[1]), BRIEF, partial(_ends, sys.argv[2]))))


if __name__ == "__main__":
    main()
