"""The ways to a PostgreSQL server: passwords that change, roles that make no tables, other versions, TLS, PgBouncer."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from mcp_workflows.engines.polling.policy import DEFAULT_POLICY
from mcp_workflows.engines.polling.poller import Poller
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import ConfigError, StoreUnavailable, StoreUnusable
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.config.models import StoreSettings
from mcp_workflows.store import replicas
from mcp_workflows.store.postgres import migrations, queries
from mcp_workflows.store.postgres.store import PostgresStore
from mcp_workflows.store.protocol import CapReached, Caps, Store, open_store
from mcp_workflows.store.replicas import Replicas
from mcp_workflows.task import Task, accept
from mcp_workflows.testing import make_task
from mcp_workflows.testing.tasks import NOON
from tests.support.child_processes import free_port
from tests.support.postgres_server import PASSWORD, Postgres, installed, new_schema, postgres

pytestmark = pytest.mark.process


@pytest.fixture
def url(postgres_server: Postgres) -> str:
    return postgres_server.url(new_schema())


def schema_of(url: str) -> str:
    return url.rpartition("=")[2]


# --- passwords


@pytest.fixture
def guarded(postgres_server: Postgres) -> tuple[str, str]:
    """A role whose password is asked for, and the URL of its store without it."""
    name, schema = new_schema(), new_schema()
    postgres_server.run(f"""
        DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'guarded') THEN
            CREATE ROLE guarded LOGIN PASSWORD '{PASSWORD}'; END IF; END $$;
        CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}' IN ROLE guarded;
        CREATE SCHEMA {schema} AUTHORIZATION {name}
    """)
    return name, postgres_server.url(schema, name)


def end_sessions(server: Postgres, role: str) -> None:
    server.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'")


async def test_a_password_file_that_is_rewritten_is_used_by_the_next_connection(
    postgres_server: Postgres, guarded: tuple[str, str], tmp_path: Path
) -> None:
    role, url = guarded
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    async with StoreSettings(url=url, password_file=file).open() as store:
        task = await store.create(make_task())
        postgres_server.run(f"ALTER ROLE {role} PASSWORD 'another'")
        assert await store.get(task.id, task.owner) == task  # on the connection that is open
        end_sessions(postgres_server, role)
        with pytest.raises(StoreUnavailable, match="rejects the user or the password") as refused:
            await store.check()
        assert PASSWORD not in str(refused.value)
        file.write_text("another\n")
        await store.check()
        assert await store.get(task.id, task.owner) == task
        file.unlink()
        end_sessions(postgres_server, role)
        with pytest.raises(StoreUnavailable, match=r"password is not available now \(FileNotFoundError\)"):
            await store.check()


async def test_a_password_function_is_called_for_each_connection_and_its_error_not_shown(
    postgres_server: Postgres, guarded: tuple[str, str]
) -> None:
    role, url = guarded
    tokens = [PASSWORD]

    async def token() -> str:
        await anyio.lowlevel.checkpoint()
        if not tokens:
            raise RuntimeError(f"not {PASSWORD}")
        return tokens.pop()

    async with open_store(url, password=token) as store:
        await store.check()
        end_sessions(postgres_server, role)
        for call in (store.check, lambda: store.create(make_task())):
            with pytest.raises(StoreUnavailable, match=r"password is not available now \(RuntimeError\)$"):
                await call()
        tokens.append(PASSWORD)
        await store.check()
        assert not tokens
    with pytest.raises(StoreUnavailable, match=r"password is not available now \(RuntimeError\)$"):
        async with open_store(url, password=token):
            pass


# --- tables


async def test_a_role_that_may_make_no_tables_uses_those_that_are_there(postgres_server: Postgres, url: str) -> None:
    name, schema = new_schema(), schema_of(url)
    postgres_server.run(f"CREATE ROLE {name} LOGIN")
    serving = StoreSettings(url=postgres_server.url(schema, name), migrate=False)
    with pytest.raises(StoreUnusable, match=r"version 0, .* run `mcp-workflows store migrate` as a role"):
        async with serving.open():
            pass
    async with StoreSettings(url=url, migrate=False).open(migrate=True):
        pass  # as `store migrate` does
    postgres_server.run(f"""
        GRANT USAGE ON SCHEMA {schema} TO {name};
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {name}
    """)
    async with serving.open() as store:
        await is_whole(store)


async def is_whole(store: Store) -> None:
    """Each kind of step works."""
    await store.check()
    task = await store.create(make_task(), Caps(live_of_tool=1000))
    changed = await store.change(task.id, task.owner, lambda row: accept(row, ["yes"], NOON))
    assert await store.get(task.id, task.owner) == changed != task
    assert await store.lease(task.id, "me", lasting=timedelta(1))
    await store.put_note("space", task.id, "kept", until=datetime.max.replace(tzinfo=UTC))
    assert await store.note("space", task.id) == "kept"
    await store.create(make_task(), durable=False)
    assert await store.sync()


async def test_the_version_before_runs_on_the_tables_of_this_one(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def before() -> Generator[None]:
        """What a process of the first version does: it knows no `changed`."""
        with monkeypatch.context() as patched:
            patched.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:1])
            patched.setattr(queries, "_STAMP", "version = version + 1")
            yield

    old, late = PostgresStore(url), PostgresStore(url)
    with before():
        await old.__aenter__()
        first = await old.create(make_task())
    async with PostgresStore(url) as new:
        assert await new.get(first.id, first.owner) == first
        with before():
            await is_whole(old)
            await old.delete_expired(NOON, NOON)
            changed = await old.change(first.id, first.owner, lambda row: accept(row, ["old"], NOON))
            await late.__aenter__()  # a rollback
            await is_whole(late)
        assert await new.get(first.id, first.owner) == changed
        await is_whole(new)
        assert len(await new.channel.changed(timedelta(hours=1))) == 6, "rows that the version before inserted, too"
        with before():
            for store in (old, late):
                assert len(await store.list_all()) == 7
                await store.__aexit__(None, None, None)


# --- TLS, and an older major version


def certificate(folder: Path) -> None:
    """Write a certificate for this machine, signed by itself, and its key, as the server wants them."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    builder = builder.add_extension(names, critical=True)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "server.crt").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(pem))
    (folder / "server.key").touch(0o600)
    (folder / "server.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    owner = folder.stat()
    os.chown(folder / "server.key", owner.st_uid, owner.st_gid)


async def test_a_store_of_an_older_version_with_a_verified_certificate(tmp_path: Path) -> None:
    found = [place for place in installed() if (place / "initdb").exists()]
    if not found:
        pytest.skip("no server of PostgreSQL is installed below /usr/lib/postgresql: TLS and older versions not tested")

    def prepare(data: Path) -> None:
        certificate(data)
        shutil.copy(data / "server.crt", tmp_path / "root.crt")
        (data / "pg_hba.conf").write_text("local all all trust\nhostssl all all 127.0.0.1/32 trust\n")

    with postgres("ssl=on", tcp=True, found=found[0], prepare=prepare) as server:
        verified = f"{server.address}/postgres?sslmode=verify-full&sslrootcert={tmp_path}/root.crt"
        async with open_store(verified) as store:
            await is_whole(store)
            encrypted = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE client_port > 0"
            assert server.run(encrypted) == "t"
        certificate(tmp_path)  # another one
        for wrong, kind, text in (
            (f"sslmode=verify-full&sslrootcert={tmp_path}/server.crt", StoreUnavailable, "certificate verify failed"),
            ("sslmode=disable", StoreUnusable, "rejects .* a connection like this"),
        ):
            with pytest.raises(kind, match=text):
                async with open_store(f"{server.address}/postgres?{wrong}"):
                    pass


# --- PgBouncer in transaction mode


@pytest.fixture
def bouncer(postgres_server: Postgres) -> Generator[str]:
    """The address of a PgBouncer in front of the server."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed: its transaction mode is not tested")
    port, folder = free_port(), postgres_server.folder
    (folder / "pgbouncer.ini").write_text(f"""
        [databases]
        postgres = host={folder} port={postgres_server.port} user=postgres
        [pgbouncer]
        listen_addr = 127.0.0.1
        listen_port = {port}
        unix_socket_dir =
        auth_type = any
        pool_mode = transaction
        default_pool_size = 3
    """)
    with (folder / "pgbouncer.log").open("w") as log:
        command = [program, folder / "pgbouncer.ini"]
        process = subprocess.Popen(command, stdout=log, stderr=log, **postgres_server.known)
    try:
        ready = [postgres_server.programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
        while subprocess.call(ready, **postgres_server.known):
            assert process.poll() is None, (folder / "pgbouncer.log").read_text()
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        process.kill()
        process.wait()


async def test_many_steps_at_once_share_few_connections_of_pgbouncer(bouncer: str) -> None:
    schema, made = new_schema(), list[Task]()
    url = f"{bouncer}?statement_cache_size=0&schema={schema}"
    async with open_store(url) as one, open_store(url) as two:
        stores = one, two
        task = await one.create(make_task(tool="changed"))

        async def work(number: int) -> None:
            store = stores[number % 2]
            await store.change(task.id, task.owner, lambda row: accept(row, [str(number)], NOON))
            try:
                made.append(await store.create(make_task(), Caps(live_of_tool=9)))
            except CapReached:
                assert await store.get(task.id, task.owner)

        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(work, number)
        changed = await two.get(task.id, task.owner)
        assert changed is not None
        assert (len(changed.answered), len(made)) == (40, 9)
        for store in stores:
            await is_whole(store)


async def join(group: TaskGroup, store: PostgresStore) -> Replicas:
    """A replica on this store, as long as the group lasts."""
    member = Replicas(store.channel)

    async def poll(task: Task, *_: object) -> tuple[Task, None]:
        return task, None

    async def run() -> None:
        async with Engines({}) as engines, Poller(poll, engines, DEFAULT_POLICY, peers=member) as poller:
            await member.run(poller)

    await member.join(await store.secret("replicas"))
    group.start_soon(run)
    return member


@asynccontextmanager
async def two_replicas(url: str, listen_url: str | None = None) -> AsyncGenerator[tuple[Replicas, Replicas]]:
    async with (
        PostgresStore(url, listen_url=listen_url) as one,
        PostgresStore(url, listen_url=listen_url) as two,
        anyio.create_task_group() as group,
    ):
        yield await join(group, one), await join(group, two)
        group.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():
            await anyio.sleep(0.05)


async def test_replicas_behind_pgbouncer_share_the_polling_if_they_listen_at_the_server(
    postgres_server: Postgres, bouncer: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(replicas, "DEAF_AFTER", 1.5)
    monkeypatch.setattr(replicas, "BEAT_EVERY", 0.2)
    ids, schema = [f"task-{number}" for number in range(100)], new_schema()
    url = f"{bouncer}?statement_cache_size=0&schema={schema}"

    def owners(one: Replicas, two: Replicas) -> set[int]:
        return {one.is_mine(task_id) + two.is_mine(task_id) for task_id in ids}

    async with two_replicas(url) as (one, two):
        await until(lambda: caplog.text.count("set store.listen_url to the server's own address") == 2)
        await until(lambda: one.replicas == two.replicas == 2)
        assert owners(one, two) == {2}, "each polls all that it is asked for"
    async with two_replicas(url, postgres_server.url(schema)) as (one, two):
        await until(lambda: owners(one, two) == {1})


# --- settings


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("listen_url: 'postgresql://host/db'", "listen_url"),
        ("migrate: false", "migrate"),
        ("password_file: p", "password"),
    ],
)
def test_a_setting_of_postgresql_with_a_file_is_an_error_with_its_line(
    tmp_path: Path, setting: str, named: str
) -> None:
    path = tmp_path / "workflows.yaml"
    path.write_text(
        f"engines: {{here: {{adapter: memory}}}}\nstore:\n  url: sqlite:///tasks.db\n  {setting}\ntools: {{}}\n"
    )
    with pytest.raises(ConfigError, match=rf"workflows\.yaml:[234]: store.*a store for sqlite has no option {named}"):
        load_config(path, {})
