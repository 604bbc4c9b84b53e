"""Replicas on one PostgreSQL schema while parts of the cluster die: no task is lost, doubled or wrongly ended."""

from __future__ import annotations

import random
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from tests.support.postgres_server import Postgres, postgres
from tests.support.served import ENDED, Peer
from tests.support.sidecars import Process
from tests.support.waiting import TIMEOUT, until

pytestmark = pytest.mark.anyio

QUEUE, SCHEMA = "q", "cluster"
CONFIG = """
limits: {{creates_per_minute: 3000}}
store: "{store}"
engines:
  temporal: {{adapter: temporal, address: "{address}", task_queue: q, timeout_seconds: 2}}
tools:
  slow: {{engine: temporal, workflow: SlowCompute, args: ["{{{{seconds}}}}", "{{{{label}}}}"],
    input: {{type: object, properties: {{seconds: {{type: number}}, label: {{type: string}}}}}}}}
  confirm: {{engine: temporal, workflow: ConfirmDelete, args: ["{{{{filename}}}}"]}}
"""
PATIENCE = 3.0  # seconds of a client, until it turns to another replica
YES: Mapping[str, Any] = {"action": "accept", "content": {"confirm": True}}


@dataclass
class Replica:
    """A process of `mcp-workflows serve`, and a client of it."""

    config: Path
    http: httpx2.AsyncClient
    port: int = field(default_factory=free_port)
    served: Process | None = None

    def start(self) -> None:
        """Start it, or start it again at its address, and wait until it is ready."""
        command = [COMMAND, "serve", str(self.config), "--http", f"127.0.0.1:{self.port}", "--log-level", "info"]
        self.served = Process(command, self.port, self.config.with_name(f"{self.port}.log"))
        self.served.wait_until_ready()

    @property
    def peer(self) -> Peer:
        """A client of it."""
        return Peer(self.http, f"http://127.0.0.1:{self.port}/mcp")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.served is not None
        self.served.process.send_signal(number)

    def end(self) -> None:
        """kill -9, if it runs."""
        if self.served is not None:
            self.send(signal.SIGKILL)
            self.served.process.wait()

    async def readiness(self) -> int:
        """The status of its `/readyz`; 0: it gives no answer."""
        try:
            return (await self.http.get(self.peer.url.replace("/mcp", "/readyz"), timeout=PATIENCE)).status_code
        except httpx2.TransportError:
            return 0


@dataclass
class Cluster:
    """The parts that can fail, and what clients were told."""

    database: Postgres
    engine: DevServer
    replicas: Sequence[Replica]
    told: dict[str, set[str]] = field(default_factory=dict[str, set[str]])  # ids of tasks, by idempotency key
    refusal: str = ""  # the last one
    is_over: bool = False

    async def create(self, key: str, tool: str, arguments: Mapping[str, Any]) -> str:
        """Create a task; after any error with the same key at another replica."""
        choices = random.sample(range(3), 3)
        for attempt in range(1000):
            client = self.replicas[choices[attempt % 3]].peer
            with anyio.move_on_after(PATIENCE):
                try:
                    reply = await client.call(tool, arguments, meta={"mcp-workflows/idempotencyKey": key})
                except (httpx2.TransportError, ValueError, IndexError):
                    reply = None
                if reply and reply.body.get("result", {}).get("resultType") == "task":
                    self.told.setdefault(key, set()).add(reply.result["taskId"])
                    return reply.result["taskId"]
                self.refusal = str(reply)
            await anyio.sleep(0.05)
        raise AssertionError(f"no replica creates a task: {self.refusal}")

    async def ask(self, name: str, client: Peer) -> tuple[str, str]:
        """Create a task with a question; return its id and the key of the question."""
        task_id = await self.create(f"asked-{name:0>30}", "confirm", {"filename": name})
        return task_id, next(iter((await client.until(task_id, "input_required"))["inputRequests"]))

    async def produce(self, name: str) -> None:
        """Create tasks until the end, and some of them twice."""
        number = 0
        while not self.is_over:
            number += 1
            key = f"{name}-{number:0>30}"
            arguments = {"seconds": random.choice([0, 0.5, 2]), "label": key}
            for _ in range(1 + (number % 4 == 0)):
                await self.create(key, "slow", arguments)
            await anyio.sleep(0.2)

    async def goes_on(self) -> None:
        """Wait until all replicas are ready and share the polling, and more tasks are created."""
        with anyio.fail_after(TIMEOUT):
            while [await each.readiness() for each in self.replicas] != [200] * 3 or await self.live() != 3:
                await anyio.sleep(0.05)
        await self.more(6)

    async def more(self, tasks: int) -> None:
        """Wait until so many more tasks are created."""
        before = len(self.told)
        await until(lambda: len(self.told) >= before + tasks)

    async def live(self) -> int:
        """The number of replicas whose lease is not over."""
        query = f"SELECT count(*) FROM {SCHEMA}.replicas WHERE until > clock_timestamp()"
        return int(await to_thread.run_sync(self.database.run, query))

    # --- faults

    async def kill_a_replica(self) -> None:
        """kill -9, and a restart once the others have its part."""
        self.replicas[2].end()
        await self.more(3)
        while await self.live() != 2:
            await anyio.sleep(0.05)
        await to_thread.run_sync(self.replicas[2].start)

    async def crash_the_database(self) -> None:
        """An immediate restart of PostgreSQL; no replica is ready meanwhile."""
        await to_thread.run_sync(self.database.stop)
        with anyio.fail_after(TIMEOUT):
            while 200 in [await each.readiness() for each in self.replicas]:
                await anyio.sleep(0.05)
        await to_thread.run_sync(self.database.start)

    async def lose_all_connections(self) -> None:
        """The administrator ends all sessions."""
        ours = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'mcp-workflows'"
        await to_thread.run_sync(self.database.run, f"NOTIFY mcpw_{SCHEMA}, 'of another program'")
        for _ in range(3):
            assert await to_thread.run_sync(self.database.run, ours)
            await self.more(1)

    async def kill_the_engine(self) -> None:
        """kill -9, and a restart; calls with a key get tasks that are not started yet."""
        self.engine.kill()
        await self.more(6)
        self.engine.start()

    async def freeze_a_replica(self) -> None:
        """SIGSTOP until its lease is over and a task that it knows has ended; then its first answers are right."""
        frozen, other = self.replicas[1], self.replicas[0].peer
        (task_id, question), (open_id, later) = [await self.ask(f"{name}-frozen", frozen.peer) for name in "ab"]
        frozen.send(signal.SIGSTOP)
        while await self.live() != 2:
            await anyio.sleep(0.05)
        await until_answered(other, task_id, question)
        frozen.send(signal.SIGCONT)
        assert (await frozen.peer.get(open_id))["status"] == "input_required"
        assert (await frozen.peer.get(task_id))["status"] == "completed"
        await until_answered(frozen.peer, open_id, later)


async def until_answered(client: Peer, task_id: str, question: str) -> None:
    """Answer a question until the task has ended."""
    with anyio.fail_after(TIMEOUT):
        while (await client.get(task_id))["status"] not in ENDED:
            await client.answer(task_id, **{question: YES})
            await anyio.sleep(0.05)


@asynccontextmanager
async def cluster(engine: DevServer, folder: Path) -> AsyncGenerator[Cluster]:
    with postgres() as database:
        config = folder / "workflows.yaml"
        config.write_text(CONFIG.format(store=database.url(SCHEMA), address=engine.address))
        async with httpx2.AsyncClient() as http:
            replicas = [Replica(config, http) for _ in range(3)]
            try:
                async with anyio.create_task_group() as group:
                    for each in replicas:
                        group.start_soon(to_thread.run_sync, each.start)
                yield Cluster(database, engine, replicas)
            finally:
                for each in replicas:
                    each.end()


async def listen(client: Peer, task_ids: Sequence[str], heard: set[str]) -> None:
    """Listen until all these tasks have ended; note each that has."""
    async with client.stream("subscriptions/listen", {"notifications": {"taskIds": task_ids}}) as (_, frames):
        async for frame in frames:
            told = frame.get("params", {})
            if told.get("status") in ENDED:
                heard.add(told["taskId"])
            if heard >= set(task_ids):
                return


async def test_nothing_is_lost_or_doubled_or_wrongly_ended_while_parts_of_the_cluster_die(
    own_dev_server: DevServer, tmp_path: Path
) -> None:
    engine = await Client.connect(own_dev_server.address, runtime=quiet_runtime())
    async with Worker(engine, task_queue=QUEUE, workflows=ALL), cluster(own_dev_server, tmp_path) as found:
        faults: list[Callable[[], Awaitable[None]]] = [
            found.kill_a_replica,
            found.crash_the_database,
            found.lose_all_connections,
            found.kill_the_engine,
            found.freeze_a_replica,
        ]
        random.shuffle(faults)
        try:
            await survives(found, engine, faults)
        except BaseException as error:
            error.add_note(f"order: {[each.__name__ for each in faults]}")
            for each in found.replicas:
                error.add_note(f"{each.port}:\n{each.config.with_name(f'{each.port}.log').read_text()[-3000:]}")
            raise


async def survives(found: Cluster, engine: Client, faults: Sequence[Callable[[], Awaitable[None]]]) -> None:
    first, last = found.replicas[0].peer, found.replicas[2]
    questions = dict([await found.ask(f"{number}", first) for number in range(3)])
    heard: set[str] = set()
    async with anyio.create_task_group() as group:
        group.start_soon(listen, first, list(questions), heard)  # through all that happens to the others
        async with anyio.create_task_group() as producers:
            for name in "abc":
                producers.start_soon(found.produce, name)
            for fault in faults:
                await found.goes_on()
                with anyio.fail_after(2 * TIMEOUT):
                    await fault()
            await found.goes_on()
            found.is_over = True
        news: list[set[str]] = [set(), set(), set()]
        late = await found.create("late-" * 8, "slow", {"seconds": 1, "label": "late-" * 8})
        for each, hears in zip(found.replicas, news, strict=True):
            group.start_soon(listen, each.peer, [late], hears)
        for task_id, question in questions.items():
            await until_answered(last.peer, task_id, question)
        await until(lambda: heard == questions.keys() and news == [{late}] * 3)
        group.cancel_scope.cancel()
    assert {key: len(ids) for key, ids in found.told.items() if len(ids) != 1} == {}
    async with anyio.create_task_group() as group:
        for each in found.replicas:
            group.start_soon(ended_well, each.peer, found.told)
    rows = await to_thread.run_sync(found.database.run, f"SELECT count(*) FROM {SCHEMA}.tasks")
    assert int(rows) == len(found.told)
    assert await executions(engine, len(found.told)) == len(found.told)


async def ended_well(client: Peer, told: Mapping[str, set[str]]) -> None:
    """Check that each task ends, with the result of its own execution."""
    for key, (task_id,) in told.items():
        ended = await client.until(task_id)
        assert ended["status"] == "completed", (key, ended)
        assert key.startswith("asked") or f"computed {key} in" in str(ended["result"]), (key, ended)


async def executions(engine: Client, at_least: int) -> int:
    """The number of executions on the engine, counted until there are enough, then once more."""
    query = f"TaskQueue = '{QUEUE}'"
    with anyio.move_on_after(TIMEOUT):
        while (await engine.count_workflows(query)).count < at_least:
            await anyio.sleep(0.1)
    await anyio.sleep(0.5)  # the list of the dev server lags: one too many must have the time to show
    return (await engine.count_workflows(query)).count
