"""Clients that we did not write, against the sidecar and real engines: the rows of docs/clients.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.clients.client_matrix import CLIENTS, ENGINES, LEGACY, MODERN, SITUATIONS, STDIO, WORDS
from tests.clients.clients import DOCUMENT, Row, Seen, Served, complaints, declared, environment, fresh, rows, seen_by
from tests.clients.clients import shown_by_command as shown
from tests.clients.host_matrix import HOSTS
from tests.clients.host_matrix import SITUATIONS as SITUATIONS_OF_HOSTS
from tests.clients.host_trials import TRANSPORTS
from tests.clients.host_trials import complaints as complaints_of_host
from tests.clients.host_trials import fresh as page_of_hosts
from tests.support.child_processes import free_port
from tests.support.commands import COMMAND
from tests.support.dev_server import DevServer
from tests.support.environments import INSPECTOR, ROOT
from tests.support.local_engines import SAMPLES
from tests.support.sidecars import Process
from tests.support.stack import Plan, Stack

QUICK: frozenset[Row] = frozenset({("sdk-1x", "http"), ("ext-tasks", "http")})
"""Those of `make test`, one in each revision."""


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


@pytest.fixture(scope="module")
def served_on_aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The same tools, as state machines."""
    yield from _served_on("stepfunctions", tmp_path_factory.mktemp("clients-stepfunctions"))


@pytest.fixture(scope="module")
def served_on_google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The same tools, as workflows of Google Cloud."""
    yield from _served_on("google", tmp_path_factory.mktemp("clients-google"))


@pytest.fixture(scope="module")
def served_on_dbos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The same tools, as functions in the sidecar."""
    yield from _served_on("dbos", tmp_path_factory.mktemp("clients-dbos"))


def _served_on(engine: str, folder: Path) -> Iterator[Served]:
    plan = Plan(engine=engine, sample="conformance", port=free_port(), state=folder)
    with Stack(plan) as stack:
        added = environment(stack.engine.environment(), folder / "tasks.db")
        yield Served(url=stack.url, environment=added, config=plan.folder / "workflows.yaml")


def marked(row: Row) -> object:
    return pytest.param(row, id="-".join(row), marks=[] if row in QUICK else [pytest.mark.slow])


@pytest.mark.parametrize("row", [marked(row) for row in rows()])
def test_a_client_is_told_in_every_situation_what_the_page_says(row: Row, served: Served, tmp_path: Path) -> None:
    assert told(row, served, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("row", list(rows()), ids="-".join)
def test_a_client_is_told_the_same_of_state_machines(row: Row, served_on_aws: Served, tmp_path: Path) -> None:
    assert told(row, served_on_aws, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("row", list(rows()), ids="-".join)
def test_a_client_is_told_the_same_of_workflows_of_google(row: Row, served_on_google: Served) -> None:
    name, transport = row
    assert complaints(CLIENTS[name], seen_by(CLIENTS[name], transport, served_on_google)) == []


@pytest.mark.slow
@pytest.mark.parametrize("row", list(rows()), ids="-".join)
def test_a_client_is_told_the_same_of_functions_with_dbos(row: Row, served_on_dbos: Served, tmp_path: Path) -> None:
    assert told(row, served_on_dbos, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("era", [MODERN, LEGACY, "none"])
@pytest.mark.parametrize(
    ("engine", "there"),
    [
        ("temporal", "served"),
        ("stepfunctions", "served_on_aws"),
        ("google", "served_on_google"),
        ("dbos", "served_on_dbos"),
    ],
)
def test_what_engines_show_of_the_same_calls_is_what_the_page_says(
    engine: str, there: str, era: str, request: pytest.FixtureRequest
) -> None:
    served: Served = request.getfixturevalue(there)
    seen = {words.title: shown(words, era, served) for words in WORDS}
    assert [seen[words.title] for words in WORDS if words.shows[engine] not in seen[words.title]] == []


def told(row: Row, served: Served, folder: Path) -> Sequence[str]:
    """What a client was told otherwise than the page says."""
    name, transport = row
    own = {**served.environment, "MCP_WORKFLOWS_STORE": f"sqlite:///{folder / 'tasks.db'}"}
    there = replace(served, environment=own) if transport == STDIO else served
    return complaints(CLIENTS[name], seen_by(CLIENTS[name], transport, there))


def test_the_page_claims_what_the_rows_of_this_file_see_and_nothing_else() -> None:
    text = DOCUMENT.read_text()
    assert fresh(text, declared()) == text
    claims = [
        line
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith(("| client ", "| host ", "| | "))
    ]
    assert len(claims) == len(list(rows())) + len(HOSTS) * len(TRANSPORTS) + len(WORDS) == len(set(claims))
    assert all(words.shows.keys() == ENGINES.keys() for words in WORDS)
    assert all(client.sees.keys() <= SITUATIONS.keys() for client in CLIENTS.values())


def test_the_page_says_of_hosts_what_make_hosts_looks_for() -> None:
    text = DOCUMENT.read_text()
    assert page_of_hosts(text) == text
    assert {name for host in HOSTS.values() for name in host.sees} == SITUATIONS_OF_HOSTS.keys()
    right = {"cell": "result", "revision": "2025-11-25", "declares": ["roots"], "calls": "workflows_greet"}
    assert complaints_of_host(("opencode", "http", "result"), right) == []
    wrong = complaints_of_host(("opencode", "http", "result"), {**right, "cell": "handle"})
    assert wrong == ["cell: 'handle', not 'result'"]


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
