"""Queries of DBOS's system tables, each for many executions at once.

DBOS documents its tables (docs.dbos.dev, "DBOS System Tables") and has no public call that reads the events of many
workflows. The queries only read. A value that is not JSON, such as a pickle, becomes `Unreadable`.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import sqlalchemy as sa
from sqlalchemy.engine import Engine, RowMapping, make_url
from sqlalchemy.event import listen  # pyright: ignore[reportUnknownVariableType]  # untyped
from sqlalchemy.exc import DisconnectionError

from mcp_workflows.adapter import JSON, MAX_STEPS
from mcp_workflows_dbos.serializer import NAME as TYPED_JSON
from mcp_workflows_dbos.serializer import binary_places, numbers_beyond_json, plain
from mcp_workflows_dbos.settings import is_sqlite
from mcp_workflows_dbos.start import DIGEST
from mcp_workflows_dbos.workflow import ANSWER, ASK, PROGRESS, QUESTION

__all__ = ["ExecutedWorkflow", "Question", "Row", "Step", "Tables", "Unreadable"]

_SCHEMA: Final = "dbos"  # PostgreSQL
_CONNECT_TIMEOUT: Final = 5  # seconds
_WATCH_EVERY: Final = 0.5  # seconds between two queries for ended executions
_OVERLAP: Final = 5000  # ms by which these queries overlap: clocks differ, and a row is visible only after its commit
_CHANNELS: Final = ("dbos_notifications_channel", "dbos_workflow_events_channel")
_READABLE: Final = frozenset({"portable_json", TYPED_JSON})  # DBOS's column `serialization`
_BEYOND_JSON: Final = ("NaN", "Infinity", '"builtins:float"')  # a value with none of these is JSON

_STATUS: Final = """
SELECT s.workflow_uuid, s.status, s.name, s.created_at, s.updated_at, s.application_version,
       s.queue_name, s.recovery_attempts, s.attributes, s.serialization, s.delay_until_epoch_ms,
       COALESCE(o.output, s.output) AS output, COALESCE(o.error, s.error) AS error
FROM {schema}workflow_status s LEFT JOIN {schema}workflow_output o ON o.workflow_uuid = s.workflow_uuid
WHERE s.workflow_uuid IN :ids
"""
_EVENTS: Final = """
WITH RECURSIVE family (root, id) AS (
  SELECT workflow_uuid, workflow_uuid FROM {schema}workflow_status WHERE workflow_uuid IN :ids
  UNION ALL
  SELECT family.root, child.workflow_uuid FROM family JOIN {schema}workflow_status child
  ON child.parent_workflow_id = family.id AND child.status IN ('PENDING', 'ENQUEUED', 'DELAYED')
)
SELECT family.root, family.id, event.key, event.value, event.serialization
FROM family JOIN {schema}workflow_events event ON event.workflow_uuid = family.id
WHERE (event.key = :progress AND family.id = family.root) OR (event.key LIKE :question AND NOT EXISTS (
  SELECT 1 FROM {schema}notifications message
  WHERE message.destination_uuid = family.id AND message.topic = :answer || substr(event.key, :after)
))
"""
_EVENT: Final = """
SELECT value, serialization FROM {schema}workflow_events WHERE workflow_uuid = :id AND key = :key
"""
_IS_SENT: Final = "SELECT 1 FROM {schema}notifications WHERE message_uuid = :message"
_STEPS: Final = """
SELECT function_id, function_name, error IS NOT NULL AS failed, started_at_epoch_ms, completed_at_epoch_ms
FROM {schema}operation_outputs
WHERE workflow_uuid = :id AND function_name NOT LIKE 'DBOS.%' AND function_name <> :ask
ORDER BY function_id DESC LIMIT :most
"""
_EXECUTED: Final = """
SELECT name, COUNT(*) AS executions, MAX(created_at) AS last FROM {schema}workflow_status
WHERE parent_workflow_id IS NULL AND name NOT LIKE '<temp>.%' GROUP BY name ORDER BY executions DESC LIMIT 200
"""
_VERSIONS: Final = "SELECT version_name FROM {schema}application_versions ORDER BY version_timestamp DESC{tie} LIMIT 1"
_QUEUES: Final = "SELECT name FROM {schema}queues ORDER BY name"
_ENDED: Final = """
SELECT workflow_uuid, completed_at FROM {schema}workflow_status
WHERE completed_at IS NOT NULL AND completed_at >= :since ORDER BY completed_at DESC LIMIT 1000
"""
_ENDED_OF: Final = """
SELECT id, ended FROM (
  SELECT workflow_uuid AS id, completed_at + CASE completed_at % 1000 WHEN 0 THEN :rest ELSE 0 END AS ended
  FROM {schema}workflow_status WHERE name = :workflow AND completed_at >= :earliest
) ends WHERE ended >= :since ORDER BY ended, id LIMIT :most
"""


_Announcements: TypeAlias = Callable[[], Sequence[str]]
_Connect: TypeAlias = Callable[[], AbstractContextManager[sa.Connection]]


class Unreadable:
    """A value in a format that is never read: a pickle, or the format of the application's own serializer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A row of the step table."""

    name: str
    failed: bool
    started_at: int | None  # ms since 1970
    completed_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """An open question of an execution, or of a workflow that it started."""

    workflow_id: str  # of the workflow that asks
    key: str  # unique in that workflow
    params: JSON  # of the elicitation request


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An execution: its row of `workflow_status`, and its data in the other tables."""

    id: str
    status: str
    workflow: str
    version: str | None
    queue: str | None
    attempts: int
    created_at: int  # ms since 1970
    updated_at: int
    delayed_until: int | None
    digest: str | None  # of the workflow and its input; None: started elsewhere
    output: JSON | Unreadable = None
    not_json: str | None = None  # why the output is not JSON, with the place
    binary: Sequence[str] = ()  # the places of the output that are base64, because their bytes are not text
    error: JSON | Unreadable = None
    progress: Mapping[str, JSON] = field(default_factory=dict[str, JSON])
    questions: Mapping[str, Question] = field(default_factory=dict[str, Question])  # open ones, by input request key
    steps: Sequence[Step] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedWorkflow:
    """A workflow that has run on this database."""

    name: str
    executions: int
    last_start: int  # ms since 1970


class Tables:
    """The tables of one DBOS system database, read-only. All methods block."""

    def __init__(self, url: str) -> None:
        self._engine = _engine(url)
        self._is_sqlite = is_sqlite(url)
        self._dialect_parts = {
            "schema": "" if self._is_sqlite else f"{_SCHEMA}.",
            "tie": ", rowid DESC" if self._is_sqlite else "",  # with Python 3.11, times on SQLite are whole seconds
        }

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def rows(self, ids: Sequence[str], *, events: bool = True, steps: bool = False) -> Mapping[str, Row]:
        """Return the executions by workflow id; without `events`, they lack questions and progress.

        `steps` adds their steps, with one more query per execution.
        """
        if not ids:
            return {}
        found: dict[str, Row] = {}
        with self._engine.connect() as connection:
            statuses = connection.execute(self._query(_STATUS), {"ids": ids}).mappings().all()
            alive = [row["workflow_uuid"] for row in statuses if row["status"] in {"PENDING", "ENQUEUED", "DELAYED"}]
            progress, questions = self._events(connection, alive if events else ())
            for row in statuses:
                name = str(row["workflow_uuid"])
                listed = self._steps(connection, name) if steps else ()
                found[name] = _row(row, progress.get(name, {}), questions.get(name, {}), listed)
        return found

    def _events(
        self, connection: sa.Connection, ids: Sequence[str]
    ) -> tuple[Mapping[str, Mapping[str, JSON]], Mapping[str, Mapping[str, Question]]]:
        """Return the last progress report of each execution, and the open questions of it and its descendants."""
        if not ids:
            return {}, {}
        bound = {"progress": PROGRESS, "question": f"{QUESTION}%", "answer": ANSWER, "after": len(QUESTION) + 1}
        events = connection.execute(self._query(_EVENTS), {"ids": ids, **bound}).mappings().all()
        progress: dict[str, Mapping[str, JSON]] = {}
        questions: defaultdict[str, dict[str, Question]] = defaultdict(dict)
        for row in events:
            value = _value(row["value"], row["serialization"])
            root, workflow_id = row["root"], row["id"]
            if isinstance(value, Unreadable):
                continue
            if row["key"] == PROGRESS:
                progress[root] = value
                continue
            key = row["key"].removeprefix(QUESTION)
            request_key = key if workflow_id == root else f"{workflow_id}:{key}"
            questions[root][request_key] = Question(workflow_id=workflow_id, key=key, params=value)
        return progress, {name: dict(sorted(each.items(), key=_question_order)) for name, each in questions.items()}

    def _steps(self, connection: sa.Connection, name: str) -> Sequence[Step]:
        bound = {"id": name, "ask": ASK, "most": MAX_STEPS}
        listed = connection.execute(self._query(_STEPS), bound).mappings().all()
        return [
            Step(
                name=row["function_name"],
                failed=bool(row["failed"]),
                started_at=row["started_at_epoch_ms"],
                completed_at=row["completed_at_epoch_ms"],
            )
            for row in reversed(listed)
        ]

    def event(self, workflow_id: str, key: str) -> tuple[JSON | Unreadable] | None:
        """Return the value of an event of an execution; None if the execution has not set it."""
        with self._engine.connect() as connection:
            row = connection.execute(self._query(_EVENT), {"id": workflow_id, "key": key}).one_or_none()
        if row is None:
            return None
        return (Unreadable() if _not_json(row.value, row.serialization) else _value(row.value, row.serialization),)

    def is_sent(self, workflow_id: str, key: str) -> bool:
        """True if a message to an execution was sent with this idempotency key."""
        with self._engine.connect() as connection:
            found = connection.execute(self._query(_IS_SENT), {"message": f"{key}::{workflow_id}"})
            return found.one_or_none() is not None

    def ended(self, workflow: str, since: int, most: int) -> Sequence[tuple[str, int]]:
        """Return the ids of a workflow's executions and their end times (ms since 1970), earliest first.

        With Python 3.11, times on SQLite are whole seconds. Such an end counts as the latest possible time.
        """
        rest = 999 if self._is_sqlite else 0
        bound = {"workflow": workflow, "since": since, "earliest": since - rest, "rest": rest, "most": most}
        with self._engine.connect() as connection:
            return [(str(name), int(at)) for name, at in connection.execute(self._query(_ENDED_OF), bound)]

    def watch(self, changed: Callable[[str], None], stopped: threading.Event, is_local: Callable[[], bool]) -> None:
        """Call `changed` with the id of each workflow that may have changed, until `stopped` is set.

        PostgreSQL announces questions, reports and answers. DBOS does not announce ends, so a query finds them.
        `is_local` is true while the workflows run in this process: then `CHANGES` announces their questions and
        reports.
        """
        since, known = int(time.time() * 1000) - _OVERLAP, frozenset[str]()
        with self._announcements(stopped) as (next_announcements, connect):
            while not stopped.is_set():
                kinds = (ANSWER,) if is_local() else (ANSWER, QUESTION, PROGRESS)
                for announcement in next_announcements():
                    workflow_id, _, key = announcement.rpartition("::")
                    if key.startswith(kinds):
                        changed(workflow_id)
                with connect() as connection:
                    listed = connection.execute(self._query(_ENDED), {"since": since}).all()
                ended = {str(name): int(at) for name, at in listed}
                for workflow_id in ended.keys() - known:
                    changed(workflow_id)
                known, since = frozenset(ended), max([since, *(at - _OVERLAP for at in ended.values())])

    @contextmanager
    def _announcements(self, stopped: threading.Event) -> Generator[tuple[_Announcements, _Connect]]:
        """Yield a function that waits up to `_WATCH_EVERY` for announcements (`WORKFLOW_ID::KEY`), and one that
        connects.

        On PostgreSQL both use one connection, which is closed at the end. SQLite announces nothing.
        """
        if self._is_sqlite:

            def no_announcements() -> Sequence[str]:
                stopped.wait(_WATCH_EVERY)
                return ()

            yield no_announcements, self._engine.connect
            return
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for channel in _CHANNELS:
                connection.execute(sa.text(f"LISTEN {channel}"))
            listening: Any = connection.connection.driver_connection  # Any: psycopg's, and untyped here
            try:
                yield (
                    lambda: [each.payload for each in listening.notifies(timeout=_WATCH_EVERY, stop_after=1)],
                    lambda: nullcontext(connection),
                )
            finally:
                connection.invalidate()  # closes it, as a connection that listens must not return to the pool

    def executed_workflows(self) -> Sequence[ExecutedWorkflow]:
        """Return the workflows that have run, most frequent first, at most 200."""
        with self._engine.connect() as connection:
            listed = connection.execute(self._query(_EXECUTED)).all()
        return [
            ExecutedWorkflow(name=str(name), executions=int(count), last_start=int(at)) for name, count, at in listed
        ]

    def latest_version(self) -> str | None:
        """Return the version of the application that was last launched."""
        with self._engine.connect() as connection:
            return connection.execute(self._query(_VERSIONS)).scalar()

    def queues(self) -> Sequence[str]:
        """Return the queues that applications have registered."""
        with self._engine.connect() as connection:
            return [str(name) for name in connection.execute(self._query(_QUEUES)).scalars()]

    def _query(self, text: str) -> sa.TextClause:
        """Return a query for this database; `:ids` stands for a list of workflow ids."""
        found = sa.text(text.format(**self._dialect_parts))
        return found.bindparams(sa.bindparam("ids", expanding=True)) if ":ids" in text else found


def _engine(url: str) -> Engine:
    """Return a SQLAlchemy engine for reading; it never creates an SQLite file."""
    parsed = make_url(url)
    if is_sqlite(url):
        file = parsed.set(database=f"file:{parsed.database}", query={"mode": "ro", "uri": "true"})
        shared = {"timeout": _CONNECT_TIMEOUT, "check_same_thread": False}  # a connection has one user at a time
        engine = sa.create_engine(file, poolclass=sa.QueuePool, connect_args=shared)
        _reconnect_if_replaced(engine, Path(parsed.database or ""))
        return engine
    psycopg_url = parsed.set(drivername="postgresql+psycopg")
    arguments = {"connect_timeout": _CONNECT_TIMEOUT, "application_name": "mcp-workflows"}
    return sa.create_engine(psycopg_url, pool_size=4, pool_pre_ping=True, connect_args=arguments)


def _reconnect_if_replaced(engine: Engine, file: Path) -> None:
    """Reconnect a pooled connection if another file has replaced its open one."""

    def inode() -> int | None:
        try:
            return file.stat().st_ino
        except OSError:
            return None

    def on_connect(_: object, record: Any) -> None:  # Any: SQLAlchemy's
        record.info["inode"] = inode()

    def on_checkout(_: object, record: Any, __: object) -> None:
        if record.info["inode"] != inode():
            raise DisconnectionError

    listen(engine, "connect", on_connect)
    listen(engine, "checkout", on_checkout)


def _question_order(item: tuple[str, Question]) -> tuple[str, int, str]:
    """Return a sort key: an execution's own questions first, and those of each workflow in step order."""
    request_key, question = item
    return "" if request_key == question.key else question.workflow_id, len(question.key), question.key


def _row(
    row: RowMapping, progress: Mapping[str, JSON], questions: Mapping[str, Question], steps: Sequence[Step]
) -> Row:
    attributes: Any = row["attributes"]
    if isinstance(attributes, str):  # SQLite has JSON as text
        attributes = json.loads(attributes)
    stored = cast("dict[str, Any]", attributes or {})
    return Row(
        id=row["workflow_uuid"],
        status=row["status"],
        workflow=row["name"],
        version=row["application_version"],
        queue=row["queue_name"],
        attempts=row["recovery_attempts"] or 0,
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        delayed_until=row["delay_until_epoch_ms"],
        digest=stored.get(DIGEST),
        output=_value(row["output"], row["serialization"]),
        not_json=_not_json(row["output"], row["serialization"]),
        binary=_binary(row["output"], row["serialization"]),
        error=_value(row["error"], row["serialization"]),
        progress=progress,
        questions=questions,
        steps=steps,
    )


def _not_json(text: str | None, serialization: str | None) -> str | None:
    """Return the place of the first number in a value that JSON does not support, such as NaN."""
    if text is None or serialization not in _READABLE or not any(word in text for word in _BEYOND_JSON):
        return None
    return next(numbers_beyond_json(json.loads(text)), None)


def _binary(text: str | None, serialization: str | None) -> Sequence[str]:
    if text is None or serialization != TYPED_JSON or '"base64"' not in text:
        return ()
    return [*binary_places(json.loads(text))]


def _value(text: str | None, serialization: str | None) -> JSON | Unreadable:
    if text is None:
        return None
    return plain(json.loads(text)) if serialization in _READABLE else Unreadable()
