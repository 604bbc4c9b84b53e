"""Subscriptions to changes of tasks, where the server offers them; the followers of a task look at it themselves."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, cast

import anyio
import mcp_types as types
from mcp.client import ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from mcp_workflows.client.messages import TaskState, listen_to
from mcp_workflows.client.retries import LOST, SHORTEST_PAUSE_SECONDS, pauses, spread

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0  # between two looks, when the server does not say
LONGEST_POLL_SECONDS: Final = 60.0  # even if the server says more
LISTENING_SECONDS: Final = 10.0  # between two looks while the server tells of changes: a stream can die silently
MAX_STREAMS: Final = 20  # each keeps a connection open; more tasks than that are polled


class TaskChanges:
    """A signal that one task may have changed since the last look."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self._told = False  # True if a stream of the server has reported a change
        self._event = anyio.Event()

    def tell(self) -> None:
        """Signal that it may have changed."""
        self._event.set()

    def hear(self) -> None:
        """Signal a change that the server reported."""
        self._told = True
        self.tell()

    def lose(self) -> None:
        """Note that the stream of the server has ended."""
        self._told = False
        self.tell()

    def forget(self) -> None:
        """Reset the signal before a look."""
        self._event = anyio.Event()

    async def wait(self, state: TaskState) -> None:
        """Wait until it may have changed, or it is time for another look."""
        with anyio.move_on_after(spread(self.pause(state))):
            await self._event.wait()

    def pause(self, state: TaskState) -> float:
        """Return the seconds to the next look."""
        wanted = POLL_SECONDS if state.poll_interval_ms is None else state.poll_interval_ms / 1000
        least = LISTENING_SECONDS if self._told else SHORTEST_PAUSE_SECONDS
        return min(max(wanted, least), LONGEST_POLL_SECONDS)


class TaskSubscriptions:
    """The tasks that are followed, with a stream of the server for each, as long as they are few."""

    def __init__(self) -> None:
        self._waiting: set[TaskChanges] = set()
        self._streams = 0

    def hear(self, task_id: str) -> None:
        """Signal a change of a task that the server reported."""
        for changes in self._waiting:
            if changes.task_id == task_id:
                changes.hear()

    @asynccontextmanager
    async def to(self, session: ClientSession, task_id: str) -> AsyncGenerator[TaskChanges]:
        """Follow the changes of one task while this is entered; a single error comes out without a group."""
        changes = TaskChanges(task_id)
        self._waiting.add(changes)
        streams = self._streams < MAX_STREAMS
        self._streams += streams
        try:
            async with anyio.create_task_group() as group:
                if streams:
                    group.start_soon(self._listen, session, changes)
                yield changes
                group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            raise bare(errors) from None
        finally:
            self._waiting.discard(changes)
            self._streams -= streams

    async def _listen(self, session: ClientSession, changes: TaskChanges) -> None:
        """Ask for a stream, and again when it ends; stop where the server offers none."""
        for pause in pauses():
            try:
                await session.send_request(listen_to(changes.task_id), types.SubscriptionsListenResult)
            except MCPError as error:
                if error.code not in LOST:
                    return
            except ValidationError:  # of how it ended; some servers end it in a way of their own
                logger.debug("the server ended the stream of %s in a way of its own", changes.task_id)
            finally:
                changes.lose()
            await anyio.sleep(pause)


def bare(error: BaseException) -> BaseException:
    """Return the error without the groups that task groups wrap around it; the first of several."""
    if isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return bare(inner[0])
    return error
