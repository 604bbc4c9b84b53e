"""The laws of a store, one test each, for every store that there is; a new one is one more parameter of `new_store`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import pytest

from mcp_workflows.adapter import Execution, Failure, InputRequest, Progress, Status
from mcp_workflows.store.encryption import Cipher, new_key
from mcp_workflows.store.protocol import EVENTS_KEPT, CapReached, Caps, Count, Store, TaskFilter, open_store
from mcp_workflows.task import (
    CLOCKS_DIFFER,
    START_GATE,
    START_KEY,
    Decision,
    EventName,
    Held,
    LoggedEvent,
    Step,
    Task,
    Terms,
    UnansweredCall,
    accept,
    bind,
    decide,
    expire,
    hold,
    mark_answered,
    note_step,
    observe,
    question_digest,
    refuse,
    request_cancel,
)
from mcp_workflows.testing.tasks import DAY, NOBODYS_IDS, NOON, make_task
from tests.store.places import Place

CIPHER = Cipher([new_key(), new_key()])
CAPPED: Sequence[tuple[str, bool, bool]] = (  # the cap; whether another owner, another tool counts too
    ("live_of_owner", False, True),
    ("live_of_tool", True, False),
    ("live_of_owner_and_tool", False, False),
    ("created_of_owner", False, True),
    ("created_of_tool", True, False),
)


@pytest.fixture(params=[None, CIPHER], ids=["plain", "encrypted"])
def new_store(request: pytest.FixtureRequest, place: Place) -> Callable[[], Store]:
    """Makes stores that share their rows: a second one is another replica, or the same one after a restart."""
    return lambda: open_store(place.url, request.param)


def _ended(task: Task) -> Task:
    return observe(task, Execution(status=Status.SUCCEEDED), NOON)


async def _made(store: Store, *every: dict[str, Any]) -> Sequence[Task]:  # Any: any field of Task
    return [await store.create(make_task(**fields)) for fields in every]


@pytest.fixture
async def store(new_store: Callable[[], Store]) -> AsyncIterator[Store]:
    """Yield one entered store."""
    async with new_store() as store:
        yield store


async def test_a_row_is_read_as_it_was_created(store: Store) -> None:
    task = make_task(
        options={"task_queue": "orders"},
        context={"traceparent": "00-1"},
        output_schema={"type": "object"},
        idempotency_key="once",
        input=[{"text": "Zürich ☕ \\ \" '", "deep": [1, 2.5, None, {"x": [True]}], "big": 2**53}],
    )
    assert await store.create(task) == task
    assert await store.get(task.id, task.owner) == task


async def test_a_row_with_everything_seen_is_kept_whole(store: Store) -> None:
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


async def test_half_a_surrogate_pair_breaks_no_row(store: Store) -> None:
    task = await store.create(make_task(input={"text": "\ud800"}, idempotency_key="\ud800"))
    found = await store.get(task.id, task.owner)
    assert found is not None
    assert isinstance(found.input["text"], str)


async def test_another_owners_row_is_not_found(store: Store) -> None:
    task = await store.create(make_task(owner="anna"))
    assert await store.get(task.id, "ben") is None
    assert await store.change(task.id, "ben", lambda row: bind(row, "stolen", NOON)) is None
    assert await store.get(task.id, "anna") == task


@pytest.mark.parametrize("task_id", NOBODYS_IDS, ids=range(len(NOBODYS_IDS)))
async def test_an_id_nobody_made_is_not_found(store: Store, task_id: str) -> None:
    await store.create(make_task())
    assert await store.get(task_id, "anna") is None
    assert await store.change(task_id, "anna", lambda row: row) is None


async def test_many_creates_at_once_with_one_key_are_one_row(new_store: Callable[[], Store]) -> None:
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


async def test_an_idempotency_key_counts_per_owner_and_tool(store: Store) -> None:
    tasks = [make_task(owner=owner, tool=tool, idempotency_key="once") for owner in ("anna", "ben") for tool in "ab"]
    assert [await store.create(task) for task in tasks] == tasks


async def test_a_refused_start_frees_its_idempotency_key(store: Store) -> None:
    first = await store.create(make_task(idempotency_key="once"))
    failure = Failure(text="no", kind="No", details=[{"left": 0}], retryable=False, step="pack")
    await store.change(first.id, first.owner, lambda row: refuse(row, failure, NOON))
    second = make_task(idempotency_key="once")
    assert await store.create(second) == second
    kept = await store.get(first.id, first.owner)
    assert kept is not None
    assert kept.execution.failure == failure


async def test_a_change_to_none_deletes_the_row(new_store: Callable[[], Store]) -> None:
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


async def test_no_change_is_lost_between_replicas(new_store: Callable[[], Store]) -> None:
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


async def test_the_first_terminal_outcome_stays(new_store: Callable[[], Store]) -> None:
    async with new_store() as one, new_store() as other:
        task = await one.create(make_task())
        ended = Execution(status=Status.SUCCEEDED, output={"n": 1})
        late = Execution(status=Status.CANCELLED)
        await one.change(task.id, task.owner, lambda row: observe(row, ended, NOON))
        found = await other.change(task.id, task.owner, lambda row: observe(row, late, NOON + DAY))
    assert found is not None
    assert (found.execution, found.ended) == (ended, NOON)


async def test_a_change_that_fails_changes_nothing(store: Store) -> None:
    task = await store.create(make_task())

    def fail(row: Task) -> Task:
        raise LookupError(row.id)

    with pytest.raises(LookupError):
        await store.change(task.id, task.owner, fail)
    assert await store.change(task.id, task.owner, lambda row: row) == task


async def test_unbound_lists_what_is_not_known_to_be_started(store: Store) -> None:
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


async def test_unanswered_rows_are_found_by_their_match_until_their_mark_is_over(store: Store) -> None:
    def marked(match: str, **more: Any) -> UnansweredCall:
        return UnansweredCall(match=match, holder="h", called=NOON, open_from=NOON, open_until=NOON + DAY, **more)

    young, old, other, gone = await _made(
        store,
        *({"unanswered": marked("a"), "created": NOON + timedelta(hours=hours)} for hours in (2, 1)),
        {"unanswered": marked("b")},
        {"unanswered": marked("a")},
    )
    await store.change(gone.id, gone.owner, expire)
    assert await store.unanswered("a", NOON) == [old, young]
    assert await store.unanswered("a", NOON + DAY) == []
    await store.change(old.id, old.owner, partial(mark_answered, holder="h"))
    assert await store.unanswered("a", NOON) == [young]
    assert await store.unanswered("b", NOON) == [other]
    assert await store.unanswered("c", NOON) == []


async def test_rows_are_searched_by_the_name_and_the_identity_of_their_engine(store: Store) -> None:
    wanted = {"handle": "h", "cancel_requested": NOON}
    for identity in ("", "prod", "staging"):
        unbound, due = make_task(identity=identity), make_task(identity=identity, **wanted)
        for row in (unbound, due):
            await store.create(row)
        assert await store.unbound(unbound.engine_key, NOON + DAY, 10) == [unbound]
        assert await store.due(due.engine_key, NOON, 10) == [due]
        assert len(await store.list_all(TaskFilter(engine=due.engine_key))) == 2
        assert await store.count_all(TaskFilter(engine=due.engine_key)) == 2
    moved = await store.change(due.id, due.owner, lambda row: replace(row, identity="prod"))
    assert await store.due(due.engine_key, NOON, 10) == []
    assert moved in await store.due(replace(due, identity="prod").engine_key, NOON, 10)


async def test_unbound_lists_what_a_clock_that_was_ahead_has_dated(store: Store) -> None:
    moments = (NOON, NOON + CLOCKS_DIFFER, NOON + 91 * DAY)
    *_, ahead = [await store.create(make_task(created=moment)) for moment in moments]
    assert await store.unbound(ahead.engine, NOON, 10) == [ahead]


async def test_an_owner_sees_their_own_rows_page_by_page_the_youngest_first(store: Store) -> None:
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


async def test_the_operator_sees_everyones_rows_the_youngest_first(store: Store) -> None:
    rows = [make_task(owner=f"owner-{age}", created=NOON - age * DAY) for age in range(5)]
    rows[1] = make_task(owner="ben", tool="refund", engine="parcels", created=NOON - DAY)
    for row in rows:
        await store.create(row)
    over = Execution(status=Status.SUCCEEDED)
    ended = await store.change(rows[2].id, rows[2].owner, lambda row: observe(row, over, NOON))
    live = [rows[0], rows[1], rows[3], rows[4]]
    assert await store.list_all() == live
    assert await store.list_all(limit=2) == live[:2]
    assert await store.list_all(before=(rows[1].created, rows[1].id)) == live[2:]
    assert await store.list_all(TaskFilter(tool="nobodys")) == []
    everything = [*rows[:2], ended, *rows[3:]]
    for where, found in (
        (TaskFilter(live_only=False), everything),
        (TaskFilter(tool="refund"), [rows[1]]),
        (TaskFilter(engine="parcels"), [rows[1]]),
        (TaskFilter(owner="ben"), [rows[1]]),
        (TaskFilter(status=Status.SUCCEEDED, live_only=False), [ended]),
        (TaskFilter(status=Status.SUCCEEDED), []),
        (TaskFilter(id_begins=rows[3].id[:-1]), [rows[3]]),
        (TaskFilter(id_begins="%"), []),
        (TaskFilter(created_before=rows[1].created), live[2:]),
        (TaskFilter(created_from=rows[1].created), live[:2]),
        (TaskFilter(created_from=rows[1].created, created_before=rows[0].created, owner="ben"), [rows[1]]),
    ):
        assert await store.list_all(where) == found, where
        assert await store.count_all(where) == len(found), where


async def test_pages_of_everyones_rows_have_each_row_once(store: Store) -> None:
    rows = [await store.create(make_task(owner=f"owner-{number}")) for number in range(5)]
    paged: list[Task] = []
    while page := await store.list_all(limit=2, before=(paged[-1].created, paged[-1].id) if paged else None):
        paged += page
    assert sorted(paged, key=lambda row: row.id) == sorted(rows, key=lambda row: row.id)


async def test_the_operator_finds_rows_by_how_their_ids_begin(store: Store) -> None:
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


async def test_owners_are_looked_for_by_the_form_of_their_ids(store: Store) -> None:
    client, subject = ('["%', "%,null]"), ("[null,%", "")
    assert not await store.has_owner(*client)
    await _made(store, {"owner": '["app\\",null]'}, {"owner": "local"}, {"owner": '[null,"a"]', "tombstone": True})
    assert not await store.has_owner(*client)
    assert not await store.has_owner(*subject)
    await _made(store, {"owner": '["app\\","https://a","b"]'})
    assert await store.has_owner(*client)
    assert not await store.has_owner(*subject)


async def test_sweeping_drops_what_has_expired(store: Store) -> None:
    expired, fresh, forever = make_task(expires=NOON, input=["private"]), make_task(), make_task(expires=None)
    for row in (expired, fresh, forever):
        await store.create(row)
    assert await store.delete_expired(NOON, NOON - DAY) == 1
    assert await store.get(expired.id, expired.owner) == expire(expired)
    assert await store.get(expired.id, "ben") is None
    assert await store.get(fresh.id, fresh.owner) == fresh
    assert await store.get(forever.id, forever.owner) == forever
    assert await store.delete_expired(NOON, NOON - DAY) == 0


async def test_an_expired_row_with_a_key_becomes_a_tombstone(store: Store) -> None:
    task = await store.create(make_task(idempotency_key="once", expires=NOON, input=["private"]))
    assert await store.delete_expired(NOON, NOON - DAY) == 1
    found = await store.create(make_task(idempotency_key="once"))
    assert (found.id, found.tombstone, found.input) == (task.id, True, None)
    assert await store.get(task.id, task.owner) == found
    assert await store.unbound(task.engine, NOON + DAY, 10) == []


async def test_an_old_tombstone_is_dropped_and_its_key_is_free(store: Store) -> None:
    await store.create(make_task(idempotency_key="once", expires=NOON))
    await store.delete_expired(NOON, NOON - DAY)
    assert await store.delete_expired(NOON, NOON) == 0
    assert await store.delete_expired(NOON + DAY, NOON + DAY) == 1
    again = make_task(idempotency_key="once")
    assert await store.create(again) == again


async def test_a_secret_is_made_once_for_all(new_store: Callable[[], Store]) -> None:
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


async def test_a_note_is_read_as_it_was_put(store: Store) -> None:
    assert await store.note("orders", "a") is None
    values: Sequence[Any] = ({"n": [1, None, "\u00e9\0\ud800"]}, "text", 0, False, None, [])  # any JSON values
    for value in values:
        await store.put_note("orders", "a", value, until=NOON)
        assert await store.note("orders", "a") == value
    assert await store.notes_under("orders", "") == {"a": []}


async def test_a_note_is_added_once(store: Store) -> None:
    assert await store.add_note("orders", "a", {"n": 1}, until=NOON) == {"n": 1}
    assert await store.add_note("orders", "a", {"n": 2}, until=NOON + DAY) == {"n": 1}
    await store.delete_expired(NOON, NOON - DAY)
    assert await store.add_note("orders", "a", {"n": 3}, until=NOON) == {"n": 3}
    await store.put_note("orders", "a", {"n": 4}, until=NOON)
    assert await store.add_note("orders", "a", {"n": 5}, until=NOON) == {"n": 4}


async def test_many_who_add_one_note_at_once_agree(new_store: Callable[[], Store]) -> None:
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


async def test_notes_are_found_by_how_their_keys_begin_to_the_letter(store: Store) -> None:
    keys = ("a", "a%", "a%b", "a/", "a/b", "a/b/c", "a_", "aX", "a\U0010ffff", "b", "\u00e9", "A/b", "")
    for key in keys:
        await store.put_note("orders", key, key, until=NOON)
    for beginning in (*keys, "a/b/", "%", "_", "a*", "a?", "' OR 1=1 --"):
        found = await store.notes_under("orders", beginning)
        assert list(found.items()) == [(key, key) for key in sorted(keys) if key.startswith(beginning)]


async def test_spaces_do_not_see_each_others_notes(store: Store) -> None:
    spaces = ("orders", "orders/a", "order", "%", "")
    for space in spaces:
        assert await store.add_note(space, "a/b", space, until=NOON) == space
    for space in spaces:
        assert await store.note(space, "a/b") == space
        assert await store.notes_under(space, "a") == {"a/b": space}
    assert await store.note("orders/", "a/b") is None


async def test_a_note_is_kept_until_its_time(store: Store) -> None:
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


async def test_a_row_that_waits_for_a_sync_is_read_by_another_replica(new_store: Callable[[], Store]) -> None:
    async with new_store() as one, new_store() as other:
        task = await one.create(make_task(idempotency_key="k"), durable=False)
        assert await other.get(task.id, task.owner) == task
        assert await other.create(make_task(idempotency_key="k")) == task
        await one.sync()
        await other.sync()
    async with new_store() as store:
        assert await store.get(task.id, task.owner) == task


async def test_what_is_still_to_be_done_for_an_expired_row_is_left_for_a_day(store: Store) -> None:
    running = bind(make_task(expires=NOON, cancel_on_expiry=True), "handle", NOON)
    await store.create(running)
    assert await store.delete_expired(NOON + DAY - timedelta(microseconds=1), NOON - DAY) == 0
    assert await store.get(running.id, running.owner) == running
    assert await store.delete_expired(NOON + DAY, NOON - DAY) == 1
    assert await store.due(running.engine, NOON + 2 * DAY, 10) == []


async def test_what_is_due_is_found_by_engine_due_longest_first(store: Store) -> None:

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


async def test_rows_of_tools_are_listed_whoever_owns_them(store: Store) -> None:
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


async def test_rows_that_ask_are_found_by_owner_and_by_tool(store: Store) -> None:
    asking = Execution(status=Status.INPUT_REQUIRED)
    mine, others, old = await _made(
        store,
        {"owner": "me", "tool": "a", "execution": asking},
        {"owner": "you", "tool": "b", "execution": asking},
        {"owner": "you", "tool": "b", "execution": asking, "created": NOON - DAY},
    )
    await _made(store, {"owner": "me"}, {"owner": "me", "execution": asking, "expires": NOON})
    await _made(store, {"owner": "you", "tool": "a", "execution": asking})
    assert await store.list_asking("me", ["b", "\ud800"], now=NOON, limit=10) == [
        old,
        *sorted((mine, others), key=lambda row: row.id),
    ]
    assert await store.list_asking("me", ["b"], now=NOON, limit=1) == [old]
    rest = sorted((mine, others), key=lambda row: row.id)
    assert await store.list_asking("me", ["b"], now=NOON, limit=9, after=(old.created, old.id)) == rest
    assert await store.list_asking("me", ["b"], now=NOON, limit=9, after=(rest[0].created, rest[0].id)) == rest[1:]
    assert await store.list_asking("me", [], now=NOON, limit=10) == [mine]
    assert await store.list_asking("nobody", [], now=NOON, limit=10) == []


async def test_the_longest_live_are_found_by_owner_and_by_tool(store: Store) -> None:
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


async def test_anothers_row_is_found_only_by_its_tool(store: Store) -> None:
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


async def test_the_operator_counts_tasks_by_tool_engine_and_status(store: Store) -> None:
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


@pytest.mark.parametrize(("cap", "other_owners", "other_tools"), CAPPED)
async def test_no_more_rows_than_the_cap_are_created(
    store: Store, cap: str, other_owners: bool, other_tools: bool
) -> None:
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


async def test_what_has_ended_or_expired_is_not_live(store: Store) -> None:
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
async def test_creations_are_counted_in_a_window_whatever_came_of_them(store: Store, cap: str) -> None:
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
async def test_rows_of_a_clock_that_was_ahead_count_for_no_window(store: Store, cap: str) -> None:
    caps = Caps(**{cap: 1}, since=NOON - DAY)
    await store.create(make_task(created=NOON + CLOCKS_DIFFER + timedelta(microseconds=1)))
    near = await store.create(make_task(created=NOON + CLOCKS_DIFFER, idempotency_key="near"))
    with pytest.raises(CapReached):
        await store.create(make_task(), caps)
    assert await store.create(make_task(created=near.created - DAY), replace(caps, since=NOON - 2 * DAY))


async def test_a_key_that_has_a_row_counts_for_no_cap(store: Store) -> None:
    first = await store.create(make_task(idempotency_key="once"))
    assert await store.create(make_task(idempotency_key="once"), Caps(live_of_owner=1)) == first


async def test_a_lease_has_one_holder_at_a_time(store: Store) -> None:
    assert await store.lease("sweep", "one", lasting=DAY)
    assert not await store.lease("sweep", "two", lasting=DAY)
    assert await store.lease("other", "two", lasting=DAY)
    assert await store.lease("sweep", "one", lasting=DAY)  # renewed
    assert not await store.lease("sweep", "two", lasting=timedelta())  # gives back what it does not have
    assert not await store.lease("sweep", "two", lasting=DAY)
    assert await store.lease("sweep", "one", lasting=timedelta())  # given back
    assert await store.lease("sweep", "two", lasting=DAY)
    assert not await store.lease("sweep", "one", lasting=DAY)


async def test_a_lease_that_is_not_renewed_is_anothers(store: Store) -> None:
    assert await store.lease("sweep", "one", lasting=timedelta(seconds=0.1))
    with anyio.fail_after(60):
        while not await store.lease("sweep", "two", lasting=timedelta(seconds=0.1)):
            await anyio.sleep(0.01)


async def test_of_many_who_ask_for_a_lease_at_once_one_gets_it(new_store: Callable[[], Store]) -> None:
    got: list[str] = []
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(new_store()) for _ in range(5)]

        async def ask(number: int) -> None:
            if await replicas[number % 5].lease("sweep", f"holder-{number}", lasting=DAY):
                got.append(f"holder-{number}")

        async with anyio.create_task_group() as group:
            for number in range(25):
                group.start_soon(ask, number)
    assert len(got) == 1


QUESTION = InputRequest(method="elicitation/create", params={"message": "Sure?", "requestedSchema": {}})


def _asking(*keys: str) -> Execution:
    return Execution(status=Status.INPUT_REQUIRED, requests=dict.fromkeys(keys, QUESTION))


async def test_a_change_adds_its_events_to_the_log(store: Store) -> None:
    task = await store.create(make_task())
    for seen in (Execution(status=Status.RUNNING, message="on"), _asking("a"), _asking("a", "b"), _asking("b")):
        await store.change(task.id, task.owner, partial(observe, execution=seen, at=NOON))
    for _ in range(2):
        await store.change(task.id, task.owner, _ended)
    page = await store.events(0, 10)
    assert [event.name for event in page.events] == [EventName.INPUT_REQUIRED] * 2 + [EventName.ENDED]
    asked = [question_digest(task.id, key) for key in "ab"]
    assert [event.key for event in page.events] == [*asked, ""]
    assert {(event.owner, event.tool, event.task_id) for event in page.events} == {(task.owner, task.tool, task.id)}
    assert [event.position for event in page.events] == sorted({event.position for event in page.events})
    assert page.last == page.events[-1].position
    assert (await store.events(page.last, 10)).events == []
    assert [event.name for event in (await store.events(page.events[1].position, 10)).events] == [EventName.ENDED]
    assert len((await store.events(0, 2)).events) == 2


HELD = Held(ttl=3600, requester="sealed", tool="digest")
APPROVAL = InputRequest(method="elicitation/create", params={"message": "Deploy?"}, gate=START_GATE)


def _held(**terms: Any) -> Task:
    """A new task that waits for an approval."""
    return hold(make_task(terms={START_GATE: Terms(approvers="managers", **terms)}), HELD, APPROVAL)


@pytest.mark.parametrize("caps", [Caps(), Caps(live_of_owner=5)], ids=["uncapped", "capped"])
async def test_a_new_row_that_asks_for_an_approval_adds_its_question_to_the_log_once(store: Store, caps: Caps) -> None:
    task = await store.create(replace(_held(), idempotency_key="once"), caps)
    assert await store.create(replace(_held(), idempotency_key="once"), caps) == task
    [event] = (await store.events(0, 10)).events
    assert (event.name, event.task_id, event.at) == (EventName.INPUT_REQUIRED, task.id, NOON)
    assert event.key == question_digest(task.id, START_KEY)


async def test_each_step_of_an_approval_is_in_the_log_once(store: Store) -> None:
    task = await store.create(_held(remind=60, after=90, escalates_to="directors"))
    later = [NOON + timedelta(minutes=number) for number in range(5)]
    decision = Decision(by="bob", at=later[4], is_approved=False)
    for at, step in ((later[1], Step.REMIND), (later[2], Step.REMIND), (later[3], Step.ESCALATE)):
        for _ in range(2):
            await store.change(task.id, task.owner, partial(note_step, key=START_KEY, step=step, at=at))
    for _ in range(2):
        await store.change(task.id, task.owner, partial(decide, decision=decision, declined="no"))
    found = [(event.name, event.at) for event in (await store.events(0, 10)).events]
    assert found == [
        (EventName.INPUT_REQUIRED, NOON),
        *[(EventName.REMINDED, at) for at in later[1:3]],
        (EventName.ESCALATED, later[3]),
        (EventName.ANSWERED, later[4]),
        (EventName.ENDED, later[4]),
    ]


async def test_a_change_that_fails_adds_no_event(store: Store) -> None:
    task = await store.create(make_task())

    def fail(task: Task) -> Task:
        _ended(task)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await store.change(task.id, task.owner, fail)
    assert (await store.events(0, 10)).events == []


async def test_an_event_with_an_id_that_is_there_is_not_added(store: Store) -> None:
    event = LoggedEvent(id="evt_1", name=EventName.EXECUTION_ENDED, at=NOON, tool="bill\ud800\0", key="k")
    await store.add_event(event)
    await store.add_event(replace(event, key="another"))
    [found] = (await store.events(0, 10)).events
    assert found == replace(event, tool="bill?\u2400", position=found.position)


async def test_no_event_is_added_before_one_that_was_read(new_store: Callable[[], Store]) -> None:
    read: list[int] = []
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(new_store()) for _ in range(3)]
        tasks = [await stores[0].create(make_task()) for _ in range(60)]

        async def end(store: Store, mine: Sequence[Task]) -> None:
            for task in mine:
                await store.change(task.id, task.owner, _ended)

        async def follow(store: Store) -> None:
            while len(read) < len(tasks):
                page = await store.events(read[-1] if read else 0, 7)
                read.extend(event.position for event in page.events)
                await anyio.sleep(0.001)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(follow, stores[2])
                for number in range(4):
                    group.start_soon(end, stores[number % 2], tasks[number::4])
        every = await stores[0].events(0, 100)
    assert read == [event.position for event in every.events]
    assert {event.task_id for event in every.events} == {task.id for task in tasks}


async def test_old_events_are_dropped_and_the_log_shows_where_it_begins(store: Store) -> None:
    old = NOON - EVENTS_KEPT - timedelta(hours=1)
    for number, at in enumerate([old, old, old, NOON]):
        await store.add_event(LoggedEvent(id=f"evt_{number}", name=EventName.EXECUTION_ENDED, at=at))
    await store.delete_expired(NOON, NOON)
    page = await store.events(0, 10)
    assert [event.id for event in page.events] == ["evt_2", "evt_3"]
    assert page.first == page.events[0].position - 1
    assert page.last == page.events[1].position
    await store.delete_expired(NOON + EVENTS_KEPT + timedelta(hours=1), NOON)
    last = await store.events(0, 10)
    assert (last.first, last.last) == (page.last - 1, page.last)
