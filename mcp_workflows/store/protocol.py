"""The protocol of a store for tasks and for notes of adapters, and the opening of one by URL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.metadata import entry_points
from inspect import signature
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable
from urllib.parse import urlsplit

from mcp_workflows.adapter import JSON, Status
from mcp_workflows.errors import ConfigError
from mcp_workflows.store.encryption import Cipher
from mcp_workflows.task import LoggedEvent, Task

ENTRY_POINT_GROUP = "mcp_workflows.stores"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """The most rows there may be, the inserted one included; None: any number.

    Live rows are those that have neither ended nor expired.
    """

    live_of_owner: int | None = None
    live_of_tool: int | None = None  # of any owner
    live_of_owner_and_tool: int | None = None
    # created after `since`, also ended or expired ones; none that was deleted or is dated ahead of the clock
    created_of_owner: int | None = None
    created_of_tool: int | None = None  # likewise, of any owner
    since: datetime | None = None  # None: ever


NO_CAPS = Caps()
EVENTS_KEPT = timedelta(days=7)


class CapReached(Exception):  # noqa: N818  # an answer rather than an error
    """One more row would exceed a cap; `cap` is the name of the field of `Caps`."""

    def __init__(self, cap: str, *, again: datetime | None = None) -> None:
        """`again`: the time from which it may work, where time alone tells (`created_of_...`)."""
        super().__init__(cap)
        self.cap = cap
        self.again = again


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """A filter of rows for the operator; None: any. Status and the rest are as last stored."""

    live_only: bool = True  # none that have ended
    tool: str | None = None
    engine: str | None = None  # `Task.engine_key`
    owner: str | None = None
    status: Status | None = None
    id_begins: str | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Tasks of one tool in one status."""

    tool: str
    engine: str  # `Task.engine_key`
    status: Status
    tasks: int
    oldest_created: datetime
    oldest_updated: datetime  # the oldest last change: the time of the longest open question


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Events after a position, in the order in which readers see them."""

    events: Sequence[LoggedEvent]
    first: int  # all events after this position are still there
    last: int  # the position of the last event in the log; no later event gets a lower one


class Store(AbstractAsyncContextManager["Store"], Protocol):
    """Durable rows of tasks, and notes of adapters; replicas that share one share all. A read of a row names its owner.

    The exceptions are `list_all`, `count_all`, `find` and `counts`, for the operator, and `unbound`,
    `due` and `longest_live`, for maintenance and caps: no request may ever show their rows, see docs/decisions/0007.
    `list_of_tools`, `asking` and `get_of_tools` find rows that the rules of tools let others see: docs/decisions/0017.

    Wherever a method takes or returns an `engine`, it is a `Task.engine_key`: the name and the identity of an engine.
    The key of a row changes when `Task.identity` does.

    Every method raises `StoreUnavailable` when the store cannot be read or written now. Entering it creates or migrates
    its tables, and raises `StoreUnusable` when it must not be used.
    """

    def __init__(self, url: str) -> None:
        """Keep the URL; open nothing yet."""
        ...

    async def create(self, task: Task, caps: Caps = NO_CAPS, *, durable: bool = True) -> Task:
        """Insert the row, or return the one that this idempotency key already has; others see it when this returns.

        With `durable` a new row is on disk by then. Any other is after the next `sync`: another process may not have
        synced the row that was there. The key counts per owner and tool, and also when its row is a tombstone.

        Raises:
            CapReached: one more row would be too many; nothing was inserted. Counted in the same transaction, so that
                replicas that share the store share the caps. A key that has a row counts for none.
        """
        ...

    async def sync(self, *, briefly: bool = False) -> bool:
        """Return True when all rows that `create` returned before this call are on disk; callers share the work.

        `briefly`: return False instead if that may take longer than a millisecond.

        Raises:
            StoreUnavailable: the disk failed. The rows are there for all to see, until the machine loses power.
        """
        ...

    async def get(self, task_id: str, owner: str) -> Task | None:
        """Return the row, if it belongs to this owner; "not found" and "not yours" look alike."""
        ...

    async def change(
        self, task_id: str, owner: str, change: Callable[[Task], Task | None], *, durable: bool = True
    ) -> Task | None:
        """Apply a pure function to the row, as if in one transaction, and return the row as it is then.

        The function may run again on the row as somebody else has changed it meanwhile; its last run is the one that
        counts. It must neither await nor act on anything else.

        The events of the change (`task.events_between`) are added to the log in the same transaction.

        A function that returns None deletes the row: it is as if it had never been, for its key and for all caps. A
        change that need not be durable may be lost with the machine's power, though not with the process; a store that
        saves nothing by that makes it durable all the same.
        """
        ...

    async def unanswered(self, match: str, now: datetime) -> Sequence[Task]:
        """Return rows whose mark has this match and is not over (`Task.unanswered`), no tombstones; the oldest first.

        The match is a digest of the owner and the call, so these rows are the caller's own.
        """
        ...

    async def unbound(self, engine: str, before: datetime, limit: int) -> Sequence[Task]:
        """Return an engine's rows of any owner, created before that time, neither ended nor known to be started.

        Also those created more than `CLOCKS_DIFFER` after it, by a clock that was ahead. Fewest attempts first, then
        oldest: no row keeps others waiting for ever, and no engine another's.
        """
        ...

    async def list_all(
        self,
        where: TaskFilter = TaskFilter(),  # it cannot be changed
        *,
        limit: int = 100,
        before: tuple[datetime, str] | None = None,
    ) -> Sequence[Task]:
        """Return for the operator rows of any owner, no tombstones, the youngest first; see `list_of_owner`."""
        ...

    async def count_all(self, where: TaskFilter) -> int:
        """Return for the operator the number of rows of any owner, no tombstones."""
        ...

    async def list_of_owner(
        self, owner: str, *, now: datetime, limit: int, before: tuple[datetime, str] | None = None
    ) -> Sequence[Task]:
        """Return one owner's rows that can be read at that time, no tombstones, the youngest first.

        `before`: creation and id of the row after which to go on; rows of one moment are sorted by id, backwards.
        """
        ...

    async def list_of_tools(
        self, tools: Sequence[str], *, now: datetime, limit: int, before: tuple[datetime, str] | None = None
    ) -> Sequence[Task]:
        """Return live rows of any owner of these tools, the youngest first; see `list_of_owner`.

        They are for principals that the rules of these tools let see tasks of others: see docs/decisions/0017.
        """
        ...

    async def list_asking(
        self,
        owner: str,
        tools: Sequence[str],
        *,
        now: datetime,
        limit: int,
        after: tuple[datetime, str] | None = None,
    ) -> Sequence[Task]:
        """Return live rows that wait for input: of this owner, or of any owner of these tools; the oldest first.

        `after`: creation and id of the row after which to go on. Like those of `list_of_tools`, the rows are for
        principals that the rules of these tools let see tasks of others.
        """
        ...

    async def longest_live(self, *, owner: str | None, tool: str | None, now: datetime, limit: int) -> Sequence[Task]:
        """Return live rows of this owner (None: any), of this tool (likewise); the oldest first.

        They are for the caps: a row whose execution has ended counts until somebody looks at it. Live is neither ended
        nor expired.
        """
        ...

    async def get_of_tools(self, task_id: str, tools: Sequence[str]) -> Task | None:
        """Return the row of any owner, if it is of one of these tools and no tombstone."""
        ...

    async def due(self, engine: str, now: datetime, limit: int) -> Sequence[Task]:
        """Return an engine's rows of any owner that maintenance must act on by now (see `Task.due`).

        The longest due comes first.
        """
        ...

    async def counts(self, now: datetime) -> Sequence[Count]:
        """Return for the operator the counts of tasks by tool and status, without tombstones; see `Count`."""
        ...

    async def lease(self, name: str, holder: str, *, lasting: timedelta) -> bool:
        """Take the lease of this name, if it is free, over, or this holder's already; True if taken. Atomic.

        It lasts for so long by the clock of the store, which all that share the store go by. No time at all gives a
        lease back. All holders of a name ask for the same length otherwise.
        """
        ...

    async def find(self, beginning: str, limit: int = 10) -> Sequence[Task]:
        """Return for the operator rows of any owner, no tombstones, whose id has this beginning; by id."""
        ...

    async def delete_expired(self, now: datetime, keep_tombstones_since: datetime) -> int:
        """Make tombstones of expired rows, and drop those old enough, in batches. Return the number of changed rows.

        Rows that maintenance must act on (`Task.due`) are left for a day. Notes are dropped whose `until` is not after
        now, and events older than `EVENTS_KEPT`, but for the last of them.
        """
        ...

    async def add_event(self, event: LoggedEvent) -> None:
        """Add an event to the log, unless its id is there already."""
        ...

    async def events(self, after: int, limit: int) -> EventPage:
        """Return the first events after a position. No event is ever added before one that was returned."""
        ...

    async def note(self, space: str, key: str) -> JSON:
        """Return a note: the JSON value under this key of a space, or None. Spaces do not see each other."""
        ...

    async def notes_under(self, space: str, beginning: str) -> Mapping[str, JSON]:
        """Return all notes of a space whose keys have this beginning, literally, by key, sorted by it."""
        ...

    async def add_note(self, space: str, key: str, value: JSON, *, until: datetime) -> JSON:
        """Return the value under this key from now on: the one already there, or else this one; atomic and durable."""
        ...

    async def put_note(self, space: str, key: str, value: JSON, *, until: datetime, durable: bool = True) -> None:
        """Keep this value under this key until that time, in place of any other; `durable`: see `change`."""
        ...

    async def has_owner(self, like: str, unlike: str) -> bool:
        """Return True if an owner of a row, no tombstone, is like one pattern and not like the other (SQL: LIKE)."""
        ...

    async def secret(self, name: str) -> bytes:
        """Return 32 random bytes under this name, made once and the same for all processes that share the store."""
        ...

    async def check(self) -> None:
        """Raise `StoreUnavailable` if rows cannot be read and written now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rekeyed:
    """The result of one step of encrypting a store anew."""

    rewritten: int = 0
    unreadable: int = 0  # left as they are; the log has the reason
    left: int = 0  # at the end: not encrypted with the first key all the same
    cleaned: bool | None = False  # at the end: nothing of the old data is left in the files; None: it cannot be told


@runtime_checkable
class Seals(Protocol):
    """A store that can encrypt: it also takes the keyword `cipher` (None: it does not encrypt), and is a `Store`.

    Entering it raises `StoreUnusable` when it is encrypted and the cipher lacks a key for it.
    """

    def rekey(self) -> AsyncIterator[Rekeyed]:
        """Encrypt with the first key all that is not yet, a batch at a time, while others use the store.

        It can be stopped and repeated at any time. After the last step no other key is needed.
        """
        ...


@runtime_checkable
class ChecksIntegrity(Protocol):
    """A store that can find out if its data on disk is damaged."""

    async def check_integrity(self) -> None:
        """Look at all data if that was not done lately, blocking nobody; called every minute.

        Damage is remembered: from then on `check` and all writes raise `StoreUnavailable`, until it is repaired.

        Raises:
            StoreUnavailable: it cannot be told now.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """Rows of a table as they are kept."""

    table: str
    columns: Sequence[str]
    rows: Sequence[tuple[Any, ...]]  # Any: text, numbers and bytes


@runtime_checkable
class CopySource(Protocol):
    """A store of one host, which another store may replace."""

    def moving(self, place: str) -> AbstractContextManager[tuple[Callable[[], Iterator[StoredRows]], bool]]:
        """Yield a function that returns all rows, and True if a copy that was killed goes on; `place` is the new store.

        Nobody can write to this store from now on, and nobody can open it after the body; a body that fails undoes
        that. Do not enter the store.

        Raises:
            StoreUnusable: it was moved already, or cannot be used.
            StoreUnavailable: it cannot be read or written now.
        """
        ...

    def backup(self, target: Path) -> None:
        """Write a copy of the store as of one moment into a new file, while others use it.

        Raises:
            StoreUnusable: the file is there already, or cannot be made.
            StoreUnavailable: the store cannot be read now.
        """
        ...


@runtime_checkable
class CopyTarget(Protocol):
    """A store that can replace another one."""

    @property
    def place(self) -> str:
        """Where it is, without a password."""
        ...

    async def take_over(self, parts: Callable[[], Iterable[StoredRows]], *, resumed: bool) -> int:
        """Store all these rows or none, perhaps at a second try; return the number of tasks. Do not enter the store.

        Raises:
            StoreUnusable: it has tasks already, and this does not go on with a copy that was killed.
            StoreUnavailable: it cannot be written now.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A replica whose last heartbeat is not over."""

    id: str
    hears: bool  # messages reach it
    open: Mapping[str, int]  # the requests and sessions that callers have open on it, see `OpenCounts`


class ReplicaChannel(Protocol):
    """The way in which replicas that share a store reach each other. All methods raise `StoreUnavailable`."""

    async def beat(self, replica: Replica, *, lasting: timedelta) -> tuple[Sequence[Replica], float]:
        """Renew this replica's membership for `lasting`. Return the others, and the server's clock in seconds."""
        ...

    async def send(self, texts: Sequence[str]) -> None:
        """Send each of these texts, at most `LONGEST_MESSAGE` bytes, to all that listen. Some may be lost."""
        ...

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Call `hear` with each text that is sent, until the connection is lost."""
        ...

    async def changed(self, within: timedelta) -> Mapping[str, int]:
        """Return the ids of the rows that changed in this time until now, each with the version of its row."""
        ...

    async def read(self, task_ids: Sequence[str]) -> Sequence[Task]:
        """Return the rows with these ids, of any owner."""
        ...


LONGEST_MESSAGE = 7900  # bytes


@runtime_checkable
class ConnectsReplicas(Protocol):
    """A store that several hosts share."""

    @property
    def channel(self) -> ReplicaChannel:
        """Its channel; usable while the store is entered."""
        ...


async def changed(store: Store, task: Task, change: Callable[[Task], Task], *, durable: bool = True) -> Task:
    """Return the row after a change; if it is gone, the row as it would be."""
    return await store.change(task.id, task.owner, change, durable=durable) or change(task)


def open_store(url: str, cipher: Cipher | None = None, **options: object) -> Store:
    """Return the store of a URL (`sqlite:///path`), encrypted by a cipher if there is one; enter it to use it.

    `options` are further keywords of that store.

    Raises:
        ConfigError: no store of that scheme is installed, or it cannot encrypt, or has no such option.
    """
    scheme = urlsplit(url).scheme
    found = entry_points(group=ENTRY_POINT_GROUP, name=scheme)
    if not found:
        here = ", ".join(sorted({entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)})) or "none"
        named = scheme or url.rpartition("@")[2]
        raise ConfigError(f"no store for {named!r} is installed (installed: {here}); e.g. sqlite:///tasks.db")
    kind: type[Store] = next(iter(found)).load()
    make = cast("Callable[..., Store]", kind)
    if unknown := sorted(options.keys() - signature(kind).parameters.keys()):
        raise ConfigError(f"a store for {scheme} has no option {', '.join(unknown)}: remove it")
    if cipher is None:
        return make(url, **options)
    if not issubclass(kind, Seals):
        raise ConfigError(f"the store for {scheme} cannot encrypt: remove store.encryption, or use sqlite:///")
    return make(url, cipher=cipher, **options)
