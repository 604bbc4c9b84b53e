"""An HTTP endpoint of the suite's own, to which the server under test delivers events."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Final, Self, TypeAlias, cast
from urllib.parse import urlsplit

from mcp_tasks_conformance.check import JSON
from mcp_tasks_conformance.traffic import as_object

SECRET_PREFIX: Final = "whsec_"  # noqa: S105  # of each secret
MAX_BODY: Final = 4 * 1024 * 1024  # bytes that are read


def new_secret(size: int = 32) -> str:
    """Return a secret of Standard Webhooks with a key of so many bytes."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(size)).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One request that the endpoint got; the names of its headers are in lower case."""

    method: str
    headers: Mapping[str, str]
    body: bytes
    received_at: float = field(default_factory=time.time)
    answered: int = 0  # the HTTP status

    @property
    def content(self) -> Mapping[str, JSON]:
        """The body if it is a JSON object, otherwise an empty one."""
        try:
            return as_object(json.loads(self.body))
        except ValueError:
            return {}

    @property
    def is_event(self) -> bool:
        """True for an event; other bodies have a `type`."""
        return bool(self.content) and "type" not in self.content

    @property
    def is_verification(self) -> bool:
        """True for the question if the endpoint wants deliveries."""
        return self.content.get("type") == "verification"

    def is_signed_with(self, secret: str) -> bool:
        """Return True if one signature, version 1 of Standard Webhooks, is that of the raw body with this secret."""
        signed = f"{self.headers.get('webhook-id')}.{self.headers.get('webhook-timestamp')}.".encode() + self.body
        digest = hmac.new(base64.b64decode(secret.removeprefix(SECRET_PREFIX)), signed, hashlib.sha256).digest()
        return f"v1,{base64.b64encode(digest).decode()}" in self.headers.get("webhook-signature", "").split(" ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The endpoint's answer to a request."""

    status: int = 200
    content: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    location: str | None = None


Respond: TypeAlias = Callable[[Delivery], Answer]


def echo(delivery: Delivery) -> Answer:
    """Accept everything: echo a challenge, and take events."""
    return Answer(content={"challenge": delivery.content.get("challenge")} if delivery.is_verification else {})


@dataclass(slots=True, kw_only=True)
class Hook:
    """One URL of the endpoint, and the requests that came to it."""

    url: str
    respond: Respond
    deliveries: list[Delivery] = field(default_factory=list[Delivery])
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def take(self, delivery: Delivery) -> Answer:
        """Record a request, and return the answer to it."""
        with self._turn:
            answer = self.respond(delivery)
            self.deliveries.append(replace(delivery, answered=answer.status))
        return answer


class Endpoint:
    """The endpoint; use it with `with`.

    `callback` is its URL as the server under test reaches it. `listen` is HOST:PORT here, by default those of
    `callback`; the port 0 is a free one.
    """

    def __init__(self, callback: str, listen: str | None = None) -> None:
        """Listen there.

        Raises:
            OSError: the address cannot be used.
            ValueError: an address has another form.
        """
        parts = urlsplit(callback)
        place = parts if listen is None else urlsplit(f"//{listen}")
        self._server = _Server(place.hostname or "127.0.0.1", place.port or 0, self)
        self.host = parts.hostname or ""
        port = self._server.server_port if listen is None else parts.port
        shown = f"[{self.host}]" if ":" in self.host else self.host
        netloc = shown if port is None else f"{shown}:{port}"
        self._base = f"{parts.scheme}://{netloc}{parts.path.rstrip('/')}"
        self._path = parts.path.rstrip("/")
        self._hooks: dict[str, Hook] = {}
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def is_local(self) -> bool:
        """True if the server reaches the endpoint on a loopback address."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def open(self, respond: Respond = echo) -> Hook:
        """Return a URL of the endpoint that nobody has asked yet."""
        name = secrets.token_hex(8)
        self._hooks[name] = Hook(url=f"{self._base}/{name}", respond=respond)
        return self._hooks[name]

    def closed_url(self) -> str:
        """Return a URL on the same host, on a port where nothing listens."""
        with socket.socket(self._server.address_family) as free:
            free.bind((self._server.server_address[0], 0))
            port = free.getsockname()[1]
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{shown}:{port}/hook"

    def take(self, path: str, delivery: Delivery) -> Answer:
        """Return the answer to a request."""
        hook = self._hooks.get(urlsplit(path).path.removeprefix(self._path).strip("/"))
        return Answer(status=404) if hook is None else hook.take(delivery)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, endpoint: Endpoint) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.endpoint = endpoint
        super().__init__((host, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a server may close its connection as it likes."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10

    def do_POST(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        delivery = Delivery(method=self.command, headers=headers, body=self._read())
        answer = cast("_Server", self.server).endpoint.take(self.path, delivery)
        body = json.dumps(answer.content).encode()
        self.send_response(answer.status)
        if answer.location is not None:
            self.send_header("location", answer.location)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST  # noqa: N815  # a redirect may be followed by another method

    def _read(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", "").lower():
            return self.rfile.read(min(int(self.headers.get("content-length") or 0), MAX_BODY))
        body = b""
        while size := int(self.rfile.readline(100).split(b";")[0] or b"0", 16):
            body += self.rfile.read(min(size, MAX_BODY))
            self.rfile.readline(100)
        return body

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name in the base class
        """Print nothing."""
