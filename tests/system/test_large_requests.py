"""What one request may cost, whatever it holds: processor time, memory, and how long others wait meanwhile."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import httpx2
import psutil
import pytest

from mcp_workflows.tools.json_schema import count_values, has_more_values
from tests.support.fuzzing import VALUES, Fuzz, lengths
from tests.support.fuzzing import fuzz as fuzz
from tests.support.sidecars import Process, sidecar

logger = logging.getLogger(__name__)  # what was measured: pytest --log-cli-level=info

SECONDS: Final = 0.25  # of processor time, for which others have to wait; that itself is a matter of the machine's load
SLOW_MACHINE: Final = 4  # times what it takes here
MEMORY: Final = 80_000_000  # bytes that may be added

_CONFIG: Final = """
store: sqlite:///tasks.db
engines: {here: {adapter: memory}}
tools:
"""
_SCHEMAS: Final[Mapping[str, Any]] = {
    "text_or_texts": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    "tree": {"$ref": "#/$defs/tree"},
    "kinds": {"items": {"oneOf": [{"type": "object", "required": [each]} for each in "ab"] + [{"type": "null"}]}},
    "anything": {},
    "numbers": {"items": {"anyOf": [{"const": number} for number in range(1000)]}},
    "unique": {"uniqueItems": True},
    "slow": {"items": {"pattern": r"^(\w+\s?)*\1$"}},
}
_TREE: Final = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/$defs/tree"}}]}


def _input(word: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": word}, "$defs": {"tree": _TREE}}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A sidecar with a tool for each schema."""
    config = tmp_path_factory.mktemp("large") / "workflows.yaml"
    tools = {name: {"engine": "here", "workflow": "echo", "input": _input(word)} for name, word in _SCHEMAS.items()}
    tools["answered"] = {"engine": "here", "workflow": "ask"}
    config.write_text(_CONFIG + "".join(f"  {name}: {json.dumps(tool)}\n" for name, tool in tools.items()))
    with sidecar(config) as process:
        yield process


def _headers(revision: str, tool: str = "") -> dict[str, str]:
    found = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    found["mcp-protocol-version"] = revision
    return found | ({"mcp-method": "tools/call", "mcp-name": tool} if revision == "2026-07-28" else {})


def _call(revision: str, tool: str, argument: str, **more: Any) -> bytes:
    """A call with an argument that is JSON already."""
    capabilities: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {"form": {}}}
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": revision,
        "io.modelcontextprotocol/clientInfo": {"name": "large", "version": "0"},
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    }
    params = {"name": tool, "arguments": {"x": "ARGUMENT"}, **more}
    params |= {"_meta": meta} if revision == "2026-07-28" else {}
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    return message.replace('"ARGUMENT"', argument).encode()


class _Session:
    """A client of either revision."""

    def __init__(self, process: Process, revision: str) -> None:
        self.process, self.revision = process, revision
        self.http = httpx2.Client(timeout=60)
        self.more: dict[str, str] = {}
        if revision == "2025-11-25":
            hello = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "large", "version": "0"}}
            body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
            answer = self.http.post(process.url, json=body, headers=_headers(revision))
            self.more = {"mcp-session-id": answer.headers["mcp-session-id"]}
            ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            self.http.post(process.url, json=ready, headers=_headers(revision) | self.more)

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def send(self, body: bytes, tool: str) -> httpx2.Response:
        return self.http.post(self.process.url, content=body, headers=_headers(self.revision, tool) | self.more)


class _Others:
    """How long somebody else waits for `/healthz` meanwhile, and the most memory the process had."""

    def __init__(self, process: Process) -> None:
        self.longest = 0.0
        self._url = f"http://127.0.0.1:{process.port}/healthz"
        self._watched = psutil.Process(process.process.pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> _Others:
        self.before = self.most = self._watched.memory_info().rss
        self.cpu = sum(self._watched.cpu_times()[:2])
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.cpu = sum(self._watched.cpu_times()[:2]) - self.cpu

    def _look(self) -> None:
        with httpx2.Client(timeout=60) as http:
            while not self._over.is_set():
                began = time.monotonic()
                http.get(self._url)
                self.longest = max(self.longest, time.monotonic() - began)
                self.most = max(self.most, self._watched.memory_info().rss)
                self._over.wait(0.005)


_Argument = Callable[[], str]
_LARGE: Final[Mapping[str, tuple[str, _Argument]]] = {
    "as many as may be": ("text_or_texts", lambda: json.dumps([1] * 59_000)),
    "a wrong tree": ("tree", lambda: json.dumps([[1] * 1000] * 450)),
    "a deep tree": ("tree", lambda: "[" * 90 + ",".join(["1"] * 59_000) + "]" * 90),
    "one wrong": ("kinds", lambda: json.dumps([None] * 59_000 + [1])),
    "many empty lists": ("anything", lambda: "[" + ",".join(["[]"] * 1_300_000) + "]"),
    "distinct names": ("anything", lambda: json.dumps({f"n{number}": number for number in range(59_000)})),
    "floats": ("anything", lambda: json.dumps([number / 7 for number in range(27_000)])),
    "one text": ("anything", lambda: json.dumps("a,[{" * 240_000)),
    "escapes": ("anything", lambda: '"' + r"\"," * 300_000 + '"'),
    "depth": ("anything", lambda: "[" * 400_000 + "]" * 400_000),
    "alternatives": ("numbers", lambda: json.dumps([999] * 59_000)),
    "unique": ("unique", lambda: json.dumps([{"a": number} for number in range(27_000)])),
    "slow patterns": ("slow", lambda: json.dumps(["ab " * 30 + "!"] * 9_000)),
    "not closed": ("anything", lambda: "[" * 300_000),
    "numbers": ("anything", lambda: "[" + ",".join(["1" * 400] * 2_000) + "]"),
}
_ONE_OF_A_KIND: Final = frozenset(
    {"as many as may be", "a deep tree", "one wrong", "many empty lists", "escapes", "unique", "slow patterns"}
)
"""Those of `make test`; `make test-all` sends all of them, in both revisions."""


@pytest.mark.parametrize(
    ("revision", "name"),
    [
        ("2026-07-28", name) if name in _ONE_OF_A_KIND else pytest.param("2026-07-28", name, marks=pytest.mark.slow)
        for name in _LARGE
    ]
    + [pytest.param("2025-11-25", name, marks=pytest.mark.slow) for name in _LARGE],
)
def test_one_request_keeps_others_waiting_no_longer_than_a_moment(serving: Process, revision: str, name: str) -> None:
    tool, argument = _LARGE[name]
    body = _call(revision, tool, argument())
    with _Session(serving, revision) as client:
        client.send(_call(revision, tool, "1"), tool)  # so that the schema is compiled, and the engine has seen one
        with _Others(serving) as others:
            answer = client.send(body, tool)
    assert answer.status_code < 500
    said = (
        f"HTTP {answer.status_code}, others waited {others.longest * 1000:.0f} ms, {others.cpu * 1000:.0f} ms of "
        f"processor time, {(others.most - others.before) / 1e6:.0f} MB"
    )
    logger.info("%s, %s: %s", revision, name, said)
    assert others.cpu < SECONDS * SLOW_MACHINE, said
    assert others.most - others.before < MEMORY, said


_HOST: Final = b"Host: localhost\r\n"
_MANY_HEADERS: Final = b"X: y\r\n" * 20_000
_CHUNKED: Final = b"POST /mcp HTTP/1.1\r\n" + _HOST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"
_HEADERS: Final[Mapping[str, tuple[bytes, bytes]]] = {
    "many headers": (b"GET /healthz HTTP/1.1\r\n" + _HOST, _MANY_HEADERS),
    "a long header": (b"GET /healthz HTTP/1.1\r\n" + _HOST + b"X: ", b"y" * 120_000),
    "a long path": (b"GET /", b"y" * 120_000),
    "trailers": (_CHUNKED, _MANY_HEADERS),
}


@pytest.mark.parametrize("name", _HEADERS)
def test_headers_are_bounded_before_they_are_complete(serving: Process, name: str) -> None:
    begin, more = _HEADERS[name]
    sent = 0
    with _Others(serving) as others, socket.create_connection(("127.0.0.1", serving.port), timeout=30) as connection:
        connection.sendall(begin)
        with suppress(OSError):  # the server has hung up
            for _ in range(200):
                connection.sendall(more)
                sent += 1
        assert sent < 200
    assert others.most - others.before < MEMORY


def test_headers_that_are_too_long_are_told_and_usual_ones_are_not(serving: Process) -> None:
    with socket.create_connection(("127.0.0.1", serving.port), timeout=30) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n" + _HOST + b"X: ")
        connection.sendall(b"y" * 65_000)
        connection.sendall(b"y" * 1_000)  # all of it was read then, so the answer is not lost
        assert connection.recv(100).startswith(b"HTTP/1.1 431 ")
    with httpx2.Client() as http:
        for _ in range(3):  # on one connection
            answer = http.get(f"http://127.0.0.1:{serving.port}/healthz", headers={"X": "y" * 50_000})
            assert answer.status_code == 200


_EMPTY: Final[list[Any]] = []
_MANY: Final[Sequence[Any]] = ([_EMPTY] * 150_000, [{"a,[{": '"\\,'}] * 50_000)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
@pytest.mark.parametrize("value", _MANY, ids=["lists", "objects"])
def test_a_body_with_too_many_values_is_refused_before_it_is_parsed(value: Any, encoding: str) -> None:
    body = json.dumps(value).encode(encoding)
    exact = encoding == "utf-8"
    assert has_more_values(body, count_values(value) - 1)
    assert has_more_values(body, count_values(value)) is not exact


@lengths(40)
def test_values_are_counted_exactly_without_parsing(fuzz: Fuzz) -> None:
    def one(value: Any) -> None:
        for text in (json.dumps(value), json.dumps(value, indent=1), json.dumps(value, ensure_ascii=False)):
            body, count = text.encode("utf-8", "replace"), count_values(value)
            assert not has_more_values(body, count)
            assert has_more_values(body, count - 1)

    fuzz(one, VALUES)
