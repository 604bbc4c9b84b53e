"""Prometheus can scrape the operators' listener, and every metric of the alerts and dashboard exists."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from ruamel.yaml import YAML

from mcp_workflows.access import LOCAL
from mcp_workflows.adapter.memory import MemorySettings
from mcp_workflows.sidecar.operators_listener import ops_app, serve_ops
from mcp_workflows.sidecar.shutdown import ShutdownState
from mcp_workflows.sidecar.telemetry.exporters import Exporters
from mcp_workflows.store.protocol import open_store
from mcp_workflows.tasks.pauses import Pauses
from mcp_workflows.units import utc_now
from mcp_workflows.wire.commands import Call
from tests.support.child_processes import free_port
from tests.support.here import over_http, scene
from tests.support.places import quiet
from tests.support.served import peer, site
from tests.support.sidecars import Process, sidecar
from tests.test_telemetry import KEY, Keeping

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
OURS = re.compile(r"\b(mcp_[a-z_]+)")
COMMON = frozenset({"le"})  # labels that the exporter adds
OPENMETRICS = "application/openmetrics-text; version=1.0.0"

CONFIG = """
server: {name: watched, drain: 0s}
store: sqlite:///tasks.db
engines: {here: {adapter: memory}}
tools:
  forever: {engine: here, workflow: forever}
"""


def alerts() -> Any:
    return YAML(typ="safe").load((ROOT / "deploy" / "alerts.yaml").read_text())  # pyright: ignore[reportUnknownMemberType]


def dashboard() -> Any:
    return json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text())


def expressions() -> Iterable[str]:
    """Yield the PromQL of alerts and panels."""
    yield from (rule["expr"] for group in alerts()["groups"] for rule in group["rules"])
    yield from (target["expr"] for panel in dashboard()["panels"] for target in panel["targets"])


def samples(families: Iterable[Metric]) -> dict[str, list[dict[str, str]]]:
    """The labels of each sample, by its name."""
    found: dict[str, list[dict[str, str]]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


@asynccontextmanager
async def operated(tmp_path: Path, name: str) -> AsyncGenerator[tuple[str, str]]:
    """A server with its listener for operators, the URLs of both; its engine has quotas."""
    exporters = Exporters(name="watched", version="1", scraped=True)
    assert exporters.scrape is not None
    engine = Keeping(MemorySettings(name=name))
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with (
        site(store=store, adapters={"memory": engine}, telemetry=exporters.telemetry) as served,
        open_store(store) as opened,
        anyio.create_task_group() as group,
    ):
        await Pauses(opened, utc_now).begin("tool nobody", "audit")
        listening = socket.create_server(("127.0.0.1", 0))
        app = ops_app(served.workflows, ShutdownState(), exporters.scrape, "127.0.0.1")
        group.start_soon(serve_ops, app, listening)
        async with peer(served.url) as client:
            engine.faults.lost_start_replies = 1
            lost = (await client.call("forever", meta=KEY)).result["taskId"]
            await client.get(lost)
            await client.call("forever", meta=KEY)
            asking = (await client.call("ask")).result["taskId"]
            await client.until(asking, "input_required")
            await client.send("tasks/get", {"taskId": "f" * 40})
            for late in (60, 0):  # the first is answered too late for any host
                began = anyio.current_time() - late
                call = Call(tool="forever", arguments={}, takes_tasks=True, takes_questions=False, began=began)
                await served.workflows.service.call(call, LOCAL, quiet)
        yield served.url, f"http://127.0.0.1:{listening.getsockname()[1]}"
        group.cancel_scope.cancel()


async def test_what_is_scraped_is_documented_and_what_alerts_and_the_dashboard_ask_for(tmp_path: Path) -> None:
    async with operated(tmp_path, "scraped") as (_, url), httpx2.AsyncClient() as http:
        scraped = samples(read_text((await http.get(f"{url}/metrics")).text))
        response = await http.get(f"{url}/metrics", headers={"accept": OPENMETRICS})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    read = cast("Callable[[str], Iterable[Metric]]", openmetrics.text_string_to_metric_families)  # pyright: ignore[reportUnknownMemberType]
    assert "mcp_workflows_engine_calls_total" in samples(read(response.text))
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    documented = dict(re.findall(r"^\| `(mcp_[a-z_]+)` \| \w+ \| ([^|]*) \|", page, re.MULTILINE))
    found_names = {
        name: re.sub(r"_(bucket|count|sum|created)$", "", name) for name in scraped if name.startswith("mcp_")
    }
    assert documented.keys() == set(found_names.values())
    for name, metric in found_names.items():
        undocumented = {key for labels in scraped[name] for key in labels} - set(re.findall(r"\w+", documented[metric]))
        assert undocumented - COMMON == set(), name
    assert {labels["tool"] for labels in scraped["mcp_workflows_tasks"]} == {"forever", "ask"}
    assert {labels["engine"] for labels in scraped["mcp_workflows_engine_calls_total"]} == {"memory"}
    assert "f" * 40 not in str(scraped)
    assert len(scraped["mcp_workflows_denials_total"]) == 1  # of the two, Prometheus would keep the one that stays 0
    for name, found in scraped.items():
        series = [frozenset((key, value) for key, value in labels.items() if value) for labels in found]
        assert len(series) == len(set(series)), name
    asked = {
        name for expression in expressions() for name in OURS.findall(re.sub(r"by \([^)]*\)|\{[^}]*\}", "", expression))
    }
    assert len(asked) > 12
    assert asked <= scraped.keys()
    wanted = re.compile(r"(mcp_[a-z_]+)\{([^}]*)\}")
    for expression in expressions():
        for name, matchers in wanted.findall(expression):
            keys = set(re.findall(r"([a-z_]+)[=!]", matchers)) - {"job"}
            assert keys <= {key for labels in scraped[name] for key in labels}, (name, matchers)
        for group in re.findall(r"by \(([^)]*)\)", expression):
            [name, *_] = OURS.findall(re.sub(r"by \([^)]*\)|\{[^}]*\}", "", expression))
            known = {key for labels in scraped[name] for key in labels}
            assert set(group.replace(" ", "").split(",")) <= known, (name, group)


async def test_a_page_on_the_web_reads_no_metrics(tmp_path: Path) -> None:
    async with operated(tmp_path, "rebound") as (_, url), httpx2.AsyncClient() as http:
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
            for path in ("/metrics", "/enginez", "/readyz"):
                assert (await http.get(f"{url}{path}", headers={"host": host})).status_code == 421, (host, path)
        assert (await http.get(f"{url}/metrics", headers={"host": "localhost:9"})).status_code == 200


async def test_a_pause_is_shown(tmp_path: Path) -> None:
    async with operated(tmp_path, "paused") as (_, url), httpx2.AsyncClient() as http:
        [shown] = (await http.get(f"{url}/enginez")).json()["paused"]
        assert shown.startswith("starts of tool nobody have been paused since 20")
        assert shown.endswith("UTC: audit")
        found = samples(read_text((await http.get(f"{url}/metrics")).text))
        assert found["mcp_workflows_paused"] == [{"scope": "tool nobody"}]


async def test_enginez_refuses_foreign_hosts_and_origins(tmp_path: Path) -> None:
    found = scene(tmp_path, "  echo: {engine: here, workflow: echo}\n", "allowed_hosts: [workflows.example]")
    async with over_http(found) as url, httpx2.AsyncClient() as http:
        enginez = url.replace("/mcp", "/enginez")
        assert (await http.get(enginez)).json()["ok"] is True
        assert (await http.get(enginez, headers={"host": "workflows.example"})).status_code == 200
        refused = await http.get(enginez, headers={"host": "evil.example"})
        assert (refused.status_code, refused.text) == (421, "Invalid Host header")
        assert (await http.get(enginez, headers={"origin": "https://evil.example"})).status_code == 403
        for probe in ("/healthz", "/readyz"):  # load balancers call by address
            assert (await http.get(url.replace("/mcp", probe), headers={"host": "10.0.0.7"})).status_code == 200


@pytest.fixture(scope="module")
def process(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Process, int]]:
    config = tmp_path_factory.mktemp("ops") / "workflows.yaml"
    config.write_text(CONFIG)
    port = free_port()
    with sidecar(config, "--ops", f"127.0.0.1:{port}") as found:
        yield found, port


async def test_the_sidecar_has_a_listener_for_operators_that_stops_with_it(process: tuple[Process, int]) -> None:
    found, port = process
    public, ops = f"http://127.0.0.1:{found.port}", f"http://127.0.0.1:{port}"
    async with peer(found.url) as client, httpx2.AsyncClient() as http:
        await client.call("forever")
        text = (await http.get(f"{ops}/metrics")).text
        assert [each["status"] for each in samples(read_text(text))["mcp_workflows_tasks"]] == ["running"]
        for path in ("/healthz", "/readyz", "/enginez"):
            assert (await http.get(f"{ops}{path}")).json()["ok"] is True
        while not (known := (await http.get(f"{ops}/enginez")).json()["engines"]["here"]["round"]):
            await anyio.sleep(0.2)
        assert (known["skipped"], known["ended"] is not None) == (0, True)
        shown = {"mcp_workflows_retention_skipped", "mcp_workflows_retention_round_age_seconds"}
        while not shown <= samples(read_text((await http.get(f"{ops}/metrics")).text)).keys():
            await anyio.sleep(0.2)
        assert (await http.get(f"{ops}/mcp")).status_code == 404
        assert (await http.get(f"{public}/metrics")).status_code == 404
        assert (await http.get(f"{public}/enginez")).status_code == 404
        assert (await http.get(f"{public}/healthz")).json()["ok"] is True
    found.process.send_signal(signal.SIGTERM)
    assert found.process.wait(60) == 0
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 1)
