"""One look at an execution: a start or a cancellation that is due, the description, and the change of the row."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from mcp_workflows.access.audit import Audit, silent, status_record
from mcp_workflows.adapter import Execution, Failure, Status
from mcp_workflows.engines.registry import Engines, ref_of, validated
from mcp_workflows.errors import INTERNAL_ERROR, EngineUnavailable, ExecutionNotFound, StoreError
from mcp_workflows.store.protocol import Store, changed
from mcp_workflows.task import Task, identify, observe
from mcp_workflows.tasks.cancel import Cancellation
from mcp_workflows.tasks.results import keepable, mismatch, tool_result
from mcp_workflows.tasks.start import TaskCreation

logger = logging.getLogger(__name__)

SETTLING = timedelta(minutes=1)  # how long a new execution may be unknown to its engine (eventual consistency)


class ExecutionLook:
    """Looks at executions; the poller decides when, and sees to it that there is one look at a time for each."""

    def __init__(
        self,
        *,
        store: Store,
        engines: Engines,
        creation: TaskCreation,
        cancellation: Cancellation,
        max_kept_result: int | None,
        clock: Callable[[], datetime],
        is_steady: Callable[[], bool],
        audit: Audit,
    ) -> None:
        """`is_steady` returns True if the clock can be trusted now, and was not just set."""
        self._store = store
        self._engines = engines
        self._creation = creation
        self._cancellation = cancellation
        self._max_kept_result = max_kept_result
        self._clock = clock
        self._is_steady = is_steady
        self._audit = audit

    async def __call__(self, task: Task, row: Task | None, asks: Callable[[], None]) -> tuple[Task, str | None]:
        """Look at an execution and store the result; `row` is the row if it was just read.

        Returns the task, and the reason if the result could not be saved.
        """
        row = row or await self._store.get(task.id, task.owner) or task
        if row.tombstone and task.handle is not None:
            row = task  # it expired; a plain call that still waits for it gets its result
        if row.cancelled and not task.cancelled:
            return row, None  # another replica told a client so, which is final; the next look asks the engine
        if not row.ended and row.handle is None:
            with self._engines.admitted(row.engine):
                row = await self._creation.ensure_started(row)
            if row.ended:
                self._record_status(row)
        if row.ended or (handle := row.handle) is None:
            return row, None
        if task.ended and not row.tombstone:
            # clients may have seen this end, so it stays
            return await self._observed(row, task.execution, task.updated)
        if row.cancel_requested and not row.cancel_delivered:
            self._engines.check_identity(row)
            delivered = await self._cancellation.deliver_again(row, handle)
            row = row if delivered.tombstone else delivered
        asks()
        execution = await self._describe(row, handle)
        if row.identity != (current := self._engines.identity(row.engine)):  # written before engines had one
            row = await changed(self._store, row, partial(identify, identity=current))
        if execution.is_unmapped:
            self._engines.telemetry.unmapped(row.engine)
            logger.warning("engine %r: %s", row.engine, execution.message)
        if observe(row, execution, row.updated) is row:
            return row, None
        kept = keepable(validated(execution), self._max_kept_result)
        return await self._observed(row, kept, task.updated if task.execution == kept else self._clock())

    async def _observed(self, row: Task, execution: Execution, at: datetime) -> tuple[Task, str | None]:
        """Store an execution in its row. One replica's transaction changes the status, and that replica records it."""
        is_new_status = False

        def see(task: Task) -> Task:
            nonlocal is_new_status
            after = observe(task, execution, at)
            is_new_status = after.execution.status is not task.execution.status
            return after

        try:
            seen = await changed(self._store, row, see)
        except StoreError as error:
            return observe(row, execution, at), f"not saved: {error}"
        if seen.tombstone:
            return observe(row, execution, at), None
        if is_new_status:
            self._record_status(seen)
        return seen, None

    def _record_status(self, task: Task) -> None:
        is_done = task.execution.status is Status.SUCCEEDED
        if wrong := is_done and mismatch(tool_result(task.execution.output), task.output_schema):
            self._engines.telemetry.mismatched(task.engine, task.tool)
            said = "a result does not match the output schema, and is delivered with a mark"
            logger.warning("tool %r: %s: %s", task.tool, said, wrong)
        if self._audit is not silent:
            self._audit(status_record(task))

    async def _describe(self, task: Task, handle: str) -> Execution:
        try:
            async with self._engines.calling(task, api="describe") as adapter:
                return await adapter.describe(ref_of(task, handle))
        except ExecutionNotFound:
            if task.identity != self._engines.identity(task.engine):
                raise EngineUnavailable("it does not show the execution, and may not be the one it ran on") from None
            settled = self._clock() - task.updated >= SETTLING  # created: perhaps long before it could be started
            if not (settled and self._is_steady()):
                raise EngineUnavailable("it does not show the execution yet") from None
            text = f"engine {task.engine} has no such execution any more: its outcome is not known"
            failure = Failure(text=text, kind="ExecutionNotFound", code=INTERNAL_ERROR)
            return replace(task.execution, status=Status.FAILED, failure=failure, requests={})
