"""The poll schedule of one engine: the cached executions, and the time of the next poll of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import anyio

from mcp_workflows.adapter import DescribesMany
from mcp_workflows.engines.polling.peers import Peers
from mcp_workflows.engines.polling.policy import CallRateLimiter, PollingPolicy
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import WorkflowsError
from mcp_workflows.task import Task

NEVER: Final = float("-inf")
FOREVER: Final = float("inf")


@dataclass(slots=True, eq=False)
class CacheEntry:
    """One execution; all times are seconds of the event loop's clock. There may be 10,000 of these: keep it small."""

    task: Task  # at the last poll
    error: WorkflowsError | None = None  # why the last poll failed
    unsaved: str | None = None  # why the result of the last poll is not in the store
    began: float = NEVER  # beginning of the last finished poll
    at: float = NEVER  # end of that poll, or time of the last batch that found no change
    answered: float = NEVER  # the engine's last answer about it
    failing: float = FOREVER  # beginning of the time without answers; throttling counts as an answer
    polled: float = NEVER  # beginning of the last answered poll
    suspected_at: float = NEVER  # the last batch or hint that gave a reason to poll
    hinted: float = NEVER  # the last urgent hint
    stale_at: float = NEVER  # polls that began before this do not count
    asked: float = NEVER  # the last client request
    due: float = FOREVER  # the next background poll
    mark: int | None = None  # digest mark from the last batch
    poll_in_progress: anyio.Event | None = None  # set at its end
    poll_finished: anyio.Event | None = None  # for followers
    followers: int = 0
    wanted_until: float = NEVER  # another replica has followers
    requested: float = NEVER  # when its owner was last asked to poll it for polling clients
    was_cut: bool = False  # the last poll ended with its caller, without an answer

    @property
    def stale(self) -> bool:
        """True if the task was changed, for example cancelled, after the last poll began."""
        return self.began < self.stale_at

    @property
    def is_followed(self) -> bool:
        """True if it has followers, here or on a replica that wants it polled."""
        return bool(self.followers) or (self.wanted_until > NEVER and anyio.current_time() < self.wanted_until)

    @property
    def is_suspect(self) -> bool:
        """True if a batch or hint gave a reason to poll, and no later poll was answered."""
        return self.suspected_at > self.polled

    @property
    def batchable(self) -> bool:
        """True if a batch can confirm the entry. A task to be started, cancelled or saved needs a poll."""
        return self.listed and not self.error and not self.unsaved

    @property
    def unsaved_end(self) -> bool:
        """True if clients may have seen an end that is not in the store yet."""
        return self.unsaved is not None and self.task.ended is not None

    @property
    def listed(self) -> bool:
        """True if a batch can show that the execution is still running."""
        task = self.task
        undelivered = task.cancel_requested is not None and not task.cancel_delivered
        return task.handle is not None and not (undelivered or self.stale)

    def latest(self, task: Task) -> Task:
        """Return the task of the last poll, or the given row if it was changed since, perhaps by a replica."""
        return task if self.stale and not self.task.ended else self.since(task)

    def since(self, known: Task) -> Task:
        """Return the task of the last poll, or `known` if that is newer, so that no client sees an older state."""
        seen = self.task
        newer = known.updated > seen.updated or known.answered > seen.answered
        return known if newer and not seen.ended else seen

    def note_remote(self, began: float, *, is_batch: bool) -> None:
        """Record a poll of another replica, whose row is known here, or its batch, which shows less."""
        if began <= (self.at if is_batch else self.began):
            return
        if not is_batch:
            self.began = self.polled = began
        self.at, self.answered = max(self.at, began), max(self.answered, began)
        self.error, self.failing, self.was_cut = None, FOREVER, False
        self.notify()

    def next_result(self) -> anyio.Event:
        """Return an event that is set when the next poll has finished."""
        self.poll_finished = self.poll_finished or anyio.Event()
        return self.poll_finished

    def finish_poll(self) -> None:
        """End the poll in progress and notify its waiters."""
        poll, self.poll_in_progress = self.poll_in_progress, None
        if poll is not None:
            poll.set()
        self.notify()

    def notify(self) -> None:
        """Wake the followers."""
        finished, self.poll_finished = self.poll_finished, None
        if finished is not None:
            finished.set()


class SuspectQueue:
    """The entries with a reason to poll them, in the order of the reasons; each entry is queued once."""

    def __init__(self) -> None:
        self._entries: dict[CacheEntry, bool] = {}

    def add(self, entry: CacheEntry, since: float, *, urgent: bool) -> None:
        """Queue an entry; polls that began before `since` do not count. `urgent`: it probably ended or asks."""
        entry.suspected_at = max(entry.suspected_at, since)
        if entry.is_suspect:
            self._entries[entry] = urgent or self._entries.get(entry, False)

    def drop(self, entry: CacheEntry) -> None:
        """Remove an entry, because a poll of it begins, or it is deleted."""
        self._entries.pop(entry, None)

    def resolve(self, entry: CacheEntry) -> bool:
        """Remove an entry after a poll, unless a newer reason came too late for that poll; return True if it stays."""
        if not entry.is_suspect:
            self.drop(entry)
        return entry in self._entries

    def __contains__(self, entry: CacheEntry) -> bool:
        return entry in self._entries

    @property
    def urgent(self) -> Sequence[CacheEntry]:
        """The urgent entries without a poll in progress."""
        return [entry for entry, urgent in self._entries.items() if urgent and entry.poll_in_progress is None]

    @property
    def idle(self) -> Sequence[CacheEntry]:
        """The entries without a poll in progress, urgent ones first."""
        idle = [entry for entry in self._entries if entry.poll_in_progress is None]
        return sorted(idle, key=lambda entry: not self._entries[entry])


class HandleIndex:
    """The known executions by handle; two tasks may share one execution."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[CacheEntry, ...]] = {}

    def of(self, handle: str) -> Sequence[CacheEntry]:
        """Return the entries of this handle."""
        return self._named.get(handle, ())

    def add(self, entry: CacheEntry) -> bool:
        """Add an entry; return True if it has a handle and was not indexed before."""
        handle = entry.task.handle
        if handle is None or entry in self.of(handle):
            return False
        self._named[handle] = (*self.of(handle), entry)
        return True

    def drop(self, entry: CacheEntry) -> None:
        """Remove an entry."""
        handle = entry.task.handle
        if handle is not None and entry in self.of(handle):
            rest = tuple(each for each in self.of(handle) if each is not entry)
            self._named.pop(handle)
            if rest:
                self._named[handle] = rest


class PollSchedule:
    """The entries of one engine, the time when each is due, and the engine's limits; the loops act on it."""

    def __init__(self, engine: str, engines: Engines, policy: PollingPolicy, peers: Peers) -> None:
        self.engine = engine
        self.entries: dict[str, CacheEntry] = {}
        self.suspects = SuspectQueue()
        self.woken = anyio.Event()
        self.awaited = anyio.Event()  # a client waits for a poll
        self.asleep_until = FOREVER
        self.batch_after = NEVER
        self._engines = engines
        self.policy = policy
        self.peers = peers
        self._resharded = peers.resharded
        self._mine = 0  # number of entries that this process polls
        self._index = HandleIndex()
        self.limits = policy.limits(engines.allowance(engine), peers.replicas)  # currently allowed, see `read_limits`
        self.call_rate = CallRateLimiter(self.limits.polls_per_second)
        self._limits_read = anyio.current_time()
        self._burst = self.limits.burst
        self._forgot = NEVER

    # --- limits

    def read_limits(self, now: float) -> None:
        """Read the currently allowed rates, unless they were read a moment ago."""
        if now - self._limits_read >= self.policy.allowance_every:
            self._limits_read = now
            self.limits = self.policy.limits(self._engines.allowance(self.engine), self.peers.replicas)
            self.call_rate.limit(self.limits.polls_per_second)
            self._burst = self.limits.burst

    def take_from_burst(self) -> bool:
        """Return True if the engine allows one more early poll now, and count that poll."""
        self.read_limits(anyio.current_time())
        self._burst -= (allowed := self._burst > 0)
        return allowed

    @property
    def load(self) -> int:
        """The number of entries that this process polls."""
        if self._resharded != self.peers.resharded:
            self._resharded = self.peers.resharded
            self._mine = sum(map(self.peers.is_mine, self.entries))
        return self._mine

    @property
    def in_batches(self) -> bool:
        """True if there are enough entries to make batches worthwhile."""
        many, allowed = self.load, self.limits
        if (
            many <= self.policy.batch_from
            or anyio.current_time() < self.batch_after
            or not self._engines.has(self.engine, DescribesMany)
        ):
            return False
        return not allowed.by_quota or many / allowed.polls_per_second > allowed.batch_every

    # --- intervals

    def interval(self, task: Task) -> float:
        """Return the seconds between a client's polls of a task, from its age and the load."""
        return max(self.policy.interval(task), self._load_interval)

    @property
    def _load_interval(self) -> float:
        """The interval that follows from the number of executions.

        With quotas, a batch only shows that executions are still running; everything else is as old as the last poll.
        So the interval is the time for polling all of them, but at most a minute, because by then a batch has found the
        ended ones.
        """
        many = self.load
        if not many:  # only ended tasks, which clients may still poll
            return 0.0
        allowed = self.limits
        polls, batches = many / allowed.polls_per_second, many * allowed.batch_every / allowed.batch
        if not allowed.by_quota:
            return batches if self.in_batches else polls
        if not self.in_batches:
            return min(polls, self.policy.longest_load_interval)
        return max(allowed.batch_every, batches, min(polls, self.policy.confirm_every))

    def _background_interval(self, task: Task) -> float:
        """Return the seconds between two background polls of a task; with quotas the queue adds to it."""
        return self.policy.interval(task) if self.limits.by_quota else self.interval(task)

    def age(self, entry: CacheEntry) -> float:
        """Return the seconds since the last answer about it; with quotas since the last poll, see `_load_interval`."""
        polled = self.limits.by_quota and entry.polled > NEVER
        return anyio.current_time() - (entry.polled if polled else entry.answered)

    def fresh(self, entry: CacheEntry, since: float) -> bool:
        """Return True if the known state is as good as a new poll: observed after `since`, or recent by the interval.

        A client that polls at its given interval, with some tolerance, always gets a new poll.
        """
        if entry.stale:
            return False
        if entry.began >= since:
            return True
        good_for = min(self.policy.early * self.policy.interval(entry.task), self.policy.fresh_for)
        return anyio.current_time() - entry.at <= good_for

    def good_enough(self, entry: CacheEntry) -> bool:
        """Return True if the known state is recent enough when no further poll is allowed."""
        trip = self.load / self.limits.polls_per_second if self.limits.by_quota else 0.0
        longest = self.policy.stale_intervals * max(self.interval(entry.task), trip)
        return not entry.stale and anyio.current_time() - entry.at <= longest

    # --- entries

    def known(self, task: Task) -> CacheEntry:
        """Return the cache entry of a task; create it if there is none."""
        found = self.entries.get(task.id)
        if found is None:
            is_alone = self.peers.replicas == 1
            self._mine = self.load + (is_alone or self.peers.is_mine(task.id))
            found = self.entries[task.id] = CacheEntry(task)
            self._index.add(found)
            if not is_alone and (began := self.peers.last_poll(task.id)) is not None:
                found.note_remote(began, is_batch=False)
        return found

    def idle(self) -> Iterator[CacheEntry]:
        """Iterate over the entries without a poll in progress."""
        return (entry for entry in self.entries.values() if entry.poll_in_progress is None)

    def has(self, entry: CacheEntry) -> bool:
        """Return True if it is still the entry of its task; a deleted one may have a successor."""
        return self.entries.get(entry.task.id) is entry

    def is_mine(self, entry: CacheEntry) -> bool:
        """Return True if this process polls the entry in the background; all replicas poll unstarted ones."""
        return entry.task.handle is None or self.peers.replicas == 1 or self.peers.is_mine(entry.task.id)

    def wanted(self, entry: CacheEntry) -> bool:
        """Return True if this process polls the entry because it is followed or was requested recently."""
        if not self.is_mine(entry):
            return False
        return entry.is_followed or anyio.current_time() - entry.asked < self._interest(entry)

    def note_interest(self, entry: CacheEntry, now: float) -> None:
        """Record a client's request; batches include the entry for some time."""
        entry.asked = now
        if not self.in_batches:
            return
        if self.is_mine(entry):
            self.expect(entry, self._next(entry))
        elif now - entry.requested > self.policy.wanted_for / 2:
            entry.requested = now
            self.peers.want(entry.task.id)

    def follow(self, entry: CacheEntry) -> None:
        """Schedule polls for a follower."""
        now = anyio.current_time()
        if self.wanted(entry):
            self.expect(entry, max(now, self._next(entry)))
        elif entry.followers:
            self.peers.want(entry.task.id)
            self.set_due(entry, self._without_owner(entry, now))

    def expect_soon(self, entry: CacheEntry, now: float) -> None:
        """Make a poll due now, here or at its owner."""
        if self.is_mine(entry):
            self.expect(entry, now)
        else:
            self.peers.want(entry.task.id, now=True)
            self.expect(entry, now + self.policy.owner_grace)

    def note_remote(self, entry: CacheEntry, began: float, interval: float, *, is_batch: bool) -> None:
        """Schedule the next poll after another replica's. A known one leaves the polls for waiting clients due."""
        is_news = began > entry.at
        entry.note_remote(began, is_batch=is_batch)
        self.suspects.resolve(entry)
        if entry.is_followed and not entry.task.ended:
            without = self._without_owner(entry, anyio.current_time(), interval)
            self.set_due(entry, self._next(entry) if self.is_mine(entry) else without)
        elif is_news:
            self.set_due(entry, FOREVER)

    def _without_owner(self, entry: CacheEntry, now: float, interval: float = 0.0) -> float:
        """Return when this process polls another replica's entry, unless it receives news of it."""
        return now + 2 * max(interval, self._background_interval(entry.task)) + self.policy.owner_grace

    def expect(self, entry: CacheEntry, due: float) -> None:
        """Make the next poll due at this time, unless it is due earlier."""
        if due < entry.due:
            self.set_due(entry, due)

    def set_due(self, entry: CacheEntry, due: float) -> None:
        """Make the next poll due at this time."""
        entry.due = due
        if due < self.asleep_until:
            self.woken.set()

    def hint(self, handle: str, *, forwarded: bool = False) -> bool:
        """Queue the executions of a handle that the engine reports as changed; polls that began before do not count.

        Repeated hints within a few seconds are not urgent; otherwise their sender could starve all other executions.
        `forwarded`: it came from another replica, and may have arrived here, too. Return True if this process polls one
        of them.
        """
        now = anyio.current_time()
        ours = [entry for entry in self._index.of(handle) if self.is_mine(entry)]
        for entry in ours:
            known = forwarded and now - entry.hinted < self.policy.owner_grace
            if not (entry.task.ended or known):
                if urgent := now - entry.hinted >= self.policy.urgent_every:
                    entry.hinted = now
                self.suspects.add(entry, now, urgent=urgent)
                self.woken.set()
        return bool(ours)

    def note_poll(self, entry: CacheEntry, now: float) -> None:
        """Schedule the next poll after one has finished."""
        if self._index.add(entry) and self.engine in self._engines.hinting() and not entry.task.ended:
            self.suspects.add(entry, now, urgent=True)  # earlier hints were lost, because the handle was unknown
        if self.suspects.resolve(entry):
            self.woken.set()
        self.set_due(entry, self.next_due(entry, now))
        self._forget(now)

    def next_due(self, entry: CacheEntry, now: float) -> float:
        """Return when to poll again after a poll; ask the owner to do so if that is another replica."""
        wanted = entry.is_suspect or ((entry.is_followed or self.in_batches) and self.wanted(entry))
        if entry.unsaved_end or (wanted and not entry.task.ended):
            return now + self._background_interval(entry.task)
        if entry.followers and not entry.task.ended:
            self.peers.want(entry.task.id)
            return self._without_owner(entry, now)
        return FOREVER

    def _next(self, entry: CacheEntry) -> float:
        """Return the time of the next poll if there is interest."""
        last = entry.began if self.limits.by_quota else entry.at
        return last + self._background_interval(entry.task)

    def _interest(self, entry: CacheEntry) -> float:
        return max(self.policy.interest, 3 * self.interval(entry.task))

    def _forget(self, now: float) -> None:
        """Delete entries that no client has requested recently; their states are in the store."""
        if now - self._forgot < self.policy.forget_after / 10:
            return
        self._forgot = now
        for task_id, entry in list(self.entries.items()):
            idle = not (entry.poll_in_progress or entry.is_followed or entry.unsaved_end)
            if idle and (entry.task.ended or now - entry.asked > max(self.policy.forget_after, self._interest(entry))):
                self._mine = self.load - self.peers.is_mine(task_id)
                del self.entries[task_id]
                self.suspects.drop(entry)
                self._index.drop(entry)
