"""Being told that a task may have changed, where the server offers it; looking at it remains with whoever waits."""

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
LONGEST_POLL_SECONDS: Final = 60.0  # whatever the server says
LISTENING_SECONDS: Final = 10.0  # between two looks while the server tells of changes: a stream can die silently
MAX_STREAMS: Final = 20  # each keeps a connection open; more tasks than that are polled


class Changes:
    """Whether one task may have changed since it was looked at."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self._told = False  # whether the server really tells, as far as known
        self._event = anyio.Event()

    def tell(self) -> None:
        """It may have."""
        self._event.set()

    def hear(self) -> None:
        """The server says so."""
        self._told = True
        self.tell()

    def lose(self) -> None:
        """Nobody tells any more."""
        self._told = False
        self.tell()

    def forget(self) -> None:
        """It is about to be looked at."""
        self._event = anyio.Event()

    async def wait(self, state: TaskState) -> None:
        """Until it may have changed, or it is time for another look."""
        with anyio.move_on_after(spread(self.pause(state))):
            await self._event.wait()

    def pause(self, state: TaskState) -> float:
        """Seconds to the next look."""
        wanted = POLL_SECONDS if state.poll_interval_ms is None else state.poll_interval_ms / 1000
        least = LISTENING_SECONDS if self._told else SHORTEST_PAUSE_SECONDS
        return min(max(wanted, least), LONGEST_POLL_SECONDS)


class Listening:
    """The tasks somebody waits for; a stream of the server for each, as long as they are few."""

    def __init__(self) -> None:
        self._waiting: set[Changes] = set()
        self._streams = 0

    def hear(self, task_id: str) -> None:
        """The server says that this one changed."""
        for changes in self._waiting:
            if changes.task_id == task_id:
                changes.hear()

    @asynccontextmanager
    async def to(self, session: ClientSession, task_id: str) -> AsyncGenerator[Changes]:
        """The changes of one task, as long as this is entered; one error comes out as it is, without a group."""
        changes = Changes(task_id)
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

    async def _listen(self, session: ClientSession, changes: Changes) -> None:
        """Ask for a stream, and again when it ends; not where that is not offered."""
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
    """The error as it was raised, without the groups that task groups wrap around it; the first of several."""
    if isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return bare(inner[0])
    return error
