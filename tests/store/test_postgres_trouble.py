"""Trouble of a PostgreSQL server or on the way to it: a clear error, nothing lost, and it goes on without a restart."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute, SocketStream

from mcp_workflows.engines.polling.policy import DEFAULT_POLICY
from mcp_workflows.engines.polling.poller import Poller
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import StoreUnavailable
from mcp_workflows.store import replicas
from mcp_workflows.store.encryption import Cipher, new_key
from mcp_workflows.store.postgres import connections
from mcp_workflows.store.postgres.connections import Connections, DatabaseUrl, PostgresConnection
from mcp_workflows.store.postgres.store import PostgresStore
from mcp_workflows.store.protocol import CapReached, Caps, Store, open_store
from mcp_workflows.store.replicas import Replicas
from mcp_workflows.store.sqlite import copies
from mcp_workflows.store.sqlite.store import SQLiteStore
from mcp_workflows.task import Task, accept
from mcp_workflows.tasks.executions import Executions
from mcp_workflows.tasks.maintenance import uptime
from mcp_workflows.testing import make_task
from mcp_workflows.testing.tasks import NOON
from tests.support.here import over_http, scene
from tests.support.postgres_server import Postgres, new_schema, postgres
from tests.support.served import peer

pytestmark = pytest.mark.process

READ_ONLY = "can only be read: it is a standby, or set to read-only"


@pytest.fixture
def url(postgres_server: Postgres) -> str:
    return postgres_server.url(new_schema())


def as_role(server: Postgres, url: str, setting: str) -> str:
    """The same store for a role that has this setting."""
    name = new_schema()
    server.run(f"CREATE ROLE {name} LOGIN SUPERUSER; ALTER ROLE {name} SET {setting}")
    return url.replace("//postgres@", f"//{name}@")


def end_sessions(server: Postgres) -> None:
    """Have the server close the connections of all stores."""
    server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'mcp-workflows'")


@asynccontextmanager
async def others(url: str, count: int = 1) -> AsyncGenerator[PostgresConnection]:
    """Connections of others to the same server; the first of them."""
    connections = Connections(DatabaseUrl.of(url), DatabaseUrl.of(url), None)
    connections.is_open = True
    held = [await connections.connect() for _ in range(count)]
    try:
        yield held[0]
    finally:
        for each in held:
            await each.close()


async def is_refused(text: str, *calls: Callable[[], Awaitable[object]]) -> None:
    """Each of these calls says that."""
    for call in calls:
        with pytest.raises(StoreUnavailable, match=text):
            await call()


async def is_fine(store: Store, *kept: Task) -> None:
    """The store is ready and takes tasks, perhaps in a moment, and it has these."""
    with anyio.fail_after(60):
        while True:
            with suppress(StoreUnavailable):
                await store.check()
                break
            await anyio.sleep(0.05)
    await store.create(make_task())
    assert [await store.get(task.id, task.owner) for task in kept] == [*kept]


async def blocked(server: Postgres) -> None:
    """Wait until somebody waits for a lock."""
    with anyio.fail_after(60):
        while server.run("SELECT count(*) FROM pg_locks WHERE NOT granted") == "0":
            await anyio.sleep(0.01)


# --- the server has no room


@pytest.fixture
def small_disk() -> Iterator[tuple[Postgres, Path]]:
    """A server that has its tables on a disk of their own, and where that is."""
    with TemporaryDirectory(prefix="mcp-workflows-disk-") as disk:
        mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", disk]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("no disk can be mounted here")
        try:
            with postgres() as server:
                owner = server.folder.stat()
                os.chown(disk, owner.st_uid, owner.st_gid)
                server.run(f"CREATE TABLESPACE small LOCATION '{disk}'")
                server.run("ALTER ROLE postgres SET default_tablespace = small")
                yield server, Path(disk)
        finally:
            subprocess.run(["umount", disk], check=True)


async def test_a_full_disk_is_said_until_there_is_room(small_disk: tuple[Postgres, Path]) -> None:
    server, disk = small_disk
    async with open_store(server.url("it")) as store:
        kept = [await store.create(make_task())]
        room = shutil.disk_usage(disk).free
        (disk / "filler").write_bytes(b"x" * (room - room % 4096))

        async def fill() -> None:
            while True:
                kept.append(await store.create(make_task(input=[os.urandom(1000).hex()])))

        await is_refused("no room left on its disk", fill)
        for _ in range(3):
            await is_refused("no room left on its disk", store.check)
        (disk / "filler").unlink()
        await is_fine(store, *kept)
        async with open_store(server.url("it")) as later:
            await is_fine(later, *kept)
        assert await store.notes_under("", "") == {}


async def test_a_server_whose_connections_others_hold_is_used_again_when_one_is_free() -> None:
    with postgres("max_connections=5", "superuser_reserved_connections=2", "max_wal_senders=0") as server:
        server.run("CREATE ROLE ann LOGIN; GRANT CREATE ON DATABASE postgres TO ann")
        url = server.url("it", "ann")
        async with open_store(url) as store:
            task = await store.create(make_task())
            end_sessions(server)
            async with others(url, 3):
                await is_refused(
                    r"no free connection \(max_connections\)", store.check, lambda: store.get(task.id, task.owner)
                )
                with pytest.raises(StoreUnavailable, match="no free connection"):
                    async with open_store(url):
                        pass
            await is_fine(store, task)


# --- others are in the way


@pytest.mark.parametrize(
    ("setting", "text"),
    [("statement_timeout", "cancelled a statement that took too long"), ("lock_timeout", "locked by another process")],
)
async def test_a_statement_that_takes_longer_than_its_role_may_is_an_error(
    postgres_server: Postgres, url: str, setting: str, text: str
) -> None:
    async with open_store(as_role(postgres_server, url, f"{setting} = '200ms'")) as store, others(url) as other:
        task = await store.create(make_task())
        await other.script("BEGIN; LOCK TABLE @tasks")
        await is_refused(text, store.check, lambda: store.create(make_task()), lambda: store.get("a", "b"))
        await other.script("ROLLBACK")
        await is_fine(store, task)


async def test_the_loser_of_a_deadlock_writes_after_the_other(
    postgres_server: Postgres, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "TIMEOUT", 60)
    mine = as_role(postgres_server, url, "deadlock_timeout = '2s'")
    theirs = as_role(postgres_server, url, "deadlock_timeout = '1h'")  # so they are not the one that loses

    async def change(store: Store, task: Task) -> None:
        assert await store.change(task.id, task.owner, lambda row: accept(row, ["yes"], NOON))

    async with PostgresStore(mine, cipher=Cipher([new_key()])) as store, others(theirs) as other:
        task = await store.create(make_task())
        await other.script("BEGIN; SELECT FROM @tasks FOR UPDATE")
        async with anyio.create_task_group() as group:
            group.start_soon(change, store, task)  # has the mark of its key, and waits for the row
            await blocked(postgres_server)
            await other.script("SELECT FROM @secrets FOR UPDATE; COMMIT")
        assert "deadlock detected" in (postgres_server.folder / "log").read_text()
        await is_fine(store, accept(task, ["yes"], NOON))


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_caps_and_changes_hold_in_a_role_of_any_isolation(
    postgres_server: Postgres, url: str, level: str
) -> None:
    strict = as_role(postgres_server, url, f"default_transaction_isolation = '{level}'")
    made: list[Task] = []
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(open_store(strict)) for _ in range(3)]
        task = await stores[0].create(make_task(tool="changed"))

        async def create(number: int) -> None:
            with suppress(CapReached):
                made.append(await stores[number % 3].create(make_task(), Caps(live_of_tool=5)))

        async def change(number: int) -> None:
            await stores[number % 3].change(task.id, task.owner, lambda row: accept(row, [str(number)], NOON))

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(create, number)
                group.start_soon(change, number)
        changed = await stores[0].get(task.id, task.owner)
    assert len(made) == 5
    assert changed is not None
    assert len(changed.answered) == 20


async def test_a_copy_that_lost_its_connection_starts_over(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_PAGE", 2)
    many, parts = PostgresConnection.many, list[int]()

    async def lost_once(connection: PostgresConnection, query: str, values: Sequence[Sequence[object]]) -> None:
        parts.append(len(values))
        if len(parts) == 2:
            connection.terminate()
            raise ConnectionResetError("lost")
        await many(connection, query, values)

    source, target = SQLiteStore(f"sqlite:///{tmp_path}/tasks.db"), PostgresStore(url)
    async with source:
        kept = [await source.create(make_task()) for _ in range(5)]
    monkeypatch.setattr(PostgresConnection, "many", lost_once)
    with source.moving(target.place) as (rows, resumed):
        assert await target.take_over(rows, resumed=resumed) == len(kept)
    async with target:
        await is_fine(target, *kept)


# --- another server


async def test_a_standby_is_read_and_is_written_once_it_is_promoted() -> None:
    async with AsyncExitStack() as stack:
        with ExitStack() as first:
            primary = first.enter_context(postgres())
            standby = stack.enter_context(postgres(primary=primary))
            both = f"host={standby.folder},{primary.folder}&port={standby.port},{primary.port}"
            both = f"postgresql://postgres@/postgres?{both}&target_session_attrs=read-write&schema=it"
            store = await stack.enter_async_context(open_store(both))
            task = await store.create(make_task())
            with anyio.fail_after(60):
                while standby.run("SELECT count(*) FROM pg_tables WHERE schemaname = 'it'") == "0":
                    await anyio.sleep(0.05)
            copy = await stack.enter_async_context(open_store(standby.url("it")))
            with anyio.fail_after(60):
                while await copy.get(task.id, task.owner) != task:
                    await anyio.sleep(0.05)
            await is_refused(READ_ONLY, copy.check, lambda: copy.create(make_task()))
        await is_refused(f"cannot be reached|{READ_ONLY}", store.check, lambda: store.create(make_task()))
        standby.run("SELECT pg_promote()")
        await is_fine(store, task)
        await is_fine(copy, task)


# --- a connection that brings nothing


class Network:
    """The way to a server by TCP, which can be cut: then connections stay open and bring nothing."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._cut = anyio.Event()

    def cut(self) -> None:
        """Deliver nothing on the connections of now; new ones work."""
        self._cut.set()
        self._cut = anyio.Event()

    async def carry(self, client: SocketStream) -> None:
        """Deliver for one connection."""
        cut = self._cut
        socket = f"{self._server.folder}/.s.PGSQL.{self._server.port}"
        async with client, await anyio.connect_unix(socket) as server, anyio.create_task_group() as group:
            group.start_soon(self._deliver, client, server, cut)
            await self._deliver(server, client, cut)
            group.cancel_scope.cancel()

    async def _deliver(self, source: ByteStream, target: ByteStream, cut: anyio.Event) -> None:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                data = await source.receive()
                if cut.is_set():
                    await anyio.sleep_forever()
                await target.send(data)


@asynccontextmanager
async def network(server: Postgres) -> AsyncGenerator[tuple[Network, str]]:
    """A way to this server, and the URL of a new store there."""
    way = Network(server)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, way.carry)
        port = listener.extra(SocketAttribute.local_port)
        yield way, f"postgresql://postgres@127.0.0.1:{port}/postgres?schema={new_schema()}"
        group.cancel_scope.cancel()


async def test_connections_that_are_half_open_are_replaced_in_time(
    postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with network(postgres_server) as (way, url), open_store(url) as store:
        task = await store.create(make_task(), durable=False)
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(store.get, task.id, task.owner)
        way.cut()
        with monkeypatch.context() as shortly:
            shortly.setattr(connections, "TIMEOUT", 0.5)
            await is_refused("does not answer in time", store.check)
        await is_fine(store, task)  # all idle ones were given up with the first
        with monkeypatch.context() as shortly:
            shortly.setattr(connections, "TIMEOUT", 0.5)
            await is_refused("does not answer in time", store.sync)
        await store.create(make_task(), durable=False)
        assert await store.sync()


async def test_a_replica_whose_listener_is_half_open_connects_anew(
    postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(connections, "TIMEOUT", 1.0)
    monkeypatch.setattr(replicas, "DEAF_AFTER", 1.5)
    monkeypatch.setattr(replicas, "BEAT_EVERY", 0.1)

    async def poll(task: Task, *_: object) -> tuple[Task, None]:
        return task, None

    async def said(text: str) -> None:
        with anyio.fail_after(60):
            while text not in caplog.text:
                await anyio.sleep(0.05)

    async with network(postgres_server) as (way, url), PostgresStore(url) as store, Engines({}) as engines:
        member = Replicas(store.channel)
        async with (
            others(postgres_server.url(url.rpartition("=")[2])) as other,
            Poller(poll, engines, DEFAULT_POLICY, peers=member) as poller,
            anyio.create_task_group() as group,
        ):
            await member.join(await store.secret("replicas"))
            group.start_soon(member.run, poller)
            with anyio.fail_after(60):
                while not await other.row("SELECT 1 FROM @replicas WHERE hears"):
                    await anyio.sleep(0.05)
            caplog.clear()
            way.cut()
            await said("LISTEN receives nothing")
            await said("LISTEN receives from PostgreSQL again")
            assert anyio.current_time() < member.live_until
            group.cancel_scope.cancel()


# --- a clock that is wrong


class WrongClock:
    """A machine's clock that is off by an hour."""

    def __init__(self, off: timedelta) -> None:
        self.off = off

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.off


@asynccontextmanager
async def replica(url: str, clock: WrongClock) -> AsyncGenerator[Executions]:
    """A replica on a machine with this clock."""
    async with (
        PostgresStore(url) as store,
        Engines({}) as engines,
        Executions(store=store, engines=engines, clock=clock, steady=uptime) as executions,
    ):
        yield executions


@pytest.mark.parametrize("off", [timedelta(hours=1), timedelta(hours=-1)], ids=["ahead", "behind"])
async def test_a_replica_whose_clock_is_off_by_an_hour_goes_by_that_of_the_server(
    url: str, off: timedelta, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    minute = timedelta(minutes=1)
    for pace in ("STEPS_EVERY", "CLOCK_EVERY", "RECOVER_EVERY", "KEEP_EVERY", "DELETE_EVERY"):
        monkeypatch.setattr(f"mcp_workflows.tasks.maintenance.{pace}", 0.01)

    async def until(condition: Callable[[], bool]) -> None:
        with anyio.fail_after(60):
            while not condition():
                await anyio.sleep(0.02)

    wrong = WrongClock(off)
    async with replica(url, wrong) as it, open_store(url) as store:
        kept = await store.create(make_task(expires=datetime.now(UTC) + 30 * minute))
        gone = await store.create(make_task(expires=datetime.now(UTC) - 30 * minute))
        with anyio.fail_after(60):
            while gone.id in {row.id for row in await store.list_all()}:
                await anyio.sleep(0.02)
        assert await store.list_all() == [kept]
        async with replica(url, WrongClock(timedelta())) as right:
            await until(lambda: it.replicas.replicas == right.replicas.replicas == 2)
            assert abs(it.clock() - right.clock()) < minute
        wrong.off = timedelta()
        await until(lambda: "agrees with PostgreSQL's again" in caplog.text)
        assert abs(it.clock() - datetime.now(UTC)) < minute
    assert f"is 1:00:00 {'ahead of' if off > timedelta() else 'behind'} PostgreSQL's" in caplog.text


# --- served


async def test_a_replica_is_not_ready_while_its_database_can_only_be_read(
    postgres_server: Postgres, url: str, tmp_path: Path
) -> None:
    mine = as_role(postgres_server, url, "default_transaction_read_only = off")
    role = urlsplit(mine).username

    def set_read_only(value: str) -> None:
        postgres_server.run(f"ALTER ROLE {role} SET default_transaction_read_only = {value}")
        end_sessions(postgres_server)

    found = scene(tmp_path, "  ask: {engine: here, workflow: ask}", store=mine)
    async with over_http(found) as address, peer(address) as client:

        async def readiness() -> tuple[int, str]:
            reply = await client.http.get(client.url.replace("/mcp", "/readyz"))
            return reply.status_code, reply.text

        kept = (await client.call("ask")).result["taskId"]
        await client.until(kept, "input_required")
        set_read_only("on")
        status, text = await readiness()
        assert status == 503
        assert READ_ONLY in text
        assert READ_ONLY in (await client.call("ask")).error["message"]
        yes = {"action": "accept", "content": {"answer": "yes"}}
        assert READ_ONLY in (await client.answer(kept, question=yes)).error["message"]
        assert found.engine.calls["answer"] == 0
        set_read_only("off")
        assert (await readiness())[0] == 200
        await client.answer(kept, question=yes)
        assert (await client.until(kept))["status"] == "completed"
        assert len(found.engine.handles) == 1
