"""Where tasks are kept, and what adapters must remember: the protocol of a store, and how one is opened by URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from importlib.metadata import entry_points
from typing import Protocol
from urllib.parse import urlsplit

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import ConfigError
from mcp_workflows.task import Task

ENTRY_POINT_GROUP = "mcp_workflows.stores"


class Store(AbstractAsyncContextManager["Store"], Protocol):
    """Durable rows of tasks, and notes of adapters; replicas that share one share all. Who reads a row names its owner.

    But for `everyones`, `find` and `tally`, which are the operator's, at the machine: no request may ever lead to them,
    see docs/decisions/0007.

    Every method raises `StoreUnavailable` when the store cannot be read or written now. Entering it
    creates or migrates its tables, and raises `StoreUnusable` when it must not be used.
    """

    def __init__(self, url: str) -> None:
        """Keep the URL; open nothing yet."""
        ...

    async def create(self, task: Task) -> Task:
        """Insert durably (on disk when this returns), or return the row this idempotency key already has.

        The key counts per owner and tool, and also when its row is a tombstone.
        """
        ...

    async def get(self, task_id: str, owner: str) -> Task | None:
        """The row, if it is this owner's; "not found" and "not yours" look alike."""
        ...

    async def change(
        self, task_id: str, owner: str, change: Callable[[Task], Task], *, durable: bool = True
    ) -> Task | None:
        """Apply a pure function to the row in one transaction and return the row as it is then.

        If it need not be durable, it may be lost with the machine's power, though not with the process; a store that
        saves nothing by that makes it durable all the same.
        """
        ...

    async def unbound(self, engine: str, before: datetime, limit: int) -> Sequence[Task]:
        """An engine's rows of any owner, created before that time, neither ended nor known to be started.

        Fewest attempts first, then oldest: no row keeps others waiting for ever, and no engine another's.
        """
        ...

    async def everyones(
        self,
        *,
        tool: str | None = None,
        engine: str | None = None,
        live_only: bool = True,
        limit: int = 100,
        before: datetime | None = None,
    ) -> Sequence[Task]:
        """For the operator: rows of any owner, no tombstones, created before that time; the youngest first."""
        ...

    async def owned_by(
        self, owner: str, *, now: datetime, limit: int, before: tuple[datetime, str] | None = None
    ) -> Sequence[Task]:
        """One owner's rows that can be read at that time, no tombstones, the youngest first.

        `before`: creation and id of the row after which to go on; rows of one moment go by their ids, backwards.
        """
        ...

    async def find(self, beginning: str, limit: int = 10) -> Sequence[Task]:
        """For the operator: rows of any owner, no tombstones, whose id begins so; by id."""
        ...

    async def tally(self, now: datetime) -> Mapping[tuple[str, str], int]:
        """For the operator: how many tasks of any owner have neither ended nor expired, by tool and engine."""
        ...

    async def sweep(self, now: datetime, keep_tombstones_since: datetime) -> int:
        """Drop what has expired; rows with an idempotency key become tombstones first. Returns how many changed.

        Notes are dropped whose `until` is not after now.
        """
        ...

    async def note(self, space: str, key: str) -> JSON:
        """A note: the JSON value under this key of a space; None: there is none. Spaces do not see each other."""
        ...

    async def notes_under(self, space: str, beginning: str) -> Mapping[str, JSON]:
        """All notes of a space whose key begins so, literally, by key, sorted by it."""
        ...

    async def add_note(self, space: str, key: str, value: JSON, *, until: datetime) -> JSON:
        """The value under this key from now on: that which is there already, or else this one; atomic and durable."""
        ...

    async def put_note(self, space: str, key: str, value: JSON, *, until: datetime) -> None:
        """Keep this value under this key until that time, whatever was there; durable."""
        ...

    async def secret(self, name: str) -> bytes:
        """32 random bytes under this name, made once and the same for all who share the store."""
        ...

    async def check(self) -> None:
        """Raise `StoreUnavailable` if rows cannot be read and written now."""
        ...


async def changed(store: Store, task: Task, change: Callable[[Task], Task], *, durable: bool = True) -> Task:
    """The row after a change; if it is not there any more, as it would be."""
    return await store.change(task.id, task.owner, change, durable=durable) or change(task)


def open_store(url: str) -> Store:
    """The store behind a URL (`sqlite:///path`); enter it to use it.

    Raises:
        ConfigError: no store of that scheme is installed.
    """
    scheme = urlsplit(url).scheme
    found = entry_points(group=ENTRY_POINT_GROUP, name=scheme)
    if not found:
        here = ", ".join(sorted({entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)})) or "none"
        raise ConfigError(f"no store for {scheme or url!r} is installed (installed: {here}); e.g. sqlite:///tasks.db")
    store: type[Store] = next(iter(found)).load()
    return store(url)
