"""The meaning of errors of DBOS and of its database.

Their texts may contain the URL of the database, so none of them is repeated.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Final

import psycopg
from dbos import error as dbos_error
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, ExecutionNotFound, StartConflict
from mcp_workflows_dbos.settings import is_sqlite

_DATABASE: Final = "the database of DBOS"

_MEANINGS: Final[Mapping[type[Exception], Callable[[], EngineError]]] = {
    dbos_error.DBOSConflictingWorkflowError: lambda: StartConflict("this key belongs to another workflow"),
    dbos_error.DBOSNonExistentWorkflowError: lambda: ExecutionNotFound("DBOS has no such workflow"),
    DataError: lambda: EngineRefused(f"{_DATABASE} takes no such text", final=True),
    UnicodeError: lambda: EngineRefused(f"{_DATABASE} takes no such text", final=True),
    OperationalError: lambda: EngineUnavailable(
        f"{_DATABASE} cannot be reached, or has not been set up by an application"
    ),
    InterfaceError: lambda: EngineUnavailable(f"{_DATABASE} cannot be reached"),
    DBAPIError: lambda: EngineUnavailable(f"{_DATABASE} did not do what it was asked"),
    SQLAlchemyError: lambda: EngineUnavailable(f"{_DATABASE} did not do what it was asked"),
    dbos_error.DBOSException: lambda: EngineUnavailable("DBOS did not do what it was asked"),
    psycopg.Error: lambda: EngineUnavailable(f"{_DATABASE} cannot be reached"),  # from a connection that listens
    OSError: lambda: EngineUnavailable(f"{_DATABASE} cannot be reached"),
}
"""The meaning of each error; the first matching class counts."""


@contextmanager
def translated() -> Generator[None]:
    """Translate errors of DBOS and SQLAlchemy.

    Raises:
        StartConflict, ExecutionNotFound, EngineRefused, EngineUnavailable: see the table.
    """
    try:
        yield
    except tuple(_MEANINGS) as error:
        meaning = next(meant for kind, meant in _MEANINGS.items() if isinstance(error, kind))
        raise meaning() from None


class ForeignDatabaseError(Exception):
    """An SQLite file that has tables, but none of DBOS."""


_FOREIGN: Final = "is no database of DBOS: move it away, or set `database` to another file"
_UNWRITABLE: Final = "cannot be written: give this user the right to write it and its folder, or set `database`"
_FILE_PROBLEMS: Final[Mapping[int, str]] = {
    sqlite3.SQLITE_NOTADB: _FOREIGN,
    sqlite3.SQLITE_ERROR: _FOREIGN,  # tables of these names with other columns
    sqlite3.SQLITE_CORRUPT: "is damaged: restore a copy, or move it away and lose its executions",
    sqlite3.SQLITE_READONLY: _UNWRITABLE,
    sqlite3.SQLITE_CANTOPEN: _UNWRITABLE,
    sqlite3.SQLITE_PERM: _UNWRITABLE,
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk fails, or the file is on one that is away",
    sqlite3.SQLITE_BUSY: "is locked by another process for too long",
}


def problem_of(error: Exception, url: str) -> tuple[str, str]:
    """Return the place of a database that an executor cannot use, and the problem; neither contains a secret.

    Only operators may see the place, which is a path or the address of a server.
    """
    parsed = make_url(url)
    cause = error.orig if isinstance(error, DBAPIError) else error
    if is_sqlite(url):
        if isinstance(error, ForeignDatabaseError):
            return f"{parsed.database}", _FOREIGN
        code = sqlite3.SQLITE_PERM if isinstance(error, OSError) else getattr(cause, "sqlite_errorcode", None)
        if isinstance(code, int) and (problem := _FILE_PROBLEMS.get(code & 0xFF)):  # the rest is details
            return f"{parsed.database}", problem
    elif isinstance(error, SQLAlchemyError):
        state = getattr(cause, "sqlstate", None)
        problem = "does not answer, or does not let us in" if state is None else f"refuses the work (SQLSTATE {state})"
        place = f"PostgreSQL at {parsed.host or 'localhost'}:{parsed.port or 5432}, database {parsed.database},"
        return place, problem
    return f"{parsed.database}", f"cannot be used ({type(error).__name__})"
