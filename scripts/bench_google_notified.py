"""How soon the end of an execution is told, on the local engine for Google Cloud Workflows.

`python -m scripts.bench_google_notified PORT ADDRESS` prints JSON; PORT is the sidecar's. The time of an end is the
engine's own (endTime); both clocks are this machine's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import grpc
from google.cloud.workflows.executions_v1 import ExecutionsClient
from google.cloud.workflows.executions_v1.services.executions.transports import ExecutionsGrpcTransport

from scripts.bench_google import BRIEF
from scripts.bench_rounds import pin
from scripts.bench_stepfunctions_notified import measure


def _ends(address: str, names: Iterable[str]) -> Mapping[str, float]:
    with grpc.insecure_channel(address) as channel:
        client: Any = ExecutionsClient(transport=ExecutionsGrpcTransport(channel=channel))  # Any: typed in part only
        return {name: client.get_execution(name=name, timeout=10).end_time.timestamp() for name in names}


def main() -> None:
    """Measure, on core 1: the server is on the other one."""
    pin(1)
    print(json.dumps(measure(int(sys.argv[1]), BRIEF, partial(_ends, sys.argv[2]))))


if __name__ == "__main__":
    main()
