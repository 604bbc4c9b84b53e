"""A job API on this machine, in a thread: it answers a start with 202 and a Location, as RFC 7240 says."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class JobApi:
    """The starts and looks that it got; its jobs have succeeded at once."""

    def __init__(self, port: int) -> None:
        self.starts: list[str] = []  # their idempotency keys
        self.looks: list[str] = []  # their paths
        self.url = f"http://127.0.0.1:{port}"


@contextmanager
def job_api() -> Generator[JobApi]:
    """Serve one until the end of the context."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            key = self.headers["idempotency-key"]
            found.starts.append(key)
            self._reply(202, {"status": "running"}, location=f"/jobs/{key}")

        def do_GET(self) -> None:
            found.looks += [self.path] if self.path.startswith("/jobs/") else []
            self._reply(200, {"status": "succeeded", "result": {"by": found.url}})

        def _reply(self, code: int, body: Any, **headers: str) -> None:  # Any: JSON
            text = json.dumps(body).encode()
            self.send_response(code)
            for name, value in {
                "content-type": "application/json",
                "content-length": str(len(text)),
                **headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name of the class above
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = JobApi(server.server_port)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
