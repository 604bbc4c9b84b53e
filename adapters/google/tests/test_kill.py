"""kill -9 and two replicas: processes of the sidecar in front of the local engine."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
import pytest

from adapters.google.tests import flows
from adapters.google.tests.configured import KEY, YES, asked, called, configured, executions
from adapters.google.tests.scene import environment
from tests.support.child_processes import free_port
from tests.support.configured import killed_while_creating, one_task_that_completes
from tests.support.google_engine import GoogleEngine
from tests.support.served import Peer, peer
from tests.support.sidecars import dying_sidecar, sidecar

pytestmark = pytest.mark.anyio

SETTLING: Final[Mapping[str, Any]] = {"settle": "3s", "timeout_seconds": 1}
STEPS: Final = [
    "start",
    *(pytest.param(step, marks=pytest.mark.slow) for step in ("row", "bind", "reply")),
]


@pytest.mark.parametrize("step", STEPS)
async def test_a_sidecar_killed_while_it_creates_loses_nothing_and_starts_nothing_twice(
    google_engine: GoogleEngine, tmp_path: Path, step: str
) -> None:
    workflow = google_engine.deploy("nap", flows.NAP)
    config = configured(tmp_path, google_engine.address, {"it": {"workflow": workflow}}, **SETTLING)
    await killed_while_creating(config, step, meta=KEY)
    await one_task_that_completes(config)
    assert len(executions(google_engine, workflow)) == 1


async def test_an_answer_that_arrived_before_the_sidecar_died_is_not_sent_again(
    google_engine: GoogleEngine, tmp_path: Path
) -> None:
    port = free_port()
    workflow = google_engine.deploy("asks", flows.ASKS, env=environment(port))
    config = configured(tmp_path, google_engine.address, {"it": {"workflow": workflow}})
    with dying_sidecar(config, "answer", port=port) as dying:
        async with peer(dying.url) as client:
            task_id = await called(client)
            key, _ = await asked(client, task_id)
            with pytest.raises(httpx2.TransportError):
                await client.answer(task_id, **{key: YES})
        assert dying.process.wait(60) == -9
    with sidecar(config, port=port) as fresh:
        async with peer(fresh.url) as client:
            assert (await client.answer(task_id, **{key: YES})).result["resultType"] == "complete"
            done = await client.until(task_id)
    assert done["status"] == "completed"
    assert done["result"]["structuredContent"] == {**YES, "timed_out": False}


async def test_two_replicas_start_once_and_a_question_outlives_the_one_that_is_killed(
    google_engine: GoogleEngine, tmp_path: Path
) -> None:
    port = free_port()
    workflow = google_engine.deploy("asks", flows.ASKS, env=environment(port))
    config = configured(tmp_path, google_engine.address, {"it": {"workflow": workflow}})
    with sidecar(config, port=port) as one, sidecar(config) as two:
        async with peer(one.url) as first, peer(two.url) as second:
            ids: list[str] = []

            async def call(client: Peer) -> None:
                ids.append(await called(client, meta=KEY))

            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(call, (first, second)[number % 2])
            assert (len(ids), len(set(ids))) == (20, 1)
            assert len(executions(google_engine, workflow)) == 1
            key, question = await asked(second, ids[0])  # it was told to the other one
            one.process.kill()
            assert await asked(second, ids[0]) == (key, question)
            await second.answer(ids[0], **{key: YES})
            assert (await second.until(ids[0]))["status"] == "completed"
    assert len(executions(google_engine, workflow)) == 1


async def test_what_two_replicas_hand_out_while_the_engine_is_down_is_started_when_it_is_back(
    own_google_engine: GoogleEngine, tmp_path: Path
) -> None:
    workflow = own_google_engine.deploy("nap", flows.NAP)
    config = configured(tmp_path, own_google_engine.address, {"it": {"workflow": workflow}}, **SETTLING)
    with sidecar(config) as one, sidecar(config) as two:
        async with peer(one.url) as first, peer(two.url) as second:
            own_google_engine.kill()
            told: dict[int, set[str]] = {key: set() for key in range(40)}

            async def call(client: Peer, key: int) -> None:
                result = (await client.call("it", meta={"mcp-workflows/idempotencyKey": f"{key:032}"})).result
                if result["resultType"] == "task":
                    told[key].add(result["taskId"])
                else:
                    assert "nothing was started" in str(result), result

            with anyio.fail_after(60):
                while not any(told.values()):  # until the replicas have met on one
                    async with anyio.create_task_group() as group:
                        for key, client in product(told, (first, second)):
                            group.start_soon(call, client, key)
            own_google_engine.start()
            handed_out = [task_id for ids in told.values() for task_id in ids]
            assert max(len(ids) for ids in told.values()) == 1
            for task_id in handed_out:
                assert (await first.until(task_id, within=60))["status"] == "completed"
    assert len(executions(own_google_engine, workflow)) == len(handed_out)
