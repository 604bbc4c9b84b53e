"""Cancellations: delivered until the engine has taken them; after the grace period the execution is terminated."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

import anyio

from mcp_workflows.access.audit import Audit, Event, record_of, silent
from mcp_workflows.adapter import Terminates
from mcp_workflows.engines.registry import Engines, ref_of
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable, StoreError
from mcp_workflows.store.protocol import Store, changed
from mcp_workflows.task import Task, deliver_cancel, mark_terminated, request_cancel

logger = logging.getLogger(__name__)

REFUSED_FOR: Final = 60.0  # seconds before a cancellation that was refused is sent again by itself

Look = Callable[[Task], Awaitable[Task]]


class Cancellation:
    """Delivers cancellations and terminates executions."""

    def __init__(self, store: Store, engines: Engines, clock: Callable[[], datetime], *, audit: Audit = silent) -> None:
        self._store = store
        self._engines = engines
        self._clock = clock
        self._audit = audit
        self._refused: dict[str, float] = {}  # times of the event loop's clock by task id, of the last `REFUSED_FOR`

    async def deliver_again(self, task: Task, handle: str) -> Task:
        """Deliver a cancellation, but not soon after the engine has refused it."""
        now = anyio.current_time()
        self._refused = {name: at for name, at in self._refused.items() if now - at < REFUSED_FOR}
        return task if task.id in self._refused else await self.deliver(task, handle)

    async def deliver(self, task: Task, handle: str) -> Task:
        """Send the cancellation to the engine; if the engine does not take it now, it stays due."""
        try:
            async with self._engines.calling(task, api="cancel") as adapter:
                await adapter.cancel(ref_of(task, handle))
        except EngineError as error:
            if isinstance(error, EngineRefused):
                self._refused[task.id] = anyio.current_time()
            logger.warning("engine %r did not take a cancellation, it will be sent again: %s", task.engine, error)
            return task
        try:
            return await changed(self._store, task, lambda row: deliver_cancel(row, self._clock()))
        except StoreError as error:  # the look that delivered it goes on
            logger.warning("a cancellation that engine %r took is sent again: %s", task.engine, error)
            return task

    async def attend(self, task: Task, look: Look) -> None:
        """Do the step that is due for this task, if it still is.

        `look` is a fresh look, which also delivers a cancellation.

        Raises:
            EngineError: the step did not work, and is still due.
        """
        row = await self._store.get(task.id, task.owner)
        if row is None or not self._is_due(row):
            return
        if row.cancel_requested is None:
            row = await changed(self._store, row, lambda found: request_cancel(found, self._clock()))
            self._record(row, "its time to live was over", "expired")
        row = await look(row)
        if row.ended or row.handle is None:
            return
        if not row.cancel_delivered:
            raise EngineUnavailable("it did not take a cancellation")
        if self._is_due(row):
            await look(await self._terminate(row, row.handle))

    async def _terminate(self, task: Task, handle: str) -> Task:
        reason = f"it had not ended within {task.grace:g} s of being asked to cancel"
        async with self._engines.calling(task, api="terminate") as adapter:
            if not isinstance(adapter, Terminates):
                raise EngineRefused("its adapter cannot terminate")
            await adapter.terminate(ref_of(task, handle), reason)
        row = await changed(self._store, task, lambda found: mark_terminated(found, self._clock()))
        logger.info("terminated an execution of a %s task on engine %r: %s", task.tool, task.engine, reason)
        self._record(row, reason, "terminated")
        return row

    def _is_due(self, row: Task) -> bool:
        return row.due is not None and row.due <= self._clock()

    def _record(self, row: Task, reason: str, outcome: str) -> None:
        self._audit(record_of(Event.CANCEL, None, row, outcome=outcome, reason=reason))
