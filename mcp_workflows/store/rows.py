"""The rows of every store: the columns of tasks and notes, and their JSON, which may be encrypted.

Each store has its own SQL. Text and times have the same format in all of them, so rows can move between stores.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from mcp_workflows.adapter import JSON, Status
from mcp_workflows.errors import StoreUnavailable
from mcp_workflows.store.encryption import Cipher, CipherError, is_sealed
from mcp_workflows.store.protocol import Count, TaskFilter
from mcp_workflows.task import CLOCKS_DIFFER, LoggedEvent, Task

logger = logging.getLogger(__name__)

SEARCHED: Final = (
    "id",
    "owner",
    "tool",
    "engine",
    "idempotency_key",
    "created",
    "expires",
    "attempts",
    "bound",
    "ended",
    "tombstone",
    "status",
    "updated",
    "due",
    "unanswered",
    "unanswered_until",
)
"""The columns other than `task`, in the order of `Rows.searched`; `engine` is `Task.engine_key`."""

COLUMNS: Final = (*SEARCHED, "task")
FIXED: Final = 3  # columns at the beginning of SEARCHED that no change may touch
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TASK: Final = TypeAdapter(Task)
_TASKS: Final = "tasks"
_NOTES: Final = "notes"
AHEAD: Final = CLOCKS_DIFFER // timedelta(microseconds=1)  # rows dated further ahead count for no window
END_OF_TIME: Final = 2**63 - 1  # microseconds
LAST_CHARACTER: Final = "\U0010ffff"
LEFT_FOR: Final = timedelta(days=1)  # time for maintenance to act on expired rows
_MOST_KNOWN: Final = 2000  # rows; each needs about 2 kB in addition to the task

Found = tuple[str, str, str]  # id, owner, task: the columns of every query for rows


class KnownRow(NamedTuple):
    """A recently read or written row."""

    owner: str
    text: str  # the column `task`
    task: Task
    searched: tuple[Any, ...] | None = None  # None: not needed yet; Any: see `Rows.searched`


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The conversion of tasks into rows, and back.

    The decoded task is kept with the row's text, and is reused while the text is the same.
    """

    cipher: Cipher | None = None
    key_secret: bytes | None = None  # with a cipher: the secret for digests of idempotency keys
    _known: dict[str, KnownRow] = field(default_factory=dict[str, KnownRow], repr=False)  # by id

    def readable(self, row: Found) -> Task:
        """Return the task of a row.

        Raises:
            StoreUnavailable: the row cannot be read.
        """
        task = self.read(row)
        if task is None:
            raise StoreUnavailable("the store has a row for this that cannot be read; see the log")
        return task

    def many(self, found: Iterable[Found]) -> Sequence[Task]:
        """Return the readable rows: an unreadable one does not block the others."""
        return [task for row in found if (task := self.read(row)) is not None]

    def read(self, row: Found) -> Task | None:
        """Return the task of a row; None: it cannot be read. Log the reason, without the row's content."""
        task_id, owner, text = row
        known = self._known.get(task_id)
        if known is not None and known.text == text and known.owner == owner:
            return known.task
        try:
            task = _TASK.validate_json(self.opened(task_id, owner, text) if is_sealed(text) else text)
        except CipherError as error:
            logger.error("a row of the store cannot be read: %s", error)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            logger.error("a row of the store cannot be read: %s at %s", first["type"], first["loc"])
        else:
            if self.cipher is None or (utf8(task.id), utf8(task.owner)) == (task_id, owner):
                self.keep(task_id, KnownRow(owner, text, task))
                return task
            logger.error("a row of the store cannot be read: it belongs to another owner")
        return None

    def keep(self, task_id: str, row: KnownRow) -> None:
        """Keep a row that was read or written, for reuse."""
        self._known.pop(task_id, None)
        self._known[task_id] = row
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def whole(self, task: Task) -> tuple[Any, ...]:  # Any: text and numbers, in the order of the columns
        """Return all columns of a new task, in the order of COLUMNS."""
        searched, text = self.searched(task), self.text(task)
        self.keep(searched[0], KnownRow(searched[1], text, task, searched))
        return *searched, text

    def searched(self, task: Task) -> tuple[Any, ...]:  # Any: text and numbers, in the order of SEARCHED
        """Return the columns of a task other than its JSON."""
        expires = None if task.expires is None else micros(task.expires)
        due = None if (at := task.due) is None else micros(at)
        flags = (
            task.attempts,
            task.handle is not None or task.held is not None,
            task.ended is not None,
            task.tombstone,
        )
        names = (utf8(name) for name in (task.id, task.owner, task.tool, task.engine_key))
        shown = (task.execution.status.value, micros(task.updated), due)
        mark = (None, None) if (call := task.unanswered) is None else (call.match, micros(call.open_until))
        return *names, self.kept_key(task), micros(task.created), expires, *flags, *shown, *mark

    def kept_key(self, task: Task) -> str | None:
        """Return the idempotency key as stored: with a cipher, a digest that is equal for equal keys."""
        if task.idempotency_key is None:
            return None
        return self.digest(utf8(task.owner), utf8(task.tool), utf8(task.idempotency_key))

    def digest(self, owner: str, tool: str, key: str) -> str:
        """Return the stored form of a key; the arguments are column values."""
        if self.cipher is None or self.key_secret is None:
            return key
        return self.cipher.digest(self.key_secret, owner, tool, key)

    def text(self, task: Task) -> str:
        """Return the JSON of a task, encrypted if there is a cipher."""
        return self.sealed(utf8(task.id), utf8(task.owner), _dump(task))

    def sealed(self, task_id: str, owner: str, text: str) -> str:
        """Return the JSON, encrypted if there is a cipher."""
        return text if self.cipher is None else self.cipher.seal(text, _TASKS, task_id, owner)

    def opened(self, task_id: str, owner: str, text: str) -> str:
        """Return the JSON of a task, decrypted if necessary.

        Raises:
            CipherError: it cannot be decrypted.
        """
        return opened(self.cipher, text, _TASKS, task_id, owner)

    def known_text(self, task: Task) -> str | None:
        """Return the stored text that this task object was read from; None: it is no longer kept."""
        known = self._known.get(utf8(task.id))
        return known.text if known is not None and known.task is task else None

    def changed(self, before: Task, after: Task) -> tuple[Mapping[str, Any], KnownRow]:  # Any: text and numbers
        """Return the changed columns, with `task` last, and the row to keep once they are written.

        Only these are written, so that few indexes are touched. With a cipher they always include the idempotency key,
        because the old one may not be encrypted.
        """
        known = self._known.get(utf8(before.id))
        kept = known.searched if known is not None and known.task is before else None
        old = kept or self.searched(before)
        new, text = self.searched(after), self.text(after)
        columns = {name: new[at] for at, name in enumerate(SEARCHED) if at >= FIXED and new[at] != old[at]}
        if self.cipher is not None:
            columns["idempotency_key"] = self.kept_key(after)
        return {**columns, "task": text}, KnownRow(new[1], text, after, new)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteTexts:
    """The conversion of values into notes, and back."""

    cipher: Cipher | None = None

    def text(self, space: str, key: str, value: JSON) -> str:
        """Return the JSON of a value, encrypted if there is a cipher."""
        return self.sealed(space, key, json.dumps(value))

    def value(self, space: str, key: str, text: str) -> JSON:
        """Return the value of a note.

        Raises:
            StoreUnavailable: it cannot be read; the log has the reason.
        """
        try:
            value: JSON = json.loads(self.opened(space, key, text))
        except CipherError as error:
            logger.error("a note in the store cannot be read: %s", error)
            raise StoreUnavailable("the store has a note that cannot be read; see the log") from None
        return value

    def sealed(self, space: str, key: str, text: str) -> str:
        """Return the JSON of a value, encrypted if there is a cipher."""
        return text if self.cipher is None else self.cipher.seal(text, _NOTES, space, key)

    def opened(self, space: str, key: str, text: str) -> str:
        """Return the JSON of a value, decrypted if necessary.

        Raises:
            CipherError: it cannot be decrypted.
        """
        return opened(self.cipher, text, _NOTES, space, key)


def opened(cipher: Cipher | None, text: str, *names: str) -> str:
    """Return a stored text, decrypted if necessary.

    Raises:
        CipherError: it cannot be decrypted.
    """
    if not is_sealed(text):
        return text
    if cipher is None:
        raise CipherError("it is encrypted, and no keys are configured")
    return cipher.open(text, *names)


def _dump(task: Task) -> str:
    try:
        return _TASK.dump_json(
            task, exclude_defaults=task.tombstone, by_alias=True
        ).decode()  # tombstones are kept for long, and are many
    except PydanticSerializationError:  # it has an unpaired surrogate, which JSON allows and UTF-8 does not
        return utf8(json.dumps(_TASK.dump_python(task, mode="json", by_alias=True), ensure_ascii=False))


EVENT_COLUMNS: Final = ("id", "name", "at", "tool", "owner", "task_id", "key")


def event_values(event: LoggedEvent) -> tuple[str | int, ...]:
    """Return the columns of an event, in the order of EVENT_COLUMNS."""
    return (
        event.id,
        str(event.name),
        micros(event.at),
        *map(utf8, (event.tool, event.owner, event.task_id, event.key)),
    )


def logged_event(position: int, *columns: Any) -> LoggedEvent:  # Any: text and numbers
    """Return the event of a row: its position, then EVENT_COLUMNS."""
    id_, name, at, tool, owner, task_id, key = columns
    return LoggedEvent(
        id=id_,
        name=name,
        at=at_micros(at),
        tool=tool,
        owner=owner,
        task_id=task_id,
        key=key,
        position=position,
    )


def utf8(text: str) -> str:
    """Return a text that every store can hold: an unpaired surrogate becomes a question mark, NUL its symbol."""
    whole = text if text.isascii() else text.encode("utf-8", "replace").decode()
    return whole if "\0" not in whole else whole.replace("\0", "\u2400")  # PostgreSQL cannot keep it


def micros(at: datetime) -> int:
    """Return the time as a column value."""
    since = at - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def at_micros(number: int) -> datetime:
    """Return the time of a column value."""
    return _EPOCH + timedelta(microseconds=number)


def conditions(where: TaskFilter) -> Mapping[str, str | int]:
    """Return the conditions of a filter except `live_only`: column and operator, and the value."""
    first = None if where.id_begins is None else utf8(where.id_begins)
    found = {
        "tool =": None if where.tool is None else utf8(where.tool),
        "engine =": None if where.engine is None else utf8(where.engine),
        "owner =": None if where.owner is None else utf8(where.owner),
        "status =": None if where.status is None else where.status.value,
        "id >=": first,
        "id <": None if first is None else first + LAST_CHARACTER,
        "created >=": None if where.created_from is None else micros(where.created_from),
        "created <": None if where.created_before is None else micros(where.created_before),
    }
    return {condition: value for condition, value in found.items() if value is not None}


def counted(rows: Iterable[Sequence[Any]]) -> Sequence[Count]:  # Any: text and numbers
    """Return the counts from rows of tool, engine, status, number, oldest creation, oldest change."""
    return [
        Count(
            tool=tool,
            engine=engine,
            status=Status(status),
            tasks=tasks,
            oldest_created=at_micros(created),
            oldest_updated=at_micros(updated),
        )
        for tool, engine, status, tasks, created, updated in rows
    ]


def place_of(before: tuple[datetime, str] | None) -> tuple[int, str]:
    """Return the column values of the row that a list continues after."""
    return (END_OF_TIME, "") if before is None else (micros(before[0]), utf8(before[1]))


def leaves_window(created: datetime, since: datetime | None, oldest: int | None) -> datetime | None:
    """Return when the oldest row of a cap's moving window leaves it."""
    return None if oldest is None or since is None else at_micros(oldest) + (created - since)
