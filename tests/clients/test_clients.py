"""Clients that we did not write, against the sidecar and real engines: the rows of docs/use/clients.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
from tests.support.environments import INSPECTOR, ROOT
from tests.support.stack import Plan, Stack

QUICK: frozenset[Row] = frozenset({("sdk-1x", "http"), ("ext-tasks", "http")})
"""Those of `make test`, one in each revision."""


FOR_TEST_ALL = pytest.mark.slow


@pytest.fixture(
    scope="module",
    params=["temporal", *(pytest.param(each, marks=FOR_TEST_ALL) for each in ("stepfunctions", "google", "dbos"))],
)
def engine(request: pytest.FixtureRequest) -> str:
    """Where the tools of the conformance sample run."""
    return request.param


@pytest.fixture(scope="module")
def served(processes: None, engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The conformance sample on the engine."""
    folder = tmp_path_factory.mktemp(f"clients-{engine}")
    plan = Plan(engine=engine, sample="conformance", port=free_port(), state=folder)
    with Stack(plan) as stack:
        added = environment(stack.engine.environment(), folder / "tasks.db")
        yield Served(url=stack.url, environment=added, config=plan.folder / "workflows.yaml")


def marked(row: Row) -> object:
    return pytest.param(row, id="-".join(row), marks=[] if row in QUICK else FOR_TEST_ALL)


@pytest.mark.parametrize("row", [marked(row) for row in rows()])
def test_a_client_is_told_in_every_situation_what_the_page_says(
    row: Row, engine: str, served: Served, tmp_path: Path
) -> None:
    name, transport = row
    there = served
    if transport == STDIO and engine != "google":  # where a store that knows its executions is needed
        own = {**served.environment, "MCP_WORKFLOWS_STORE": f"sqlite:///{tmp_path / 'tasks.db'}"}
        there = replace(served, environment=own)
    assert complaints(CLIENTS[name], seen_by(CLIENTS[name], transport, there)) == []


@FOR_TEST_ALL
@pytest.mark.parametrize("era", [MODERN, LEGACY, "none"])
def test_what_engines_show_of_the_same_calls_is_what_the_page_says(engine: str, era: str, served: Served) -> None:
    seen = {words.title: shown(words, era, served) for words in WORDS}
    assert [seen[words.title] for words in WORDS if words.shows[engine] not in seen[words.title]] == []


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
