"""kill -9 and two replicas: processes of the sidecar in front of the local engine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import anyio
import httpx2
import pytest

from adapters.stepfunctions.tests import machines
from adapters.stepfunctions.tests.configured import KEY, YES, asked, called, configured, executions, types
from tests.support.configured import killed_while_creating, one_task_that_completes
from tests.support.served import Peer, peer
from tests.support.sidecars import dying_sidecar, sidecar
from tests.support.stepfunctions_engine import StepFunctions

pytestmark = pytest.mark.anyio

SHORT: Final = machines.one_state("Nap", {"Type": "Wait", "Seconds": 1, "End": True})
STEPS: Final = [
    "start",
    *(pytest.param(step, marks=pytest.mark.slow) for step in ("row", "bind", "reply")),
]


@pytest.mark.parametrize("step", STEPS)
async def test_a_sidecar_killed_while_it_creates_loses_nothing_and_starts_nothing_twice(
    stepfunctions: StepFunctions, tmp_path: Path, step: str
) -> None:
    machine = stepfunctions.machine(SHORT)
    config = configured(tmp_path, stepfunctions.url, {"it": {"workflow": machine}})
    await killed_while_creating(config, step, meta=KEY)
    await one_task_that_completes(config)
    assert len(executions(stepfunctions, machine)) == 1


async def test_an_answer_that_was_taken_by_the_engine_before_the_sidecar_died_can_be_sent_again(
    stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    machine = stepfunctions.machine(machines.ASKS)
    config = configured(tmp_path, stepfunctions.url, {"it": {"workflow": machine}})
    with dying_sidecar(config, "answer") as dying:
        async with peer(dying.url) as client:
            task_id = await called(client)
            key, _ = await asked(client, task_id)
            with pytest.raises(httpx2.TransportError):
                await client.answer(task_id, **{key: YES})
        assert dying.process.wait(60) == -9
    with sidecar(config) as fresh:
        async with peer(fresh.url) as client:
            assert (await client.answer(task_id, **{key: YES})).result["resultType"] == "complete"
            done = await client.until(task_id)
    assert (done["status"], done["result"]["structuredContent"]) == ("completed", YES)
    [execution] = executions(stepfunctions, machine)
    assert types(stepfunctions, execution).count("TaskSucceeded") == 1


async def test_two_replicas_start_once_and_a_question_outlives_the_one_that_is_killed(
    stepfunctions: StepFunctions, tmp_path: Path
) -> None:
    machine = stepfunctions.machine(machines.ASKS)
    config = configured(tmp_path, stepfunctions.url, {"it": {"workflow": machine}})
    with sidecar(config) as one, sidecar(config) as two:
        async with peer(one.url) as first, peer(two.url) as second:
            ids: list[str] = []

            async def call(client: Peer) -> None:
                ids.append(await called(client, meta=KEY))

            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(call, (first, second)[number % 2])
            assert (len(ids), len(set(ids))) == (20, 1)
            assert len(executions(stepfunctions, machine)) == 1
            key, question = await asked(first, ids[0])
            one.process.kill()
            assert await asked(second, ids[0]) == (key, question)
            await second.answer(ids[0], **{key: YES})
            assert (await second.until(ids[0]))["status"] == "completed"
    assert len(executions(stepfunctions, machine)) == 1
