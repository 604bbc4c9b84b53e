"""The state of one session of 2025-11-25 or before, until it ends; it has no part in the ownership of tasks."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext

from mcp_workflows.errors import WorkflowsError
from mcp_workflows.receiver.v2025_11_25.elicitation import Questions
from mcp_workflows.wire.commands import TaskView

logger = logging.getLogger(__name__)

_STATE: Final = "mcp_workflows"


@dataclass(slots=True, eq=False)
class PolledQuestion:
    """A question that the client sees in `tasks/get`, and may not be asked; times are of the event loop's clock."""

    seen: int = 0
    complaint: str | None = None  # about the answer to it
    rejections: int = 0  # answers that did not fit
    pause: float = 0.0  # seconds until it is asked again, if it comes to nothing
    not_before: float = 0.0


@dataclass(slots=True, eq=False)
class Session:
    """One connection: the questions to its client, and the work beside its requests."""

    connection: Connection
    augmented: bool = False  # it has asked for a task
    is_reachable: bool | None = None  # outside of any request; None: not known
    is_checking: bool = False  # if the client is reachable
    questions: Questions = field(default_factory=Questions)
    polled: dict[tuple[str, str], PolledQuestion] = field(default_factory=dict[tuple[str, str], "PolledQuestion"])
    _beside: set[anyio.CancelScope] = field(default_factory=set[anyio.CancelScope])
    _alone: dict[str, anyio.CancelScope] = field(default_factory=dict[str, anyio.CancelScope])

    def start(self, group: TaskGroup, work: Callable[[], Awaitable[object]]) -> None:
        """Start work that goes on after the current request, until the session ends."""
        group.start_soon(self._guarded, work)

    async def _guarded(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run work that ends with the session; its errors never end the server."""
        with anyio.CancelScope() as scope:
            self._beside.add(scope)
            try:
                await work()
            except WorkflowsError as error:
                logger.info("something beside the requests of a client ended: %s", error)
            except Exception:  # work beside requests must not end the server: docs/decisions/0002
                logger.exception("something beside the requests of a client broke")
            finally:
                self._beside.discard(scope)

    @contextmanager
    def alone(self, name: str) -> Generator[None]:
        """Cancel the body when it begins again under this name."""
        if before := self._alone.get(name):
            before.cancel()
        with anyio.CancelScope() as scope:
            self._alone[name] = scope
            try:
                yield
            finally:
                if self._alone.get(name) is scope:
                    del self._alone[name]

    def end(self) -> None:
        """Cancel the work: the connection is closed."""
        for scope in tuple(self._beside):
            scope.cancel()

    def forget(self, task: TaskView) -> None:
        """Forget the questions of the task that are not open any more."""
        closed = [asked for asked in self.polled if asked[0] == task.task_id and asked[1] not in task.requests]
        for asked in closed:
            del self.polled[asked]


def connection_of(ctx: ServerRequestContext[Any, Any]) -> Connection:
    """Return the connection of a request, where the SDK lets us keep state."""
    return ctx.session._connection  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def session_of(ctx: ServerRequestContext[Any, Any]) -> Session:
    """Return the session of a request; a new one at its first request, or at each if the server keeps no sessions."""
    connection = connection_of(ctx)
    found = connection.state.get(_STATE)
    if not isinstance(found, Session):
        found = connection.state[_STATE] = Session(connection)
        connection.exit_stack.callback(found.end)
    return found
