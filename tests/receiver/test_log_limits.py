"""The log cannot be filled, nor a line of it forged, by those who send requests."""

from __future__ import annotations

import ast
import logging
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx2
import pytest

from mcp_workflows.receiver.log_limits import LIMITED, LineLimit
from mcp_workflows.sidecar.cli.options import LogLines
from tests.support.in_memory import MODERN
from tests.support.sidecars import Process, sidecar

ROOT = Path(__file__).parents[2]

NOT_AT_WILL = {  # modules that log what no remote party causes as often as it likes, and why
    "tasks.gauges": "once a period",
    "client.follower": "a client's own log",
    "events.log": "when the store fails",
    "sidecar.cli.serve": "at the start",
    "sidecar.config.json_schema": "a command of the operator",
    "store.leases": "once a period",
    "store.replicas": "when the store, the listener or the clock fails, and when it is back",
    "store.sqlite.file": "once a file",
    "kit.bulk_status": "once a workflow",
    "sidecar.discovery": "once a change of what is marked on an engine",
    "sidecar.marked_workflows": "once for each marked workflow",
    "sidecar.operators_listener": "at the start",
    "sidecar.telemetry.exporters": "once a period",
    "sidecar.reload": "once a save",
    "sidecar.app": "at the start",
    "store.sqlite.store": "a command of the operator",
    "store.rekey": "a command of the operator",
    "testing.doubles": "a test's own log",
}


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger("tests.log_limits")
    yield found
    for limit in list(found.filters):
        found.removeFilter(limit)


def messages(caplog: pytest.LogCaptureFixture) -> Sequence[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tests.log_limits"]


def test_a_flood_of_lines_is_a_few_and_then_their_number(
    logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    limit = LineLimit(lines=3, period=1000)
    logger.addFilter(limit)
    for number in range(1000):
        logger.warning(f"refused {number}")  # as the SDK does it: what was sent is in the template
    logger.warning("of another place")
    assert messages(caplog) == ["refused 0", "refused 1", "refused 2", "of another place"]
    limit.tell()
    assert messages(caplog)[4:] == ["997 more lines like this were omitted: refused 999"]
    assert caplog.records[-1].levelno == logging.WARNING


def test_the_number_is_told_when_the_period_is_over(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    logger.addFilter(LineLimit(lines=1, period=0.1))
    deadline = time.monotonic() + 60
    while "more lines like this were omitted" not in caplog.text:
        logger.warning("refused")
        time.sleep(0.01)
        assert time.monotonic() < deadline


def test_a_record_that_passes_a_logger_and_a_handler_counts_once(
    logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    limit = LineLimit(lines=2, period=1000)
    logger.addFilter(limit)
    caplog.handler.addFilter(limit)
    try:
        for _ in range(3):
            logger.warning("refused")
    finally:
        caplog.handler.removeFilter(limit)
    assert messages(caplog) == ["refused", "refused"]


def test_what_was_sent_forges_no_line_and_does_not_steer_a_terminal(
    logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    logger.addFilter(LineLimit())
    logger.warning("no such host: %s", "a\r\n2026-01-01 INFO root: all is well\x1b[2J\u202e\x85")
    assert messages(caplog) == ["no such host: a\\r\\n2026-01-01 INFO root: all is well\\x1b[2J\\u202e\\x85"]


def test_further_lines_of_a_record_are_indented() -> None:
    try:
        raise ValueError("what was sent:\n2026-01-01 INFO root: all is well\x1b[2J")
    except ValueError as error:
        record = logging.LogRecord("a", logging.ERROR, __file__, 1, "it %s", ("failed",), (type(error), error, None))
    first, *others = LogLines("%(levelname)s %(message)s").format(record).split("\n")
    assert first == "ERROR it failed"
    assert others[-1] == "  2026-01-01 INFO root: all is well\\x1b[2J"
    assert all(line.startswith("  ") for line in others)


def logs(path: Path) -> bool:
    """Whether a module writes to its log."""
    text = path.read_text()
    calls = (node.func for node in ast.walk(ast.parse(text if "logger." in text else "")) if isinstance(node, ast.Call))
    return any(
        isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name) and call.value.id == "logger"
        for call in calls
    )


def test_every_module_that_logs_what_remote_parties_cause_is_limited() -> None:
    package = ROOT / "mcp_workflows"
    paths = [path for path in package.rglob("*.py") if logs(path)]
    names = {".".join(path.relative_to(package).with_suffix("").parts) for path in paths}
    limited = {name.removeprefix("mcp_workflows.") for name in LIMITED}
    assert names - NOT_AT_WILL.keys() == limited
    assert not limited & NOT_AT_WILL.keys()


CONFIG = """
store: sqlite:///tasks.db
engines: {here: {adapter: memory}}
tools: {echo: {engine: here, workflow: echo}}
"""
FLOOD = 40


def flood(server: Process) -> None:
    """Requests of each kind that the server, the SDK and the HTTP server log."""
    envelope = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "a", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "echo", "arguments": {}, "requestState": "forged", "_meta": envelope}
    forged = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": MODERN,
        "mcp-method": "tools/call",
        "mcp-name": "echo",
    }
    with httpx2.Client() as http:
        for number in range(FLOOD):
            http.post(server.url, json=forged, headers=headers)
            http.post(server.url, json=forged, headers={**headers, "host": f"evil{number}.example"})
            http.post(server.url, json=forged, headers={**headers, "origin": f"http://evil{number}.example"})
            http.post(server.url, json={**forged, "params": {}}, headers={"mcp-session-id": f"s{number}"})
            http.get(server.url, headers={"mcp-session-id": f"s{number}"})
    for _ in range(FLOOD):
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
            raw.recv(1000)


@pytest.mark.usefixtures("processes")
def test_a_sidecar_that_is_flooded_logs_a_few_lines_of_each_kind_and_their_number(tmp_path: Path) -> None:
    config = tmp_path / "workflows.yaml"
    config.write_text(CONFIG)
    with sidecar(config) as process:
        before = len(process.log.read_text().splitlines())
        flood(process)
        process.stop()
        lines = process.log.read_text().splitlines()[before:]
    text = "\n".join(lines)
    assert "requestState rejected" in text
    assert "its Host, " in text
    assert f"{FLOOD - 5} more lines like this were omitted" in text
    assert len(lines) < FLOOD, text
