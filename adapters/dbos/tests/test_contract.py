"""DbosAdapter keeps the laws of the boundary, in this process and with workers elsewhere."""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import psycopg
import pytest
from anyio.abc import ByteStream, SocketAttribute
from mcp_workflows_dbos import DbosAdapter, DbosSettings

from adapters.dbos.tests.conftest import new_database
from mcp_workflows.adapter import (
    JSON,
    Adapter,
    Adopts,
    DescribesMany,
    Execution,
    Hints,
    Limited,
    ListsEnded,
    MessageRole,
    Ref,
    Start,
    Status,
)
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows.kit.tooling import Checks, Explains
from mcp_workflows.store.protocol import open_store
from mcp_workflows.tasks.executions import Executions
from mcp_workflows.testing import AdapterContract, LossyProxy, Role, Subject, lossy_proxy, make_task
from tests.support.child_processes import free_port
from tests.support.commands import piped
from tests.support.postgres_server import Postgres

ROOT = Path(__file__).resolve().parents[3]
FLOWS = "adapters.dbos.tests.flows"
APPLICATION = "mcp-adapters-dbos-tests-flows"
SECRET = "s3cret"


def in_process(url: str) -> DbosAdapter:
    """Return an adapter that runs the workflows of the tests itself."""
    return DbosAdapter(DbosSettings.model_validate({"module": FLOWS, "database": url}))


def unreachable() -> DbosAdapter:
    """Return an adapter whose database does not exist."""
    url = f"postgresql://me:{SECRET}@127.0.0.1:{free_port()}/dbos"
    return DbosAdapter(DbosSettings.model_validate({"database": url, "queue": "work"}))


def message(options: Mapping[str, str], target: str, *arguments: JSON) -> Start:
    """Return an order to send a message."""
    key, now = uuid.uuid4().hex, datetime.now(UTC)
    return Start(workflow="message", arguments=list(arguments), key=key, created=now, options=options, target=target)


async def read_event(adapter: Adapter, target: str, name: str) -> Execution:
    """Return the outcome of reading an event."""
    order = message({"event": name}, target)
    return await adapter.describe(Ref(workflow="", handle=await adapter.start(order), options=order.options))


async def received(adapter: Adapter, ref: Ref) -> Sequence[JSON]:
    """Return what has arrived at an inbox."""
    return (await read_event(adapter, ref.handle, "received")).output or []


def subject_of(new_adapter: Callable[[], DbosAdapter], *, refused: str | None = "nobody_wrote_this") -> Subject:
    return Subject(
        new_adapter=new_adapter,
        finishes=Role(workflow="echo", arguments=[{"text": "hi"}]),
        output={"text": "hi"},
        other_arguments=[{"text": "ho"}],
        fails=Role(workflow="declines"),
        failure="the card was declined",
        endless=Role(workflow="forever"),
        asks=Role(workflow="approve"),
        asks_two=Role(workflow="approve_twice"),
        content={"answer": "yes"},
        refused=Role(workflow=refused) if refused else None,
        unknown_handle="nobody",
        messages=MessageRole(receiver=Role(workflow="inbox"), settings={"send": "put"}, received=received),
        unreachable=unreachable,
        secret=SECRET,
    )


@pytest.mark.slow  # the other modules try SQLite
class TestInThisProcess(AdapterContract):
    """Workflows in this process, on SQLite."""

    capabilities = frozenset({Adopts, Checks, Explains, Hints, Limited, DescribesMany, ListsEnded, MessageRole})
    lacks = frozenset({"has_stopped", "losing_replies"})

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return subject_of(lambda: in_process(f"sqlite:///{tmp_path}/flows.db"))


class CommitProxy(LossyProxy):
    """A proxy that loses the replies to the commit of a new execution, and to all that follows."""

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self.is_armed = False  # the next such commit counts

    async def _pump(self, source: ByteStream, sink: ByteStream, is_reply: bool) -> None:
        await super()._pump(source if is_reply else CommitDetector(source, self), sink, is_reply)

    @asynccontextmanager
    async def losing_after_commit(self) -> AsyncGenerator[None]:
        """Lose nothing before such a commit, and replies as `losing` after it."""
        async with self.losing():
            self._losing = False
            yield

    def on_commit(self) -> None:
        """Lose the server's replies from now on, if armed."""
        self._losing = self._losing or self.is_armed


class CommitDetector(ByteStream):
    """The stream from a client; notifies the proxy of the commit of a new execution before the server receives it."""

    def __init__(self, stream: ByteStream, proxy: CommitProxy) -> None:
        self._stream = stream
        self._proxy = proxy
        self._inserts = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await self._stream.receive(max_bytes)
        self._inserts = self._inserts or (b"INSERT INTO" in data and b"workflow_status" in data)
        if self._inserts and b"COMMIT" in data:
            self._proxy.on_commit()
        return data

    async def send(self, item: bytes) -> None:
        await self._stream.send(item)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


@asynccontextmanager
async def commit_proxy(target: int) -> AsyncGenerator[CommitProxy]:
    """Run a proxy in front of PostgreSQL within this context."""
    proxy = CommitProxy(target)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        proxy.port = listener.extra(SocketAttribute.local_port)
        async with anyio.create_task_group() as group:
            group.start_soon(listener.serve, proxy.serve)
            yield proxy
            group.cancel_scope.cancel()


@pytest.fixture(scope="module")
def hosted_url(postgres_url: str, processes: None) -> Iterator[str]:
    """The URL of a new database, whose workflows another process runs."""
    url = new_database(postgres_url)
    with host(FLOWS, url):
        yield url


class TestWorkersElsewhere(AdapterContract):
    """Workflows in another process, on PostgreSQL, of which a proxy can lose the reply to a commit."""

    capabilities = frozenset({Adopts, Checks, Explains, Hints, Limited, DescribesMany, ListsEnded, MessageRole})
    lacks = frozenset({"has_stopped", "refused"})

    @pytest.fixture
    async def subject(self, hosted_url: str) -> AsyncGenerator[Subject]:
        parts = urlsplit(hosted_url)
        async with commit_proxy(parts.port or 0) as proxy:
            proxied = parts._replace(netloc=f"postgres@127.0.0.1:{proxy.port}").geturl()
            there = {"database": proxied, "queue": f"{APPLICATION}-queue", "application": APPLICATION}

            @asynccontextmanager
            async def losing_replies(_: Adapter) -> AsyncGenerator[None]:
                proxy.is_armed = True
                try:
                    async with proxy.losing_after_commit():
                        yield
                finally:
                    proxy.is_armed = False

            made = subject_of(lambda: DbosAdapter(DbosSettings.model_validate(there)), refused=None)
            yield replace(made, losing_replies=losing_replies)

    @pytest.mark.process
    async def test_a_start_on_a_database_that_freezes_is_told_in_time_and_can_be_sent_again(
        self, listening_postgres: Postgres
    ) -> None:
        start = Start(workflow="echo", arguments={"text": "hi"}, key=uuid.uuid4().hex, created=datetime.now(UTC))
        async with in_process(new_database(listening_postgres.address)) as adapter:
            with listening_postgres.frozen(), pytest.MonkeyPatch.context() as patch:
                patch.setattr("mcp_workflows_dbos.adapter._TIMEOUT", 1)
                with pytest.raises(EngineUnavailable, match="gave no answer within 1 s"):
                    await adapter.start(start)
            with anyio.fail_after(60):
                while not (await adapter.describe(Ref(workflow="echo", handle=await adapter.start(start)))).terminal:
                    await anyio.sleep(0.1)

    @pytest.mark.process
    async def test_a_database_that_answers_nothing_is_unavailable_in_time(
        self, postgres_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mcp_workflows_dbos.tables._CONNECT_TIMEOUT", 2)  # the least that libpq takes
        async with lossy_proxy(urlsplit(postgres_url).port or 0) as proxy:
            url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"
            settings = DbosSettings.model_validate({"database": url, "queue": "work"})
            async with DbosAdapter(settings) as adapter, proxy.losing():
                with anyio.fail_after(60), pytest.raises(EngineUnavailable):
                    await adapter.describe(Ref(workflow="echo", handle="one"))


@pytest.mark.process
async def test_the_store_may_be_in_the_same_database_in_a_schema_of_its_own(hosted_url: str) -> None:
    settings = {"database": hosted_url, "queue": f"{APPLICATION}-queue", "application": APPLICATION}
    adapter = DbosAdapter(DbosSettings.model_validate(settings))
    async with (
        open_store(hosted_url) as store,
        Engines({"flows": adapter}) as engines,
        Executions(store=store, engines=engines) as executions,
    ):
        times = {"created": datetime.now(UTC), "updated": datetime.now(UTC), "expires": None}
        flow = {"workflow": "echo", "key": uuid.uuid4().hex, "input": [{"text": "hi"}]}
        new = make_task(engine="flows", identity=engines.identity("flows"), **flow, **times)
        with anyio.fail_after(60):
            ended = await executions.follow(await executions.create(new), lambda _: anyio.lowlevel.checkpoint())
        assert ended.execution.status is Status.SUCCEEDED
        assert await store.get(ended.id, ended.owner) == ended
    with psycopg.connect(hosted_url) as connection:
        schemas = connection.execute("SELECT DISTINCT table_schema FROM information_schema.tables").fetchall()
    assert {("dbos",), ("mcp_workflows",)} <= set(schemas)


@contextmanager
def host(*words: str) -> Generator[None]:
    """Run the workflows in another process within this context, and kill it at the end."""
    with piped([sys.executable, "-m", "adapters.dbos.tests.host", *words], cwd=ROOT) as process:
        assert process.stdout.readline() == b"running\n"
        yield
