"""Executions outlive kill -9 at each of their steps, a second process beside the first, and changes of their code."""

from __future__ import annotations

import base64
import os
import pickle
import signal
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import anyio
import psycopg
import pytest
import sqlalchemy as sa
from dbos import DBOSClient, EnqueueOptions, WorkflowSerializationFormat, run_dbos_database_migrations
from mcp_workflows_dbos import DbosAdapter, DbosSettings, TypedJsonSerializer, executor_lock
from mcp_workflows_dbos.executor_lock import lock_for

from adapters.dbos.tests.conftest import new_database
from mcp_workflows.adapter import Execution, Progress, Ref, Start, Status
from mcp_workflows.errors import EngineUnavailable
from tests.support.commands import Piped, piped

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("processes")]

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 60.0  # seconds
STEPS = 3
CODE = """
import asyncio
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from dbos import DBOS, Debouncer
from mcp_workflows_dbos import ask, progress

FORM = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
HERE = Path(__file__).parent


@DBOS.step()
async def work(number):
    with (HERE / "done").open("a") as file:
        file.write(f"{number}\\n")
    while (HERE / f"hold-{number}").exists():
        await asyncio.sleep(0.01)
    return number


@DBOS.workflow()
async def several():
    return {"done": [await work(number) for number in range(STEPS)]}


@DBOS.workflow()
async def questions():
    first, second = await asyncio.gather(ask("first?", FORM), ask("second?", FORM))
    last = await ask("third?", FORM)
    return {"answers": [each.content["answer"] for each in (first, second, last)]}


@DBOS.workflow()
async def asks(number: int = 1):
    return (await ask(f"child {number}?", FORM)).content["answer"]


@DBOS.workflow()
async def parent():
    first = await DBOS.start_workflow_async(asks, 1)
    answers = await asyncio.gather(first.get_result(), ask("parent?", FORM))
    return {"answers": [answers[0], answers[1].content["answer"], await asks(2)]}


@DBOS.step()
async def reports():
    await progress("in a step", 1, 2)


@DBOS.workflow()
async def receives():
    await reports()
    return {"message": await DBOS.recv_async("letter", 1000)}


@DBOS.workflow()
def sleeps(seconds: float = 60):
    (HERE / "asleep").touch()
    time.sleep(seconds)
    return {"slept": seconds}


@DBOS.workflow()
async def reads(what: str, other: str):
    await work(0)
    await work(1)
    if what == "event":
        return await DBOS.get_event_async(other, "key", 60)
    if what == "message":
        return await DBOS.recv_async("topic", 60)
    return await (await DBOS.retrieve_workflow_async(other)).get_result()


@DBOS.workflow()
async def fails():
    raise ValueError("no")


@DBOS.workflow()
async def looks():
    started = [await DBOS.start_workflow_async(each) for each in (fails, several)]
    await asyncio.gather(*[each.get_result() for each in started], return_exceptions=True)
    retrieved = await DBOS.retrieve_workflow_async(started[0].workflow_id)
    found = [await retrieved.get_status(), *await DBOS.list_workflows_async(status="SUCCESS")]
    await ask("go on?", FORM)
    return {"found": [[each.name, each.status, repr(each.error), each.output] for each in found]}


@DBOS.workflow()
async def debounces():
    debouncer = Debouncer.create(several)
    handle = await debouncer.debounce_async("key", 0.1)
    return {"several": await handle.get_result()}


@DBOS.workflow()
async def every_second(scheduled: datetime, context: Any):
    return {"scheduled": scheduled.isoformat()}


@DBOS.workflow()
async def schedules():
    await DBOS.create_schedule_async(schedule_name="all", workflow_fn=every_second, schedule="* * * * * *")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A module in a folder of its own, and a look at its executions from outside."""

    folder: Path
    name: str
    url: str

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    def write(self, more: str = "") -> None:
        (self.folder / f"{self.name}.py").write_text(CODE.replace("STEPS", str(STEPS)) + more)

    @contextmanager
    def host(self, *words: str) -> Generator[Piped]:
        """A process with the workflows; killed at the end, if not before."""
        command = [sys.executable, "-m", "adapters.dbos.tests.host", self.name, self.url, *words]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{self.folder}", "PYTHONDONTWRITEBYTECODE": "1"}
        with piped(command, cwd=ROOT, env=environment) as host:
            assert host.stdout.readline() == b"running\n"
            yield host

    @asynccontextmanager
    async def outside(self) -> AsyncGenerator[DbosAdapter]:
        settings = DbosSettings.model_validate({"database": self.url, "queue": f"mcp-{self.name}-queue"})
        async with DbosAdapter(settings.model_copy(update={"application": f"mcp-{self.name}"})) as adapter:
            yield adapter

    def execute(self, statement: str, **values: str) -> None:
        """Change its database, as somebody who can write it could."""
        engine = sa.create_engine(self.url.replace("postgresql://", "postgresql+psycopg://"))
        with engine.begin() as connection:
            if not self.is_sqlite:
                connection.execute(sa.text("SET search_path TO dbos"))
            connection.execute(sa.text(statement), values)
        engine.dispose()

    def done(self) -> Sequence[int]:
        file = self.folder / "done"
        return [int(line) for line in file.read_text().split()] if file.exists() else []


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def application(tmp_path: Path, request: pytest.FixtureRequest) -> Application:
    """An application, on each database."""
    url = f"sqlite:///{tmp_path}/app.db"
    if request.param == "postgresql":
        url = new_database(request.getfixturevalue("postgres_url"))
    found = Application(folder=tmp_path, name=f"flows_{uuid.uuid4().hex}", url=url)
    found.write()
    return found


async def until(adapter: DbosAdapter, key: str, wanted: Callable[[Execution], bool]) -> Execution:
    seen: Execution | None = None
    try:
        with anyio.fail_after(PATIENCE):
            while True:
                seen = await adapter.describe(Ref(workflow="", handle=key))
                if wanted(seen):
                    return seen
                await anyio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"within {PATIENCE} s: {seen}")


async def until_done(application: Application, number: int) -> None:
    with anyio.fail_after(PATIENCE):
        while number not in application.done():
            await anyio.sleep(0.02)


@pytest.mark.parametrize("number", [0, STEPS - 1])
async def test_killed_in_any_step_it_goes_on_and_repeats_only_that_step(application: Application, number: int) -> None:
    (application.folder / f"hold-{number}").touch()
    with application.host("one=several"):
        await until_done(application, number)
    (application.folder / f"hold-{number}").unlink()
    with application.host():
        async with application.outside() as adapter:
            ended = await until(adapter, "one", lambda seen: seen.terminal)
    assert (ended.status, ended.output) == (Status.SUCCEEDED, {"done": [*range(STEPS)]})
    assert application.done() == [*range(number + 1), *range(number, STEPS)]


async def test_questions_keep_their_keys_and_answers_over_kills(application: Application) -> None:
    with application.host("one=questions"):
        async with application.outside() as adapter:
            asked = await until(adapter, "one", lambda seen: len(seen.requests) == 2)
            first, second = asked.requests
            await adapter.answer(Ref(workflow="", handle="one"), {second: accepted("2")})
            await until(adapter, "one", lambda seen: list(seen.requests) == [first])
    with application.host():
        async with application.outside() as adapter:
            ref = Ref(workflow="", handle="one")
            again = await adapter.describe(ref)
            assert dict(again.requests) == {first: asked.requests[first]}
            await adapter.answer(ref, {first: accepted("1"), second: accepted("another")})
            await adapter.answer(ref, {first: accepted("too late")})
            last = await until(adapter, "one", lambda seen: bool(seen.requests) and first not in seen.requests)
    with application.host():
        async with application.outside() as adapter:
            await adapter.answer(ref, {key: accepted("3") for key in last.requests})
            ended = await until(adapter, "one", lambda seen: seen.terminal)
    assert ended.output == {"answers": ["1", "2", "3"]}


def accepted(answer: str) -> dict[str, object]:
    return {"action": "accept", "content": {"answer": answer}}


async def test_a_second_process_leaves_what_runs_alone_and_takes_over(application: Application) -> None:
    (application.folder / "hold-1").touch()
    with application.host("one=several") as first, application.host("two=several"):
        async with application.outside() as adapter:
            await until_done(application, 1)
            assert application.done().count(0) <= 2  # once for each
            first.process.send_signal(signal.SIGKILL)
            (application.folder / "hold-1").unlink()
            ended = [await until(adapter, key, lambda seen: seen.terminal) for key in ("one", "two")]
    assert [each.status for each in ended] == [Status.SUCCEEDED] * 2
    assert application.done().count(0) == 2


async def test_of_two_modules_with_one_name_the_second_starts_nothing_until_the_first_has_ended(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    if application.is_sqlite:
        pytest.skip("each module has an SQLite file of its own")
    other = application.folder / "other"
    other.mkdir()
    (other / f"{application.name}.py").write_text(
        "from dbos import DBOS\n@DBOS.workflow(name=__name__ + '.different')\nasync def different() -> None: ...\n"
    )
    monkeypatch.setattr(sys, "path", [str(other), *sys.path])
    workflow = f"{application.name}.different"
    start = Start(workflow=workflow, arguments={}, key="one", created=datetime.now(UTC))
    settings = DbosSettings.model_validate({"module": application.name, "database": application.url})
    with application.host() as first:
        async with DbosAdapter(settings) as adapter:
            found = await adapter.tooling.check_engine()
            assert not found.ok
            assert f"another process runs application mcp-{application.name} with other workflows" in found.text
            with pytest.raises(EngineUnavailable, match="with other workflows"):
                await adapter.start(start)
            first.process.send_signal(signal.SIGKILL)
            with anyio.fail_after(PATIENCE):
                while not (await adapter.tooling.check_engine()).ok:
                    await anyio.sleep(0.1)
            await adapter.start(start)
            assert (await until(adapter, "one", lambda seen: seen.terminal)).status is Status.SUCCEEDED


async def test_changed_code_is_told_and_waits_for_its_version(application: Application) -> None:
    with application.host("one=questions"):
        async with application.outside() as adapter:
            await until(adapter, "one", lambda seen: len(seen.requests) == 2)
    application.write("\n\n@DBOS.workflow()\nasync def another():\n    return 1\n")
    with application.host():
        async with application.outside() as adapter:
            told = await adapter.tooling.explain(Ref(workflow="", handle="one"))
            assert "was started by version" in told.reason
            assert "version:" in (told.advice or "")
            await adapter.answer(
                Ref(workflow="", handle="one"), {key: accepted("1") for key in (await look(adapter)).requests}
            )
    application.write()
    with application.host():
        async with application.outside() as adapter:
            asked = await until(adapter, "one", lambda seen: len(seen.requests) == 1)
            assert [each.params["message"] for each in asked.requests.values()] == ["third?"]


async def look(adapter: DbosAdapter) -> Execution:
    return await adapter.describe(Ref(workflow="", handle="one"))


async def test_with_a_version_of_ones_own_changed_code_goes_on(application: Application) -> None:
    with application.host("version=1", "one=questions"):
        async with application.outside() as adapter:
            await until(adapter, "one", lambda seen: len(seen.requests) == 2)
    application.write("\n\n@DBOS.workflow()\nasync def another():\n    return 1\n")
    with application.host("version=1"):
        async with application.outside() as adapter:
            ref = Ref(workflow="", handle="one")
            await adapter.answer(ref, {key: accepted("1") for key in (await look(adapter)).requests})
            await until(adapter, "one", lambda seen: len(seen.requests) == 1)


async def test_a_question_of_a_child_is_asked_by_its_parent_and_outlives_kills(application: Application) -> None:
    ref = Ref(workflow="", handle="one")
    with application.host("one=parent"):
        async with application.outside() as adapter:
            asked = await until(adapter, "one", lambda seen: len(seen.requests) == 2)
            messages = {str(each.params["message"]): key for key, each in asked.requests.items()}
            await adapter.answer(ref, {messages["child 1?"]: accepted("1")})
            await until(adapter, "one", lambda seen: list(seen.requests) == [messages["parent?"]])
            [swept] = (await adapter.describe_many([ref])).values()
            assert list(swept.requests) == [messages["parent?"]]
    with application.host():
        async with application.outside() as adapter:
            await adapter.answer(ref, {messages["parent?"]: accepted("0"), messages["child 1?"]: accepted("another")})
            last = await until(adapter, "one", lambda seen: bool(seen.requests.keys() - messages.values()))
            assert [each.params["message"] for each in last.requests.values()] == ["child 2?"]
    with application.host():
        async with application.outside() as adapter:
            await adapter.answer(ref, {key: accepted("2") for key in last.requests})
            ended = await until(adapter, "one", lambda seen: seen.terminal)
    assert ended.output == {"answers": ["1", "0", "2"]}


async def test_cancelling_a_parent_cancels_its_children(application: Application) -> None:
    with application.host("one=parent"):
        async with application.outside() as adapter:
            asked = await until(adapter, "one", lambda seen: len(seen.requests) == 2)
            [child] = [key.partition(":")[0] for key in asked.requests if ":" in key]
            await adapter.cancel(Ref(workflow="", handle="one"))
            for key in ("one", child):
                await until(adapter, key, lambda seen: seen.status is Status.CANCELLED)


async def test_a_workflow_that_receives_messages_by_itself_and_reports_in_a_step_is_a_task(
    application: Application,
) -> None:
    with application.host("one=receives"):
        async with application.outside() as adapter:
            seen = await until(adapter, "one", lambda seen: seen.progress is not None)
            assert (seen.message, seen.progress) == ("in a step", Progress(value=1, total=2))
            client = DBOSClient(system_database_url=application.url, application_name=f"mcp-{application.name}")
            await client.send_async(
                "one", {"text": "hi"}, topic="letter", serialization_type=WorkflowSerializationFormat.PORTABLE
            )
            ended = await until(adapter, "one", lambda seen: seen.terminal)
            client.destroy()
    assert ended.output == {"message": {"text": "hi"}}


async def test_what_was_started_elsewhere_is_adopted(application: Application) -> None:
    with application.host():
        client = DBOSClient(
            system_database_url=application.url,
            application_name=f"mcp-{application.name}",
            serializer=TypedJsonSerializer(),
        )
        options = EnqueueOptions(workflow_name="asks", queue_name=f"mcp-{application.name}-queue", workflow_id="theirs")
        await client.enqueue_async(options, 3)
        async with application.outside() as adapter:
            ref = await adapter.adopt("theirs")
            assert ref == Ref(workflow="asks", handle="theirs")
            asked = await until(adapter, "theirs", lambda seen: bool(seen.requests))
            await adapter.answer(ref, {key: accepted("yes") for key in asked.requests})
            ended = await until(adapter, "theirs", lambda seen: seen.terminal)
        client.destroy()
    assert ended.status is Status.SUCCEEDED


async def test_a_workflow_that_looks_at_others_sees_the_same_after_a_kill(application: Application) -> None:
    with application.host("one=looks"):
        async with application.outside() as adapter:
            asked = await until(adapter, "one", lambda seen: bool(seen.requests))
    with application.host():
        async with application.outside() as adapter:
            await adapter.answer(Ref(workflow="", handle="one"), {key: accepted("yes") for key in asked.requests})
            ended = await until(adapter, "one", lambda seen: seen.terminal)
    failed = ["fails", "ERROR", "ValueError('no')", None]
    assert ended.output == {"found": [failed, ["several", "SUCCESS", "None", {"done": [*range(STEPS)]}]]}


async def test_debounced_and_scheduled_workflows_run_beside_tasks(application: Application) -> None:
    with application.host("one=debounces", "two=schedules"):
        async with application.outside() as adapter:
            ended = await until(adapter, "one", lambda seen: seen.terminal)
            assert ended.output == {"several": {"done": [*range(STEPS)]}}
            with anyio.fail_after(PATIENCE):
                while not [each for each in await adapter.tooling.discover() if each.workflow == "every_second"]:
                    await anyio.sleep(0.1)


async def test_a_process_beside_the_one_that_runs_the_workflows_is_told_of_changes(application: Application) -> None:
    """PostgreSQL announces a question; on SQLite only ends are told."""
    told: set[str] = set()
    workflow = "several" if application.is_sqlite else "asks"
    with application.host():
        async with application.outside() as adapter, anyio.create_task_group() as group:
            group.start_soon(adapter.hints, told.add)
            with anyio.fail_after(PATIENCE):
                started: set[str] = set()
                while not told & started:  # it may not listen yet
                    key = f"key-{len(started)}"
                    started.add(key)
                    await adapter.start(Start(workflow=workflow, arguments={}, key=key, created=datetime.now(UTC)))
                    with anyio.move_on_after(1):
                        while not told & started:
                            await anyio.sleep(0.02)
            group.cancel_scope.cancel()


async def test_a_function_without_async_that_runs_on_does_not_hold_up_the_end(application: Application) -> None:
    with application.host("one=sleeps", f"until={application.folder / 'asleep'}") as host:
        assert host.process.wait(PATIENCE / 2) == 0
    with application.host():
        async with application.outside() as adapter:
            seen = await adapter.describe(Ref(workflow="", handle="one"))
    assert seen.status is Status.RUNNING


async def test_an_executor_whose_connections_end_goes_on(application: Application) -> None:
    if application.is_sqlite:
        pytest.skip("SQLite has no connections that end")
    ref = Ref(workflow="", handle="one")
    with application.host("one=asks"):
        async with application.outside() as adapter:
            asked = await until(adapter, "one", lambda seen: bool(seen.requests))
            with psycopg.connect(application.url, autocommit=True) as connection:
                ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                connection.execute(f"{ends} AND pid <> pg_backend_pid()".encode())
            with anyio.fail_after(PATIENCE):
                while not await can_answer(adapter, ref, asked):
                    await anyio.sleep(0.1)
            assert (await until(adapter, "one", lambda seen: seen.terminal)).output == "yes"


async def can_answer(adapter: DbosAdapter, ref: Ref, asked: Execution) -> bool:
    try:
        await adapter.answer(ref, {key: accepted("yes") for key in asked.requests})
    except EngineUnavailable:
        return False
    return True


# --- pickles


class Touching:
    """A pickle of it makes a file when it is read."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)


PICKLED = "serialization = 'py_pickle'"
COLUMNS: Mapping[str, str] = {
    "inputs": f"UPDATE workflow_status SET inputs = :pickle, {PICKLED} WHERE workflow_uuid = :reader",
    "step output": f"UPDATE operation_outputs SET output = :pickle, {PICKLED} WHERE workflow_uuid = :reader",
    "step error": f"UPDATE operation_outputs SET output = NULL, error = :pickle, {PICKLED} "
    "WHERE workflow_uuid = :reader",
    "output": f"UPDATE workflow_status SET output = :pickle, {PICKLED} WHERE workflow_uuid = :other",
    "error": f"UPDATE workflow_status SET output = NULL, error = :pickle, status = 'ERROR', {PICKLED} "
    "WHERE workflow_uuid = :other",
    "event": "INSERT INTO workflow_events (workflow_uuid, key, value, serialization) "
    "VALUES (:other, 'key', :pickle, 'py_pickle')",
    "message": "INSERT INTO notifications (destination_uuid, topic, message, message_uuid, serialization) "
    "VALUES (:reader, 'topic', :pickle, 'm1', 'py_pickle')",
}
"""A statement for each column in which DBOS stores values; it writes what only a writer of the database could."""


async def test_no_column_is_unpickled_and_its_reader_fails_with_the_reason(application: Application) -> None:
    others = [f"other of {column}" for column in COLUMNS]
    with application.host(*(f"{other}=several" for other in others)):
        async with application.outside() as adapter:
            for other in others:
                await until(adapter, other, lambda seen: seen.terminal)
            (application.folder / "hold-1").touch()
            for column, other in zip(COLUMNS, others, strict=True):
                order = {"what": column, "other": other}
                await adapter.start(Start(workflow="reads", arguments=order, key=column, created=datetime.now(UTC)))
            for column in COLUMNS:
                await until(adapter, column, lambda seen: len(seen.steps) == 1)
    application.execute("DELETE FROM workflow_input WHERE workflow_uuid = 'inputs'")  # DBOS reads these tables first
    application.execute("DELETE FROM workflow_output")
    marks = {column: application.folder / f"unpickled {column}" for column in COLUMNS}
    for column, statement in COLUMNS.items():
        pickled = base64.b64encode(pickle.dumps(Touching(marks[column]))).decode()
        values = {"pickle": pickled, "reader": column, "other": f"other of {column}"}
        application.execute(statement, **{name: value for name, value in values.items() if f":{name}" in statement})
    (application.folder / "hold-1").unlink()
    with application.host("untouched=several"):
        async with application.outside() as adapter:
            assert (await until(adapter, "untouched", lambda seen: seen.terminal)).status is Status.SUCCEEDED
            for column, mark in marks.items():
                ended = await until(adapter, column, lambda seen: seen.terminal)
                assert not mark.exists(), column
                assert ended.failure, column
                assert "pickled, which is not read here" in ended.failure.text


def test_the_default_time_of_dbos_on_new_pythons_is_known_to_old_sqlite(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/times.db")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE times (id, at INTEGER DEFAULT (unixepoch('subsec') * 1000) NOT NULL)")
        connection.exec_driver_sql("INSERT INTO times (id) VALUES (1)")
        at = connection.exec_driver_sql("SELECT at FROM times").scalar_one()
        other = connection.exec_driver_sql("SELECT unixepoch('2026-01-01')").scalar_one()
    engine.dispose()
    assert abs(at / 1000 - time.time()) < 3600
    assert other == 1767225600


@pytest.mark.anyio
async def test_executions_under_way_are_taken_over_only_after_a_former_holder_must_have_noticed(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, pauses = new_database(postgres_url), list[float]()
    monkeypatch.setattr(time, "sleep", pauses.append)
    lock = lock_for(url, "shop", ["order"])
    assert lock.acquire(), "there are no tables yet"
    lock.release()
    run_dbos_database_migrations(url)
    client = DBOSClient(system_database_url=url)
    client.enqueue({"workflow_name": "order", "queue_name": "orders"})
    client.destroy()
    assert lock.acquire(), "nothing runs yet"
    lock.release()
    assert not pauses
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE dbos.workflow_status SET status = 'PENDING'")
    engine.dispose()
    assert lock.acquire()
    assert pauses == [executor_lock.TAKEOVER]
    lock.release()
