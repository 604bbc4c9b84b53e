"""The poller: one poll at a time per execution, shared by all requests and followers.

Two background loops per engine decide when to poll: one polls due executions individually, the other in batches, with
one call for many executions. Both share one rate limit.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from heapq import nsmallest
from types import TracebackType
from typing import Final, Self

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from mcp_workflows.adapter import TERMINAL, Status
from mcp_workflows.engines.polling.peers import ALONE, Peers
from mcp_workflows.engines.polling.policy import DEFAULT_POLICY, PollingPolicy
from mcp_workflows.engines.polling.schedule import FOREVER, NEVER, CacheEntry, PollSchedule
from mcp_workflows.engines.polling.watch import HintListeners, LongPolls
from mcp_workflows.engines.registry import Engines, ExecutionDigest, digest_of
from mcp_workflows.errors import EngineError, EngineUnavailable, ServerStopping, WorkflowsError
from mcp_workflows.task import Task
from mcp_workflows.telemetry import detach_trace

logger = logging.getLogger(__name__)

_NEWS: Final = ("updated", "ended", "handle")  # the changes for which other replicas read the row
Poll = Callable[[Task, Task | None, Callable[[], None]], Awaitable[tuple[Task, str | None]]]
Listener = Callable[[Task], Awaitable[bool | None]]


class Poller:
    """Polls executions: one at a time each, cached for a moment, less often with age and load.

    `poll` polls the engine and stores the result. It receives the task, the row if that was just read, and a function
    to call when it sends the request; it returns the task, and the reason if the result could not be saved. Batches,
    long polls and hints only decide when to poll.
    """

    def __init__(
        self,
        poll: Poll,
        engines: Engines,
        policy: PollingPolicy = DEFAULT_POLICY,
        peers: Peers = ALONE,
    ) -> None:
        """Keep the parts; `peers` are the other replicas."""
        self._poll = poll
        self._peers = peers
        self._engines = engines
        self._policy = policy
        self._schedules: dict[str, PollSchedule] = {}
        self._long_polls = LongPolls(engines, policy, self._refresh)
        self._listeners = HintListeners(engines, self.hint, policy)
        self._following: dict[str, CacheEntry] = {}
        self._stopped = False
        self._stack = AsyncExitStack()
        self._group: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._group = await self._stack.enter_async_context(anyio.create_task_group())
        self._group.start_soon(self._listeners.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._group is not None:
            self._group.cancel_scope.cancel()
        return await self._stack.__aexit__(kind, error, trace)

    async def poll(self, task: Task, *, urgent: bool = False) -> Task:
        """Return the given, just read task after a fresh poll, or after one so recent that another is not worthwhile.

        A state that could not be saved is still returned: see `unsaved`. When too many polls are due, the known state
        is good enough for longer (see `interval`) unless `urgent`. An execution without a known state waits for its
        turn.

        Raises:
            EngineError, StoreError: raised by the poll; the error is cached for a moment, too.
        """
        schedule = self._schedule(task.engine)
        entry = schedule.known(task)
        began = anyio.current_time()
        schedule.read_limits(began)
        schedule.note_interest(entry, began)
        row: Task | None = task
        while not schedule.fresh(entry, began):
            if entry.poll_in_progress or entry.stale or urgent or schedule.call_rate.has_capacity:
                await self._share_poll(schedule, entry, row)
            else:
                schedule.expect_soon(entry, began)
                if schedule.good_enough(entry):
                    break
                schedule.awaited.set()
                await entry.next_result().wait()
            row = None  # it may have changed meanwhile
        if entry.error is not None:
            raise entry.error
        return entry.latest(task)

    def latest(self, task: Task) -> Task:
        """Return the task of the last poll, or the given, just read task if that is newer."""
        entry = self._schedule(task.engine).entries.get(task.id)
        return task if entry is None else entry.latest(task)

    def unsaved(self, task: Task) -> str | None:
        """Return why the last poll is not in the store, or None if it is."""
        entry = self._schedule(task.engine).entries.get(task.id)
        return None if entry is None else entry.unsaved

    def interval(self, task: Task) -> float:
        """Return the seconds until the next poll is worthwhile; they grow with the task's age and the load."""
        schedule = self._schedule(task.engine)
        schedule.read_limits(anyio.current_time())
        return schedule.interval(task)

    def age(self, task: Task) -> float:
        """Return the seconds since the engine last answered about the task."""
        schedule = self._schedule(task.engine)
        entry = schedule.entries.get(task.id)
        return 0.0 if entry is None else schedule.age(entry)

    async def follow(self, task: Task, on_change: Listener, *, give_up_after: float = float("inf")) -> Task:
        """Call `on_change` with the task now and after each change that clients can see.

        Return the task when it has ended, or when `on_change` returned True to stop.

        Raises:
            ServerStopping: the server is stopping.
            EngineUnavailable, EngineRefused: no poll was answered for `give_up_after` seconds; throttling counts as
                an answer.
        """
        async with self._followed(task) as entry:
            shown: Task | None = None
            began = anyio.current_time()
            while True:
                if self._stopped:
                    raise ServerStopping
                poll_finished = entry.next_result()
                current = entry.latest(task) if shown is None else entry.since(shown)
                if shown is None or current.shown != shown.shown:
                    shown = current
                    if await on_change(current):
                        return current
                if current.ended:
                    return current
                if entry.error and anyio.current_time() - max(began, entry.failing) > give_up_after:
                    raise entry.error
                await poll_finished.wait()

    def stop(self) -> None:
        """End all following, so that the server can stop before workflows end."""
        self._stopped = True
        for entry in self._following.values():
            entry.next_result().set()

    @property
    def stopped(self) -> bool:
        """True after `stop`."""
        return self._stopped

    def note(self, task: Task) -> None:
        """Notify followers of a change to the task at once, even while the engine does not answer."""
        if entry := self._entry(task.id):
            entry.task = entry.latest(task)
            entry.notify()

    def refresh_now(self, task_id: str) -> None:
        """Make the next poll a fresh one on all replicas, and poll now if the task has followers."""
        self._peers.publish_change(task_id)
        self._refresh(task_id)

    def _refresh(self, task_id: str) -> None:
        if entry := self._entry(task_id):
            entry.stale_at = anyio.current_time()
            self._poll_for_followers(entry)
        self._drop_unneeded_wait(task_id)

    def _drop_unneeded_wait(self, task_id: str) -> None:
        entry = self._entry(task_id)
        if entry is None or entry.task.ended or not entry.is_followed:
            self._long_polls.drop(task_id)

    def hint(self, engine: str, handle: str, *, forwarded: bool = False) -> None:
        """Record a hint of the engine. A webhook or queue message may reach a replica other than the owner."""
        schedule = self._schedules.get(engine)
        is_ours = schedule is not None and schedule.hint(handle, forwarded=forwarded)
        if not (is_ours or forwarded):
            self._peers.forward_hint(engine, handle)

    # --- other replicas

    def needs_row(self, task_id: str) -> bool:
        """Return True if a caller here waits for news of the task."""
        entry = self._entry(task_id)
        return entry is not None and (entry.is_followed or entry.poll_finished is not None)

    def note_remote(self, task_id: str, began: float, interval: float, *, is_batch: bool) -> None:
        """Record a poll of another replica, or its batch; if the row has changed, `note` it first."""
        if entry := self._entry(task_id):
            self._schedule(entry.task.engine).note_remote(entry, began, interval, is_batch=is_batch)

    def note_remote_change(self, task: Task) -> None:
        """Record a row that another replica has changed, perhaps by a cancellation; its owner polls."""
        self.note(task)
        if self._peers.is_mine(task.id):
            self._refresh(task.id)

    def poll_for_others(self, task: Task, *, now: bool) -> None:
        """Poll an execution for another replica: in the background for a while, or once now."""
        if task.ended or self._engines.get(task.engine) is None:
            return
        schedule = self._schedule(task.engine)
        entry = schedule.known(task)
        if now:
            schedule.expect_soon(entry, anyio.current_time())
            schedule.awaited.set()
        else:
            entry.wanted_until = anyio.current_time() + self._policy.wanted_for
            self._poll_for_followers(entry)
            schedule.follow(entry)

    def reshard(self) -> None:
        """Reschedule the followed executions, because some have other owners now."""
        for schedule in self._schedules.values():
            for entry in schedule.entries.values():
                if entry.is_followed and not entry.task.ended:
                    if not self._peers.is_mine(entry.task.id):
                        self._long_polls.drop(entry.task.id)
                    self._poll_for_followers(entry)
                    schedule.follow(entry)

    def renew_interest(self) -> None:
        """Ask the owners again to poll the executions followed here; drop the waits that are no longer needed."""
        for task_id in self._long_polls.task_ids:
            self._drop_unneeded_wait(task_id)
        for task_id in self._following:
            if not self._peers.is_mine(task_id):
                self._peers.want(task_id)

    # --- polls

    async def _share_poll(self, schedule: PollSchedule, entry: CacheEntry, row: Task | None) -> None:
        """Join the poll in progress, or start one.

        The caller itself makes a poll that only reads from a prompt engine; if the caller is cancelled, those that
        joined make another one. Any other poll is a separate task, and continues after its callers have given up.
        """
        if entry.poll_in_progress is not None:
            await entry.poll_in_progress.wait()
            return
        schedule.call_rate.reserve(entry)
        if entry.listed and not entry.was_cut and self._engines.is_prompt(schedule.engine):
            entry.poll_in_progress = anyio.Event()
            await self._poll_once(entry, row)
        else:
            await self._begin_poll(entry, row).wait()

    def _begin_poll(self, entry: CacheEntry, row: Task | None = None) -> anyio.Event:
        """Poll in a separate task; return the event of its end."""
        entry.poll_in_progress = is_over = anyio.Event()
        self._tasks.start_soon(self._poll_once, entry, row)
        return is_over

    async def _poll_once(self, entry: CacheEntry, row: Task | None) -> None:
        began, schedule, before = anyio.current_time(), self._schedule(entry.task.engine), entry.task
        request_made = partial(schedule.call_rate.made, entry)
        entry.was_cut = True
        try:
            try:
                entry.task, entry.unsaved = await self._poll(entry.task, row, request_made)
                entry.error = None
            except WorkflowsError as error:
                entry.error = error
            except Exception:  # a poll belongs to all requests; its error must not end the server: docs/decisions/0002
                logger.exception("a poll of a task failed")
                entry.error = EngineUnavailable("the poll failed; see the log")
            self._note_outcome(entry, began)
            if self._peers.replicas > 1 and entry.error is None and entry.unsaved is None:
                changed = any(getattr(entry.task, name) != getattr(before, name) for name in _NEWS)
                self._peers.publish(entry.task.id, began, schedule.interval(entry.task), changed=changed)
        finally:
            request_made()  # in case no request was made
            entry.finish_poll()
            schedule.note_poll(entry, anyio.current_time())
            self._poll_for_followers(entry)

    def _note_outcome(self, entry: CacheEntry, began: float) -> None:
        entry.was_cut, entry.began, entry.at = False, began, anyio.current_time()
        if entry.error is None:
            entry.polled, entry.answered = began, entry.at
        throttled = isinstance(entry.error, EngineUnavailable) and entry.error.throttled
        entry.failing = FOREVER if entry.error is None or throttled else min(entry.failing, entry.at)

    def _poll_for_followers(self, entry: CacheEntry) -> None:
        """Poll a changed task at once if it has followers."""
        if entry.is_followed and entry.task.ended is None:
            if self._peers.is_mine(entry.task.id):
                self._long_polls.add(self._tasks, entry.task)
            if entry.stale and entry.poll_in_progress is None:
                self._schedule(entry.task.engine).call_rate.reserve(entry)
                self._begin_poll(entry)

    # --- followers and background loops

    @asynccontextmanager
    async def _followed(self, task: Task) -> AsyncGenerator[CacheEntry]:
        """Count a follower while in the context; followed tasks are polled in the background."""
        schedule = self._schedule(task.engine)
        entry = schedule.known(task)
        entry.followers += 1
        self._following[task.id] = entry
        self._poll_for_followers(entry)
        schedule.follow(entry)
        try:
            yield entry
        finally:
            entry.followers -= 1
            if not entry.followers:
                del self._following[task.id]
                self._long_polls.drop(task.id)

    def _entry(self, task_id: str) -> CacheEntry | None:
        return next((entry for each in self._schedules.values() if (entry := each.entries.get(task_id))), None)

    def _schedule(self, engine: str) -> PollSchedule:
        found = self._schedules.get(engine)
        if found is None:
            found = self._schedules[engine] = PollSchedule(engine, self._engines, self._policy, self._peers)
            batch_loop = BatchLoop(found, self._engines)
            for run in (PollLoop(found, batch_loop, self._begin_poll).run, batch_loop.run):
                self._tasks.start_soon(self._keep_going, run)
        return found

    async def _keep_going(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run a background loop until cancelled, outside any request's trace."""
        detach_trace()
        while True:
            try:
                await run()
            except Exception:  # a background loop must not end the server: docs/decisions/0002
                logger.exception("background polling failed; it restarts in %g s", self._policy.restart_after)
                await anyio.sleep(self._policy.restart_after)

    @property
    def _tasks(self) -> TaskGroup:
        if self._group is None:
            raise RuntimeError("the poller is not entered")
        return self._group


class BatchLoop:
    """Polls one engine in batches: between polls, within the same rate limit, or by the engine's quota for lists."""

    def __init__(self, schedule: PollSchedule, engines: Engines) -> None:
        self._schedule = schedule
        self._policy = schedule.policy
        self._engines = engines
        self._batch_at = NEVER
        self._pause = self._policy.batch_pauses[0]

    async def run(self) -> None:
        """Poll batches of an engine with quotas, in addition to all polls, until cancelled; due polls stay due."""
        while True:
            pause = self._policy.batch_check_every
            if anyio.current_time() >= self._schedule.peers.live_until:
                await anyio.sleep(pause)
                continue
            self._schedule.read_limits(anyio.current_time())
            if self._schedule.limits.by_quota and self._schedule.in_batches:
                pause = self._schedule.limits.batch_every
                await self._poll_batch(self._wanted())
            await anyio.sleep(pause)

    async def poll_in_slot(self, due: Sequence[CacheEntry], now: float) -> Sequence[CacheEntry]:
        """Poll the due entries that a batch can confirm; return the confirmed ones whose last poll is long ago."""
        if not (batch := self._batch(due, now)):
            return []
        await anyio.sleep(max(0.0, self._batch_at + self._schedule.limits.batch_every - anyio.current_time()))
        await self._schedule.call_rate.wait_for_slot()
        if anyio.current_time() >= self._schedule.peers.live_until:
            return []
        self._schedule.call_rate.reserve(self, in_slot=True)
        self._schedule.call_rate.made(self)
        self._batch_at = began = anyio.current_time()
        if not await self._poll_batch(batch):
            return []
        now = anyio.current_time()
        batch = [entry for entry in batch if self._schedule.has(entry)]
        for entry in batch:
            self._schedule.set_due(entry, self._schedule.next_due(entry, now))
        unconfirmed = [
            each for each in batch if not each.is_suspect and began - each.polled > self._policy.confirm_every
        ]
        return sorted(unconfirmed, key=lambda entry: entry.polled)[: self._policy.confirmed_at_once]

    def _batch(self, due: Sequence[CacheEntry], now: float) -> Sequence[CacheEntry]:
        """Return the due entries and, if there is room, those past half of their interval, which saves calls."""
        batch = [entry for entry in due if entry.batchable]
        if batch and len(batch) < self._policy.batch:
            halfway = (entry for entry in self._schedule.idle() if entry.at + entry.due <= 2 * now)
            ours = (
                entry for entry in halfway if entry.batchable and (entry.due <= now or self._schedule.is_mine(entry))
            )
            batch = sorted(ours, key=lambda entry: entry.due)
        return batch[: self._policy.batch]

    def _wanted(self) -> Sequence[CacheEntry]:
        """Return entries that are of interest and not suspected, those with the oldest last answer first."""
        schedule = self._schedule
        wanted = (
            entry
            for entry in schedule.entries.values()
            if entry.listed and entry not in schedule.suspects and schedule.wanted(entry)
        )
        return nsmallest(schedule.limits.batch, wanted, key=lambda entry: entry.at)

    async def _poll_batch(self, batch: Sequence[CacheEntry]) -> bool:
        """Poll all of them in one call; return True if the engine answered."""
        began = anyio.current_time()
        try:
            found = await self._engines.describe_many(self._schedule.engine, [entry.task for entry in batch])
        except EngineError as error:
            self._later(error)
            return False
        self._pause = self._policy.batch_pauses[0]
        for number, entry in enumerate(batch):
            if number % self._policy.batch == 0:
                await checkpoint()  # 10,000 without a pause would block the event loop
            if self._schedule.has(entry):  # it was not deleted meanwhile
                self._compare(entry, found.get(entry.task.id), began)
        return True

    def _compare(self, entry: CacheEntry, found: ExecutionDigest | None, began: float) -> None:
        """Compare a batch with the previous one, because batches show less than polls; the first with the last poll."""
        known, first = entry.task.execution, entry.mark is None
        before = digest_of(known).mark if first else entry.mark
        entry.mark = None if found is None else found.mark
        changed = found is None or found.status in TERMINAL or found.mark != before
        if first and found is not None and self._schedule.limits.by_quota:
            # with quotas a batch shows far less than a poll: a running execution does not prove a change
            changed = found.status not in (known.status, Status.RUNNING)
        if changed or entry.is_suspect:
            urgent = self._schedule.limits.by_quota if found is None else found.status is not known.status
            self._schedule.suspects.add(entry, began if changed else entry.suspected_at, urgent=urgent)
        elif not entry.stale and entry.at <= began:
            asked = entry.asked >= entry.at
            entry.at, entry.answered, entry.error = began, anyio.current_time(), None
            entry.failing = FOREVER
            if (peers := self._schedule.peers).replicas > 1:
                peers.publish(entry.task.id, began, self._schedule.interval(entry.task), changed=None)
            if asked:
                entry.notify()  # wakes waiting requests; followers need only changes, and there may be 10,000

    def _later(self, error: EngineError) -> None:
        """Postpone the next batch; the known states stay, and single polls continue."""
        logger.warning("engine %r answered no batch; retry in %g s: %s", self._schedule.engine, self._pause, error)
        self._schedule.batch_after = anyio.current_time() + self._pause
        self._pause = min(self._pause * 2, self._policy.batch_pauses[1])


class PollLoop:
    """Polls the due executions of one engine."""

    def __init__(
        self, schedule: PollSchedule, batch_loop: BatchLoop, begin_poll: Callable[[CacheEntry], object]
    ) -> None:
        self._schedule = schedule
        self._policy = schedule.policy
        self._batch_loop = batch_loop
        self._begin_poll = begin_poll

    async def run(self) -> None:
        """Poll due entries, until cancelled."""
        schedule = self._schedule
        while True:
            schedule.awaited = anyio.Event()
            await self._round()
            with anyio.move_on_after(self._policy.tick):  # a waiting client starts the next round at once
                await schedule.awaited.wait()
            schedule.woken = anyio.Event()
            due = min((entry.due for entry in schedule.idle()), default=FOREVER)
            schedule.asleep_until = NEVER if schedule.suspects.idle else due
            with anyio.move_on_after(schedule.asleep_until - anyio.current_time()):
                await schedule.woken.wait()

    async def _round(self) -> None:
        """Poll a batch if it is time, then make a few polls: of suspected entries, then of those longest overdue.

        Requested entries that were never polled come first, because they have no state to return yet.
        """
        schedule, now = self._schedule, anyio.current_time()
        if now >= schedule.peers.live_until:
            await anyio.sleep(self._policy.burst_rest)
            return
        schedule.read_limits(now)
        self._catch_up()
        if pause := schedule.call_rate.wait_after_early:
            await anyio.sleep(min(pause, self._policy.burst_rest))
            return
        due = [entry for entry in schedule.idle() if entry.due <= now]
        due.sort(key=lambda entry: (entry.at > NEVER or entry.asked == NEVER, entry.due))
        unconfirmed: Sequence[CacheEntry] = []
        if schedule.in_batches and not schedule.limits.by_quota:
            unconfirmed = await self._batch_loop.poll_in_slot(due, now)
            due = [entry for entry in due if not entry.batchable]
        chosen, chosen_at = self._chosen(due, unconfirmed), anyio.current_time()
        for entry in chosen:
            schedule.read_limits(anyio.current_time())
            await schedule.call_rate.wait_for_slot()
            if entry.poll_in_progress is None and entry.began < chosen_at and schedule.has(entry):
                schedule.call_rate.reserve(entry, in_slot=True)
                self._poll(entry)
            self._catch_up()
            if schedule.call_rate.wait_after_early:
                return

    def _catch_up(self) -> None:
        """Poll urgent entries early, as many as the engine allows in a burst."""
        for entry in self._schedule.suspects.urgent:
            if not self._schedule.take_from_burst():
                return
            self._schedule.call_rate.reserve_early(entry)
            self._poll(entry)

    def _poll(self, entry: CacheEntry) -> None:
        self._schedule.suspects.drop(entry)
        self._begin_poll(entry)

    def _chosen(self, due: Sequence[CacheEntry], unconfirmed: Sequence[CacheEntry]) -> Sequence[CacheEntry]:
        """Return the entries to poll in this round.

        Suspected and other entries each get half of the round when there are enough of both, because changes that
        batches never show keep an entry suspected forever. With quotas most polls of other entries are unnecessary, so
        these get less.
        """
        most = polls = self._policy.polls_per_round
        others = polls // 2
        if self._schedule.limits.by_quota:
            of_quota = int(self._schedule.limits.polls_per_second * self._policy.round_seconds)
            polls = min(max(2, of_quota), most)
            others = max(1, polls // 4)
        suspects = self._schedule.suspects.idle[: max(polls - others, polls - len(due))]
        return list(dict.fromkeys([*suspects, *due[:polls], *unconfirmed]))[:polls]
