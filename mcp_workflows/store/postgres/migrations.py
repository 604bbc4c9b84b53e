"""The tables of a PostgreSQL store. Each entry of `MIGRATIONS` brings them from one version to the next.

Times are whole microseconds since 1970, UTC, as in SQLite; only leases use the server's clock. Text is compared byte by
byte (`COLLATE "C"`), whatever the database's locale. `task` is text rather than jsonb, because jsonb refuses `\\u0000`
and the text may be encrypted.

A migration only adds (a table, a nullable column, an index), so the previous version runs on the tables of this one.
Unused parts are dropped two versions later, and `OLDEST` is raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mcp_workflows.errors import StoreUnusable
from mcp_workflows.store.postgres.connections import PostgresConnection

MIGRATIONS: Final[Sequence[str]] = (
    """
    CREATE TABLE @tasks (
        id text COLLATE "C" PRIMARY KEY, owner text COLLATE "C" NOT NULL, tool text COLLATE "C" NOT NULL,
        engine text COLLATE "C" NOT NULL, idempotency_key text COLLATE "C", created bigint NOT NULL, expires bigint,
        attempts int NOT NULL, bound bool NOT NULL, ended bool NOT NULL, tombstone bool NOT NULL,
        status text COLLATE "C" NOT NULL, updated bigint NOT NULL, due bigint, unanswered text COLLATE "C",
        unanswered_until bigint, task text NOT NULL, version bigint NOT NULL DEFAULT 1
    ) WITH (fillfactor = 80);
    CREATE UNIQUE INDEX tasks_key ON @tasks (owner, tool, idempotency_key) WHERE idempotency_key IS NOT NULL;
    CREATE INDEX tasks_unbound ON @tasks (engine, attempts, created, id)
        WHERE NOT bound AND NOT ended AND NOT tombstone;
    CREATE INDEX tasks_expires ON @tasks (tombstone, expires) WHERE expires IS NOT NULL;
    CREATE INDEX tasks_created ON @tasks (created DESC, id) WHERE NOT tombstone;
    CREATE INDEX tasks_owner ON @tasks (owner, created, id) WHERE NOT tombstone;
    CREATE INDEX tasks_live ON @tasks (owner, tool, expires) WHERE NOT ended AND NOT tombstone;
    CREATE INDEX tasks_open ON @tasks (tool, created, id) INCLUDE (expires, engine) WHERE NOT ended AND NOT tombstone;
    CREATE INDEX tasks_working ON @tasks (created DESC, id) WHERE NOT ended AND NOT tombstone;
    CREATE INDEX tasks_made_by ON @tasks (owner, created);
    CREATE INDEX tasks_made_with ON @tasks (tool, created);
    CREATE INDEX tasks_due ON @tasks (engine, due, id) WHERE due IS NOT NULL;
    CREATE INDEX tasks_unanswered ON @tasks (unanswered, created, id) WHERE unanswered IS NOT NULL;
    CREATE INDEX tasks_census ON @tasks (tool, engine, status) INCLUDE (created, updated, expires) WHERE NOT tombstone;
    CREATE TABLE @notes (
        space text COLLATE "C", key text COLLATE "C", value text NOT NULL, until bigint NOT NULL,
        PRIMARY KEY (space, key)
    );
    CREATE INDEX notes_until ON @notes (until);
    CREATE TABLE @leases (name text COLLATE "C" PRIMARY KEY, holder text NOT NULL, until timestamptz NOT NULL);
    CREATE TABLE @secrets (name text COLLATE "C" PRIMARY KEY, value bytea NOT NULL);
    """,
    # `changed` has no default for existing rows: that would rewrite the table
    """
    ALTER TABLE @tasks ADD COLUMN changed timestamptz;
    ALTER TABLE @tasks ALTER COLUMN changed SET DEFAULT clock_timestamp();
    CREATE INDEX tasks_changed ON @tasks (changed);
    CREATE TABLE @replicas (
        id text PRIMARY KEY, hears bool NOT NULL, open text NOT NULL, until timestamptz NOT NULL
    );
    """,
    # an event gets its position after its commit, from one reader at a time: see `queries.events`
    """
    CREATE SEQUENCE @event_positions;
    CREATE TABLE @events (
        id text COLLATE "C" PRIMARY KEY, position bigint UNIQUE, name text NOT NULL, at bigint NOT NULL,
        tool text NOT NULL, owner text NOT NULL, task_id text NOT NULL, key text NOT NULL
    );
    CREATE INDEX events_new ON @events (at) WHERE position IS NULL;
    CREATE INDEX events_at ON @events (at);
    """,
)
OLDEST: Final = 1  # the oldest program version that runs on these tables
_WAIT: Final = "3s"  # maximum wait for a lock, because others wait behind it; then retry
_LOCK: Final = 0x6D637077  # "mcpw": the advisory lock of migrations in a database
_FOUND: Final = """
    SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1),
        EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1),
        (SELECT count(*) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
            JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = $1 AND c.relname = 'migrations' AND a.attname IN ('version', 'oldest')) = 2,
        current_setting('server_encoding')
"""


async def migrate(connection: PostgresConnection, schema: str, *, allowed: bool) -> None:
    """Bring the tables to this version in one transaction, while other replicas wait.

    Tables of this version or a newer one need only the rights to read and write them.

    Raises:
        StoreUnusable: the schema belongs to another program or needs a newer version of this one, or it must be
            migrated and that is not allowed.
    """
    version = await _version(connection, schema)
    if version >= len(MIGRATIONS):
        return
    if not allowed:
        raise StoreUnusable(
            f"the store's tables have version {version}, this mcp-workflows needs version {len(MIGRATIONS)}, and "
            "store.migrate is false: run `mcp-workflows store migrate` as a role that may create and change tables"
        )
    first = f"SET LOCAL lock_timeout = '{_WAIT}'; SELECT pg_advisory_xact_lock({_LOCK})"
    async with connection.transaction(first):
        has_schema, *_ = await _found(connection, schema)
        if not has_schema:
            await connection.script(f'CREATE SCHEMA "{schema}"')
        version = await _version(connection, schema)
        if not version:
            await connection.script("CREATE TABLE @migrations (version int PRIMARY KEY, oldest int NOT NULL)")
        for number, statements in enumerate(MIGRATIONS[version:], version + 1):
            await connection.script(statements)
            await connection.script(f"INSERT INTO @migrations VALUES ({number}, {OLDEST})")


async def _found(connection: PostgresConnection, schema: str) -> tuple[bool, bool, bool, str]:
    found = await connection.row(_FOUND, schema)
    if found is None:
        raise StoreUnusable("the database lists no schemas")
    has_schema, has_tables, is_ours, encoding = found
    return has_schema, has_tables, is_ours, encoding


async def _version(connection: PostgresConnection, schema: str) -> int:
    """Return the version of the tables; 0: there are none."""
    _, has_tables, is_ours, encoding = await _found(connection, schema)
    if encoding != "UTF8":
        raise StoreUnusable(f"the database of the store has the encoding {encoding}: it needs UTF8")
    if not has_tables:
        return 0
    if not is_ours:
        raise StoreUnusable(
            f"the schema {schema} of the database has tables of another program: choose another schema, "
            "postgresql://...?schema=NAME"
        )
    last = await connection.row("SELECT version, oldest FROM @migrations ORDER BY version DESC LIMIT 1")
    version, oldest = last or (0, 0)
    if oldest > len(MIGRATIONS):
        raise StoreUnusable(
            f"the store's tables have version {version} and need at least version {oldest}, this mcp-workflows knows "
            f"version {len(MIGRATIONS)}: install a newer mcp-workflows, or choose another schema"
        )
    return int(version)
