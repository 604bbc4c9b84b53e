"""Leases: among the replicas that share a store, one holder at a time does a job and keeps renewing its lease."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from datetime import timedelta

import anyio

from mcp_workflows.errors import StoreError
from mcp_workflows.store.protocol import Store

logger = logging.getLogger(__name__)

LEASE = timedelta(seconds=6)  # the time for another replica to start after a kill -9
_RENEW = LEASE.total_seconds() / 3  # seconds
_RELEASING = 1.0  # seconds; if the store does not answer, the lease expires


class Leases:
    """The leases of one process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._holder = secrets.token_hex(8)

    async def holds(self, name: str, lease: timedelta = LEASE) -> bool:
        """Take or renew the lease; return True if this process holds it. One name always needs the same duration."""
        return await self._store.lease(name, self._holder, lasting=lease)

    async def alone(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work if no other process does. Stop it if the lease is lost, so two processes overlap only briefly."""
        if not await self.holds(name):
            return
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._renew, name, group.cancel_scope)
                await work()
                group.cancel_scope.cancel()
        finally:
            with anyio.move_on_after(_RELEASING, shield=True):
                await self._release(name)

    async def _renew(self, name: str, work: anyio.CancelScope) -> None:
        kept = True
        while kept:
            await anyio.sleep(_RENEW)
            kept = await self._still(name)
        logger.warning("another process now has the maintenance of %r", name)
        work.cancel()

    async def _still(self, name: str) -> bool:
        try:
            return await self.holds(name)
        except StoreError as error:
            logger.warning("the store does not answer: %s", error)
            return False

    async def _release(self, name: str) -> None:
        """Release the lease at once if this process still holds it."""
        try:
            await self.holds(name, timedelta())
        except StoreError as error:
            logger.info("a maintenance lease was not released and will expire: %s", error)
