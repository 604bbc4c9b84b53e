"""Two engines with one name, of two configurations that share a store: each acts on its own tasks alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from pydantic import BaseModel

from mcp_workflows.access import ANONYMOUS
from mcp_workflows.adapter import Adapter, Execution, Status
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.engines.registry import FOREIGN, Engines
from mcp_workflows.errors import EngineUnavailable, RequestError
from mcp_workflows.kit.functions import from_functions
from mcp_workflows.store.protocol import Store, open_store
from mcp_workflows.task import Task, attempt, bind, observe, request_cancel
from mcp_workflows.tasks.executions import Executions
from mcp_workflows.testing import make_task

pytestmark = pytest.mark.anyio

OLD = timedelta(hours=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """The inside of one server, and its engine."""

    store: Store
    engines: Engines
    executions: Executions
    engine: MemoryAdapter

    async def row(self, task: Task) -> Task:
        row = await self.store.get(task.id, task.owner)
        assert row is not None
        return row

    async def until(self, task: Task, condition: Callable[[Task], bool]) -> None:
        with anyio.fail_after(60):
            while not condition(await self.row(task)):
                await anyio.sleep(0.02)


@asynccontextmanager
async def house(folder: Path, name: str) -> AsyncGenerator[House]:
    """A server whose engine `jobs` is the one of that name in memory."""
    engine = MemoryAdapter(MemorySettings(name=f"{folder}-{name}"))
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(f"sqlite:///{folder}/tasks.db"))
        engines = await stack.enter_async_context(Engines({"jobs": engine}))
        executions = Executions(store=store, engines=engines, retention=timedelta(days=1))
        await stack.enter_async_context(executions)
        yield House(store=store, engines=engines, executions=executions, engine=engine)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Background work at once, and again and again."""
    for each in ("STEPS_EVERY", "RECOVER_EVERY", "KEEP_EVERY"):
        monkeypatch.setattr(f"mcp_workflows.tasks.maintenance.{each}", 0.02)
    monkeypatch.setattr("mcp_workflows.tasks.maintenance.POLL_EVERY", 0.0)


def identity(folder: Path, name: str) -> str:
    return f"memory:{folder}-{name}"


def old_task(identity: str, **changes: Any) -> Task:  # Any: any field of Task
    before = datetime.now(UTC) - OLD
    fields = {"engine": "jobs", "workflow": "forever", "created": before, "updated": before}
    expires = before + timedelta(days=2)
    return make_task(**{**fields, "expires": expires, "owner": ANONYMOUS.id, "identity": identity, **changes})


LEFT: Mapping[str, Callable[[Task], Task]] = {
    "unstarted": lambda task: attempt(task, task.created),
    "never tried": lambda task: task,
    "to be cancelled": lambda task: request_cancel(bind(task, "h-1", task.created), task.created),
    "expired, to be cancelled": lambda task: replace(
        bind(task, "h-1", task.created), cancel_on_expiry=True, expires=task.created + timedelta(minutes=1)
    ),
    "ended unseen": lambda task: bind(task, "h-1", task.created),
}
"""What a server may leave behind, that the background work of the next one acts on."""


@pytest.mark.parametrize("left", LEFT)
async def test_background_work_acts_on_no_task_of_another_engine(tmp_path: Path, left: str) -> None:
    make = LEFT[left]
    theirs = make(old_task(identity(tmp_path, "prod")))
    ours = make(old_task(identity(tmp_path, "staging")))
    async with open_store(f"sqlite:///{tmp_path}/tasks.db") as store:
        await store.create(theirs)
        await store.create(ours)
    async with house(tmp_path, "staging") as here:
        await here.until(ours, lambda row: row != ours)
        await here.until(ours, lambda row: row.ended is not None or row.handle not in (None, "h-1"))
        assert await here.row(theirs) == theirs
        assert len(here.engine.handles) == left.startswith(("unstarted", "never"))
    async with house(tmp_path, "prod") as there:
        await there.until(theirs, lambda row: row != theirs)


async def test_its_owner_reads_the_last_state_and_the_reason_and_no_call_is_made(tmp_path: Path) -> None:
    running = Execution(status=Status.RUNNING, message="half way")
    theirs = observe(bind(old_task(identity(tmp_path, "prod")), "h-1", datetime.now(UTC)), running, datetime.now(UTC))
    async with house(tmp_path, "staging") as here:
        await here.store.create(theirs)
        seen, warning = await here.executions.observe(theirs)
        assert (seen.execution, warning) == (running, f"engine jobs: {FOREIGN}")
        for verb in ("answer", "cancel", "describe", "find", "start", "terminate", "wait", "other"):
            with pytest.raises(EngineUnavailable, match="now has another identity") as caught:
                async with here.engines.calling(theirs, api=verb):
                    raise AssertionError("the adapter of another engine")
            assert not caught.value.sent
        assert await here.engines.describe_many("jobs", [theirs]) == {}
        asked, _ = await here.executions.cancel(theirs)
        assert (asked.cancel_requested is not None, asked.cancel_delivered) == (True, False)
        assert here.engine.calls == {}
        assert here.engines.silence("jobs") is None  # says nothing about the engine
    ended = observe(theirs, Execution(status=Status.SUCCEEDED, output={"a": 1}), datetime.now(UTC))
    async with house(tmp_path, "other") as here:
        assert await here.executions.observe(ended) == (ended, None)


@pytest.mark.parametrize("left", ["unstarted", "never tried", "ended unseen"])
async def test_a_key_of_a_task_of_another_engine_is_refused(tmp_path: Path, left: str) -> None:
    theirs = LEFT[left](old_task(identity(tmp_path, "prod"), idempotency_key="once"))
    async with house(tmp_path, "staging") as here:
        await here.store.create(theirs)
        with pytest.raises(RequestError, match="used on another engine named jobs: nothing was started"):
            await here.executions.create(old_task("", idempotency_key="once"))
        assert (await here.row(theirs), here.engine.handles) == (theirs, [])
    async with house(tmp_path, "prod") as there:
        with anyio.fail_after(60):
            assert (await there.executions.create(old_task("", idempotency_key="once"))).id == theirs.id


async def test_a_tool_that_moved_to_another_engine_still_finds_the_task_of_its_key(tmp_path: Path) -> None:
    """Both engines are in the configuration: the key has one task, wherever that runs."""
    first, second = (MemoryAdapter(MemorySettings(name=f"{tmp_path}-{each}")) for each in ("first", "second"))
    async with (
        open_store(f"sqlite:///{tmp_path}/tasks.db") as store,
        Engines({"first": first, "second": second}) as engines,
        Executions(store=store, engines=engines, retention=timedelta(days=1)) as executions,
    ):
        task = await executions.create(old_task("", engine="first", idempotency_key="once"))
        assert (await executions.create(old_task("", engine="second", idempotency_key="once"))).id == task.id
    assert (len(first.handles), second.handles) == (1, [])


# --- rows of versions that stored no identity


async def test_an_unstarted_row_of_an_earlier_version_belongs_to_the_engine_that_tries_to_start_it(
    tmp_path: Path,
) -> None:
    left = LEFT["unstarted"](old_task(""))
    async with house(tmp_path, "prod") as here:
        here.engine.faults.lost_start_replies = 1
        await here.store.create(left)
        await here.until(left, lambda row: row.handle is not None)
        assert (await here.row(left)).identity == identity(tmp_path, "prod")
        assert len(here.engine.handles) == 1


async def test_a_started_row_of_an_earlier_version_belongs_to_the_engine_that_shows_its_execution(
    tmp_path: Path,
) -> None:
    async with house(tmp_path, "prod") as there:
        started = await there.executions.create(old_task("", workflow="ask"))
        left = replace(started, id="left", identity="")
        await there.store.create(left)
        async with house(tmp_path, "staging") as here:
            _, warning = await here.executions.observe(left)
            assert warning == "engine jobs: it does not show the execution, and may not be where it ran"
            row = await here.row(left)
            assert (row.identity, row.ended) == ("", None)
        seen, warning = await there.executions.observe(row)
        assert (seen.identity, warning) == (identity(tmp_path, "prod"), None)
        assert seen.execution.status is Status.INPUT_REQUIRED
    async with house(tmp_path, "staging") as here:
        _, warning = await here.executions.observe(await here.row(left))
        assert warning == f"engine jobs: {FOREIGN}"


# --- adapters without an identity


class Where(BaseModel):
    """Settings with an identity."""

    account: str

    @property
    def identity(self) -> str:
        return f"acme:{self.account}"


def acme(**more: Any) -> Any:  # Any: settings; an adapter, or its class
    def start(*_: object) -> str:
        return "h-1"

    def describe(*_: object) -> Status:
        return Status.RUNNING

    def cancel(*_: object) -> None:
        pass

    functions: Mapping[str, Any] = {"start": start, "describe": describe, "cancel": cancel, **more}  # Any: see above
    return cast("Any", from_functions)(**functions)


async def test_an_adapter_without_an_identity_is_known_by_its_name(tmp_path: Path) -> None:
    adapters: Mapping[str, Adapter] = {"plain": acme(), "named": acme(settings=Where)(Where(account="a"))}
    async with (
        open_store(f"sqlite:///{tmp_path}/tasks.db") as store,
        Engines(adapters) as engines,
        Executions(store=store, engines=engines, retention=timedelta(days=1)) as executions,
    ):
        assert [engines.identity(name) for name in ("plain", "named", "gone")] == ["", "acme:a", ""]
        assert engines.keys == {"plain": "plain", "named\nacme:a": "named", "named": "named"}
        plain = await executions.create(old_task("", engine="plain"))
        assert (plain.identity, (await executions.observe(plain))[1]) == ("", None)
        foreign = replace(plain, id="foreign", identity="memory:x")
        await store.create(foreign)
        assert (await executions.observe(foreign))[1] == f"engine plain: {FOREIGN}"
