"""`python -m mcp_workflows_stepfunctions_local`: a Step Functions engine on this machine, until it is stopped."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Final

from mcp_workflows_stepfunctions_local.release import LocalEngineError, describe_misfit

try:
    from mcp_workflows_stepfunctions_local.server import REGION, start
except ImportError as error:  # moto is missing, or another release
    sys.exit(describe_misfit(str(error)))

HOST: Final = "127.0.0.1"
PORT: Final = 8083  # the port of AWS's Step Functions Local


def main() -> None:
    """Start the engine, print its address, and wait for SIGTERM or Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m mcp_workflows_stepfunctions_local",
        description="A Step Functions engine for development: moto's server with additions. Nothing is kept when it "
        "ends, and no credentials are checked: listen on the loopback only.",
    )
    parser.add_argument("--host", default=HOST, help=f"address to listen on ({HOST})")
    parser.add_argument("--port", default=PORT, type=int, help=f"port to listen on ({PORT})")
    parser.add_argument(
        "--deploy", type=Path, nargs="+", action="extend", default=[], metavar="FILE", help="state machines to create"
    )
    parser.add_argument("--region", default=REGION, help=f"Region of what --deploy names ({REGION})")
    options = parser.parse_args()
    stopped = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        engine = start(options.port, options.host, deploy=options.deploy, region=options.region)
    except LocalEngineError as error:
        sys.exit(str(error))
    sys.stdout.write(f"Step Functions is ready on {engine.url} (endpoint_url, or AWS_ENDPOINT_URL)\n")
    sys.stdout.flush()
    stopped.wait()
    os._exit(0)  # nothing to save, and the exit would wait for the threads of running executions


if __name__ == "__main__":
    main()
