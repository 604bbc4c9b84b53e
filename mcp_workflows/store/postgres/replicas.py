"""The channel of replicas on PostgreSQL: a table of heartbeats by the server's clock, and NOTIFY.

NOTIFY locks the whole database until its commit is on disk. So no write of a row notifies, and the statements here do
not wait for the disk. Source: docs/decisions/0034.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from hashlib import blake2b
from typing import Final

from pydantic import TypeAdapter

from mcp_workflows.store.postgres.connections import Connections
from mcp_workflows.store.postgres.queries import LAZILY
from mcp_workflows.store.protocol import Replica
from mcp_workflows.store.rows import Rows, utf8
from mcp_workflows.task import Task

_LIVE: Final = TypeAdapter(list[Replica])
_OPEN: Final = TypeAdapter(Mapping[str, int])
_LONGEST_GONE: Final = "1 minute"
_BEAT: Final = f"""
    WITH gone AS (
        DELETE FROM @replicas WHERE until < clock_timestamp() - interval '{_LONGEST_GONE}' AND id <> $1
    ), me AS (
        INSERT INTO @replicas (id, hears, open, until) SELECT $1, $2, $3, clock_timestamp() + $4::interval FROM {LAZILY}
        ON CONFLICT (id) DO UPDATE SET hears = excluded.hears, open = excluded.open, until = excluded.until
    )
    SELECT extract(epoch FROM clock_timestamp())::float8, (
        SELECT coalesce(json_agg(json_build_object('id', id, 'hears', hears, 'open', open::json)), '[]'::json)::text
        FROM @replicas WHERE until > clock_timestamp() AND id <> $1
    )
"""
_SEND: Final = f"""
    SELECT pg_notify($1, text)
    FROM {LAZILY}, unnest($2::text[]) AS text
"""
_CHANGED: Final = """
    SELECT id, version FROM @tasks WHERE changed > clock_timestamp() - $1::interval ORDER BY changed DESC LIMIT 10000
"""
_READ: Final = "SELECT id, owner, task FROM @tasks WHERE id = ANY($1::text[]) AND NOT tombstone"


class PostgresChannel:
    """The channel of one process; see `ReplicaChannel`."""

    def __init__(self, connections: Connections, schema: str, rows: Callable[[], Rows]) -> None:
        """`rows` returns the reader of rows, which exists once the store was entered."""
        self._connections = connections
        self._name = f"mcpw_{blake2b(schema.encode(), digest_size=16).hexdigest()}"  # a schema name may have 63 bytes
        self._rows = rows

    async def beat(self, replica: Replica, *, lasting: timedelta) -> tuple[Sequence[Replica], float]:
        """Renew the membership for `lasting`; return the other replicas and the server's clock."""
        values = replica.id, replica.hears, _OPEN.dump_json(replica.open).decode(), lasting
        ((now, others),) = await self._connections.run(lambda connection: connection.fetch(_BEAT, *values))
        return _LIVE.validate_json(others), now

    async def send(self, texts: Sequence[str]) -> None:
        """Send texts to all listeners, including this process."""
        await self._connections.run(lambda connection: connection.fetch(_SEND, self._name, list(texts)))

    async def listen(self, hear: Callable[[str], None]) -> None:
        """Call `hear` with each text sent, until the connection is lost."""
        connection = await self._connections.connect(to_listen=True)
        try:
            async with await self._connections.alone(connection, lambda each: each.listen(self._name)) as payloads:
                async for payload in payloads:
                    hear(payload)
        finally:
            connection.terminate()

    async def changed(self, within: timedelta) -> Mapping[str, int]:
        """Return the rows that changed in this period: ids and versions."""
        rows = await self._connections.run(lambda connection: connection.fetch(_CHANGED, within))
        return dict(rows)

    async def read(self, task_ids: Sequence[str]) -> Sequence[Task]:
        """Return the rows with these ids."""
        names = [utf8(task_id) for task_id in task_ids]
        rows = await self._connections.run(lambda connection: connection.fetch(_READ, names))
        return self._rows().many(tuple(row) for row in rows)
