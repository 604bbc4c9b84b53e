"""A chat of our own: it takes what Slack would get, and writes it into a file that people can read."""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def serve(port: int, file: Path) -> None:
    """Take messages on loopback until the process is stopped; each becomes a line, links and all."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with file.open("a") as lines:
                lines.write(f"{message['text']}\n")
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
            """Log nothing."""

    file.touch()
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def main() -> None:
    """Serve it for `make up`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    serve(given.port, given.file)


if __name__ == "__main__":
    main()
