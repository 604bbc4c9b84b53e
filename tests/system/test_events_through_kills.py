"""`serve` is killed while it delivers events: each end of a task reaches the endpoint, twice only under one id."""

from __future__ import annotations

import random
import signal
import uuid
from collections import Counter
from pathlib import Path

import anyio
import httpx2
import pytest
from anyio import to_thread
from mcp_workflows_temporal.connection import quiet_runtime
from temporalio.client import Client
from temporalio.worker import Worker

from samples.conformance.workflows import ALL
from tests.support.child_processes import free_port
from tests.support.commands import COMMAND
from tests.support.dev_server import DevServer
from tests.support.endpoint import Endpoint, endpoint
from tests.support.served import Peer
from tests.support.sidecars import Process

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("processes")]

KILLS = 6
TASKS = 8  # from one kill to the next
CONFIG = """
limits: {{creates_per_minute: null}}
server: {{single_user: true, events: {{allow_private: true}}}}
store: "sqlite:///{store}"
engines: {{temporal: {{adapter: temporal, address: "{address}", task_queue: "{queue}"}}}}
tools:
  slow: {{engine: temporal, workflow: SlowCompute, args: ["{{{{seconds}}}}", "{{{{label}}}}"],
    input: {{type: object, properties: {{seconds: {{type: number}}, label: {{type: string}}}}}}}}
"""


async def create(client: Peer, number: int) -> str:
    """Create a task; after a lost connection again, with the same key."""
    while True:
        key = {"mcp-workflows/idempotencyKey": f"killed-{number:0>30}"}
        try:
            reply = await client.call("slow", {"seconds": (0, 0.3, 2)[number % 3], "label": "x"}, meta=key)
            return reply.result["taskId"]
        except (httpx2.TransportError, ValueError, IndexError):
            await anyio.sleep(0.05)


async def subscribe(client: Peer, receiver: Endpoint) -> None:
    delivery = {"mode": "webhook", "url": receiver.url, "secret": receiver.secret}
    params = {"name": "task.ended", "arguments": {}, "delivery": delivery, "cursor": None}
    assert "id" in (await client.send("events/subscribe", params)).result


async def test_no_event_is_lost_when_the_server_is_killed(dev_server: DevServer, tmp_path: Path) -> None:
    queue, port = f"events-{uuid.uuid4().hex[:8]}", free_port()
    config = tmp_path / "workflows.yaml"
    config.write_text(CONFIG.format(store=tmp_path / "tasks.db", address=dev_server.address, queue=queue))
    command = [COMMAND, "serve", str(config), "--http", f"127.0.0.1:{port}"]
    engine = await Client.connect(dev_server.address, runtime=quiet_runtime())
    created: list[str] = []
    async with (
        endpoint() as receiver,
        httpx2.AsyncClient(timeout=30) as http,
        Worker(engine, task_queue=queue, workflows=ALL),
        anyio.create_task_group() as group,
    ):
        client, served = Peer(http, f"http://127.0.0.1:{port}/mcp"), Process(command, port, tmp_path / "log")
        try:
            await to_thread.run_sync(served.wait_until_ready)
            await subscribe(client, receiver)

            async def produce() -> None:
                for number in range(KILLS * TASKS):
                    created.append(await create(client, number))

            group.start_soon(produce)
            for kills in range(1, KILLS + 1):
                with anyio.fail_after(120):
                    while len(created) < kills * TASKS - random.randrange(TASKS):
                        await anyio.sleep(0.01)
                await anyio.sleep(random.uniform(0, 1))
                served.process.send_signal(signal.SIGKILL)
                await to_thread.run_sync(served.process.wait)
                served = Process(command, port, tmp_path / "log")
                await to_thread.run_sync(served.wait_until_ready)
            with anyio.fail_after(120):
                while len(created) < KILLS * TASKS:
                    await anyio.sleep(0.05)
            await receiver.until(lambda: {event["data"]["taskId"] for event in receiver.events()} >= set(created))
        finally:
            served.process.kill()
            await to_thread.run_sync(served.process.wait)
        group.cancel_scope.cancel()
    told = Counter((event["data"]["taskId"], event["eventId"]) for event in receiver.events())
    assert len(set(created)) == KILLS * TASKS
    assert {task_id for task_id, _ in told} == set(created)
    assert len(told) == len({event_id for _, event_id in told}) == KILLS * TASKS
    assert receiver.forged == []
