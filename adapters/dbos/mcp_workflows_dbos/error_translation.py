"""Errors of DBOS and of its database, in the words of the boundary.

Their texts may hold the URL of the database, so none of them is passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Final

import psycopg
from dbos import error as dbos_error
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, ExecutionNotFound, StartConflict

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
"""The meaning of each error; the first class that fits counts."""


@contextmanager
def translated() -> Generator[None]:
    """Translate what DBOS and SQLAlchemy raise.

    Raises:
        StartConflict, ExecutionNotFound, EngineRefused, EngineUnavailable: see the table.
    """
    try:
        yield
    except tuple(_MEANINGS) as error:
        meaning = next(meant for kind, meant in _MEANINGS.items() if isinstance(error, kind))
        raise meaning() from None
