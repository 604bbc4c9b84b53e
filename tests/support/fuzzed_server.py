"""A sidecar with the tasks of two users, for fuzzing: raw requests go in, and what comes back is looked through."""

from __future__ import annotations

import http.client
import json
import logging
import socket
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from anyio.from_thread import BlockingPortal, start_blocking_portal

from mcp_workflows.access.authn.verifier import sha256_of
from tests.support.here import Scene, elder, over_http, scene
from tests.support.served import TASKS, Peer, peer
from tests.support.tokens import ISSUER, KeyServer, signer
from tests.support.waiting import TIMEOUT

TOKENS: Final = {"alice": "alice-token-0123456789abcdef0123", "bob": "bob-token-0123456789abcdef012345"}
MARK: Final = "bobs-secret-7f3a"  # in all that is bob's; alice must never read it
READ_FOR: Final = 0.05  # seconds that a stream is listened to
MOST: Final = 4 * 1024 * 1024  # bytes of one response

_TOOLS: Final = """
  echo: {engine: here, workflow: echo}
  fail: {engine: here, workflow: fail}
  ask: {engine: here, workflow: ask, wait: 100ms}
limits: {polls_per_minute: null, failed_lookups_per_minute: null, creates_per_minute: null, tasks_per_principal: null,
         sessions_per_principal: null}
"""


class Broken(logging.Handler):
    """Whatever is logged as broken, and all that was logged anyhow."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it if it is an error or has a trace."""
        if record.levelno >= logging.ERROR or record.exc_info:
            self.found.append(self.format(record))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One response; of a stream, how it began."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, as it is sent."""

    verb: str
    path: str
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes

    @property
    def raw(self) -> bytes:
        """Its bytes."""
        lines = [f"{self.verb} {self.path} HTTP/1.1".encode("latin-1", "replace")]
        lines += [name + b": " + value for name, value in self.headers]
        lines += [b"content-length: %d" % len(self.body), b"connection: close"]
        return b"\r\n".join(lines) + b"\r\n\r\n" + self.body


@dataclass(slots=True, kw_only=True)
class Fuzzed:
    """What there is to aim at."""

    scene: Scene
    url: str
    portal: BlockingPortal
    session: str  # of alice, in 2025-11-25
    own: Sequence[str]  # tasks of alice
    foreign: Sequence[str]  # of bob
    good: Sequence[str]  # values of Authorization that are alice's
    broken: Broken = field(default_factory=Broken)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.url.split(":")[2].split("/")[0])

    def send(self, request: Request) -> Answer:
        """What comes back."""
        return exchange(self.port, request)

    def of_bob(self) -> Mapping[str, Any]:
        """Bob's tasks as he sees them."""
        return self.portal.call(self._of_bob)

    async def _of_bob(self) -> Mapping[str, Any]:
        async with peer(self.url, token=TOKENS["bob"]) as bob:
            seen = {task: await bob.get(task) for task in self.foreign}
        said = ("status", "result", "inputRequests", "lastUpdatedAt")
        return {task: {name: found.get(name) for name in said} for task, found in seen.items()}


def exchange(port: int, request: Request) -> Answer:
    """What comes back from this port; a response that does not begin in time fails the test."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as connection:
        connection.sendall(request.raw)
        response = http.client.HTTPResponse(connection, method=request.verb)
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        streams = headers.get("content-type", "").startswith("text/event-stream")
        return Answer(status=response.status, headers=headers, body=_read(connection, response, streams=streams))


def _read(connection: socket.socket, response: http.client.HTTPResponse, *, streams: bool) -> bytes:
    """The whole body; of a stream, what comes at once."""
    if not streams:
        return response.read(MOST)
    connection.settimeout(READ_FOR)
    body = b""
    try:
        while (part := response.read1(65536)) and len(body) < MOST:
            body += part
    except TimeoutError:
        pass
    return body


@contextmanager
def fuzzed(folder: Path, keys: KeyServer) -> Generator[Fuzzed]:
    """The sidecar, up, with the tasks in it."""
    hashes = [{"name": name, "subject": name, "sha256": sha256_of(token)} for name, token in TOKENS.items()]
    issuer = {"issuer": ISSUER, "audience": "workflows", "jwks_url": keys.publish("fuzzed", signer("fuzzed"))}
    server = f"auth: {json.dumps({'tokens': hashes, 'issuers': [issuer]})}, my_tasks: true"
    broken = Broken()
    loggers = [logging.getLogger(name) for name in ("", "mcp", "mcp_workflows", "uvicorn.error")]
    with start_blocking_portal("asyncio") as portal:
        found = portal.call(scene, folder, _TOOLS, server)
        with portal.wrap_async_context_manager(over_http(found)) as url:
            for logger in loggers:
                logger.addHandler(broken)
            try:
                yield portal.call(_begun, found, url, portal, broken)
            finally:
                for logger in loggers:
                    logger.removeHandler(broken)


async def _begun(found: Scene, url: str, portal: BlockingPortal, broken: Broken) -> Fuzzed:
    async with peer(url, token=TOKENS["bob"]) as bob, peer(url, token=TOKENS["alice"]) as alice:
        foreign = [await _task(bob, "echo"), await _task(bob, "ask"), await _task(bob, "ask")]
        own = [await _task(alice, "echo"), await _task(alice, "ask")]
    session = await _session(url)
    good = [f"Bearer {TOKENS['alice']}", f"Bearer {signer('fuzzed').token(aud='workflows', sub='alice')}"]
    return Fuzzed(
        scene=found, url=url, portal=portal, session=session, own=own, foreign=foreign, good=good, broken=broken
    )


async def _task(client: Peer, tool: str) -> str:
    arguments = {"note": MARK} if client.token == TOKENS["bob"] else {"mine": 1}
    made = (await client.call(tool, arguments, capabilities=TASKS)).result["taskId"]
    await client.until(made, *({"input_required"} if tool == "ask" else {"completed"}))
    return str(made)


async def _session(url: str) -> str:
    """A session of 2025-11-25 of alice's; it stays open."""
    async with elder(url, authorization=f"Bearer {TOKENS['alice']}") as found:
        return found.headers["mcp-session-id"]


def told(answer: Answer) -> Iterator[Any]:  # Any: JSON values
    """The JSON messages of a response."""
    text = answer.body.decode("utf-8", "replace")
    lines = [line.removeprefix("data:") for line in text.splitlines() if line.startswith("data:")]
    for line in lines or [text]:
        try:
            yield json.loads(line)
        except ValueError:
            continue


def check(request: Request, answer: Answer, *, bob: bool = False) -> None:
    """No 500, no "Internal error", and nothing of bob's."""
    assert answer.status < 500, (request, answer)
    for message in told(answer):
        error: Any = cast("dict[str, Any]", message).get("error") if isinstance(message, dict) else None
        assert not isinstance(error, dict) or cast("dict[str, Any]", error).get("code") != -32603, (request, answer)
    if not bob:
        assert MARK.encode() not in answer.body, (request, answer)
    assert b"Traceback" not in answer.body, (request, answer)
