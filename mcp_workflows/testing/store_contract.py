"""StoreContract: the laws of a store, one test each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import anyio
import pytest

from mcp_workflows.adapter import Execution, Failure, InputRequest, Progress, Status
from mcp_workflows.store.protocol import Caps, Store
from mcp_workflows.task import CLOCKS_DIFFER, Task, accept, bind, expire, observe, refuse, request_cancel
from mcp_workflows.testing.store_reach_contract import StoreReachContract
from mcp_workflows.testing.tasks import DAY, NOBODYS_IDS, NOON, make_task


class StoreContract(StoreReachContract):
    """Prove a store: subclass this in a test module and override one fixture, `new_store`.

    ```python
    class TestMyStore(StoreContract):
        @pytest.fixture
        def new_store(self, tmp_path):
            return lambda: MyStore(f"mystore:///{tmp_path}/tasks")
    ```
    `new_store` makes a store that is not entered yet. All it makes during one test share their rows (a second one is a
    second replica, or the same one after a restart); the next test starts empty. Needs pytest.
    """

    pytestmark: ClassVar[Sequence[pytest.MarkDecorator]] = [pytest.mark.anyio]

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Return the one backend that counts: asyncio."""
        return "asyncio"

    @pytest.fixture
    def new_store(self) -> Callable[[], Store]:
        """Override: return a function that makes one more store, not entered, over the rows of this test."""
        raise NotImplementedError("override the fixture `new_store`")

    @pytest.fixture
    async def store(self, new_store: Callable[[], Store]) -> AsyncIterator[Store]:
        """Yield one entered store."""
        async with new_store() as store:
            yield store

    async def test_a_row_is_read_as_it_was_created(self, store: Store) -> None:
        """Law: create inserts durably; get returns the row."""
        task = make_task(
            options={"task_queue": "orders"},
            context={"traceparent": "00-1"},
            output_schema={"type": "object"},
            idempotency_key="once",
            input=[{"text": "Zürich ☕ \\ \" '", "deep": [1, 2.5, None, {"x": [True]}], "big": 2**53}],
        )
        assert await store.create(task) == task
        assert await store.get(task.id, task.owner) == task

    async def test_a_row_with_everything_seen_is_kept_whole(self, store: Store) -> None:
        """Law: change returns the row as it is then, and get returns the same."""
        task = await store.create(make_task())
        question = InputRequest(method="elicitation/create", params={"message": "Sure?", "requestedSchema": {}})
        seen = Execution(
            status=Status.INPUT_REQUIRED,
            message="waiting",
            progress=Progress(value=1, total=3),
            requests={"a": question, "b": question},
            execution_id="x-1",
            url="https://engine.example/x-1",
        )

        def change(row: Task) -> Task:
            return request_cancel(accept(observe(bind(row, "handle", NOON), seen, NOON), ["a"], NOON + DAY), NOON + DAY)

        changed = await store.change(task.id, task.owner, change)
        assert changed == change(task)
        assert await store.get(task.id, task.owner) == changed

    async def test_half_a_surrogate_pair_breaks_no_row(self, store: Store) -> None:
        """Law: any JSON a client or an engine can send is kept, or replaced, but never fails the row."""
        task = await store.create(make_task(input={"text": "\ud800"}, idempotency_key="\ud800"))
        found = await store.get(task.id, task.owner)
        assert found is not None
        assert isinstance(found.input["text"], str)

    async def test_another_owners_row_is_not_found(self, store: Store) -> None:
        """Law: "not found" and "not yours" look alike."""
        task = await store.create(make_task(owner="anna"))
        assert await store.get(task.id, "ben") is None
        assert await store.change(task.id, "ben", lambda row: bind(row, "stolen", NOON)) is None
        assert await store.get(task.id, "anna") == task

    @pytest.mark.parametrize("task_id", NOBODYS_IDS, ids=range(len(NOBODYS_IDS)))
    async def test_an_id_nobody_made_is_not_found(self, store: Store, task_id: str) -> None:
        """Law: every id is either a row's or not found, in any form."""
        await store.create(make_task())
        assert await store.get(task_id, "anna") is None
        assert await store.change(task_id, "anna", lambda row: row) is None

    async def test_one_idempotency_key_is_one_row(self, store: Store) -> None:
        """Law: create returns the row this idempotency key already has."""
        first = await store.create(make_task(idempotency_key="once"))
        assert await store.create(make_task(idempotency_key="once", fingerprint="other")) == first

    async def test_many_creates_at_once_with_one_key_are_one_row(self, new_store: Callable[[], Store]) -> None:
        """Law: the same, at once and from several replicas."""
        made: list[Task] = []
        async with AsyncExitStack() as stack:
            replicas = [await stack.enter_async_context(new_store()) for _ in range(5)]

            async def create(store: Store) -> None:
                made.append(await store.create(make_task(idempotency_key="once")))

            async with anyio.create_task_group() as group:
                for number in range(50):
                    group.start_soon(create, replicas[number % len(replicas)])
        assert len(made) == 50
        assert len({task.id for task in made}) == 1

    async def test_an_idempotency_key_counts_per_owner_and_tool(self, store: Store) -> None:
        """Law: the key counts per owner and tool."""
        tasks = [
            make_task(owner=owner, tool=tool, idempotency_key="once") for owner in ("anna", "ben") for tool in "ab"
        ]
        assert [await store.create(task) for task in tasks] == tasks

    async def test_rows_without_an_idempotency_key_are_each_their_own(self, store: Store) -> None:
        """Law: no key, no deduplication."""
        tasks = [make_task(), make_task()]
        assert [await store.create(task) for task in tasks] == tasks

    async def test_a_refused_start_frees_its_idempotency_key(self, store: Store) -> None:
        """Law: a change of the idempotency key counts for the next create."""
        first = await store.create(make_task(idempotency_key="once"))
        await store.change(first.id, first.owner, lambda row: refuse(row, Failure(text="no"), NOON))
        second = make_task(idempotency_key="once")
        assert await store.create(second) == second

    async def test_a_change_to_none_deletes_the_row(self, new_store: Callable[[], Store]) -> None:
        """Law: a change that returns None deletes the row: its key is free, and it counts for no cap."""
        caps = Caps(live_of_owner=1, live_of_tool=1, created_of_owner=1, created_of_tool=1)
        async with new_store() as one, new_store() as other:
            task = await one.create(make_task(idempotency_key="once"), caps)
            assert await other.change(task.id, "ben", lambda row: None) is None
            assert await other.get(task.id, task.owner) == task
            assert await other.change(task.id, task.owner, lambda row: None) is None
            assert await one.get(task.id, task.owner) is None
            assert await one.change(task.id, task.owner, lambda row: bind(row, "handle", NOON)) is None
            assert await one.list_of_owner(task.owner, now=NOON, limit=10) == []
            assert await one.unbound(task.engine, NOON + DAY, 10) == []
            again = make_task(idempotency_key="once")
            assert await one.create(again, caps) == again

    async def test_no_change_is_lost_between_replicas(self, new_store: Callable[[], Store]) -> None:
        """Law: change is one transaction, even if others are changing the row."""
        async with new_store() as one, new_store() as other:
            task = await one.create(make_task())

            async def change(store: Store, key: str) -> None:
                await store.change(task.id, task.owner, lambda row: accept(row, [key], NOON))

            async with anyio.create_task_group() as group:
                for number in range(25):
                    group.start_soon(change, one, f"one-{number}")
                    group.start_soon(change, other, f"other-{number}")
            found = await one.get(task.id, task.owner)
        assert found is not None
        assert len(found.answered) == 50

    async def test_the_first_terminal_outcome_stays(self, new_store: Callable[[], Store]) -> None:
        """Law: terminal is for ever, also when two replicas see different ends."""
        async with new_store() as one, new_store() as other:
            task = await one.create(make_task())
            ended = Execution(status=Status.SUCCEEDED, output={"n": 1})
            late = Execution(status=Status.CANCELLED)
            await one.change(task.id, task.owner, lambda row: observe(row, ended, NOON))
            found = await other.change(task.id, task.owner, lambda row: observe(row, late, NOON + DAY))
        assert found is not None
        assert (found.execution, found.ended) == (ended, NOON)

    async def test_a_change_that_fails_changes_nothing(self, store: Store) -> None:
        """Law: a transaction is all or nothing, and the store goes on."""
        task = await store.create(make_task())

        def fail(row: Task) -> Task:
            raise LookupError(row.id)

        with pytest.raises(LookupError):
            await store.change(task.id, task.owner, fail)
        assert await store.change(task.id, task.owner, lambda row: row) == task

    async def test_unbound_lists_what_is_not_known_to_be_started(self, store: Store) -> None:
        """Law: unbound gives an engine's rows, neither ended nor known to be started; oldest first, up to a limit."""
        rows = [make_task(owner=f"owner-{age}", created=NOON - age * DAY) for age in range(6)]
        for row in rows:
            await store.create(row)
        young, bound, ended, *waiting = rows
        await store.change(bound.id, bound.owner, lambda row: bind(row, "handle", NOON))
        await store.change(ended.id, ended.owner, lambda row: refuse(row, Failure(text="no"), NOON))
        expected = list(reversed(waiting))
        assert young not in expected
        assert await store.unbound(young.engine, NOON, 10) == expected
        assert await store.unbound(young.engine, NOON, 2) == expected[:2]
        assert await store.unbound("another", NOON, 10) == []

    async def test_rows_are_searched_by_the_name_and_the_identity_of_their_engine(self, store: Store) -> None:
        """Law: an engine is a `Task.engine_key` wherever rows are searched by one, also after a change of identity."""
        wanted = {"handle": "h", "cancel_requested": NOON}
        for identity in ("", "prod", "staging"):
            unbound, due = make_task(identity=identity), make_task(identity=identity, **wanted)
            for row in (unbound, due):
                await store.create(row)
            assert await store.unbound(unbound.engine_key, NOON + DAY, 10) == [unbound]
            assert await store.due(due.engine_key, NOON, 10) == [due]
            assert len(await store.list_all(engine=due.engine_key)) == 2
            assert (await store.live_counts(NOON))[due.tool, due.engine_key] == 2
        moved = await store.change(due.id, due.owner, lambda row: replace(row, identity="prod"))
        assert await store.due(due.engine_key, NOON, 10) == []
        assert moved in await store.due(replace(due, identity="prod").engine_key, NOON, 10)

    async def test_unbound_lists_what_a_clock_that_was_ahead_has_dated(self, store: Store) -> None:
        """Law: a row dated later than that time, by more than clocks may differ, is not young but wrong."""
        moments = (NOON, NOON + CLOCKS_DIFFER, NOON + 91 * DAY)
        *_, ahead = [await store.create(make_task(created=moment)) for moment in moments]
        assert await store.unbound(ahead.engine, NOON, 10) == [ahead]

    async def test_an_owner_sees_their_own_rows_page_by_page_the_youngest_first(self, store: Store) -> None:
        """Law: list_of_owner gives one owner's rows that have not expired, each on one page."""
        ages = (0, 1, 1, 1, 2)
        rows = [make_task(owner="ada", created=NOON - age * DAY, expires=NOON + DAY) for age in ages]
        strangers = [make_task(owner="ben"), make_task(owner="ada", expires=NOON)]
        for row in [*rows, *strangers]:
            await store.create(row)
        expected = sorted(rows, key=lambda row: (row.created, row.id), reverse=True)
        assert await store.list_of_owner("ada", now=NOON, limit=10) == expected
        paged: list[Task] = []
        while page := await store.list_of_owner(
            "ada", now=NOON, limit=2, before=(paged[-1].created, paged[-1].id) if paged else None
        ):
            paged += page
        assert paged == expected
        assert await store.list_of_owner("nobody", now=NOON, limit=10) == []

    async def test_the_operator_sees_everyones_rows_the_youngest_first(self, store: Store) -> None:
        """Law: list_all gives rows of any owner, by tool, engine and age, up to a limit; live ones unless asked."""
        rows = [make_task(owner=f"owner-{age}", created=NOON - age * DAY) for age in range(5)]
        rows[1] = make_task(owner="ben", tool="refund", engine="parcels", created=NOON - DAY)
        for row in rows:
            await store.create(row)
        over = Execution(status=Status.SUCCEEDED)
        ended = await store.change(rows[2].id, rows[2].owner, lambda row: observe(row, over, NOON))
        live = [rows[0], rows[1], rows[3], rows[4]]
        assert await store.list_all() == live
        assert await store.list_all(limit=2) == live[:2]
        assert await store.list_all(before=rows[1].created) == live[2:]
        assert await store.list_all(tool="refund") == await store.list_all(engine="parcels") == [rows[1]]
        assert await store.list_all(live_only=False) == [*rows[:2], ended, *rows[3:]]
        assert await store.list_all(tool="nobodys") == []

    async def test_the_operator_sees_no_tombstones(self, store: Store) -> None:
        """Law: what has expired and was swept is nobody's any more."""
        task = await store.create(make_task(idempotency_key="once", expires=NOON))
        await store.delete_expired(NOON, NOON - DAY)
        assert await store.list_all(live_only=False) == []
        assert await store.find(task.id) == []

    async def test_the_operator_counts_live_tasks_by_tool_and_engine(self, store: Store) -> None:
        """Law: live_counts counts rows of any owner that have neither ended nor expired."""
        assert await store.live_counts(NOON) == {}
        fields: Sequence[dict[str, Any]] = (
            {},
            {"owner": "ben"},
            {"engine": "parcels"},
            {"tool": "refund"},
            {"expires": None},
            {"expires": NOON},
        )
        rows = [await store.create(make_task(**some)) for some in fields]
        over = Execution(status=Status.SUCCEEDED)
        await store.change(rows[3].id, rows[3].owner, lambda row: observe(row, over, NOON))
        assert await store.live_counts(NOON) == {("fulfil_order", "orders"): 3, ("fulfil_order", "parcels"): 1}

    async def test_the_operator_finds_rows_by_how_their_ids_begin(self, store: Store) -> None:
        """Law: find takes the beginning of an id literally, in rows of any owner."""
        rows = [make_task(id=name, owner=name) for name in ("ab1", "ab2", "ac_", "a%")]
        for row in rows:
            await store.create(row)
        first, second, *others = rows
        assert await store.find("ab") == [first, second]
        assert await store.find("ab", 1) == [first]
        assert await store.find("ab2") == [second]
        assert [await store.find(row.id) for row in others] == [[row] for row in others]
        for nobodys in (*NOBODYS_IDS[1:4], *NOBODYS_IDS[5:]):
            assert await store.find(nobodys) == []

    async def test_sweeping_drops_what_has_expired(self, store: Store) -> None:
        """Law: sweep makes a tombstone of what has expired, and touches nothing else."""
        expired, fresh, forever = make_task(expires=NOON, input=["private"]), make_task(), make_task(expires=None)
        for row in (expired, fresh, forever):
            await store.create(row)
        assert await store.delete_expired(NOON, NOON - DAY) == 1
        assert await store.get(expired.id, expired.owner) == expire(expired)
        assert await store.get(expired.id, "ben") is None
        assert await store.get(fresh.id, fresh.owner) == fresh
        assert await store.get(forever.id, forever.owner) == forever
        assert await store.delete_expired(NOON, NOON - DAY) == 0

    async def test_sweeping_many_rows_sweeps_them_all(self, store: Store) -> None:
        """Law: sweep is complete, however it is cut into transactions."""
        for number in range(450):
            await store.create(make_task(expires=NOON, idempotency_key=str(number) if number % 2 else None))
        assert await store.delete_expired(NOON, NOON - DAY) == 450

    async def test_an_expired_row_with_a_key_becomes_a_tombstone(self, store: Store) -> None:
        """Law: the idempotency key of a tombstone still counts, its content is gone."""
        task = await store.create(make_task(idempotency_key="once", expires=NOON, input=["private"]))
        assert await store.delete_expired(NOON, NOON - DAY) == 1
        found = await store.create(make_task(idempotency_key="once"))
        assert (found.id, found.tombstone, found.input) == (task.id, True, None)
        assert await store.get(task.id, task.owner) == found
        assert await store.unbound(task.engine, NOON + DAY, 10) == []

    async def test_an_old_tombstone_is_dropped_and_its_key_is_free(self, store: Store) -> None:
        """Law: tombstones that expired before `keep_tombstones_since` are dropped."""
        await store.create(make_task(idempotency_key="once", expires=NOON))
        await store.delete_expired(NOON, NOON - DAY)
        assert await store.delete_expired(NOON, NOON) == 0
        assert await store.delete_expired(NOON + DAY, NOON + DAY) == 1
        again = make_task(idempotency_key="once")
        assert await store.create(again) == again

    async def test_a_secret_is_made_once_for_all(self, new_store: Callable[[], Store]) -> None:
        """Law: 32 random bytes under a name, the same for all who share the store, and after a restart."""
        made: list[bytes] = []
        async with new_store() as one, new_store() as other:

            async def read(store: Store) -> None:
                made.append(await store.secret("seal"))

            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(read, (one, other)[number % 2])
            assert await one.secret("another") not in made
        async with new_store() as again:
            made.append(await again.secret("seal"))
        assert {len(secret) for secret in made} == {32}
        assert len(set(made)) == 1

    async def test_a_note_is_read_as_it_was_put(self, store: Store) -> None:
        """Law: a note is any JSON value, also null, or nothing; the last that was put is read."""
        assert await store.note("orders", "a") is None
        values: Sequence[Any] = ({"n": [1, None, "\u00e9\0\ud800"]}, "text", 0, False, None, [])  # any JSON values
        for value in values:
            await store.put_note("orders", "a", value, until=NOON)
            assert await store.note("orders", "a") == value
        assert await store.notes_under("orders", "") == {"a": []}

    async def test_a_note_is_added_once(self, store: Store) -> None:
        """Law: add_note returns what is there already, and changes nothing then, not even its time."""
        assert await store.add_note("orders", "a", {"n": 1}, until=NOON) == {"n": 1}
        assert await store.add_note("orders", "a", {"n": 2}, until=NOON + DAY) == {"n": 1}
        await store.delete_expired(NOON, NOON - DAY)
        assert await store.add_note("orders", "a", {"n": 3}, until=NOON) == {"n": 3}
        await store.put_note("orders", "a", {"n": 4}, until=NOON)
        assert await store.add_note("orders", "a", {"n": 5}, until=NOON) == {"n": 4}

    async def test_many_who_add_one_note_at_once_agree(self, new_store: Callable[[], Store]) -> None:
        """Law: add_note is atomic, also between replicas: the first value is the same for all."""
        told: list[Any] = []  # any JSON value
        async with AsyncExitStack() as stack:
            replicas = [await stack.enter_async_context(new_store()) for _ in range(5)]

            async def add(number: int) -> None:
                told.append(await replicas[number % len(replicas)].add_note("orders", "claim", number, until=NOON))

            async with anyio.create_task_group() as group:
                for number in range(50):
                    group.start_soon(add, number)
            assert await replicas[0].note("orders", "claim") in told
        assert len(told) == 50
        assert len(set(told)) == 1

    async def test_notes_are_found_by_how_their_keys_begin_to_the_letter(self, store: Store) -> None:
        """Law: notes_under takes the beginning literally: no character of it means another; sorted by key."""
        keys = ("a", "a%", "a%b", "a/", "a/b", "a/b/c", "a_", "aX", "a\U0010ffff", "b", "\u00e9", "A/b", "")
        for key in keys:
            await store.put_note("orders", key, key, until=NOON)
        for beginning in (*keys, "a/b/", "%", "_", "a*", "a?", "' OR 1=1 --"):
            found = await store.notes_under("orders", beginning)
            assert list(found.items()) == [(key, key) for key in sorted(keys) if key.startswith(beginning)]

    async def test_spaces_do_not_see_each_others_notes(self, store: Store) -> None:
        """Law: a space is known by its whole name, and has its own keys."""
        spaces = ("orders", "orders/a", "order", "%", "")
        for space in spaces:
            assert await store.add_note(space, "a/b", space, until=NOON) == space
        for space in spaces:
            assert await store.note(space, "a/b") == space
            assert await store.notes_under(space, "a") == {"a/b": space}
        assert await store.note("orders/", "a/b") is None

    async def test_a_note_is_kept_until_its_time(self, store: Store) -> None:
        """Law: sweep drops notes whose time has come, and counts them; until then, and unswept, they are read."""
        await store.put_note("orders", "over", 1, until=NOON)
        await store.put_note("orders", "later", 2, until=NOON + timedelta(microseconds=1))
        await store.put_note("orders", "longer", 3, until=NOON)
        await store.put_note("orders", "longer", 4, until=NOON + DAY)
        assert await store.note("orders", "over") == 1
        assert await store.delete_expired(NOON, NOON - DAY) == 1
        assert await store.notes_under("orders", "") == {"later": 2, "longer": 4}
        assert await store.delete_expired(NOON, NOON - DAY) == 0
        async with anyio.create_task_group() as group:
            for number in range(450):
                group.start_soon(partial(store.put_note, "orders", str(number), number, until=NOON))
        assert await store.delete_expired(NOON + DAY, NOON - DAY) == 452

    async def test_notes_survive_a_restart(self, new_store: Callable[[], Store]) -> None:
        """Law: durable when add_note and put_note return."""
        async with new_store() as store:
            await store.add_note("orders", "added", {"n": 1}, until=NOON)
            await store.put_note("orders", "put", {"n": 2}, until=NOON)
        async with new_store() as one, new_store() as other:
            assert await one.notes_under("orders", "") == {"added": {"n": 1}, "put": {"n": 2}}
            await one.put_note("orders", "put", {"n": 3}, until=NOON)
            assert await other.note("orders", "put") == {"n": 3}

    async def test_rows_survive_a_restart(self, new_store: Callable[[], Store]) -> None:
        """Law: durable when create and change return."""
        async with new_store() as store:
            task = await store.create(make_task())
            bound = await store.change(task.id, task.owner, lambda row: bind(row, "handle", NOON))
        async with new_store() as store:
            assert await store.get(task.id, task.owner) == bound

    async def test_a_row_that_waits_for_a_sync_is_read_by_another_replica(self, new_store: Callable[[], Store]) -> None:
        """Law: without `durable` others see a row all the same, and after `sync` it survives a restart."""
        async with new_store() as one, new_store() as other:
            task = await one.create(make_task(idempotency_key="k"), durable=False)
            assert await other.get(task.id, task.owner) == task
            assert await other.create(make_task(idempotency_key="k")) == task
            await one.sync()
            await other.sync()
        async with new_store() as store:
            assert await store.get(task.id, task.owner) == task

    async def test_a_row_written_by_one_replica_is_read_by_another(self, new_store: Callable[[], Store]) -> None:
        """Law: replicas that share a store share all tasks, at once."""
        async with new_store() as one, new_store() as other:
            task = await one.create(make_task())
            assert await other.get(task.id, task.owner) == task

    async def test_expired_rows_are_read_until_they_are_swept(self, store: Store) -> None:
        """Law: a store does not look at the clock; its callers decide."""
        task = await store.create(make_task(expires=NOON - 1000 * DAY))
        assert await store.get(task.id, task.owner) == task

    async def test_a_healthy_store_checks_out(self, store: Store) -> None:
        """Law: check is silent when rows can be read and written, and changes none."""
        task = await store.create(make_task())
        await store.check()
        assert await store.get(task.id, task.owner) == task
