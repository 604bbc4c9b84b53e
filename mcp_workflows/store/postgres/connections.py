"""The connections of a PostgreSQL store; only this module uses asyncpg, and imports it when a store is created.

A step is a function of one connection. It is shielded from cancellation, because asyncpg would open another connection
to cancel a statement, and limited by a timeout. So when `run` returns, the step was done or was not. A connection that
failed with anything but a server error is terminated; its later replies could belong to another statement.

Source: https://magicstack.github.io/asyncpg/current/api/, https://github.com/MagicStack/asyncpg/issues/1069.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Protocol, TypeAlias, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from mcp_workflows.errors import ConfigError, StoreError, StoreUnavailable, StoreUnusable

T = TypeVar("T")
Row: TypeAlias = tuple[Any, ...]  # Any: text, numbers and bytes, as stored

TIMEOUT: Final = 5.0  # seconds for a step, and also for a free connection
MIGRATING: Final = 60.0  # seconds; another replica may be migrating, and tables may be large
COPYING: Final = 86_400.0  # seconds; a store may be large
MOST_CONNECTIONS: Final = 8
_SCHEMA: Final = "mcp_workflows"
_MOST_HEARD: Final = 10_000  # unread notifications
_STATEMENTS: Final = 100  # prepared statements per connection
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII)
_PLACE: Final = re.compile(r"(?:[^@/]*@)?((?:\[[0-9A-Fa-f:.%]+\]|[\w.%-]*)(?::\d+)?(?:,[\w.%-]+(?::\d+)?)*)")
_LIBPQ: Final = frozenset(
    {"host", "port", "user", "password", "passfile", "dbname", "service", "target_session_attrs", "krbsrvname"}
    | {"sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslnegotiation", "sslpassword"}
    | {"ssl_min_protocol_version", "ssl_max_protocol_version"}
)
_READ_ONLY: Final = (StoreUnavailable, "can only be read: it is a standby, or set to read-only")
_CONTENDED: Final = (StoreUnavailable, "has too many conflicting writes; try again")
_TROUBLE: Final[Mapping[str, tuple[type[StoreError], str]]] = {
    "28000": (StoreUnusable, "rejects the user or the password, or a connection like this (TLS, pg_hba.conf)"),
    "28P01": (StoreUnusable, "rejects the user or the password"),
    "3D000": (StoreUnusable, "cannot be opened: no such database"),
    "3F000": (StoreUnavailable, "has lost its schema"),
    "42501": (StoreUnusable, "denies its user a right: grant CREATE on the database, or all rights on the schema"),
    "42P01": (StoreUnavailable, "has lost a table"),
    "25006": _READ_ONLY,
    "40001": _CONTENDED,
    "40P01": _CONTENDED,
    "53100": (StoreUnavailable, "has no room left on its disk"),
    "53300": (StoreUnavailable, "has no free connection (max_connections)"),
    "54000": (StoreUnavailable, "cannot store a text this long"),
    "55P03": (StoreUnavailable, "is locked by another process"),
    "57014": (StoreUnavailable, "has cancelled a statement that took too long"),
    "57P03": (StoreUnavailable, "is starting or stopping"),
}
"""SQLSTATE codes: the error while the store is opened, and its text.

Source: https://www.postgresql.org/docs/current/errcodes-appendix.html.
"""

_LOST: Final = ("08", "57P01", "57P02", "57P03")  # prefixes of codes after which the connection is closed
_AGAIN: Final = ("40001", "40P01", "55P03")  # serialization failure, deadlock, lock not available: nothing was done
_PAUSE: Final = 0.02  # maximum seconds before a retry


class _Native(Protocol):
    """The part of asyncpg's `Connection` that is used here."""

    async def execute(self, query: str, *values: object) -> str: ...
    async def executemany(self, query: str, values: Sequence[Sequence[object]]) -> None: ...
    async def fetch(self, query: str, *values: object) -> Sequence[Row]: ...
    async def add_listener(self, channel: str, callback: Callable[[object, int, str, str], None]) -> None: ...
    def add_termination_listener(self, callback: Callable[[object], None]) -> None: ...
    def is_closed(self) -> bool: ...
    def is_in_transaction(self) -> bool: ...
    def terminate(self) -> None: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseUrl:
    """The database and schema of a store, from its URL."""

    url: str  # for asyncpg, with the password
    shown: str  # without user and password
    schema: str
    statements: int

    @classmethod
    def of(cls, url: str) -> DatabaseUrl:
        """Parse a URL. No message shows it, because it may hold a password.

        Raises:
            ConfigError: it does not have the format that `PostgresStore` documents.
        """
        parts = urlsplit(url)
        netloc = _PLACE.fullmatch(parts.netloc)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if netloc is None or parts.fragment or "@" in parts.path + parts.query:
            raise ConfigError(
                "the store's URL is not valid: write postgresql://user:password@host:5432/database, with special "
                "characters of user and password percent-encoded"
            )
        schema = options.pop("schema", _SCHEMA)
        if not _NAME.fullmatch(schema):
            raise ConfigError("the store's schema= must be a lower-case name: letters, digits and _, at most 63")
        statements = options.pop("statement_cache_size", str(_STATEMENTS))
        if not statements.isdecimal():
            raise ConfigError("the store's statement_cache_size= must be a whole number; 0 for PgBouncer")
        if unknown := sorted(options.keys() - _LIBPQ):
            raise ConfigError(f"the store's URL has an unknown option: {', '.join(unknown)}")
        place = parts._replace(query=urlencode(options)).geturl()
        host = netloc[1] or options.get("host", "localhost")
        return cls(url=place, shown=f"{host}{parts.path}", schema=schema, statements=int(statements))


class PostgresConnection:
    """A connection during a step. `@name` in a statement is a table of the store's schema."""

    def __init__(self, native: _Native, schema: str) -> None:
        """Wrap an open connection."""
        self._native = native
        self._prefix = f'"{schema}".'
        self.schema = schema

    @property
    def is_closed(self) -> bool:
        """True if the server or this process closed it."""
        return self._native.is_closed()

    async def fetch(self, query: str, *values: object) -> Sequence[Row]:
        """Return all rows of a statement."""
        return await self._native.fetch(query.replace("@", self._prefix), *values)

    async def row(self, query: str, *values: object) -> Row | None:
        """Return the first row of a statement, or None."""
        found = await self.fetch(query, *values)
        return found[0] if found else None

    async def many(self, query: str, values: Sequence[Sequence[object]]) -> None:
        """Run one statement for each tuple of values."""
        await self._native.executemany(query.replace("@", self._prefix), values)

    async def script(self, statements: str) -> None:
        """Run statements without values in one round trip."""
        await self._native.execute(statements.replace("@", self._prefix))

    @asynccontextmanager
    async def transaction(self, first: str = "", *, then: str = "") -> AsyncGenerator[None]:
        """Run a transaction; `first` is sent together with BEGIN, and `then` after COMMIT in the same message."""
        await self.script(f"BEGIN ISOLATION LEVEL READ COMMITTED; {first}")  # a role may have another default
        try:
            yield
        except Exception:
            if not self.is_closed:
                await self.script("ROLLBACK")
            raise
        await self.script(f"COMMIT; {then}")

    async def listen(self, channel: str) -> MemoryObjectReceiveStream[str]:
        """Return a stream of notification payloads; it ends with the connection."""
        payloads, heard = anyio.create_memory_object_stream[str](_MOST_HEARD)
        self._native.add_termination_listener(lambda _connection: payloads.close())

        def hear(_connection: object, _pid: int, _channel: str, payload: str) -> None:
            try:
                payloads.send_nowait(payload)
            except anyio.WouldBlock:  # the listener reconnects, and reads the changed rows
                payloads.close()
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                pass  # the listener or the connection has ended

        await self._native.add_listener(channel, hear)
        return heard

    def is_reusable(self) -> bool:
        """True if no transaction of a step is open in it."""
        return not self._native.is_closed() and not self._native.is_in_transaction()

    def terminate(self) -> None:
        """Close it at once."""
        self._native.terminate()

    async def close(self) -> None:
        """Close it properly, or at once after a second."""
        with anyio.move_on_after(1) as waited:
            await self._native.close()
        if waited.cancelled_caught:
            self._native.terminate()


Password: TypeAlias = Callable[[], str | Awaitable[str]]
Step: TypeAlias = Callable[[PostgresConnection], Awaitable[T]]


class Connections:
    """A few connections; the most recently used one is used next."""

    def __init__(self, database: DatabaseUrl, listened: DatabaseUrl, password: Password | None) -> None:
        """Import asyncpg without connecting. `listened` is for the connection that listens.

        Raises:
            ConfigError: asyncpg is not installed.
        """
        try:
            self._asyncpg: Any = import_module("asyncpg")  # Any: it has no types
        except ImportError:
            raise ConfigError("a store on PostgreSQL needs: pip install 'mcp-workflows[postgres]'") from None
        self._database, self._listened = database, listened
        self._password = password
        self._idle: list[PostgresConnection] = []
        self._turns = anyio.Semaphore(MOST_CONNECTIONS, fast_acquire=True)
        self.is_open = False
        self.lacks_room = False  # the server's disk was full at the last write that needs more space
        native = (self._asyncpg.PostgresError, self._asyncpg.InterfaceError, self._asyncpg.InternalClientError)
        self._failures: tuple[type[Exception], ...] = (OSError, *native)

    async def open(self, step: Step[T], *, within: float = MIGRATING) -> T:
        """Connect and run the first step within so many seconds.

        Raises:
            StoreUnusable: the server refuses access.
            StoreUnavailable: it cannot be reached, or not now.
        """
        self.is_open = True
        try:
            return await self._with_retries(step, within)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await self.close()
            if isinstance(error, self._failures):
                raise self._translated(error, opening=True) from None
            raise

    async def close(self, kept: PostgresConnection | None = None) -> None:
        """Close all connections, and one that the caller kept; running steps close their own."""
        self.is_open = False
        if kept is not None:
            self._idle.append(kept)
        while self._idle:
            with suppress(*self._failures):
                await self._idle.pop().close()

    async def run(self, step: Step[T]) -> T:
        """Run one step. It runs again if its connection was lost, so it must detect what it has already done.

        It is repeated once for a lost connection, and for up to 5 s after serialization failures and deadlocks.

        Raises:
            StoreUnavailable: it failed, or its outcome is unknown.
        """
        try:
            return await self._with_retries(step, TIMEOUT)
        except self._failures as error:
            raise self._translated(error, opening=False) from error

    async def connect(self, *, to_listen: bool = False) -> PostgresConnection:
        """Open a connection that its caller keeps and closes.

        Raises:
            StoreUnavailable: the server cannot be reached.
        """
        if not self.is_open:
            raise StoreUnavailable("the store is not open")
        try:
            with anyio.fail_after(TIMEOUT, shield=True):
                return await self._connect(self._listened if to_listen else self._database)
        except self._failures as error:
            raise self._translated(error, opening=False) from error

    async def alone(self, connection: PostgresConnection, step: Step[T]) -> T:
        """Run one step on the caller's connection, which is closed if the step fails.

        Raises:
            StoreUnavailable: it failed, or its outcome is unknown.
        """
        try:
            with anyio.fail_after(TIMEOUT, shield=True):
                return await step(connection)
        except self._failures as error:
            connection.terminate()
            raise self._translated(error, opening=False) from error

    async def _with_retries(self, step: Step[T], seconds: float) -> T:
        until, was_lost = anyio.current_time() + min(seconds, MIGRATING), False
        while True:
            try:
                return await self._turn(step, seconds)
            except self._failures as error:
                is_lost = self._is_lost(error)
                if is_lost or isinstance(error, TimeoutError):
                    self._drop_idle()  # they are probably lost, too
                may_repeat = getattr(error, "sqlstate", None) in _AGAIN and anyio.current_time() < until
                if not may_repeat and (was_lost or not is_lost):
                    raise
                was_lost |= is_lost
                await anyio.sleep(random.uniform(0, _PAUSE))  # noqa: S311  # avoids another collision

    def _is_lost(self, error: Exception) -> bool:
        if isinstance(error, self._asyncpg.PostgresError):
            return str(getattr(error, "sqlstate", "")).startswith(_LOST)
        return not isinstance(error, TimeoutError | ValueError)

    async def _turn(self, step: Step[T], seconds: float) -> T:
        if not self.is_open:
            raise StoreUnavailable("the store is not open")
        try:
            with anyio.fail_after(seconds):
                await self._turns.acquire()
        except TimeoutError:
            raise StoreUnavailable(f"the store's {MOST_CONNECTIONS} connections are all in use") from None
        try:
            return await self._once(step, seconds)
        finally:
            self._turns.release()

    async def _once(self, step: Step[T], seconds: float) -> T:
        connection: PostgresConnection | None = None
        is_whole = False
        try:
            with anyio.fail_after(seconds, shield=True):
                while self._idle and connection is None:
                    connection = self._idle.pop()
                    connection = None if connection.is_closed else connection
                connection = connection or await self._connect(self._database)
                done = await step(connection)
            is_whole = True
            return done
        except self._failures as error:
            is_whole = isinstance(error, self._asyncpg.PostgresError) and not self._is_lost(error)
            self.lacks_room |= getattr(error, "sqlstate", None) == "53100"
            raise
        except Exception:  # raised by the step: a cap, the function of a change
            is_whole = True
            raise
        finally:
            if connection is not None and is_whole and self.is_open and connection.is_reusable():
                self._idle.append(connection)
            elif connection is not None:
                connection.terminate()

    async def _connect(self, to: DatabaseUrl) -> PostgresConnection:
        try:
            native = await self._asyncpg.connect(
                to.url,
                timeout=TIMEOUT,
                statement_cache_size=to.statements,
                server_settings={"application_name": "mcp-workflows"},
                **({"password": self._ask_password} if self._password else {}),
            )
        except ValueError as error:  # asyncpg's message may quote the URL
            if isinstance(error, OSError):  # the server's certificate is not trusted
                raise
            raise StoreUnusable(f"the store's URL or its TLS files cannot be used ({type(error).__name__})") from None
        return PostgresConnection(native, self._database.schema)

    async def _ask_password(self) -> str:
        assert self._password is not None
        try:
            found = self._password()
            return found if isinstance(found, str) else await found
        except Exception as error:  # noqa: BLE001  # its error may contain a secret
            raise StoreUnavailable(f"the store's password is not available now ({type(error).__name__})") from None

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().terminate()

    def _translated(self, error: Exception, *, opening: bool) -> StoreError:
        state = getattr(error, "sqlstate", None)
        name = type(error).__name__ if state is None else f"{type(error).__name__}, {state}"
        kind: type[StoreError]
        if isinstance(error, TimeoutError):
            kind, text = StoreUnavailable, "does not answer in time"
        elif isinstance(error, OSError):
            kind, text = StoreUnavailable, f"cannot be reached ({error.strerror or name})"
        elif isinstance(error, self._asyncpg.TargetServerAttributeNotMatched):
            kind, text = _READ_ONLY
        elif state is None or state.startswith("08") or state in {"57P01", "57P02"}:
            kind, text = StoreUnavailable, f"has closed the connection ({name})"
        else:
            kind, text = _TROUBLE.get(state, (StoreUnavailable, f"failed ({name})"))
        if opening:
            return kind(f"the store at {self._database.shown} {text}")
        return StoreUnavailable(f"the store {text}")
