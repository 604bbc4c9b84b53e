"""The sidecar as a process: how it listens, whom it lets in, and stdio with a client not ours."""

from __future__ import annotations

import gc
import json
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.server import _streamable_http_modern as modern_http
from sse_starlette import EventSourceResponse

from mcp_workflows.errors import ConfigError
from mcp_workflows.receiver.task_tools.definitions import FOR_OWN, task_tools
from mcp_workflows.sidecar.address import Address
from mcp_workflows.sidecar.cli.options import read_address
from mcp_workflows.sidecar.cli.serve import collect_rarely, log_protection, refuse_shared_single_user
from mcp_workflows.sidecar.config.load import load_config
from tests.support.child_processes import free_port
from tests.support.commands import COMMAND, piped, run
from tests.support.here import elder, over_http, scene
from tests.support.served import peer
from tests.support.sidecars import Process, sidecar

pytestmark = pytest.mark.anyio

CONFIG = """
server: {name: memory-only, instructions: "Try it.", allowed_hosts: ["workflows.example:*"]}
store: sqlite:///tasks.db
engines:
  here: {adapter: memory}
  gone: {adapter: memory, name: gone, unreachable: true}
tools:
  echo: {engine: here, workflow: echo, input: {type: object, properties: {a: {type: integer}}}}
  sleep: {engine: here, workflow: sleep, input: {type: object, properties: {seconds: {type: number}}}}
  forever: {engine: here, workflow: forever}
  lost: {engine: gone, workflow: echo}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "workflows.yaml"
    path.write_text(CONFIG)
    return path


WITHOUT_UVLOOP = """
import sys
sys.modules["uvloop"] = None
from mcp_workflows.__main__ import main
main()
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Process]:
    path = tmp_path_factory.mktemp("served") / "workflows.yaml"
    path.write_text(CONFIG)
    with sidecar(path) as process:
        yield process


def serve(config: Path, address: str) -> subprocess.CompletedProcess[str]:
    """A sidecar that ends by itself."""
    return run([COMMAND, "serve", str(config), "--http", address])


def _at(process: Process, path: str) -> str:
    return process.url.replace("/mcp", path)


async def test_health_tells_process_store_and_engines_apart_and_a_lost_engine_affects_no_other(served: Process) -> None:
    assert f"created a new store, without tasks: {served.log.parent}/tasks.db" in served.log.read_text()
    async with peer(served.url) as client:
        assert (await client.http.get(_at(served, "/healthz"))).json() == {"ok": True}
        assert (await client.http.get(_at(served, "/readyz"))).json() == {"ok": True}
        engines = await client.http.get(_at(served, "/enginez"))
        assert engines.status_code == 503
        assert {name: found["ok"] for name, found in engines.json()["engines"].items()} == {"here": True, "gone": False}
        lost = (await client.call("lost")).result
        assert (lost["resultType"], lost["isError"]) == ("complete", True)
        created = (await client.call("echo", {"a": 1})).result
        assert (await client.until(created["taskId"]))["status"] == "completed"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:80"}, 421),
        ({"origin": "https://evil.example"}, 403),
        ({"host": "workflows.example:443"}, 200),
        ({"origin": "http://localhost:6274"}, 200),
    ],
)
async def test_only_known_hosts_and_origins_are_let_in(served: Process, headers: dict[str, str], status: int) -> None:
    async with peer(served.url) as client:
        reply = await client.send("tools/list", headers=headers) if status == 200 else None
        if reply is None:
            body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            sent = {"accept": "application/json, text/event-stream", **headers}
            response = await client.http.post(served.url, json=body, headers=sent)
            assert response.status_code == status
        else:
            assert reply.status == status


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "sidecar.internal"])
def test_one_user_is_for_loopback_only(tmp_path: Path, host: str) -> None:
    config = scene(tmp_path, "  echo: {engine: here, workflow: echo}", server="single_user: true").config
    with pytest.raises(ConfigError, match=r"listen on 127\.0\.0\.1:80, or remove server\.single_user"):
        refuse_shared_single_user(Address(host=host, port=80), config)
    for fine in (None, Address(host="127.0.0.1", port=80), Address(host="::1", port=80)):
        refuse_shared_single_user(fine, config)


GUARDED = f"""
server:
  public_url: https://a.example
  auth:
    issuers: [{{issuer: https://login.example}}]
    tokens: [{{name: ci, sha256: {"1f" * 32}}}]
    proxy: {{peers: [10.0.0.1], subject_header: x-user}}
audit: {{to: stderr}}
"""
GUARDS = "callers: tokens of https://login.example, tokens by hash (1), users that a trusted proxy names"


@pytest.mark.parametrize(
    ("more", "http", "said"),
    [
        ("", None, "callers: the local user; the store is not encrypted; audit: none"),
        ("", "127.0.0.1:80", "callers: anonymous; the store is not encrypted; audit: none"),
        (
            GUARDED,
            "0.0.0.0:80",
            f"{GUARDS}; the store is not encrypted; audit: stderr",
        ),
    ],
    ids=["stdio", "loopback", "guarded"],
)
def test_who_is_let_in_is_said_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, more: str, http: str | None, said: str
) -> None:
    path = tmp_path / "workflows.yaml"
    path.write_text(
        f"{more}engines: {{here: {{adapter: memory}}}}\ntools: {{echo: {{engine: here, workflow: echo}}}}\n"
    )
    with caplog.at_level("INFO"):
        log_protection(None if http is None else read_address(http), load_config(path, {}))
    assert caplog.messages == [said]


def test_a_port_that_is_taken_is_one_clear_line(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = serve(config, address)
    assert done.returncode == 1
    assert f"cannot listen on {address}" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


MODERN_PING = "_SSE_PING_INTERVAL"


def kept_alive(text: str) -> int:
    """How many keep-alives came: comments, which every client leaves out."""
    return sum(line.startswith(": ping") for line in text.splitlines())


async def quiet(stream: AbstractAsyncContextManager[httpx2.Response]) -> httpx2.Headers:
    """The headers of a stream on which nothing is said, once it has been kept alive twice."""
    async with stream as response:
        seen = ""
        with anyio.fail_after(60):
            async for text in response.aiter_text():
                seen += text
                if kept_alive(seen) >= 2:
                    break
    return response.headers


async def test_the_server_needs_no_uvloop(config: Path) -> None:
    port = free_port()
    command = [sys.executable, "-c", WITHOUT_UVLOOP, "serve", str(config), "--http", f"127.0.0.1:{port}"]
    process = Process(command, port, config.with_suffix(".log"))
    try:
        process.wait_until_ready()
        async with peer(process.url) as client:
            assert (await client.call("echo", {"a": 1})).result
    finally:
        process.stop()


async def test_every_stream_is_kept_alive_and_no_proxy_may_hold_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped: float = getattr(modern_http, MODERN_PING)  # the SDK has no setting for it, and no public name
    assert max(shipped, EventSourceResponse.DEFAULT_PING_INTERVAL) <= 15  # seconds
    monkeypatch.setattr(modern_http, MODERN_PING, 0.1)
    monkeypatch.setattr(EventSourceResponse, "DEFAULT_PING_INTERVAL", 0.1)  # likewise
    found = scene(tmp_path, "  forever: {engine: here, workflow: forever, tasks: wait}")
    async with over_http(found) as url, peer(url) as modern, elder(url) as old:
        task_id = (await modern.call("forever")).result["taskId"]
        of_old: dict[str, Any] = {"name": "forever", "arguments": {}, "task": {}}
        old_id = (await old.send("tools/call", of_old))["result"]["task"]["taskId"]
        call: dict[str, Any] = {"name": "forever", "arguments": {}}
        streams = {
            "2026 call": modern.response("tools/call", call, capabilities={}),
            "2026 listen": modern.response("subscriptions/listen", {"notifications": {"taskIds": [task_id]}}),
            "2025 call": old.stream("tools/call", call),
            "2025 result": old.stream("tasks/result", {"taskId": old_id}),
            "2025 standalone": old.http.stream("GET", url, headers=old.headers, timeout=60),
        }
        for name, stream in streams.items():
            headers = await quiet(stream)
            assert headers["content-type"].startswith("text/event-stream"), name
            assert (headers["x-accel-buffering"], headers["cache-control"]) == ("no", "no-cache, no-transform"), name


async def test_stdio_speaks_mcp_and_nothing_else(config: Path) -> None:
    server = StdioServerParameters(command=COMMAND, args=["serve", str(config), "--log-level", "debug"])
    async with Client(stdio_client(server)) as client:
        assert client.protocol_version == "2026-07-28"
        extensions = client.server_capabilities.extensions
        events = {"io.modelcontextprotocol/events": {"listChanged": False}}
        assert extensions == {"io.modelcontextprotocol/tasks": {}, **events}
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == [
            "echo",
            "sleep",
            "forever",
            "lost",
            *(each.name for each in task_tools() if each.name in FOR_OWN),
        ]
        assert (await client.call_tool("echo", {"a": 1})).structured_content == {"a": 1}


def spoken(config: Path, *lines: bytes) -> tuple[list[Any], str]:
    """Send lines to a sidecar on stdio; return all that it wrote, as JSON, and its log."""
    done = run([COMMAND, "serve", str(config)], given=b"\n".join([*lines, b""]).decode())
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


_CLIENT = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
HELLO = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _CLIENT}).encode()


def test_a_malformed_request_on_stdio_is_answered(config: Path) -> None:
    lines = [
        HELLO,
        b'{"jsonrpc": "2.0", "method": "notifications/initialized"}',
        b'{"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": []}',
        b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": []}',
        b'{"jsonrpc": "2.0", "id": "three", "method": 7}',
        b'{"jsonrpc": "2.0", "id": true, "method": "ping", "params": []}',
        b'{"jsonrpc": "2.0", "id": 5, "error": {}}',  # a response has no answer
        b'{"jsonrpc": "2.0", "id": 4, "method": "ping"}',
        b"{no json",
    ]
    answers, _ = spoken(config, *lines)
    found = {each.get("id"): each.get("error", {}).get("code") for each in answers}
    assert found == {1: None, 2: -32600, "three": -32600, None: -32700, 4: None}


def test_a_line_without_an_end_on_stdio_ends_the_server(config: Path) -> None:
    answers, log = spoken(config, HELLO, b"x" * 40_000_000)
    assert 1 in [answer["id"] for answer in answers]
    assert "a line of more than 33554432 bytes" in log


PRINTING = """
import os, subprocess, sys
from dbos import DBOS
print("loading the price list")
os.write(1, b"by descriptor\\n")
subprocess.run(["echo", "by a child"])
sys.stdout.write("left in the buffer")

@DBOS.workflow()
async def noisy() -> dict[str, int]:
    print("in the workflow")
    return {"x": 1}

@DBOS.workflow()
async def _private() -> None:
    pass
"""


LOGGING = """
import logging
from mcp_workflows.adapter.redaction import KNOWN
from mcp_workflows.sidecar.cli.options import LogLevel, log
log(LogLevel.INFO)
KNOWN.add("tok-canary-0123456789")
for number in range(20):
    logging.getLogger("app.orders").info("mine %d", number)
    logging.getLogger("mcp.server").info("of the SDK %d", number)
    logging.getLogger("uvicorn.error").info("of the HTTP server %d", number)
logging.getLogger("app").warning("\\x1b]0;owned\\x07 \\x9b31m tok-canary-0123456789 password=hunter22")
try:
    raise ValueError("Bearer tok-canary-0123456789")
except ValueError:
    logging.getLogger("app").exception("failed")
"""


def test_the_log_has_all_lines_of_the_user_a_few_of_others_and_no_credential() -> None:
    done = subprocess.run([sys.executable, "-c", LOGGING], capture_output=True, text=True, timeout=120, check=True)
    lines = done.stderr.splitlines()
    counts = [sum(f"INFO {name}: {said} " in line for line in lines) for name, said in LOGGERS.items()]
    assert counts == [20, 5, 5]
    assert "canary" not in done.stderr
    assert "hunter22" not in done.stderr
    assert done.stderr.replace("\n", "").isprintable()


LOGGERS = {"app.orders": "mine", "mcp.server": "of the SDK", "uvicorn.error": "of the HTTP server"}


def test_what_a_module_prints_goes_to_standard_error_on_stdio(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PRINTING)
    listed = b'{"jsonrpc": "2.0", "id": 2, "method": "tools/list"}\n'
    ready = b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n'
    with piped([COMMAND, "serve", "app.py"], cwd=tmp_path) as sidecar:
        sidecar.stdin.write(HELLO + b"\n" + ready + listed)
        answers = [
            json.loads(sidecar.stdout.readline()) for _ in range(2)
        ]  # before the input ends, which drops requests
        rest, log = sidecar.finish()
    assert ([each["id"] for each in answers], rest) == ([1, 2], b"")
    names = [tool["name"] for tool in answers[1]["result"]["tools"]]
    assert "noisy" in names
    assert not [name for name in names if "private" in name]
    for said in ("loading the price list", "by descriptor", "by a child", "left in the buffer"):
        assert said in log


def test_no_full_collection_comes_while_half_a_million_objects_are_kept() -> None:
    thresholds, full = gc.get_threshold(), gc.get_stats()[2]["collections"]
    try:
        collect_rarely()
        kept = [[number] for number in range(500_000)]
        assert len(kept) == 500_000
        assert gc.get_stats()[2]["collections"] == full
        assert gc.get_freeze_count() > 0
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
