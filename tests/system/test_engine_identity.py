"""prod.yaml and staging.yaml in one folder, with one default store: neither acts on the tasks of the other."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from tests.support.commands import COMMAND, run
from tests.support.job_api import JobApi, job_api
from tests.support.served import peer
from tests.support.sidecars import dying_sidecar, sidecar

pytestmark = pytest.mark.anyio

PRESET = Path(__file__).parents[2] / "samples" / "http" / "respond-async.yaml"
KEY = {"mcp-workflows/idempotencyKey": "order-1-" * 4}
CONFIG = """
engines:
  jobs: {{adapter: http, preset: {preset}, starts: keyed, url: "{url}"}}
tools:
  report: {{engine: jobs, workflow: reports}}
"""


@pytest.fixture
def prod() -> Generator[JobApi]:
    with job_api() as api:
        yield api


@pytest.fixture
def staging() -> Generator[JobApi]:
    with job_api() as api:
        yield api


@pytest.fixture
def files(tmp_path: Path, prod: JobApi, staging: JobApi) -> tuple[Path, Path]:
    """Both configurations, which name no store."""
    files = tmp_path / "prod.yaml", tmp_path / "staging.yaml"
    for file, api in zip(files, (prod, staging), strict=True):
        file.write_text(CONFIG.format(preset=PRESET, url=api.url))
    return files


@asynccontextmanager
async def task_elsewhere(files: tuple[Path, Path], prod: JobApi) -> AsyncGenerator[tuple[str, Path]]:
    """A task of prod that was started, and never looked at."""
    with dying_sidecar(files[0], "bind") as dying:
        async with peer(dying.url) as client:
            with pytest.raises(httpx2.TransportError):
                await client.call("report", {"month": 5}, meta=KEY)
        dying.process.wait(60)
    assert len(prod.starts) == 1
    listed = run([COMMAND, "tasks", "list", "--json", "-c", str(files[1])])
    yield json.loads(listed.stdout)[0]["id"], files[1]


async def test_a_task_of_another_engine_stays_readable_until_it_is_rebound(
    files: tuple[Path, Path], prod: JobApi, staging: JobApi
) -> None:
    async with task_elsewhere(files, prod) as (task_id, config):
        with sidecar(config) as served:
            async with peer(served.url) as client:
                seen = await client.get(task_id)
                assert seen["status"] == "working"
                assert "now has another identity" in seen["statusMessage"]
                assert (await client.send("tasks/cancel", {"taskId": task_id})).result["resultType"] == "complete"
            assert (staging.starts, staging.looks) == ([], [])
            checked = run([COMMAND, "check", str(config)])
            old, new = f"http:{prod.url}", f"http:{staging.url}"
            assert checked.returncode == 0
            assert f"1 live task of another engine named jobs: it is {new} here" in checked.stdout
            assert f"mcp-workflows engines rebind {old} {new}" in checked.stdout
            assert f"engines rebind {old} {new}" not in run([COMMAND, "check", str(files[0])]).stdout
            command = [COMMAND, "engines", "rebind", old, new, "-c", str(config)]
            asked = run(command)
            assert (asked.returncode, asked.stdout) == (1, f"1 live task: {old} -> {new}\n")
            assert "nothing was changed" in asked.stderr
            assert staging.looks == []
            done = run([*command, "--yes"])
            assert "changed, including ended tasks: 1" in done.stdout
            async with peer(served.url) as client:
                assert (await client.until(task_id))["status"] in {"completed", "cancelled"}
                assert (await client.call("report", {"month": 5}, meta=KEY)).result["taskId"] == task_id
    assert staging.starts == []
