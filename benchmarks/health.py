"""Ask a sidecar for its health fifty times a second; print the seconds of each. `python -m benchmarks.health PORT`"""

from __future__ import annotations

import http.client
import sys
import time

_EVERY = 0.02  # seconds


def main() -> None:
    """Ask until this process is ended; the connection stays open."""
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=30)
    while True:
        began = time.perf_counter()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        print(time.perf_counter() - began, flush=True)
        time.sleep(_EVERY)


if __name__ == "__main__":
    main()
