"""A web server that workflows of a test call: it notes what comes, and answers what it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.child_processes import free_port


@dataclass(slots=True)
class Listener:
    """One server: `url`, the requests that came, and the event that slow answers wait for."""

    url: str
    requests: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    came: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    go: threading.Event = field(default_factory=threading.Event)

    def wait(self, requests: int = 1, seconds: float = 60.0) -> None:
        """Until so many more have come."""
        for _ in range(requests):
            assert self.came.acquire(timeout=seconds), f"only {len(self.requests)} came"


@contextmanager
def listening() -> Generator[Listener]:
    """Serve: /slow answers when `go` is set, /status/N with status N, /cut never, all else with what came."""
    port = free_port()
    listener = Listener(f"http://127.0.0.1:{port}")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name
            pass

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            seen = {"method": self.command, "path": self.path, "headers": dict(self.headers.items()), "body": body}
            listener.requests.append(seen)
            listener.came.release()
            if self.path.startswith("/slow"):
                listener.go.wait(60)
            if self.path.startswith("/cut"):
                self.close_connection = True
                return
            status = int(self.path.rpartition("/")[2]) if self.path.startswith("/status/") else 200
            answer = json.dumps(seen).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PUT = _any  # noqa: N815  # their names

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that are gone
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield listener
    finally:
        listener.go.set()
        server.shutdown()
        server.server_close()
        thread.join()
