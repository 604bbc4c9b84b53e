"""kill -9, lost replies, dead engines and two replicas: the sidecar's process against the real Temporal server."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp_workflows_temporal.connection import quiet_runtime
from temporalio.client import Client
from temporalio.worker import Worker

from samples.conformance.workflows import ALL
from tests.support.dev_server import DevServer
from tests.support.served import Peer, peer
from tests.support.sidecars import dying_sidecar, sidecar, write_config

pytestmark = pytest.mark.anyio

KEY = {"mcp-workflows/idempotencyKey": "order-1-" * 4}
wide = partial(pytest.param, marks=pytest.mark.slow)  # a step whose law another step shows too


async def connect(server: DevServer) -> Client:
    return await Client.connect(server.address, runtime=quiet_runtime())


@pytest.fixture
async def queue(dev_server: DevServer) -> AsyncGenerator[str]:
    """A task queue of this test alone, and a worker on it."""
    name = f"q-{uuid.uuid4().hex}"
    async with await _worker(dev_server, name):
        yield name


async def _worker(server: DevServer, queue: str) -> Worker:
    return Worker(await connect(server), task_queue=queue, workflows=ALL)


async def executions(server: DevServer, queue: str, *, at_least: int) -> int:
    """How many executions the engine has on this queue, counted until there are enough, then once more."""
    client = await connect(server)
    with anyio.move_on_after(20):
        while await _count(client, queue) < at_least:
            await anyio.sleep(0.1)
    await anyio.sleep(0.5)  # the visibility store of the dev server lags: one too many must have the time to show
    return await _count(client, queue)


async def _count(client: Client, queue: str) -> int:
    return (await client.count_workflows(f"TaskQueue = '{queue}'")).count


async def _call(client: Peer, **more: Any) -> str:
    return (await client.call("slow", {"seconds": 1, "label": "a"}, **more)).result["taskId"]


@pytest.mark.parametrize("step", [wide("row"), "start", "bind", wide("reply")])
async def test_a_sidecar_killed_while_it_creates_loses_nothing_and_starts_nothing_twice(
    dev_server: DevServer, queue: str, tmp_path: Path, step: str
) -> None:
    config = write_config(tmp_path, dev_server.address, queue)
    with dying_sidecar(config, step) as dying:
        async with peer(dying.url) as client:
            with pytest.raises(httpx2.TransportError):
                await _call(client, meta=KEY)
        assert dying.process.wait(60) == -9
    with sidecar(config) as fresh:
        async with peer(fresh.url) as client:
            ids = {await _call(client, meta=KEY) for _ in range(3)}
            assert len(ids) == 1
            assert (await client.until(ids.pop()))["status"] == "completed"
    assert await executions(dev_server, queue, at_least=1) == 1


@pytest.mark.parametrize("step", ["row", wide("start"), wide("bind"), wide("reply")])
async def test_a_task_nobody_knows_of_is_healed_by_the_next_sidecar(
    dev_server: DevServer, queue: str, tmp_path: Path, step: str
) -> None:
    config = write_config(tmp_path, dev_server.address, queue)
    with dying_sidecar(config, step) as dying:
        async with peer(dying.url) as client:
            with pytest.raises(httpx2.TransportError):
                await _call(client)
    with sidecar(config):
        assert await executions(dev_server, queue, at_least=1) == 1


async def test_100_calls_with_one_key_on_two_sidecars_are_one_task_and_one_execution(
    dev_server: DevServer, queue: str, tmp_path: Path
) -> None:
    config = write_config(tmp_path, dev_server.address, queue)
    with sidecar(config) as one, sidecar(config) as two:
        async with peer(one.url) as first, peer(two.url) as second:
            ids: list[str] = []

            async def ask(client: Peer) -> None:
                ids.append(await _call(client, meta=KEY))

            async with anyio.create_task_group() as group:
                for number in range(100):
                    group.start_soon(ask, (first, second)[number % 2])
            assert len(ids) == 100
            assert len(set(ids)) == 1
            ended = [await client.until(ids[0]) for client in (first, second)]
            assert ended[0] == ended[1]
    assert await executions(dev_server, queue, at_least=1) == 1


async def test_a_restart_loses_no_task_and_no_question(dev_server: DevServer, queue: str, tmp_path: Path) -> None:
    config = write_config(tmp_path, dev_server.address, queue)
    with sidecar(config) as before:
        async with peer(before.url) as client:
            task_id = (await client.call("confirm", {"filename": "a.txt"})).result["taskId"]
            asked = await client.until(task_id, "input_required")
        before.process.kill()
    with sidecar(config) as after:
        async with peer(after.url) as client:
            again = await client.until(task_id, "input_required")
            assert again["inputRequests"] == asked["inputRequests"]
            key = next(iter(again["inputRequests"]))
            await client.answer(task_id, **{key: {"action": "accept", "content": {"confirm": True}}})
            assert (await client.until(task_id))["status"] == "completed"


@pytest.mark.slow
async def test_an_engine_that_is_down_at_the_start_is_told_and_recovers_by_itself(
    own_dev_server: DevServer, tmp_path: Path
) -> None:
    own_dev_server.kill()
    config = write_config(tmp_path, own_dev_server.address, "late")
    with sidecar(config) as served:
        async with peer(served.url) as client:
            result = (await client.call("slow", {"seconds": 1})).result
            assert result["isError"] is True
            assert "nothing was started" in result["content"][0]["text"]
            health = await client.http.get(served.url.replace("/mcp", "/enginez"), timeout=20)
            assert (health.status_code, health.json()["engines"]["temporal"]["ok"]) == (503, False)
            for fine in ("/healthz", "/readyz"):
                assert (await client.http.get(served.url.replace("/mcp", fine))).status_code == 200
            own_dev_server.start()
            async with await _worker(own_dev_server, "late"):
                with anyio.fail_after(60):
                    while (reply := (await client.call("slow", {"seconds": 1})).result)["resultType"] != "task":
                        await anyio.sleep(0.2)
                assert (await client.until(reply["taskId"]))["status"] == "completed"
            assert (await client.http.get(served.url.replace("/mcp", "/enginez"), timeout=20)).status_code == 200


async def test_an_engine_killed_in_mid_execution_ends_no_task(own_dev_server: DevServer, tmp_path: Path) -> None:
    config = write_config(tmp_path, own_dev_server.address, "mid")
    with sidecar(config) as served:
        async with peer(served.url) as client, await _worker(own_dev_server, "mid"):
            task_id = (await client.call("confirm", {"filename": "a.txt"})).result["taskId"]
            done_id = await _call(client)
            asked = await client.until(task_id, "input_required")
            done = await client.until(done_id)
            own_dev_server.kill()
            with anyio.fail_after(60):
                while "engine temporal" not in (seen := await client.get(task_id)).get("statusMessage", ""):
                    await anyio.sleep(0.1)
            assert seen["status"] == "input_required"
            assert await client.get(done_id) == done
            own_dev_server.start()
            key = next(iter(asked["inputRequests"]))
            answer = {"action": "accept", "content": {"confirm": True}}
            with anyio.fail_after(60):
                while "error" in (await client.answer(task_id, **{key: answer})).body:
                    await anyio.sleep(0.2)
            assert (await client.until(task_id, within=60))["status"] == "completed"
