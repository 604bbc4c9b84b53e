"""The background loops of one engine: looks at due executions, and sweeps (one call for many), under one rate limit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from heapq import nsmallest
from time import monotonic

import anyio
from anyio.lowlevel import checkpoint

from mcp_workflows.adapter import TERMINAL, Status
from mcp_workflows.engines.polling.cache_entry import FOREVER, NEVER, CacheEntry
from mcp_workflows.engines.polling.schedule import PollSchedule
from mcp_workflows.engines.registry import Engines, ExecutionDigest, digest_of
from mcp_workflows.errors import EngineError

logger = logging.getLogger(__name__)


class SweepLoop:
    """Sweeps one engine: between looks, under the same rate limit; or by the engine's own quota for sweeps."""

    def __init__(self, schedule: PollSchedule, engines: Engines) -> None:
        self._schedule = schedule
        self._policy = schedule.policy
        self._engines = engines
        self._swept = NEVER
        self._pause = self._policy.sweep_pauses[0]

    async def run(self) -> None:
        """Sweep an engine that has quotas, beside all looks, for ever; looks that are due stay due."""
        while True:
            pause = self._policy.sweep_check_every
            if self._schedule.limits.by_quota and self._schedule.sweeping:
                pause = self._schedule.limits.sweep_every
                await self._sweep(self._wanted())
            await anyio.sleep(pause)

    async def sweep_in_slot(self, due: Sequence[CacheEntry], now: float) -> Sequence[CacheEntry]:
        """Sweep the due entries that a sweep can confirm; return those it confirmed whose last look is long ago."""
        if not (batch := self._batch(due, now)):
            return []
        await anyio.sleep(max(0.0, self._swept + self._policy.sweep_every - monotonic()))
        await self._schedule.call_rate.wait_for_slot()
        self._schedule.call_rate.reserve(self, in_slot=True)
        self._schedule.call_rate.made(self)
        self._swept = began = monotonic()
        if not await self._sweep(batch):
            return []
        for entry in batch:
            wanted = self._schedule.wanted(entry)
            self._schedule.set_due(entry, monotonic() + self._schedule.pace(entry.task) if wanted else FOREVER)
        unconfirmed = [
            each for each in batch if not each.is_suspect and began - each.looked > self._policy.confirm_every
        ]
        return sorted(unconfirmed, key=lambda entry: entry.looked)[: self._policy.confirmed_at_once]

    def _batch(self, due: Sequence[CacheEntry], now: float) -> Sequence[CacheEntry]:
        """Return the due entries and, if there is room, those past half of their interval: that saves sweeps."""
        batch = [entry for entry in due if entry.sweepable]
        if batch and len(batch) < self._policy.batch:
            halfway = (entry for entry in self._schedule.idle() if entry.at + entry.due <= 2 * now)
            batch = sorted((each for each in halfway if each.sweepable), key=lambda entry: entry.due)
        return batch[: self._policy.batch]

    def _wanted(self) -> Sequence[CacheEntry]:
        """Return entries that are of interest and not suspected, those first whose last answer is oldest."""
        schedule = self._schedule
        wanted = (
            entry
            for entry in schedule.entries.values()
            if entry.listed and entry not in schedule.suspects and schedule.wanted(entry)
        )
        return nsmallest(schedule.limits.batch, wanted, key=lambda entry: entry.at)

    async def _sweep(self, batch: Sequence[CacheEntry]) -> bool:
        """Ask for all of them in one call; return True if the engine answered."""
        began = monotonic()
        try:
            found = await self._engines.sweep(self._schedule.engine, [entry.task for entry in batch])
        except EngineError as error:
            self._later(error)
            return False
        self._pause = self._policy.sweep_pauses[0]
        for number, entry in enumerate(batch):
            if number % self._policy.batch == 0:
                await checkpoint()  # 10,000 without a pause would block the event loop
            self._compare(entry, found.get(entry.task.id), began)
        return True

    def _compare(self, entry: CacheEntry, found: ExecutionDigest | None, began: float) -> None:
        """Compare a sweep with the one before it, as sweeps show less than looks; the first one with the last look."""
        known, first = entry.task.execution, entry.mark is None
        before = digest_of(known).mark if first else entry.mark
        entry.mark = None if found is None else found.mark
        changed = found is None or found.status in TERMINAL or found.mark != before
        if first and found is not None and self._schedule.limits.by_quota:
            # with quotas a sweep shows far less than a look: a running execution proves no change
            changed = found.status not in (known.status, Status.RUNNING)
        if changed or entry.is_suspect:
            urgent = self._schedule.limits.by_quota if found is None else found.status is not known.status
            self._schedule.suspects.add(entry, began if changed else entry.suspected_at, urgent=urgent)
        elif not entry.stale and entry.at <= began:
            asked = entry.asked >= entry.at
            entry.at, entry.answered, entry.error = began, monotonic(), None
            entry.failing = FOREVER
            if asked:
                entry.notify()  # waiting requests; followers need changes only, and there may be 10,000

    def _later(self, error: EngineError) -> None:
        """Postpone the next sweep; the known states stay, and single looks go on."""
        logger.warning("engine %r cannot be swept, next try in %g s: %s", self._schedule.engine, self._pause, error)
        self._schedule.sweep_after = monotonic() + self._pause
        self._pause = min(self._pause * 2, self._policy.sweep_pauses[1])


class PollLoop:
    """Looks at the due executions of one engine."""

    def __init__(self, schedule: PollSchedule, sweep_loop: SweepLoop, begin_look: Callable[[CacheEntry], None]) -> None:
        self._schedule = schedule
        self._policy = schedule.policy
        self._sweep_loop = sweep_loop
        self._begin_look = begin_look

    async def run(self) -> None:
        """Look at due entries, for ever."""
        schedule = self._schedule
        while True:
            schedule.awaited = anyio.Event()
            await self._round()
            with anyio.move_on_after(self._policy.tick):  # a client that waits makes the next round begin at once
                await schedule.awaited.wait()
            schedule.woken = anyio.Event()
            due = min((entry.due for entry in schedule.idle()), default=FOREVER)
            schedule.asleep_until = NEVER if schedule.suspects.idle else due
            with anyio.move_on_after(schedule.asleep_until - monotonic()):
                await schedule.woken.wait()

    async def _round(self) -> None:
        """Sweep if it is time, then make a few looks: at suspected entries, then at those longest overdue.

        Entries that a client asked for and that were never looked at come before all: they have no state to return yet.
        """
        schedule, now = self._schedule, monotonic()
        self._catch_up()
        if pause := schedule.call_rate.wait_after_early:
            await anyio.sleep(min(pause, self._policy.burst_rest))
            return
        due = [entry for entry in schedule.idle() if entry.due <= now]
        due.sort(key=lambda entry: (entry.at > NEVER or entry.asked == NEVER, entry.due))
        unconfirmed: Sequence[CacheEntry] = []
        if schedule.sweeping and not schedule.limits.by_quota:
            unconfirmed = await self._sweep_loop.sweep_in_slot(due, now)
            due = [entry for entry in due if not entry.sweepable]
        chosen, chosen_at = self._chosen(due, unconfirmed), monotonic()
        for entry in chosen:
            await schedule.call_rate.wait_for_slot()
            if entry.look_in_progress is None and entry.began < chosen_at:
                schedule.call_rate.reserve(entry, in_slot=True)
                self._look(entry)
            self._catch_up()
            if schedule.call_rate.wait_after_early:
                return

    def _catch_up(self) -> None:
        """Look early at urgent entries, as many as the engine allows in a burst."""
        for entry in self._schedule.suspects.urgent:
            if not self._schedule.take_from_burst():
                return
            self._schedule.call_rate.reserve_early(entry)
            self._look(entry)

    def _look(self, entry: CacheEntry) -> None:
        self._schedule.suspects.drop(entry)
        self._begin_look(entry)

    def _chosen(self, due: Sequence[CacheEntry], unconfirmed: Sequence[CacheEntry]) -> Sequence[CacheEntry]:
        """Return the entries to look at in this round.

        Suspected and other entries each get half of the round when there are enough of both, because changes that
        sweeps never show keep an entry suspected for ever. With quotas most looks at other entries are in vain, so they
        get less.
        """
        most = looks = self._policy.looks_per_round
        others = looks // 2
        if self._schedule.limits.by_quota:
            of_quota = int(self._schedule.limits.looks_per_second * self._policy.round_seconds)
            looks = min(max(2, of_quota), most)
            others = max(1, looks // 4)
        suspects = self._schedule.suspects.idle[: max(looks - others, looks - len(due))]
        return list(dict.fromkeys([*suspects, *due[:looks], *unconfirmed]))[:looks]
