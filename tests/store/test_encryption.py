"""Encrypted stores: their keys can be changed in use, and the files of SQLite show nothing."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from mcp_workflows.adapter import Execution, InputRequest, Status
from mcp_workflows.errors import ConfigError, StoreUnavailable, StoreUnusable
from mcp_workflows.store.encryption import Cipher, CipherError, new_key
from mcp_workflows.store.protocol import Rekeyed, Seals, Store, TaskFilter, open_store
from mcp_workflows.task import Task, bind, observe
from mcp_workflows.testing import make_task
from mcp_workflows.testing.tasks import NOON
from tests.store.places import Place, SQLiteFile, store_in

DAY = timedelta(days=1)
OLD, NEW, OTHER = new_key(), new_key(), new_key()
CANARIES = ("canary-argument", "canary-result", "canary-question", "canary-message", "canary-note", "canary-key")


@pytest.fixture
def file(tmp_path: Path) -> SQLiteFile:
    return SQLiteFile(tmp_path)


def marked(**changes: object) -> Task:
    """A task with something to find in each place where there can be something private."""
    question = InputRequest(method="elicitation/create", params={"message": "canary-question"})
    asked = Execution(status=Status.INPUT_REQUIRED, message="canary-message", requests={"q": question})
    fields = {"input": {"a": "canary-argument"}, "arguments": {"a": "canary-argument"}, "execution": asked, **changes}
    return make_task(idempotency_key="canary-key", **fields)


async def fill(store: Store, **changes: object) -> Task:
    """A task through its life, and a note."""
    task = await store.create(marked(**changes))
    await store.change(task.id, task.owner, lambda row: bind(row, "handle", NOON))
    done = Execution(status=Status.SUCCEEDED, output={"r": "canary-result"})
    await store.put_note("engine", task.id, {"n": "canary-note"}, until=NOON + 9 * DAY)
    found = await store.change(task.id, task.owner, lambda row: observe(row, done, NOON))
    assert found is not None
    return found


def seen(file: SQLiteFile) -> Mapping[str, Sequence[str]]:
    """What of it can be seen in the raw bytes of the files, by file."""
    files = {name: (file.folder / name).read_bytes() for name in os.listdir(file.folder)}
    assert {"tasks.db", "tasks.db-wal", "tasks.db-shm"} >= set(files)
    found = {name: [mark for mark in CANARIES if mark.encode() in content] for name, content in files.items()}
    return {name: marks for name, marks in found.items() if marks}


def rekey(store: Store) -> AsyncIterator[Rekeyed]:
    """Its steps."""
    assert isinstance(store, Seals)
    return store.rekey()


async def rekeyed(store: Store) -> Rekeyed:
    """All of it: how much was rewritten, and how it ended."""
    steps = [step async for step in rekey(store)]
    return replace(steps[-1], rewritten=sum(step.rewritten for step in steps))


async def complaint(place: Place, *keys: str) -> str:
    with pytest.raises(StoreUnusable) as unusable:
        async with store_in(place, *keys):
            pass
    said = str(unusable.value)
    assert not any(key in said for key in (OLD, NEW, OTHER))
    return said


async def test_no_byte_of_an_encrypted_stores_files_shows_what_it_holds(file: SQLiteFile) -> None:
    async with store_in(file, NEW) as store:
        task = await fill(store)
        for number in range(20):
            await fill(store, owner=f"owner-{number}")
        await store.delete_expired(NOON + DAY, NOON - DAY)
        assert seen(file) == {}
        found = await store.get(task.id, task.owner)
        assert found is not None
        assert found.idempotency_key == "canary-key"
    assert seen(file) == {}


async def test_rows_from_before_the_encryption_are_read_and_encrypted_when_they_change(place: Place) -> None:
    async with store_in(place) as store:
        task = await store.create(marked())
        await store.put_note("engine", "a", "old", until=NOON)
        secret = await store.secret("seal")
    async with store_in(place, NEW) as store:
        assert await store.get(task.id, task.owner) == task
        assert await store.note("engine", "a") == "old"
        assert await store.secret("seal") == secret
        await store.change(task.id, task.owner, lambda row: bind(row, "handle", NOON))
        ((text, key),) = place.execute("SELECT task, idempotency_key FROM tasks")
        assert str(text).startswith("fernet:")
        assert str(key).startswith("hmac:")


async def test_idempotency_keys_go_on_counting_when_encryption_is_switched_on(place: Place) -> None:
    async with store_in(place) as store:
        task = await store.create(make_task(idempotency_key="once"))
    async with store_in(place, NEW) as one, store_in(place, NEW) as other:
        assert await one.create(make_task(idempotency_key="once")) == task
        bound = await one.change(task.id, task.owner, lambda row: bind(row, "handle", NOON))
        assert await other.create(make_task(idempotency_key="once")) == bound
        await rekeyed(one)
        assert await other.create(make_task(idempotency_key="once")) == bound
        await other.delete_expired(NOON + DAY, NOON - DAY)
        assert (await one.create(make_task(idempotency_key="once"))).id == task.id


async def test_a_key_that_looks_like_a_digest_is_a_key_of_its_own(place: Place) -> None:
    async with store_in(place, NEW) as store:
        await store.create(make_task(idempotency_key="once"))
        ((digest,),) = place.execute("SELECT idempotency_key FROM tasks")
        forged = make_task(idempotency_key=str(digest))
        assert await store.create(forged) == forged


async def test_rekeying_leaves_nothing_of_before_in_the_files(file: SQLiteFile) -> None:
    async with store_in(file) as plain:
        tasks = [await fill(plain, owner=f"owner-{number}") for number in range(450)]
        await plain.delete_expired(NOON + DAY, NOON - DAY)  # there are free pages too
        fresh = await fill(plain, expires=None)
    assert seen(file)
    async with store_in(file, NEW) as store:
        done = await rekeyed(store)
        assert (done.rewritten, done.left, done.unreadable, done.cleaned) == (2 * len(tasks) + 2, 0, 0, True)
        assert seen(file) == {}
        assert await store.get(fresh.id, fresh.owner) == fresh
        assert await store.note("engine", tasks[7].id) == {"n": "canary-note"}
        assert (await rekeyed(store)).rewritten == 0
    assert seen(file) == {}


async def test_after_rekeying_the_old_key_can_be_left_out(place: Place) -> None:
    async with store_in(place, OLD) as store:
        task = await fill(store)
        secret = await store.secret("seal")
    assert "add that key" in await complaint(place, NEW)
    async with store_in(place, NEW, OLD) as store:
        assert (await rekeyed(store)).left == 0
    async with store_in(place, NEW) as store:
        assert await store.get(task.id, task.owner) == task
        assert await store.note("engine", task.id) == {"n": "canary-note"}
        assert await store.secret("seal") == secret
    assert "add that key" in await complaint(place, OLD)


async def test_others_read_and_write_while_it_is_rekeyed(place: Place) -> None:
    async with store_in(place, OLD) as store:
        tasks = [await store.create(make_task()) for _ in range(450)]
    async with store_in(place, NEW, OLD) as one, store_in(place, NEW, OLD) as other:
        steps: list[Rekeyed] = []
        async for step in rekey(one):
            steps.append(step)
            for task in tasks[::50]:
                assert await other.get(task.id, task.owner) is not None
            await other.change(tasks[0].id, "anna", lambda row: replace(row, attempts=row.attempts + 1))
            await other.create(make_task())
    assert (steps[-1].left, steps[-1].cleaned) == (0, True if isinstance(place, SQLiteFile) else None)


async def test_who_still_writes_with_the_old_key_keeps_it_needed(place: Place) -> None:
    async with store_in(place, OLD, NEW) as late, store_in(place, NEW, OLD) as store:
        task = await late.create(make_task())
        steps = rekey(store)
        await anext(steps)
        await late.change(task.id, task.owner, lambda row: replace(row, attempts=1))  # it has been passed already
        last = [step async for step in steps][-1]
        assert last.left == 1
    assert "add that key" in await complaint(place, NEW)
    async with store_in(place, NEW, OLD) as store:
        assert (await rekeyed(store)).left == 0
    async with store_in(place, NEW) as store:
        assert await store.get(task.id, task.owner) == replace(task, attempts=1)


@pytest.mark.parametrize("write", ["create", "change", "add_note", "put_note", "sweep"])
async def test_a_key_that_encrypts_after_it_was_given_up_is_needed_again(place: Place, write: str) -> None:
    async with store_in(place, OLD, NEW) as late, store_in(place, NEW, OLD) as store:
        task = await late.create(make_task())
        assert (await rekeyed(store)).left == 0
        writes: Mapping[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: late.create(make_task()),
            "change": lambda: late.change(task.id, task.owner, lambda row: replace(row, attempts=1)),
            "add_note": lambda: late.add_note("engine", "a", 1, until=NOON),
            "put_note": lambda: late.put_note("engine", "a", 1, until=NOON),
            "sweep": lambda: late.delete_expired(NOON + DAY, NOON - DAY),
        }
        await writes[write]()
    assert "add that key" in await complaint(place, NEW)


async def test_a_missing_or_a_wrong_key_says_what_to_do_before_anything_is_read(place: Place) -> None:
    async with store_in(place, OLD):
        pass
    said = await complaint(place)
    assert "the store is encrypted" in said
    assert "encryption: {keys: [...]}" in said
    said = await complaint(place, OTHER)
    assert Cipher([OLD]).names[0] in said
    assert Cipher([OTHER]).names[0] in said
    assert "store rekey" in said


async def test_rows_put_in_each_others_place_are_refused(place: Place) -> None:
    async with store_in(place, NEW) as store:
        mine, anothers = await fill(store, owner="anna"), await fill(store, owner="ben")
        await store.put_note("engine", "b", "b", until=NOON)
        text = f"(SELECT task FROM tasks WHERE id = '{anothers.id}')"
        place.execute(f"UPDATE tasks SET task = {text} WHERE id = '{mine.id}'")
        place.execute(f"UPDATE notes SET value = (SELECT value FROM notes WHERE key = 'b') WHERE key = '{mine.id}'")
        with pytest.raises(StoreUnavailable, match="cannot be read"):
            await store.get(mine.id, "anna")
        with pytest.raises(StoreUnavailable, match="cannot be read"):
            await store.note("engine", mine.id)
        assert await store.list_all(TaskFilter(live_only=False)) == [anothers]


async def test_a_row_given_to_another_owner_is_refused(place: Place) -> None:
    async with store_in(place, NEW) as store:
        task = await fill(store, owner="anna")
        place.execute("UPDATE tasks SET owner = 'mallory'")
        with pytest.raises(StoreUnavailable, match="cannot be read"):
            await store.get(task.id, "mallory")


async def test_a_plain_row_given_to_another_owner_is_refused_too(place: Place) -> None:
    async with store_in(place) as store:
        task = await fill(store, owner="anna")
        place.execute("UPDATE tasks SET owner = 'mallory'")
    async with store_in(place, NEW) as store:
        with pytest.raises(StoreUnavailable, match="cannot be read"):
            await store.get(task.id, "mallory")


async def test_a_row_that_was_changed_is_no_garbage(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    async with store_in(place, NEW) as store:
        task = await fill(store)
        place.execute("UPDATE tasks SET task = substr(task, 1, 200) || 'AAAA' || substr(task, 205)")
        with pytest.raises(StoreUnavailable, match="cannot be read"):
            await store.get(task.id, task.owner)
    assert "changed since it was encrypted" in caplog.text
    assert not any(mark in caplog.text for mark in CANARIES)


async def test_what_cannot_be_read_is_left_as_it_is_and_keeps_its_key_needed(place: Place) -> None:
    async with store_in(place, OLD) as store:
        broken = await fill(store)
        await store.create(make_task(owner="ben"))
    place.execute(f"UPDATE tasks SET task = replace(task, 'A', 'B') WHERE id = '{broken.id}'")
    before = place.execute(f"SELECT task FROM tasks WHERE id = '{broken.id}'")
    async with store_in(place, NEW, OLD) as store:
        done = await rekeyed(store)
    assert (done.left, done.rewritten) == (1, 2)
    assert place.execute(f"SELECT task FROM tasks WHERE id = '{broken.id}'") == before


async def test_replicas_that_switch_encryption_on_at_once_agree(place: Place) -> None:
    made: list[Task] = []
    secrets: list[bytes] = []

    async def use() -> None:
        async with store_in(place, NEW) as store:
            made.append(await store.create(make_task(idempotency_key="once")))
            secrets.append(await store.secret("seal"))

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(use)
    assert len({task.id for task in made}) == 1
    assert len(set(secrets)) == 1


def test_what_was_sealed_opens_only_with_its_key_and_in_its_place() -> None:
    cipher = Cipher([NEW, OLD])
    sealed = cipher.seal("text\nmore", "tasks", "id", "owner")
    assert cipher.open(sealed, "tasks", "id", "owner") == "text\nmore"
    for other in (("tasks", "id"), ("tasks", "id", "owner2"), ("notes", "id", "owner"), ("tasks", "i", "downer")):
        with pytest.raises(CipherError, match="another place"):
            cipher.open(sealed, *other)
    with pytest.raises(CipherError, match="which is not given"):
        Cipher([OLD]).open(sealed, "tasks", "id", "owner")
    for damaged in ("fernet:", "fernet:abc", sealed[:-4], sealed.replace(":", "", 1)):
        with pytest.raises(CipherError):
            cipher.open(damaged, "tasks", "id", "owner")


@pytest.mark.parametrize(
    "key",
    ["", "secret", "x" * 44, NEW[:-2], NEW + NEW, "ü" * 44, "hunter2-hunter2"],
    ids=["empty", "a word", "long", "cut off", "twice", "letters", "a password"],
)
def test_what_is_no_key_is_a_config_error_that_does_not_show_it(key: str) -> None:
    with pytest.raises(ConfigError, match="encryption key 2 is not a key") as wrong:
        Cipher([NEW, key])
    assert not key or key not in str(wrong.value)
    assert NEW not in str(wrong.value)


def test_a_store_that_cannot_encrypt_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stranger:
        def __init__(self, url: str) -> None:
            """It takes no cipher."""

    class Entry:
        @staticmethod
        def load() -> type[object]:
            return Stranger

    def found(**options: str) -> Sequence[type[Entry]]:
        return [Entry]

    monkeypatch.setattr("mcp_workflows.store.protocol.entry_points", found)
    assert open_store("strange:///tasks")
    with pytest.raises(ConfigError, match="the store for strange cannot encrypt"):
        open_store("strange:///tasks", Cipher([NEW]))
