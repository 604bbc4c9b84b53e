"""Clients that we did not write, against the sidecar and the real Temporal server: the rows of docs/clients.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.client_matrix import CLIENTS, SITUATIONS, STDIO
from scripts.clients import DOCUMENT, Row, Seen, Served, complaints, declared, environment, fresh, rows, seen_by
from scripts.environments import FASTMCP, INSPECTOR, ROOT, python_of
from scripts.processes import free_port
from scripts.stack import SAMPLES
from tests.dev_server import DevServer
from tests.sidecars import COMMAND, Process

QUICK: frozenset[Row] = frozenset({("sdk-1x", "http"), ("ext-tasks", "http")})
"""Those of `make test`, one in each revision."""


@pytest.fixture(scope="session")
def fastmcp() -> Path:
    """An environment of its own for FastMCP, whose pins are not ours."""
    return python_of("fastmcp", FASTMCP)


@pytest.fixture(scope="module")
def served(dev_server: DevServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The conformance sample: its worker, and a sidecar on HTTP."""
    folder = tmp_path_factory.mktemp("clients")
    added = environment({"TEMPORAL_ADDRESS": dev_server.address}, folder / "tasks.db")
    sample, port = SAMPLES / "conformance", free_port()
    variables = {**os.environ, **added}
    command = [COMMAND, "serve", "workflows.yaml", "--http", f"127.0.0.1:{port}"]
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen([sys.executable, "worker.py"], cwd=sample, env=variables, stdout=log, stderr=log)
    sidecar = Process(command, port, folder / "sidecar.log", cwd=sample, env=variables)
    try:
        sidecar.wait_until_ready()
        yield Served(url=sidecar.url, environment=added)
    finally:
        sidecar.stop()
        worker.kill()
        worker.wait()


def marked(row: Row) -> object:
    return pytest.param(row, id="-".join(row), marks=[] if row in QUICK else [pytest.mark.slow])


@pytest.mark.parametrize("row", [marked(row) for row in rows()])
def test_a_client_is_told_in_every_situation_what_the_page_says(row: Row, served: Served, tmp_path: Path) -> None:
    name, transport = row
    own = {**served.environment, "MCP_WORKFLOWS_STORE": f"sqlite:///{tmp_path / 'tasks.db'}"}
    there = replace(served, environment=own) if transport == STDIO else served
    assert complaints(CLIENTS[name], seen_by(CLIENTS[name], transport, there)) == []


def test_the_page_claims_what_the_rows_of_this_file_see_and_nothing_else() -> None:
    text = DOCUMENT.read_text()
    assert fresh(text, declared()) == text
    claims = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| client ")]
    assert len(claims) == len(list(rows())) == len(set(claims))
    assert all(client.sees.keys() <= SITUATIONS.keys() for client in CLIENTS.values())


def test_the_page_names_the_versions_that_are_installed() -> None:
    pins = {
        f"{name}@{version}"
        for file in (ROOT / "package.json", INSPECTOR)
        for name, version in json.loads(file.read_text())["devDependencies"].items()
    }
    named = {package for client in CLIENTS.values() for package in client.packages if package.startswith("@")}
    assert named <= pins


def test_a_client_that_sees_something_else_is_complained_of() -> None:
    client = replace(CLIENTS["sdk-1x"], sees={"result": "result", "failure": "failed, isError", "cancel": "cancelled"})
    said = "this one always fails"
    right = {
        "result": Seen(saw="result", text="computed x in 1 s"),
        "failure": Seen(saw="failed, isError", text=f"{said} / {said}"),
        "cancel": Seen(saw="cancelled", text=""),
    }
    assert complaints(client, right) == []
    wrong = {
        "result": Seen(saw="result", text="computed z in 1 s"),
        "failure": Seen(saw="failed, isError", text=f"undefined / {said}"),
    }
    assert [line.partition(":")[0] for line in complaints(client, wrong)] == ["result", "failure", "cancel"]
