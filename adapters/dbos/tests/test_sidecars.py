"""Whole sidecars with workflows of their own on PostgreSQL: one of two is killed, and the database freezes."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp.client import Client

from adapters.dbos.tests.postgres_server import frozen, new_database
from mcp_workflows.client import TaskHandle, TasksClient, TaskState
from tests.support.child_processes import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("processes")]

PATIENCE = 90  # seconds
TASKS = 12  # more than an adapter has threads for
STEPS = 3
CODE = """
import asyncio
from pathlib import Path

from dbos import DBOS

HERE = Path(__file__).parent


@DBOS.step()
async def work(key: str, number: int) -> None:
    with (HERE / "done").open("a") as file:
        file.write(f"{key}-{number}\\n")
    while number == 1 and (HERE / "hold").exists():
        await asyncio.sleep(0.01)


@DBOS.workflow()
async def several(key: str) -> dict[str, str]:
    for number in range(STEPS):
        await work(key, number)
    return {"key": key}
"""
CONFIG = """
store: {url: "sqlite:///tasks.db"}
engines:
  app: {adapter: dbos, module: MODULE, database: "DATABASE"}
  other: {adapter: memory}
tools:
  several: {engine: app, workflow: several, input: MODULE:several, description: Work in several steps.}
  echo: {engine: other, workflow: echo, description: Return the input.}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A folder with a configuration, for any number of sidecars, and the server of its database."""

    folder: Path
    server: str

    @contextmanager
    def sidecar(self) -> Generator[Sidecar]:
        port = free_port()
        command = [sys.executable, "-m", "mcp_workflows", "serve", "--http", f"127.0.0.1:{port}"]
        with (self.folder / f"log-{port}").open("w") as log:
            process = subprocess.Popen(command, cwd=self.folder, stderr=log)
            try:
                yield Sidecar(process=process, url=f"http://127.0.0.1:{port}")
            finally:
                process.kill()
                process.wait()

    def hold(self) -> None:
        """Have all executions wait in their second step."""
        (self.folder / "hold").touch()

    def release(self) -> None:
        (self.folder / "hold").unlink()

    def done(self) -> Counter[str]:
        """How often each step of each execution ran."""
        file = self.folder / "done"
        return Counter(file.read_text().split() if file.exists() else ())

    async def until_held(self, keys: Sequence[str]) -> None:
        with anyio.fail_after(PATIENCE):
            while not self.done().keys() >= {f"{key}-1" for key in keys}:
                await anyio.sleep(0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """One process of `serve`."""

    process: subprocess.Popen[bytes]
    url: str

    async def get(self, path: str) -> httpx2.Response:
        async with httpx2.AsyncClient(timeout=PATIENCE) as http:
            return await http.get(f"{self.url}{path}")

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[tuple[Client, TasksClient]]:
        """Connect to it, once it answers."""
        with anyio.fail_after(PATIENCE):
            while not await self._is_ready():
                await anyio.sleep(0.1)
        tasks = TasksClient()
        async with Client(f"{self.url}/mcp", extensions=[tasks]) as client:
            yield client, tasks

    async def _is_ready(self) -> bool:
        try:
            return (await self.get("/readyz")).status_code == 200
        except httpx2.TransportError:
            return False


@pytest.fixture
def site(tmp_path: Path, postgres_url: str) -> Site:
    """A site with a new database."""
    module = f"flows_{uuid.uuid4().hex}"
    (tmp_path / f"{module}.py").write_text(CODE.replace("STEPS", str(STEPS)))
    config = CONFIG.replace("MODULE", module).replace("DATABASE", new_database(postgres_url))
    (tmp_path / "workflows.yaml").write_text(config)
    return Site(folder=tmp_path, server=postgres_url)


async def started(client: Client, tasks: TasksClient, key: str) -> TaskHandle:
    """Start an execution under a key; with a key that is taken, return its task."""
    handle = await tasks.start(client, "several", {"key": key}, idempotency_key=uuid.uuid5(uuid.NAMESPACE_OID, key).hex)
    assert isinstance(handle, TaskHandle)
    return handle


@pytest.mark.parametrize("killed", [0, 1], ids=["the one with the workflows", "the other one"])
async def test_of_two_sidecars_one_is_killed_and_nothing_is_lost_or_runs_twice(site: Site, killed: int) -> None:
    site.hold()
    async with AsyncExitStack() as stack:
        sidecars, clients = list[Sidecar](), list[tuple[Client, TasksClient]]()
        for _ in range(2):  # the first one has the workflows
            sidecars.append(stack.enter_context(site.sidecar()))
            clients.append(await stack.enter_async_context(sidecars[-1].client()))
        keys = [f"key{number}" for number in range(TASKS)]
        handles = [await started(*clients[i % 2], key) for i, key in enumerate(keys)]
        again = [await started(*clients[(i + 1) % 2], key) for i, key in enumerate(keys)]
        assert [each.id for each in again] == [each.id for each in handles]
        await site.until_held(keys)
        sidecars[killed].process.kill()
        site.release()
        client, tasks = clients[1 - killed]
        with anyio.fail_after(PATIENCE):
            results = [await tasks.handle(client, each.id).result() for each in handles]
            results.append(await (await started(client, tasks, "after")).result())
    keys.append("after")
    assert [each.structured_content for each in results] == [{"key": key} for key in keys]
    done = site.done()
    repeated = {name for name, count in done.items() if count > 1}
    assert repeated <= ({f"{key}-1" for key in keys} if killed == 0 else set())  # the steps that the kill interrupted
    assert len(done) == len(keys) * STEPS


async def test_while_the_database_is_frozen_the_rest_answers_and_afterwards_all_goes_on(site: Site) -> None:
    before, during = [f"before{number}" for number in range(TASKS)], ["during1", "during2"]
    site.hold()
    with site.sidecar() as sidecar:
        async with sidecar.client() as (client, tasks):
            handles = [await started(client, tasks, key) for key in before]
            await site.until_held(before)
            seen: list[TaskState | None] = []

            async def look(handle: TaskHandle) -> None:
                seen.append(await handle.status())

            async def start(key: str) -> None:
                handles.append(await started(client, tasks, key))
                seen.append(handles[-1].begun)

            with anyio.fail_after(PATIENCE), frozen(site.server):
                async with anyio.create_task_group() as group:
                    for handle in tuple(handles):
                        group.start_soon(look, handle)
                    for key in during:
                        group.start_soon(start, key)
                    while len(seen) < TASKS + len(during):
                        assert (await sidecar.get("/readyz")).status_code == 200
                        echoed = await client.call_tool("echo", {"text": "hi"})
                        assert echoed.structured_content == {"text": "hi"}
                        await anyio.sleep(0.1)
            assert {each.status for each in seen if each is not None} == {"working"}
            site.release()
            with anyio.fail_after(PATIENCE):
                results = [(await each.result()).structured_content for each in handles]
    assert sorted(str(each) for each in results) == sorted(str({"key": key}) for key in [*before, *during])
    assert set(site.done().values()) == {1}
    assert len(site.done()) == (TASKS + len(during)) * STEPS
