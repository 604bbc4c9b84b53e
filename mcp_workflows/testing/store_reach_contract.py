"""The laws of a store that reach over owners and replicas: caps, counts, due rows, leases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import anyio
import pytest

from mcp_workflows.adapter import Execution, Status
from mcp_workflows.store.protocol import CapReached, Caps, Count, Store
from mcp_workflows.task import CLOCKS_DIFFER, Task, bind, observe
from mcp_workflows.testing.tasks import DAY, NOBODYS_IDS, NOON, make_task


def _ended(task: Task) -> Task:
    return observe(task, Execution(status=Status.SUCCEEDED), NOON)


async def _made(store: Store, *every: dict[str, Any]) -> Sequence[Task]:  # Any: any field of Task
    return [await store.create(make_task(**fields)) for fields in every]


class StoreReachContract:
    """Part of `StoreContract`, which has the fixtures: subclass that."""

    async def test_an_old_tombstone_without_a_key_is_dropped_too(self, store: Store) -> None:
        """Law: for as long as tombstones are kept the owner can be told that it expired, and no longer."""
        task = await store.create(make_task(expires=NOON))
        await store.delete_expired(NOON, NOON - DAY)
        assert await store.get(task.id, task.owner) is not None
        assert await store.delete_expired(NOON + DAY, NOON + DAY) == 1
        assert await store.get(task.id, task.owner) is None

    async def test_what_is_still_to_be_done_for_an_expired_row_is_left_for_a_day(self, store: Store) -> None:
        """Law: sweep leaves rows with something due until a day after they expired."""
        running = bind(make_task(expires=NOON, cancel_on_expiry=True), "handle", NOON)
        await store.create(running)
        assert await store.delete_expired(NOON + DAY - timedelta(microseconds=1), NOON - DAY) == 0
        assert await store.get(running.id, running.owner) == running
        assert await store.delete_expired(NOON + DAY, NOON - DAY) == 1
        assert await store.due(running.engine, NOON + 2 * DAY, 10) == []

    async def test_what_is_due_is_found_by_engine_due_longest_first(self, store: Store) -> None:
        """Law: due gives an engine's rows of any owner whose `Task.due` has come, up to a limit."""

        def asked(age: int, **fields: Any) -> Task:  # Any: any field of Task
            return make_task(owner=f"owner-{age}", handle="h", cancel_requested=NOON - age * DAY, **fields)

        first, second, third = rows = [await store.create(asked(age)) for age in (3, 2, 1)]
        await _made(store, {}, {"tombstone": True})
        await store.create(asked(4, engine="parcels"))
        await store.create(asked(5, cancel_delivered=True))
        await store.create(_ended(asked(6)))
        assert await store.due(first.engine, NOON, 10) == rows
        assert await store.due(first.engine, NOON, 2) == [first, second]
        assert await store.due(first.engine, NOON - 2 * DAY, 10) == [first, second]
        assert await store.due(first.engine, NOON - 3 * DAY - timedelta(microseconds=1), 10) == []
        assert await store.due("nobodys", NOON, 10) == []
        await store.change(second.id, second.owner, lambda row: replace(row, cancel_delivered=True))
        later = await store.change(first.id, first.owner, lambda row: replace(row, not_before=NOON + DAY))
        assert await store.due(first.engine, NOON, 10) == [third]
        assert await store.due(first.engine, NOON + DAY, 10) == [third, later]

    async def test_rows_of_tools_are_listed_whoever_owns_them(self, store: Store) -> None:
        """Law: list_of_tools gives live rows of these tools, page by page, the youngest first, each on one page."""
        ages = (0, 1, 1, 1, 2)
        rows = await _made(
            store, *({"owner": f"o{n}", "tool": "ab"[n % 2], "created": NOON - age * DAY} for n, age in enumerate(ages))
        )
        await _made(store, {"tool": "c"}, {"tool": "a", "expires": NOON}, {"tool": "a", "tombstone": True})
        over = await store.create(make_task(tool="b"))
        await store.change(over.id, over.owner, _ended)
        expected = sorted(rows, key=lambda row: (row.created, row.id), reverse=True)
        assert await store.list_of_tools(["a", "b", "a"], now=NOON, limit=10) == expected
        assert await store.list_of_tools(["b"], now=NOON, limit=10) == [row for row in expected if row.tool == "b"]
        paged: list[Task] = []
        while page := await store.list_of_tools(
            ["a", "b"], now=NOON, limit=2, before=(paged[-1].created, paged[-1].id) if paged else None
        ):
            paged += page
        assert paged == expected
        assert await store.list_of_tools([], now=NOON, limit=10) == []
        assert await store.list_of_tools(["nobodys", "%", "\ud800"], now=NOON, limit=10) == []

    async def test_the_longest_live_are_found_by_owner_and_by_tool(self, store: Store) -> None:
        """Law: longest_live gives live rows of an owner, of a tool, or of one of both, the oldest first."""
        anna, bens, older = await _made(
            store,
            {"owner": "anna", "tool": "a"},
            {"owner": "ben", "tool": "a", "created": NOON - DAY},
            {"owner": "anna", "tool": "b", "created": NOON - 2 * DAY},
        )
        await _made(store, {"owner": "anna", "tool": "a", "expires": NOON})
        over = await store.create(make_task(owner="anna", tool="a"))
        await store.change(over.id, over.owner, _ended)
        assert await store.longest_live(owner="anna", tool=None, now=NOON, limit=10) == [older, anna]
        assert await store.longest_live(owner=None, tool="a", now=NOON, limit=10) == [bens, anna]
        assert await store.longest_live(owner="anna", tool="a", now=NOON, limit=10) == [anna]
        assert await store.longest_live(owner="anna", tool=None, now=NOON, limit=1) == [older]
        assert await store.longest_live(owner="\ud800", tool=None, now=NOON, limit=10) == []

    async def test_anothers_row_is_found_only_by_its_tool(self, store: Store) -> None:
        """Law: get_of_tools gives a row of any owner if its tool is among those, and it is no tombstone."""
        task, ended, buried = await _made(store, {"owner": "anna"}, {"owner": "ben"}, {"expires": NOON})
        over = await store.change(ended.id, ended.owner, _ended)
        await store.delete_expired(NOON, NOON - DAY)
        assert await store.get_of_tools(task.id, ["refund", task.tool]) == task
        assert await store.get_of_tools(ended.id, [ended.tool]) == over
        assert await store.get_of_tools(buried.id, [buried.tool]) is None
        assert await store.get_of_tools(task.id, ["refund"]) is None
        assert await store.get_of_tools(task.id, []) is None
        for nobodys in NOBODYS_IDS:
            assert await store.get_of_tools(nobodys, [task.tool]) is None

    async def test_the_operator_counts_tasks_by_tool_engine_and_status(self, store: Store) -> None:
        """Law: counts has the tasks that can be read at that time, with the oldest last change of each status."""
        assert await store.counts(NOON) == []
        rows = await _made(
            store,
            {"created": NOON - DAY},
            {"owner": "ben", "expires": None},
            {"engine": "parcels"},
            {"tool": "refund"},
            {"expires": NOON},
            {"tombstone": True},
        )
        await store.change(rows[3].id, rows[3].owner, lambda row: observe(row, Execution(status=Status.FAILED), NOON))
        later = NOON + timedelta(hours=1)
        seen = Execution(status=Status.RUNNING, message="step 2")
        await store.change(rows[0].id, rows[0].owner, lambda row: observe(row, seen, later))
        running = Count(
            tool="fulfil_order",
            engine="orders",
            status=Status.RUNNING,
            tasks=2,
            oldest_created=NOON - DAY,
            oldest_updated=NOON,
        )
        one = replace(running, tasks=1, oldest_created=NOON)
        assert sorted(await store.counts(NOON), key=lambda count: (count.tool, count.engine)) == [
            running,
            replace(one, engine="parcels"),
            replace(one, tool="refund", status=Status.FAILED),
        ]

    CAPPED: ClassVar[Sequence[tuple[str, bool, bool]]] = (  # the cap; whether another owner, another tool counts too
        ("live_of_owner", False, True),
        ("live_of_tool", True, False),
        ("live_of_owner_and_tool", False, False),
        ("created_of_owner", False, True),
        ("created_of_tool", True, False),
    )

    @pytest.mark.parametrize(("cap", "other_owners", "other_tools"), CAPPED)
    async def test_no_more_rows_than_the_cap_are_created(
        self, store: Store, cap: str, other_owners: bool, other_tools: bool
    ) -> None:
        """Law: with the cap reached create raises CapReached, names it, and inserts nothing."""
        caps = Caps(**{cap: 2}, since=NOON - DAY)
        await store.create(make_task())
        for other in (make_task(owner="ben"), make_task(tool="refund"), make_task(owner="ben", tool="refund")):
            assert await store.create(other) == other
        assert await store.create(make_task(owner="carl", tool="other"), caps)
        one_is_left = not (other_owners or other_tools)
        if one_is_left:
            await store.create(make_task(), caps)
        refused = make_task(idempotency_key="once")
        with pytest.raises(CapReached) as reached:
            await store.create(refused, caps)
        assert reached.value.cap == cap
        assert await store.get(refused.id, refused.owner) is None
        assert await store.create(refused) == refused  # its key was not taken either

    @pytest.mark.parametrize("cap", [capped[0] for capped in CAPPED])
    async def test_a_cap_of_none_at_all_lets_nobody_in(self, store: Store, cap: str) -> None:
        """Law: 0 is a cap too."""
        with pytest.raises(CapReached):
            await store.create(make_task(), Caps(**{cap: 0}, since=NOON - DAY))

    async def test_what_has_ended_or_expired_is_not_live(self, store: Store) -> None:
        """Law: live caps count rows that have neither ended nor expired, at the time the new one is created."""
        caps = Caps(live_of_owner=1, live_of_tool=1, live_of_owner_and_tool=1)
        ended, expired, _ = await _made(store, {}, {"expires": NOON}, {"tombstone": True})
        await store.change(ended.id, ended.owner, _ended)
        with pytest.raises(CapReached):
            await store.create(make_task(created=NOON - timedelta(microseconds=1)), caps)
        live = await store.create(make_task(), caps)
        with pytest.raises(CapReached) as reached:
            await store.create(make_task(), caps)
        assert reached.value.again is None
        await store.change(live.id, live.owner, _ended)
        assert await store.create(make_task(), caps)
        assert await store.get(expired.id, expired.owner) == expired

    @pytest.mark.parametrize("cap", ["created_of_owner", "created_of_tool"])
    async def test_creations_are_counted_in_a_window_whatever_came_of_them(self, store: Store, cap: str) -> None:
        """Law: caps of creations count rows created after `since`, tombstones too; `again` is the time it may work."""
        minute = timedelta(minutes=1)
        moments = [NOON - minute, NOON - timedelta(seconds=50), NOON - timedelta(seconds=20)]
        old, first, second = await _made(store, *({"created": moment, "expires": NOON} for moment in moments))
        await store.change(first.id, first.owner, _ended)
        await store.delete_expired(NOON, NOON - DAY)
        assert old.created == NOON - minute  # not after `since`
        with pytest.raises(CapReached) as reached:
            await store.create(make_task(), Caps(**{cap: 2}, since=NOON - minute))
        assert reached.value.again == first.created + minute
        with pytest.raises(CapReached) as reached:
            await store.create(make_task(), Caps(**{cap: 1}, since=NOON - minute))
        assert reached.value.again == second.created + minute
        again = first.created + minute
        assert await store.create(make_task(created=again), Caps(**{cap: 2}, since=again - minute))

    @pytest.mark.parametrize("cap", ["created_of_owner", "created_of_tool"])
    async def test_rows_of_a_clock_that_was_ahead_count_for_no_window(self, store: Store, cap: str) -> None:
        """Law: a row dated later than now, by more than clocks may differ, keeps nobody out until that time."""
        caps = Caps(**{cap: 1}, since=NOON - DAY)
        await store.create(make_task(created=NOON + CLOCKS_DIFFER + timedelta(microseconds=1)))
        near = await store.create(make_task(created=NOON + CLOCKS_DIFFER, idempotency_key="near"))
        with pytest.raises(CapReached):
            await store.create(make_task(), caps)
        assert await store.create(make_task(created=near.created - DAY), replace(caps, since=NOON - 2 * DAY))

    async def test_a_key_that_has_a_row_counts_for_no_cap(self, store: Store) -> None:
        """Law: a caller that asks again for an existing row gets it, at any cap."""
        first = await store.create(make_task(idempotency_key="once"))
        assert await store.create(make_task(idempotency_key="once"), Caps(live_of_owner=1)) == first

    async def test_replicas_share_the_caps_also_at_once(self, new_store: Callable[[], Store]) -> None:
        """Law: caps are counted in the transaction of the insert: never one too many, even of many at once."""
        made: list[Task] = []
        refused: list[str] = []
        caps = Caps(live_of_owner=7, created_of_owner=50, since=NOON - DAY)
        async with AsyncExitStack() as stack:
            replicas = [await stack.enter_async_context(new_store()) for _ in range(3)]

            async def create(store: Store) -> None:
                try:
                    made.append(await store.create(make_task(), caps))
                except CapReached as reached:
                    refused.append(reached.cap)

            async with anyio.create_task_group() as group:
                for number in range(30):
                    group.start_soon(create, replicas[number % len(replicas)])
        assert len(made) == 7
        assert refused == ["live_of_owner"] * 23

    async def test_a_lease_has_one_holder_at_a_time(self, store: Store) -> None:
        """Law: lease gives what is free, over, or the holder's own already, by name."""
        minute = timedelta(minutes=1)
        assert await store.lease("sweep", "one", now=NOON, until=NOON + minute)
        assert not await store.lease("sweep", "two", now=NOON, until=NOON + minute)
        assert await store.lease("other", "two", now=NOON, until=NOON + minute)
        assert await store.lease("sweep", "one", now=NOON, until=NOON + 2 * minute)
        assert not await store.lease("sweep", "two", now=NOON + minute, until=NOON + 3 * minute)
        assert await store.lease("sweep", "two", now=NOON + 2 * minute, until=NOON + 3 * minute)
        assert not await store.lease("sweep", "one", now=NOON + 2 * minute, until=NOON + 9 * minute)
        assert await store.lease("sweep", "two", now=NOON + 2 * minute, until=NOON + 2 * minute)  # let go of
        assert await store.lease("sweep", "one", now=NOON + 2 * minute, until=NOON + 3 * minute)

    async def test_a_lease_of_a_clock_that_was_ahead_is_void(self, store: Store) -> None:
        """Law: a lease further ahead than its own length is free, if that is by more than clocks may differ."""
        minute = timedelta(minutes=1)
        assert await store.lease("sweep", "ahead", now=NOON + DAY, until=NOON + DAY + minute)
        assert await store.lease("sweep", "one", now=NOON, until=NOON + minute)
        ahead = NOON + CLOCKS_DIFFER
        assert await store.lease("sweep", "one", now=ahead, until=ahead + minute)
        assert not await store.lease("sweep", "two", now=NOON, until=NOON + minute)
        assert not await store.lease("sweep", "two", now=NOON - DAY, until=NOON - DAY)  # lets go of what it has lost
        assert not await store.lease("sweep", "two", now=NOON, until=NOON + minute)
        just = timedelta(microseconds=1)
        assert await store.lease("sweep", "two", now=NOON - just, until=NOON + minute - just)

    async def test_of_many_who_ask_for_a_lease_at_once_one_gets_it(self, new_store: Callable[[], Store]) -> None:
        """Law: lease is atomic, also between replicas."""
        got: list[str] = []
        async with AsyncExitStack() as stack:
            replicas = [await stack.enter_async_context(new_store()) for _ in range(5)]

            async def ask(number: int) -> None:
                if await replicas[number % 5].lease("sweep", f"holder-{number}", now=NOON, until=NOON + DAY):
                    got.append(f"holder-{number}")

            async with anyio.create_task_group() as group:
                for number in range(25):
                    group.start_soon(ask, number)
        assert len(got) == 1
