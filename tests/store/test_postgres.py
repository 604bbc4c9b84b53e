"""The promises of the PostgreSQL store beyond the laws of a store."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta

import anyio
import pytest

from mcp_workflows.errors import ConfigError, StoreUnavailable, StoreUnusable
from mcp_workflows.store.encryption import Cipher, new_key
from mcp_workflows.store.postgres import connections, queries
from mcp_workflows.store.postgres.connections import PostgresConnection, Row
from mcp_workflows.store.postgres.migrations import MIGRATIONS
from mcp_workflows.store.postgres.store import PostgresStore
from mcp_workflows.store.protocol import NO_CAPS, Caps, open_store
from mcp_workflows.task import Task, accept, bind
from mcp_workflows.testing import make_task
from mcp_workflows.testing.tasks import NOON
from tests.support.postgres_server import PASSWORD, Postgres, new_schema, postgres

pytestmark = pytest.mark.process

SECRET = "s3cret"
UNREADABLE = [
    f"postgresql://ann:{SECRET}/x@host/db",
    f"postgresql://ann:{SECRET}?x@host/db",
    f"postgresql://ann:{SECRET}#x@host/db",
    f"postgresql://ann:{SECRET}/db",
    f"postgresql://ann:pass@{SECRET}@host/db",
    f"postgresql://host/db?schema=Upper&password={SECRET}",
    f"postgresql://host/db?statement_cache_size=few&password={SECRET}",
    f"postgresql://host/db?pool=3&password={SECRET}",
]


@pytest.fixture
def url(postgres_server: Postgres) -> str:
    return postgres_server.url(new_schema())


async def complaint(kind: type[Exception], url: str) -> str:
    """The message of a store that cannot be entered; it never holds the password."""
    with pytest.raises(kind) as unusable:
        async with open_store(url):
            pass
    said = str(unusable.value)
    assert SECRET not in said
    assert PASSWORD not in said
    return said


@pytest.mark.parametrize("url", UNREADABLE)
def test_a_url_that_cannot_be_read_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        open_store(url)
    assert SECRET not in str(wrong.value)


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ConfigError, match=r"pip install 'mcp-workflows\[postgres\]'"):
        open_store("postgresql://host/db")


@pytest.mark.parametrize(
    "place", ["ann:s3cret@127.0.0.1:1/db", "ann:s3cret@/db?host=/nowhere", "ann:s3cret@nowhere.invalid/db"]
)
async def test_a_server_that_cannot_be_reached_is_named(place: str) -> None:
    said = await complaint(StoreUnavailable, f"postgresql://{place}")
    assert "cannot be reached" in said
    assert "the store at " in said


async def test_of_several_hosts_one_that_can_be_written_is_used(postgres_server: Postgres, url: str) -> None:
    hosts = f"host=/nowhere,{postgres_server.folder}&port=1,{postgres_server.port}&target_session_attrs=read-write"
    several = f"postgresql://postgres@/postgres?{hosts}&schema={url.rpartition('=')[2]}"
    async with open_store(several) as store:
        await store.check()


async def test_a_wrong_password_is_refused_without_showing_it(postgres_server: Postgres) -> None:
    schema = new_schema()
    postgres_server.run(f"""
        DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'guarded') THEN
            CREATE ROLE guarded LOGIN PASSWORD '{PASSWORD}'; END IF; END $$;
        CREATE SCHEMA {schema} AUTHORIZATION guarded
    """)
    for user in (f"guarded:{SECRET}", "guarded"):
        said = await complaint(StoreUnusable, postgres_server.url(schema, user))
        assert "rejects the user or the password" in said
    async with open_store(postgres_server.url(schema, f"guarded:{PASSWORD}")) as store:
        await store.check()


async def test_a_missing_database_is_named(postgres_server: Postgres) -> None:
    url = postgres_server.url(new_schema()).replace("/postgres?", "/nobodys?")
    assert "/nobodys cannot be opened: no such database" in await complaint(StoreUnusable, url)


async def test_a_user_without_rights_is_told_which_to_grant(postgres_server: Postgres, url: str) -> None:
    name = new_schema()
    postgres_server.run(f"CREATE ROLE {name} LOGIN")
    mine = url.replace("//postgres@", f"//{name}@")
    assert "grant CREATE on the database" in await complaint(StoreUnusable, mine)
    async with open_store(url) as store:
        task = await store.create(make_task())
    assert "grant CREATE on the database" in await complaint(StoreUnusable, mine)
    schema = url.rpartition("=")[2]
    postgres_server.run(f"""
        GRANT USAGE ON SCHEMA {schema} TO {name};
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {name}
    """)
    async with open_store(mine) as store:  # tables of our version need no right to make any
        assert await store.get(task.id, task.owner) == task
        await store.create(make_task())


async def test_a_database_that_can_only_be_read_says_so(postgres_server: Postgres, url: str) -> None:
    name = new_schema()
    postgres_server.run(f"CREATE ROLE {name} LOGIN SUPERUSER; ALTER ROLE {name} SET default_transaction_read_only = on")
    mine = url.replace("//postgres@", f"//{name}@")
    assert "can only be read" in await complaint(StoreUnavailable, mine)
    async with open_store(url) as store:
        task = await store.create(make_task())
    async with open_store(mine) as store:
        assert await store.get(task.id, task.owner) == task
        with pytest.raises(StoreUnavailable, match="can only be read"):
            await store.create(make_task())


@pytest.mark.parametrize("table", ["songs (title text)", "migrations (id int, name text)"])
async def test_the_schema_of_another_program_is_left_as_it_is(postgres_server: Postgres, url: str, table: str) -> None:
    schema = url.rpartition("=")[2]
    postgres_server.run(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.{table}")
    assert f"the schema {schema} of the database has tables of another program" in await complaint(StoreUnusable, url)
    count = f"SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}'"
    assert postgres_server.run(count) == "1"


async def test_tables_of_a_newer_version_are_used_unless_they_need_a_newer_program(
    postgres_server: Postgres, url: str
) -> None:
    schema, newer = url.rpartition("=")[2], len(MIGRATIONS) + 41
    async with open_store(url) as store:
        task = await store.create(make_task())
    postgres_server.run(f"INSERT INTO {schema}.migrations VALUES ({newer}, {len(MIGRATIONS)})")
    async with open_store(url) as store:
        assert await store.get(task.id, task.owner) == task
    postgres_server.run(f"UPDATE {schema}.migrations SET oldest = {newer} WHERE version = {newer}")
    said = await complaint(StoreUnusable, url)
    assert f"have version {newer} and need at least version {newer}" in said
    assert f"knows version {len(MIGRATIONS)}" in said


async def test_replicas_that_start_at_once_make_the_tables_once(url: str) -> None:
    async def start() -> None:
        async with open_store(url) as store:
            await store.check()

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(start)


async def test_a_store_that_is_not_open_says_so(url: str) -> None:
    store = PostgresStore(url)
    for call in (store.check, lambda: store.create(make_task()), lambda: store.get("a", "b"), store.sync):
        with pytest.raises(StoreUnavailable, match="not open"):
            await call()


# --- lost connections


def end_sessions(server: Postgres) -> None:
    """Have the server close the connections of all stores, as its administrator does."""
    server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'mcp-workflows'")


async def test_connections_that_the_server_has_closed_are_replaced_unnoticed(
    postgres_server: Postgres, url: str
) -> None:
    async with open_store(url) as store:
        task = await store.create(make_task())

        async def use(number: int) -> None:
            assert await store.get(task.id, task.owner) is not None
            assert await store.change(task.id, task.owner, lambda row: accept(row, [str(number)], NOON)) is not None

        for _ in range(3):
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(use, number)
            end_sessions(postgres_server)
        assert await store.create(make_task())
        await store.check()


async def test_rows_that_a_restart_may_have_lost_are_not_said_to_be_on_disk(
    postgres_server: Postgres, url: str
) -> None:
    async with open_store(url) as store:
        await store.create(make_task(), durable=False)
        end_sessions(postgres_server)
        with pytest.raises(StoreUnavailable):
            await store.sync()
        with pytest.raises(StoreUnavailable):  # also when it is asked again
            await store.sync()
        await store.create(make_task(), durable=False)
        assert await store.sync()


class LostReplies:
    """Connections that are lost right after statements of one kind were done, a number of times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str, times: int = 1) -> None:
        self.left = times
        fetch, script = PostgresConnection.fetch, PostgresConnection.script

        async def fetched(connection: PostgresConnection, query: str, *values: object) -> Sequence[Row]:
            found = await fetch(connection, query, *values)
            self._lose(connection, query, kind)
            return found

        async def done(connection: PostgresConnection, statements: str) -> None:
            await script(connection, statements)
            self._lose(connection, statements, kind)

        monkeypatch.setattr(PostgresConnection, "fetch", fetched)
        monkeypatch.setattr(PostgresConnection, "script", done)

    def _lose(self, connection: PostgresConnection, statement: str, kind: str) -> None:
        if self.left and kind in statement:
            self.left -= 1
            connection.terminate()
            raise ConnectionResetError("lost")


@pytest.mark.parametrize("caps", [Caps(), Caps(live_of_owner=1)], ids=["free", "capped"])
async def test_a_create_whose_reply_was_lost_is_one_row(url: str, monkeypatch: pytest.MonkeyPatch, caps: Caps) -> None:
    async with open_store(url) as store:
        lost = LostReplies(monkeypatch, "COMMIT" if caps.live_of_owner else "INSERT INTO @tasks")
        task = make_task()
        assert await store.create(task, caps) == task
        assert lost.left == 0
        assert await store.list_all() == [task]


async def test_a_change_whose_reply_was_lost_is_made_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Task] = []

    def change(row: Task) -> Task:
        calls.append(row)
        return bind(row, "handle", NOON)

    async with open_store(url) as store:
        task = await store.create(make_task())
        lost = LostReplies(monkeypatch, "UPDATE @tasks")
        assert await store.change(task.id, task.owner, change) == bind(task, "handle", NOON)
        assert lost.left == 0
    assert calls == [task]


async def test_a_connection_that_is_lost_again_is_an_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(url) as store:
        LostReplies(monkeypatch, "SELECT", 2)
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await store.get("a", "b")
        assert await store.get("a", "b") is None


async def test_a_caller_that_is_cancelled_leaves_no_connection_behind(url: str) -> None:
    async with open_store(url) as store:
        task = await store.create(make_task())
        for number in range(60):
            with anyio.move_on_after(0.0001 * number):
                await store.change(task.id, task.owner, lambda row: accept(row, [str(len(row.answered))], NOON))
        async with anyio.create_task_group() as group:
            for _ in range(connections.MOST_CONNECTIONS * 2):
                group.start_soon(store.get, task.id, task.owner)


async def test_a_server_that_hangs_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with postgres() as server:
        async with open_store(server.url("hanging")) as store:
            task = await store.create(make_task())
            monkeypatch.setattr(connections, "TIMEOUT", 0.5)
            with server.frozen():
                for call in (lambda: store.get(task.id, task.owner), lambda: store.create(make_task()), store.check):
                    with pytest.raises(StoreUnavailable, match="does not answer in time"):
                        await call()
            monkeypatch.undo()
            assert await store.get(task.id, task.owner) == task
            assert await store.create(make_task())


# --- keys


async def test_a_key_is_not_given_up_while_a_write_with_it_is_under_way(
    postgres_server: Postgres, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "TIMEOUT", 60)
    old, new = new_key(), new_key()
    late, store = (PostgresStore(url, cipher=Cipher(keys)) for keys in ((old, new), (new, old)))
    is_written, may_commit = anyio.Event(), anyio.Event()
    task, left = make_task(), list[int]()

    async def write(connection: PostgresConnection) -> None:
        async with connection.transaction():
            rows = late._rows  # pyright: ignore[reportPrivateUsage]
            await queries.create(connection, rows, task, NO_CAPS, durable=True)
            is_written.set()
            await may_commit.wait()

    async def rekey() -> None:
        left.append([step async for step in store.rekey()][-1].left)

    async with late, store:
        async with anyio.create_task_group() as group:
            group.start_soon(late._connections.run, write)  # pyright: ignore[reportPrivateUsage]
            await is_written.wait()
            group.start_soon(rekey)
            with anyio.fail_after(60):
                while postgres_server.run("SELECT count(*) FROM pg_locks WHERE NOT granted") == "0":
                    await anyio.sleep(0.01)
            may_commit.set()
        assert left == [1]
        await rekey()
        assert left == [1, 0]
        assert await store.get(task.id, task.owner) == task


# --- a disk that is slow to flush


@pytest.fixture(scope="module")
def slow_disk() -> Iterator[Postgres]:
    """A server whose flushes take 50 ms: more than a network disk's, so that a busy machine changes no ratio."""
    with postgres("fsync=on", "commit_delay=50000", "commit_siblings=0") as server:
        yield server


async def seconds(call: Callable[[int], Awaitable[object]], times: int = 30, at_once: int = 6) -> float:
    """The time for so many calls, a few at once."""
    began = time.perf_counter()

    async def work(first: int) -> None:
        for number in range(first, times, at_once):
            await call(number)

    async with anyio.create_task_group() as group:
        for first in range(at_once):
            group.start_soon(work, first)
    return time.perf_counter() - began


async def shares(call: Callable[[int], Awaitable[object]]) -> None:
    """Calls at once share flushes, and take less time than one by one. A loaded machine may hide that once."""
    ratios: list[float] = []
    while not ratios or (ratios[-1] >= 0.6 and len(ratios) < 5):
        ratios.append(await seconds(call) / await seconds(call, at_once=1))
    assert ratios[-1] < 0.6, f"they flush one by one: {ratios}"


async def test_creates_under_one_cap_do_not_wait_for_each_others_flush(slow_disk: Postgres) -> None:
    caps = Caps(live_of_tool=10_000)
    async with open_store(slow_disk.url(new_schema())) as store:
        await shares(lambda _: store.create(make_task(), caps))  # no lock of a cap is held over the flush


async def test_a_change_that_need_not_be_durable_waits_for_no_flush(slow_disk: Postgres) -> None:
    async with open_store(slow_disk.url(new_schema())) as store:
        task = await store.create(make_task())

        async def change(number: int, *, durable: bool) -> None:
            await store.change(
                task.id, task.owner, lambda row: accept(row, [f"{durable}{number}"], NOON), durable=durable
            )

        slow = await seconds(lambda number: change(number, durable=True), at_once=1)
        quick = await seconds(lambda number: change(number, durable=False), at_once=1)
        still = await seconds(lambda number: change(-number, durable=True), at_once=1)
        assert quick < slow / 2
        assert quick < still / 2, "the connection is as it was before"


async def test_one_flush_serves_all_who_wait_for_one(slow_disk: Postgres) -> None:
    async with open_store(slow_disk.url(new_schema())) as store:

        async def create(number: int) -> None:
            await store.create(make_task(), durable=False)
            await store.sync()

        await shares(create)
        await store.create(make_task(), durable=False)
        assert not await store.sync(briefly=True)


async def test_changes_do_not_wait_for_each_other_while_replicas_send_messages(slow_disk: Postgres) -> None:
    url = slow_disk.url(new_schema())
    async with PostgresStore(url) as store, PostgresStore(url) as other:
        rows = [await store.create(make_task()) for _ in range(6)]

        async def change(number: int) -> None:
            row = rows[number % len(rows)]
            assert await store.change(row.id, row.owner, lambda task: accept(task, [str(len(task.answered))], NOON))

        async def send() -> None:
            while True:
                await other.channel.send(["text"])
                await anyio.sleep(0.02)

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            await shares(change)  # a NOTIFY in the transaction of a change has them flush one by one
            group.cancel_scope.cancel()


# --- searches


SEARCHES = {
    "tasks_key": "SELECT task FROM @tasks WHERE owner = 'a' AND tool = 't' AND idempotency_key = ANY('{k}')",
    "tasks_unbound": queries.UNBOUND,
    "tasks_owner": queries.OWNED_BY,
    "tasks_open": queries.OF_TOOLS,
    "tasks_due": queries.DUE,
    "tasks_unanswered": queries.UNANSWERED,
    "tasks_pkey": queries.FIND,
    "notes_pkey": queries.NOTES_UNDER,
}
TYPES: dict[str, tuple[object, ...]] = {
    "tasks_unbound": ("a", 1, 2, 3),
    "tasks_owner": ("a", 1, "b", 2, 3),
    "tasks_open": (["a"], 1, "b", 2, 3),
    "tasks_due": ("a", 1, 2),
    "tasks_unanswered": ("a", 1),
    "tasks_pkey": ("a", "b", 1),
    "notes_pkey": ("a", "b"),
}


@pytest.mark.parametrize(("index", "query"), SEARCHES.items())
async def test_every_search_has_its_index(url: str, index: str, query: str) -> None:
    async def plan(connection: PostgresConnection) -> str:
        async with connection.transaction("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off"):
            return "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {query}", *TYPES.get(index, ())))

    async with PostgresStore(url) as store:
        found = await store._connections.run(plan)  # pyright: ignore[reportPrivateUsage]
    assert f"using {index}" in found
    assert "Sort  " not in found or index == "tasks_open", found


async def test_the_lease_goes_by_the_servers_clock(postgres_server: Postgres, url: str) -> None:
    async with open_store(url) as store:
        assert await store.lease("sweep", "one", lasting=timedelta(minutes=1))
    left = postgres_server.run(
        f"SELECT extract(epoch FROM until - clock_timestamp()) FROM {url.rpartition('=')[2]}.leases"
    )
    assert 0 < float(left) <= 60
