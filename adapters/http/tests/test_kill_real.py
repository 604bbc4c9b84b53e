"""kill -9 of the sidecar and of the engine: each call runs at most once, and no task is lost or ends wrongly."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
import pytest

from adapters.http.tests.buildbot_engine import Buildbot
from adapters.http.tests.toil_engine import Toil
from tests.support.served import Peer, peer
from tests.support.sidecars import dying_sidecar, sidecar

pytestmark = [pytest.mark.process, pytest.mark.slow]

KEY = {"mcp-workflows/idempotencyKey": "release-1-" * 4}
STEPS = ("row", "start", "bind", "reply")
CONFIG = """
store: sqlite:///{folder}/tasks.db
engines: {{jobs: {{adapter: http, preset: {preset}, url: "{url}"}}}}
tools:
  echo: {{engine: jobs, workflow: "{workflow}", input: {{type: object}}, tasks: required}}
"""


def config(folder: Path, preset: str, url: str, workflow: str) -> Path:
    file = folder / "workflows.yaml"
    file.write_text(CONFIG.format(folder=folder, preset=preset, url=url, workflow=workflow))
    return file


def listed(url: str, name: str) -> list[Any]:
    with urllib.request.urlopen(url, timeout=10) as reply:
        found: list[Any] = json.load(reply)[name]
    return found


async def call(client: Peer) -> str:
    return (await client.call("echo", {"text": "hi"}, meta=KEY)).result["taskId"]


async def die(file: Path, step: str) -> None:
    """Kill the sidecar in the first call."""
    with dying_sidecar(file, step) as dying:
        async with peer(dying.url) as client:
            with pytest.raises(httpx2.TransportError):
                await call(client)
        assert dying.process.wait(60) == -9


async def survive(file: Path, step: str) -> None:
    """Kill the sidecar in the first call, and call again until there is a result."""
    await die(file, step)
    with sidecar(file) as fresh:
        async with peer(fresh.url) as client:
            ids = {await call(client) for _ in range(3)}
            assert len(ids) == 1
            assert (await client.until(ids.pop(), within=90))["status"] == "completed"


WORKFLOWS: Final[Mapping[str, Callable[[Any], str]]] = {
    "buildbot": lambda _: "echo",
    "prefect": lambda engine: engine.deployment("echo"),
    "airflow": lambda _: "echo",
}
RUNS: Final[Mapping[str, Callable[[Any], int]]] = {
    "buildbot": lambda engine: len(listed(f"{engine.url}/api/v2/buildsets", "buildsets")),
    "prefect": lambda engine: engine.runs(),
    "airflow": lambda engine: engine.read("dags/echo/dagRuns")["total_entries"],
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("preset", WORKFLOWS)
async def test_a_call_runs_once_whenever_the_sidecar_is_killed(
    preset: str, step: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    engine = request.getfixturevalue(preset)
    before = RUNS[preset](engine)
    await survive(config(tmp_path, preset, engine.url, WORKFLOWS[preset](engine)), step)
    assert RUNS[preset](engine) == before + 1


@pytest.mark.parametrize("step", STEPS)
async def test_toil_never_runs_a_call_twice_though_it_takes_no_key(toil: Toil, tmp_path: Path, step: str) -> None:
    before = len(listed(f"{toil.url}/ga4gh/wes/v1/runs", "workflows"))
    file = config(tmp_path, "wes", toil.url, toil.workflow("echo"))
    await die(file, step)
    with sidecar(file) as fresh:
        async with peer(fresh.url) as client:
            for _ in range(3):
                await client.call("echo", {"text": "hi"}, meta=KEY)
            await anyio.sleep(1)
    assert len(listed(f"{toil.url}/ga4gh/wes/v1/runs", "workflows")) <= before + 1


async def test_a_buildbot_killed_in_mid_build_ends_no_task(tmp_path: Path) -> None:
    with Buildbot(tmp_path) as engine:
        file = config(tmp_path, "buildbot", engine.url, "echo")
        with sidecar(file) as served:
            async with peer(served.url) as client:
                task_id = await call(client)
                engine.kill()
                await anyio.sleep(2)
                assert (await client.get(task_id))["status"] == "working"
                await anyio.to_thread.run_sync(engine.start)
                assert (await client.until(task_id, within=90))["status"] == "completed"
