"""The protocol of a store for tasks and for notes of adapters, and `open_store`, which opens one by URL."""

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
    """The maximum numbers of rows, including the inserted one; None: unlimited.

    Live rows have neither ended nor expired.
    """

    live_of_owner: int | None = None
    live_of_tool: int | None = None  # all owners
    live_of_owner_and_tool: int | None = None
    # created after `since`, including ended and expired rows, but not deleted ones or ones dated ahead of the clock
    created_of_owner: int | None = None
    created_of_tool: int | None = None  # all owners
    since: datetime | None = None  # None: no limit


NO_CAPS = Caps()
EVENTS_KEPT = timedelta(days=7)


class CapReached(Exception):  # noqa: N818  # an outcome rather than an error
    """One more row would exceed a cap. `cap` is the name of its field in `Caps`."""

    def __init__(self, cap: str, *, again: datetime | None = None) -> None:
        """Set `again` to the time when it may work again, for caps that only time can lift (`created_of_...`)."""
        super().__init__(cap)
        self.cap = cap
        self.again = again


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """The operator's filter of rows; None: any. It compares the stored values, such as the last stored status."""

    live_only: bool = True  # leave out ended tasks
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
    oldest_updated: datetime  # time of the oldest last change: when the oldest open question was asked


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Events after a position, in the order in which all readers see them."""

    events: Sequence[LoggedEvent]
    first: int  # the log holds all events after this position
    last: int  # position of the last event; no later event gets a lower one


class Store(AbstractAsyncContextManager["Store"], Protocol):
    """Durable rows of tasks and notes of adapters, shared by the replicas that use it. A read of a row names its owner.

    The exceptions are `list_all`, `count_all`, `find` and `counts`, for the operator, and `unbound`, `due` and
    `longest_live`, for maintenance and caps: no request may ever show their rows, see docs/decisions/0007.
    `list_of_tools`, `list_asking` and `get_of_tools` return rows that the tools' rules let others see:
    docs/decisions/0017.

    Every `engine` argument or result is a `Task.engine_key`: the name and the identity of an engine. The key of a row
    changes when `Task.identity` does.

    Every method raises `StoreUnavailable` when the store cannot be read or written now. Entering it creates or migrates
    its tables, and raises `StoreUnusable` when it must not be used.
    """

    def __init__(self, url: str) -> None:
        """Keep the URL without opening anything."""
        ...

    async def create(self, task: Task, caps: Caps = NO_CAPS, *, durable: bool = True) -> Task:
        """Insert the row, or return the existing row of its idempotency key. Others see it when this returns.

        With `durable`, a new row is on disk by then. Any other row is on disk only after the next `sync`, because
        another process may not have synced it. A key is unique per owner and tool, and still counts when its row is a
        tombstone.

        Raises:
            CapReached: the insert would exceed a cap; nothing was inserted. Rows are counted in the same
                transaction, so replicas share the caps. A key that has a row does not count.
        """
        ...

    async def sync(self, *, briefly: bool = False) -> bool:
        """Return True when all rows that `create` returned before this call are on disk; calls share flushes.

        `briefly`: return False instead if that may take longer than a millisecond.

        Raises:
            StoreUnavailable: the disk failed. The rows stay visible until the machine loses power.
        """
        ...

    async def get(self, task_id: str, owner: str) -> Task | None:
        """Return the row if it belongs to this owner; "not found" and "not yours" look alike."""
        ...

    async def change(
        self, task_id: str, owner: str, change: Callable[[Task], Task | None], *, durable: bool = True
    ) -> Task | None:
        """Apply a pure function to the row atomically, and return the resulting row.

        The function may run again if another process changed the row meanwhile; only its last run counts. It must not
        await or have side effects.

        The events of the change (`task.events_between`) are added to the log in the same transaction.

        If the function returns None, the row is deleted as if it had never existed, for its key and for all caps. A
        change that is not `durable` may be lost in a power failure, but not when the process ends. A store that would
        not be faster that way makes it durable anyway.
        """
        ...

    async def unanswered(self, match: str, now: datetime) -> Sequence[Task]:
        """Return rows with this match whose mark is still open (`Task.unanswered`); no tombstones, oldest first.

        The match is a digest of the owner and the call, so these rows are the caller's own.
        """
        ...

    async def unbound(self, engine: str, before: datetime, limit: int) -> Sequence[Task]:
        """Return an engine's rows of any owner, created before that time, not ended and not known to be started.

        Include rows dated more than `CLOCKS_DIFFER` after it, whose clock was ahead. Order by attempts, then age, so no
        row blocks the others; each engine is queried separately.
        """
        ...

    async def list_all(
        self,
        where: TaskFilter = TaskFilter(),  # immutable
        *,
        limit: int = 100,
        before: tuple[datetime, str] | None = None,
    ) -> Sequence[Task]:
        """Return rows of any owner for the operator; no tombstones, newest first; see `list_of_owner`."""
        ...

    async def count_all(self, where: TaskFilter) -> int:
        """Return the number of rows of any owner for the operator, without tombstones."""
        ...

    async def list_of_owner(
        self, owner: str, *, now: datetime, limit: int, before: tuple[datetime, str] | None = None
    ) -> Sequence[Task]:
        """Return one owner's rows that are readable at `now`; no tombstones, newest first.

        `before`: creation and id of the row to continue after; rows with equal times are in descending order of id.
        """
        ...

    async def list_of_tools(
        self, tools: Sequence[str], *, now: datetime, limit: int, before: tuple[datetime, str] | None = None
    ) -> Sequence[Task]:
        """Return live rows of any owner of these tools, newest first; see `list_of_owner`.

        Only for principals whom these tools' rules let see tasks of others: see docs/decisions/0017.
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
        """Return live rows that wait for input, of this owner or of any owner of these tools; oldest first.

        `after`: creation and id of the row to continue after. As with `list_of_tools`, the rules of these tools must
        let the principal see tasks of others.
        """
        ...

    async def longest_live(self, *, owner: str | None, tool: str | None, now: datetime, limit: int) -> Sequence[Task]:
        """Return live rows of this owner and this tool (None: any), oldest first.

        Used for the caps, because a row whose execution has ended counts until it is polled. Live rows are neither
        ended nor expired.
        """
        ...

    async def get_of_tools(self, task_id: str, tools: Sequence[str]) -> Task | None:
        """Return the row of any owner if it belongs to one of these tools and is no tombstone."""
        ...

    async def due(self, engine: str, now: datetime, limit: int) -> Sequence[Task]:
        """Return an engine's rows of any owner whose maintenance is due by now (`Task.due`), longest due first."""
        ...

    async def counts(self, now: datetime) -> Sequence[Count]:
        """Return the operator's counts of tasks by tool and status, without tombstones; see `Count`."""
        ...

    async def lease(self, name: str, holder: str, *, lasting: timedelta) -> bool:
        """Take the lease of this name if it is free, expired, or already this holder's; return True if taken. Atomic.

        It lasts for `lasting` by the store's clock, which all replicas share. A zero duration releases the lease.
        Otherwise all holders of a name must use the same duration.
        """
        ...

    async def find(self, beginning: str, limit: int = 10) -> Sequence[Task]:
        """Return rows of any owner for the operator whose id begins with this text; no tombstones, ordered by id."""
        ...

    async def delete_expired(self, now: datetime, keep_tombstones_since: datetime) -> int:
        """Turn expired rows into tombstones, and delete old tombstones, in batches. Return the number of changed rows.

        Rows with due maintenance (`Task.due`) are left for a day. Also delete notes whose `until` has passed, and
        events older than `EVENTS_KEPT` except the last one.
        """
        ...

    async def add_event(self, event: LoggedEvent) -> None:
        """Add an event to the log unless its id exists."""
        ...

    async def events(self, after: int, limit: int) -> EventPage:
        """Return the first events after a position. No event is ever added before one that was returned."""
        ...

    async def note(self, space: str, key: str) -> JSON:
        """Return the JSON value of this key in a space, or None. Spaces are separate."""
        ...

    async def notes_under(self, space: str, beginning: str) -> Mapping[str, JSON]:
        """Return all notes of a space whose keys begin with this text, taken literally, sorted by key."""
        ...

    async def add_note(self, space: str, key: str, value: JSON, *, until: datetime) -> JSON:
        """Return the value of this key: the existing one, or else this one, which is stored. Atomic and durable."""
        ...

    async def put_note(self, space: str, key: str, value: JSON, *, until: datetime, durable: bool = True) -> None:
        """Store this value under this key until that time, replacing any other; `durable`: see `change`."""
        ...

    async def has_owner(self, like: str, unlike: str) -> bool:
        """Return True if a row's owner is LIKE one pattern and NOT LIKE the other (SQL); no tombstones."""
        ...

    async def secret(self, name: str) -> bytes:
        """Return 32 random bytes under this name, created once and the same for all processes that share the store."""
        ...

    async def check(self) -> None:
        """Check that rows can be read and written now.

        Raises:
            StoreUnavailable: they cannot.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rekeyed:
    """The result of one step of re-encrypting a store."""

    rewritten: int = 0
    unreadable: int = 0  # unchanged; the log has the reason
    left: int = 0  # at the end: not encrypted with the first key
    cleaned: bool | None = False  # at the end: the files hold no old data; None: unknown


@runtime_checkable
class Seals(Protocol):
    """A store that can encrypt. It also accepts the keyword `cipher` (None: no encryption), and is a `Store`.

    Entering it raises `StoreUnusable` when it is encrypted and the cipher lacks a key for it.
    """

    def rekey(self) -> AsyncIterator[Rekeyed]:
        """Encrypt everything with the first key, a batch at a time, while others use the store.

        It can be stopped and repeated at any time. After the last step no other key is needed.
        """
        ...


@runtime_checkable
class ChecksIntegrity(Protocol):
    """A store that can detect damaged data on disk."""

    async def check_integrity(self) -> None:
        """Check all data unless that was done recently, without blocking others; called every minute.

        Damage is remembered: `check` and all writes then raise `StoreUnavailable` until it is repaired.

        Raises:
            StoreUnavailable: the data cannot be checked now.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRows:
    """Rows of a table as stored."""

    table: str
    columns: Sequence[str]
    rows: Sequence[tuple[Any, ...]]  # Any: text, numbers and bytes


@runtime_checkable
class CopySource(Protocol):
    """A store of a single host that another store may replace."""

    def moving(self, place: str) -> AbstractContextManager[tuple[Callable[[], Iterator[StoredRows]], bool]]:
        """Yield a function that returns all rows, and True if it resumes a killed copy; `place` is the new store.

        From now on this store rejects writes, and after the body it cannot be opened. A body that fails undoes that. Do
        not enter the store.

        Raises:
            StoreUnusable: it was moved already, or cannot be used.
            StoreUnavailable: it cannot be read or written now.
        """
        ...

    def backup(self, target: Path) -> None:
        """Write a copy of the store as of one moment into a new file, while others use the store.

        Raises:
            StoreUnusable: the file exists or cannot be created.
            StoreUnavailable: the store cannot be read now.
        """
        ...


@runtime_checkable
class CopyTarget(Protocol):
    """A store that can replace another one."""

    @property
    def place(self) -> str:
        """Its location, without a password."""
        ...

    async def take_over(self, parts: Callable[[], Iterable[StoredRows]], *, resumed: bool) -> int:
        """Store all these rows or none; return the number of tasks. Do not enter the store. It may call `parts` twice.

        Raises:
            StoreUnusable: it has tasks already, and this does not resume a killed copy.
            StoreUnavailable: it cannot be written now.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A replica whose last heartbeat has not expired."""

    id: str
    hears: bool  # it receives messages
    open: Mapping[str, int]  # callers' open requests and sessions on it, see `OpenCounts`


class ReplicaChannel(Protocol):
    """Messages and heartbeats between replicas that share a store. All methods raise `StoreUnavailable`."""

    async def beat(self, replica: Replica, *, lasting: timedelta) -> tuple[Sequence[Replica], float]:
        """Renew this replica's membership for `lasting`. Return the others, and the server's clock in seconds."""
        ...

    async def send(self, texts: Sequence[str]) -> None:
        """Send each of these texts, at most `LONGEST_MESSAGE` bytes, to all listeners. Some may be lost."""
        ...

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Call `hear` with each text sent, until the connection is lost."""
        ...

    async def changed(self, within: timedelta) -> Mapping[str, int]:
        """Return the ids of the rows that changed in this period until now, each with the row's version."""
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
    """Apply a change and return the row; if it no longer exists, return `task` with the change."""
    return await store.change(task.id, task.owner, change, durable=durable) or change(task)


def open_store(url: str, cipher: Cipher | None = None, **options: object) -> Store:
    """Return the store of a URL (`sqlite:///path`), encrypted if there is a cipher; enter it before use.

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
