"""prod.yaml and staging.yaml in one folder, with one default store: neither acts on the tasks of the other."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.support.client_2025 import session
from tests.support.commands import COMMAND, run
from tests.support.job_api import JobApi, job_api
from tests.support.served import Peer, peer
from tests.support.sidecars import dying_sidecar, sidecar

pytestmark = pytest.mark.anyio

KEY = {"mcp-workflows/idempotencyKey": "order-1-" * 4}
CONFIG = """
server: {{name: tests, single_user: {single}}}
engines:
  jobs: {{adapter: http, preset: respond-async, starts: {starts}, url: "{url}"}}
tools:
  report: {{engine: jobs, workflow: reports{more}}}
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
def write(tmp_path: Path, prod: JobApi, staging: JobApi) -> Callable[..., tuple[Path, Path]]:
    """Both configurations, which name no store."""

    def both(starts: str = "keyed", more: str = "", single: str = "false") -> tuple[Path, Path]:
        files = tmp_path / "prod.yaml", tmp_path / "staging.yaml"
        for file, api in zip(files, (prod, staging), strict=True):
            file.write_text(CONFIG.format(starts=starts, url=api.url, more=more, single=single))
        return files

    return both


async def killed_before_the_start(config: Path, **call: Any) -> None:
    """A server that is killed between the row and the start."""
    with dying_sidecar(config, "row") as dying:
        async with peer(dying.url) as client:
            with pytest.raises(httpx2.TransportError):
                await client.call("report", {"month": 5}, **call)
        assert dying.process.wait(60) == -signal.SIGKILL


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():
            await anyio.sleep(0.05)


async def healed(config: Path, api: JobApi, client: Peer) -> None:
    """Until a server has healed what is its own: a row of it that was left unstarted."""
    await killed_before_the_start(config)
    await until(lambda: len(api.starts) == 1)
    task_id = (await client.call("report", {"month": 6})).result["taskId"]
    assert (await client.until(task_id))["status"] == "completed"


@pytest.mark.parametrize("starts", ["keyed", "once"])
async def test_a_server_never_starts_what_another_configuration_left_unstarted(
    write: Callable[..., tuple[Path, Path]], prod: JobApi, staging: JobApi, starts: str
) -> None:
    files = write(starts)
    await killed_before_the_start(files[0], meta=KEY)
    with sidecar(files[1]) as served:
        async with peer(served.url) as client, session(served.url) as older:
            before = len(staging.starts)
            for reply in (
                await client.call("report", {"month": 5}, meta=KEY),
                await older.request("tools/call", {"name": "report", "arguments": {"month": 5}, "_meta": KEY}),
                await older.request(
                    "tools/call", {"name": "report", "arguments": {"month": 5}, "task": {}, "_meta": KEY}
                ),
            ):
                assert reply.error["code"] == -32602
                assert "was used on another engine named jobs: nothing was started" in reply.error["message"]
            assert len(staging.starts) == before
            if starts == "keyed":  # its own row, left later, is healed: so the rounds have passed the other one
                await healed(files[1], staging, client)
    assert prod.starts == []
    if starts == "once":  # nobody can tell if the killed server has sent it
        return
    with sidecar(files[0]) as served:
        await until(lambda: len(prod.starts) == 1)
        async with peer(served.url) as client:
            task_id = (await client.call("report", {"month": 5}, meta=KEY)).result["taskId"]
            assert (await client.until(task_id))["status"] == "completed"
    assert len(prod.starts) == 1
    assert not {*prod.starts} & {*staging.starts}


async def test_the_same_call_within_the_window_of_dedupe_is_refused_too(
    write: Callable[..., tuple[Path, Path]], staging: JobApi
) -> None:
    files = write(more=", dedupe: 1h", single="true")
    with sidecar(files[0]) as served:
        async with peer(served.url) as client:
            assert (await client.call("report", {"month": 5})).result["taskId"]
        served.process.kill()
    with sidecar(files[1]) as served:
        async with peer(served.url) as client, session(served.url) as older:
            params = {"name": "report", "arguments": {"month": 5}}
            for reply in (await client.call("report", {"month": 5}), await older.request("tools/call", params)):
                assert "nothing was started" in json.dumps(reply.body)
            assert (await client.call("report", {"month": 6})).result["taskId"]  # another call
    assert len(staging.starts) == 1


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
    write: Callable[..., tuple[Path, Path]], prod: JobApi, staging: JobApi
) -> None:
    files = write()
    async with task_elsewhere(files, prod) as (task_id, config):
        with sidecar(config) as served:
            async with peer(served.url) as client:
                seen = await client.get(task_id)
                assert seen["status"] == "working"
                assert "has another identity now" in seen["statusMessage"]
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
            assert "changed, with those that have ended: 1" in done.stdout
            async with peer(served.url) as client:
                assert (await client.until(task_id))["status"] in {"completed", "cancelled"}
                assert (await client.call("report", {"month": 5}, meta=KEY)).result["taskId"] == task_id
    assert staging.starts == []


async def test_a_store_that_is_made_anew_is_told_in_the_log(write: Callable[..., tuple[Path, Path]]) -> None:
    file, _ = write()
    with sidecar(file) as first:
        assert f"made a new store, without any tasks: {file.parent}/mcp-workflows.db" in first.log.read_text()
    with sidecar(file) as second:
        assert second.log.read_text().count("made a new store") == 1
