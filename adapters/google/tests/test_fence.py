"""The fence: of executions with one key one goes on, and the task is that one; they charge at a small shop."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from mcp_workflows_google.tooling.embed import add_subworkflows

from adapters.google.tests.cloud import configured, deliver, environment, executions
from tests.support.child_processes import free_port
from tests.support.configured import asked, client_of
from tests.support.google_engine import GoogleEngine
from tests.support.google_local_listener import Listener, listening
from tests.support.served import Peer

pytestmark = pytest.mark.anyio

YES: Final[Mapping[str, Any]] = {"action": "accept", "content": {}}

HELD: Final = """
main:
  params: [args]
  steps:
    - opening:
        call: events.create_callback_endpoint
        args: {http_callback_method: PUT}
        result: go
    - held:
        call: events.await_callback
        args: {callback: "${go}", timeout: 600}
    - claiming:
        call: mcp_claim
        result: claim
    - fence:
        switch:
          - condition: ${not(claim.claimed)}
            return: {lost: true}
    - asking:
        switch:
          - condition: ${args.asks}
            steps:
              - ask:
                  call: mcp_elicit
                  args: {message: "Charge the card?"}
    - charging:
        call: http.post
        args:
          url: ${args.shop}
          body: {by: '${sys.get_env("GOOGLE_CLOUD_WORKFLOW_EXECUTION_ID")}'}
    - done:
        return: {by: '${sys.get_env("GOOGLE_CLOUD_WORKFLOW_EXECUTION_ID")}'}
"""


@pytest.fixture(scope="module")
def shop() -> Iterator[Listener]:
    with listening() as server:
        yield server


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """A task of a fenced workflow whose executions wait before they claim; and the shop that they charge at."""

    engine: GoogleEngine
    shop: Listener
    workflow: str
    config: Path
    port: int

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Peer]:
        async with client_of(self.config, port=self.port) as client:
            yield client

    async def begun(self, client: Peer, *, asks: bool = False) -> tuple[str, str]:
        """A task, and its execution."""
        arguments = {"shop": f"{self.shop.url}/{self.workflow}", "asks": asks}
        task_id = str((await client.call("it", arguments)).result["taskId"])
        [execution] = executions(self.engine, self.workflow)
        return task_id, execution

    def duplicate(self, execution: str) -> str:
        """Another execution like this one, with the label of its key: as of a create that was sent twice."""
        first = self.engine.seen(execution)
        return self.engine.execute(self.workflow, json.loads(first.argument), dict(first.labels))

    async def go(self, *names: str) -> None:
        """Let these claim."""
        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(lambda name: deliver(self.engine, name, {}, method="PUT"), name)

    def charged_by(self) -> Sequence[str]:
        """The ids of the executions that have charged."""
        mine = [each for each in self.shop.requests if each["path"] == f"/{self.workflow}"]
        return [json.loads(each["body"])["by"] for each in mine]

    async def at(self, name: str, step: str) -> None:
        """Until it is in this step; the sidecar goes on meanwhile."""
        await anyio.to_thread.run_sync(self.engine.at, name, step)

    async def ends(self, *names: str) -> Sequence[Any]:
        """What they return, once they have ended."""
        ended = [await anyio.to_thread.run_sync(self.engine.ended, name) for name in names]
        return [json.loads(each.result or "null") for each in ended]


@pytest.fixture
def fenced(google_engine: GoogleEngine, tmp_path: Path, shop: Listener) -> Fenced:
    port = free_port()
    workflow = google_engine.deploy("fenced", add_subworkflows(HELD), env=environment(port))
    config = configured(tmp_path, google_engine.address, {"it": {"workflow": workflow}})
    return Fenced(engine=google_engine, shop=shop, workflow=workflow, config=config, port=port)


def id_of(name: str) -> str:
    return name.rpartition("/")[2]


async def test_of_many_duplicates_that_claim_at_once_one_charges_and_the_task_is_that_one(fenced: Fenced) -> None:
    async with fenced.client() as client:
        task_id, first = await fenced.begun(client)
        names = [first, *(fenced.duplicate(first) for _ in range(5))]
        await fenced.go(*names)
        done = (await client.until(task_id))["result"]["structuredContent"]
        ends = await fenced.ends(*names)
    assert fenced.charged_by() == [done["by"]]
    assert sorted(ends, key=str) == [done, *[{"lost": True}] * 5]
    assert done["by"] in {id_of(name) for name in names}


async def test_a_task_whose_execution_lost_to_a_duplicate_asks_and_ends_as_the_duplicate_does(fenced: Fenced) -> None:
    async with fenced.client() as client:
        task_id, first = await fenced.begun(client, asks=True)
        second = fenced.duplicate(first)
        await fenced.go(second)
        await fenced.at(second, "wait_for_answer")
        assert (await client.get(task_id))["status"] == "working"  # its own has not claimed yet
        await fenced.go(first)
        assert await fenced.ends(first) == [{"lost": True}]
        key, question = await asked(client, task_id)
        assert question["params"]["message"] == "Charge the card?"
        await client.answer(task_id, **{key: YES})
        done = (await client.until(task_id))["result"]["structuredContent"]
    assert done == {"by": id_of(second)}
    assert fenced.charged_by() == [id_of(second)]
