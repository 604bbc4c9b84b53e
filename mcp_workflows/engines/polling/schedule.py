"""The poll schedule of one engine: the cached executions, and the time of the next look at each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic

import anyio

from mcp_workflows.engines.polling.cache_entry import FOREVER, NEVER, CacheEntry
from mcp_workflows.engines.polling.call_rate import CallRateLimiter
from mcp_workflows.engines.polling.hints import HandleIndex, SuspectQueue
from mcp_workflows.engines.polling.policy import PollingPolicy, PollLimits
from mcp_workflows.engines.registry import Engines
from mcp_workflows.task import Task


class PollSchedule:
    """The entries of one engine, the time each is due, and the engine's limits; the loops act on it."""

    def __init__(self, engine: str, engines: Engines, policy: PollingPolicy, is_mine: Callable[[Task], bool]) -> None:
        """`is_mine` returns True for the tasks that this process looks at in the background."""
        self.engine = engine
        self.entries: dict[str, CacheEntry] = {}
        self.suspects = SuspectQueue()
        self.woken = anyio.Event()
        self.awaited = anyio.Event()  # a client waits for a look
        self.asleep_until = FOREVER
        self.sweep_after = NEVER
        self._engines = engines
        self.policy = policy
        self._is_mine = is_mine
        self._index = HandleIndex()
        self._limits = policy.limits(engines.allowance(engine))
        self._limits_read = monotonic()
        self._call_rate = CallRateLimiter(self._limits.looks_per_second)
        self._burst = self._limits.burst
        self._forgot = NEVER

    # --- limits

    @property
    def limits(self) -> PollLimits:
        """The rates allowed now, as read a moment ago."""
        self._read()
        return self._limits

    @property
    def call_rate(self) -> CallRateLimiter:
        """The rate limiter."""
        self._read()
        return self._call_rate

    def _read(self) -> None:
        if monotonic() - self._limits_read >= self.policy.allowance_every:
            self._limits_read = monotonic()
            self._limits = self.policy.limits(self._engines.allowance(self.engine))
            self._call_rate.limit(self._limits.looks_per_second)
            self._burst = self._limits.burst

    def take_from_burst(self) -> bool:
        """Return True if the engine allows one more early look now, and count that look."""
        self._read()
        self._burst -= (allowed := self._burst > 0)
        return allowed

    @property
    def sweeping(self) -> bool:
        """True if there are so many entries that sweeps are worthwhile."""
        many, allowed = len(self.entries), self.limits
        if many <= self.policy.sweep_from or monotonic() < self.sweep_after or not self._engines.can_sweep(self.engine):
            return False
        return not allowed.by_quota or many / allowed.looks_per_second > allowed.sweep_every

    # --- intervals

    def pace(self, task: Task) -> float:
        """Return the seconds between two polls of a client for a task, by its age and by the load."""
        return max(self.policy.pace(task), self._load_pace)

    @property
    def _load_pace(self) -> float:
        """The interval that follows from the number of executions.

        With quotas, a sweep shows only that executions still run; anything else is as old as the last look. So the
        interval is the time that looks at all of them take, but a minute at most: by then a sweep has found those that
        ended.
        """
        many = len(self.entries)
        if not many:  # only ended tasks, which clients may still poll
            return 0.0
        allowed = self.limits
        looks, sweeps = many / allowed.looks_per_second, many * allowed.sweep_every / allowed.batch
        if not allowed.by_quota:
            return sweeps if self.sweeping else looks
        if not self.sweeping:
            return min(looks, self.policy.longest_load_pace)
        return max(allowed.sweep_every, sweeps, min(looks, self.policy.confirm_every))

    def _look_pace(self, task: Task) -> float:
        """Return the seconds between two background looks at a task; with quotas the queue adds to it."""
        return self.policy.pace(task) if self.limits.by_quota else self.pace(task)

    def age(self, entry: CacheEntry) -> float:
        """Return the seconds since the last answer about it; with quotas since the last look, see `_load_pace`."""
        looked = self.limits.by_quota and entry.looked > NEVER
        return monotonic() - (entry.looked if looked else entry.answered)

    def fresh(self, entry: CacheEntry, since: float) -> bool:
        """Return True if the known state is as good as a new look: seen after `since`, or more recent than the pace.

        A client that polls at the pace it was given, with some tolerance, always gets a new look.
        """
        if entry.stale:
            return False
        age = monotonic() - entry.at
        return entry.began >= since or age <= min(
            self.policy.early * self.policy.pace(entry.task), self.policy.fresh_for
        )

    def good_enough(self, entry: CacheEntry) -> bool:
        """Return True if the known state is recent enough to be returned when no further look is allowed."""
        trip = len(self.entries) / self.limits.looks_per_second if self.limits.by_quota else 0.0
        longest = self.policy.stale_paces * max(self.pace(entry.task), trip)
        return not entry.stale and monotonic() - entry.at <= longest

    # --- entries

    def known(self, task: Task) -> CacheEntry:
        """Return the cache entry of a task; create it if there is none."""
        found = self.entries.get(task.id)
        if found is None:
            found = self.entries[task.id] = CacheEntry(task)
            self._index.add(found)
        return found

    def idle(self) -> Iterator[CacheEntry]:
        """Iterate over the entries without a look in progress."""
        return (entry for entry in self.entries.values() if entry.look_in_progress is None)

    def wanted(self, entry: CacheEntry) -> bool:
        """Return True if this process looks at the entry in the background: it is followed, or was asked for lately."""
        if not self._is_mine(entry.task):
            return False
        return bool(entry.followers) or monotonic() - entry.asked < self._interest(entry)

    def note_interest(self, entry: CacheEntry) -> None:
        """Note that a client asked; sweeps include the entry for some time."""
        entry.asked = monotonic()
        if self.sweeping and self.wanted(entry):
            self.expect(entry, self._next(entry))

    def follow(self, entry: CacheEntry) -> None:
        """Schedule looks for a follower."""
        if self.wanted(entry):
            self.expect(entry, max(monotonic(), self._next(entry)))

    def expect(self, entry: CacheEntry, due: float) -> None:
        """Make the next look due then, unless it is due earlier."""
        if due < entry.due:
            self.set_due(entry, due)

    def set_due(self, entry: CacheEntry, due: float) -> None:
        """Make the next look due then."""
        entry.due = due
        if due < self.asleep_until:
            self.woken.set()

    def hint(self, handle: str) -> None:
        """Queue the executions of a handle that the engine reports as changed; looks that began before do not count.

        Repeated hints within a few seconds are not urgent: otherwise a writer of hints could starve all other
        executions.
        """
        now = monotonic()
        for entry in self._index.of(handle):
            if not entry.task.ended:
                if urgent := now - entry.hinted >= self.policy.urgent_every:
                    entry.hinted = now
                self.suspects.add(entry, now, urgent=urgent)
                self.woken.set()

    def note_look(self, entry: CacheEntry) -> None:
        """Schedule the next look after one has finished."""
        if self._index.add(entry) and self.engine in self._engines.hinting() and not entry.task.ended:
            self.suspects.add(entry, monotonic(), urgent=True)  # hints before the handle was known were lost
        if self.suspects.resolve(entry):
            self.woken.set()
        wanted = entry.is_suspect or ((entry.followers or self.sweeping) and self.wanted(entry))
        due = monotonic() + self._look_pace(entry.task)
        self.set_due(entry, due if entry.unsaved_end or (wanted and not entry.task.ended) else FOREVER)
        self._forget()

    def _next(self, entry: CacheEntry) -> float:
        """Return the time of the next look, if there is interest."""
        last = entry.began if self.limits.by_quota else entry.at
        return last + self._look_pace(entry.task)

    def _interest(self, entry: CacheEntry) -> float:
        return max(self.policy.interest, 3 * self.pace(entry.task))

    def _forget(self) -> None:
        """Drop entries that no client has asked for lately; their states are in the store."""
        now = monotonic()
        if now - self._forgot < self.policy.forget_after / 10:
            return
        self._forgot = now
        for task_id, entry in list(self.entries.items()):
            idle = not (entry.look_in_progress or entry.followers or entry.unsaved_end)
            if idle and (entry.task.ended or now - entry.asked > max(self.policy.forget_after, self._interest(entry))):
                del self.entries[task_id]
                self.suspects.drop(entry)
                self._index.drop(entry)
