"""The cache entry of one execution: the last look at it, and the interest in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import anyio

from mcp_workflows.errors import WorkflowsError
from mcp_workflows.task import Task

NEVER: Final = float("-inf")
FOREVER: Final = float("inf")


@dataclass(slots=True, eq=False)
class CacheEntry:
    """One execution; all times are seconds of the monotonic clock. There may be 10,000 of these: keep it small."""

    task: Task  # at the last look
    error: WorkflowsError | None = None  # the reason why the last look failed
    unsaved: str | None = None  # the reason why the result of the last look is not in the store
    began: float = NEVER  # start of the last finished look
    at: float = NEVER  # end of that look, or time of the last sweep that found no change
    answered: float = NEVER  # the engine's last answer about it
    failing: float = FOREVER  # start of the time without answers; being throttled counts as an answer
    looked: float = NEVER  # start of the last look that got an answer
    suspected_at: float = NEVER  # the last sweep or hint that gave a reason to look
    hinted: float = NEVER  # the last hint that was urgent
    stale_at: float = NEVER  # looks that began before this do not count
    asked: float = NEVER  # the last request of a client
    due: float = FOREVER  # the next look in the background
    mark: int | None = None  # of the digest from the last sweep
    look_in_progress: anyio.Event | None = None  # set at its end
    look_finished: anyio.Event | None = None  # for followers
    followers: int = 0

    @property
    def stale(self) -> bool:
        """True if the task was changed, for example cancelled, after the last look began."""
        return self.began < self.stale_at

    @property
    def is_suspect(self) -> bool:
        """True if a sweep or hint gave a reason to look, and no look since then got an answer."""
        return self.suspected_at > self.looked

    @property
    def sweepable(self) -> bool:
        """True if a sweep can confirm the entry. A task to be started, cancelled or saved needs a look."""
        return self.listed and not self.error and not self.unsaved

    @property
    def unsaved_end(self) -> bool:
        """True if clients may have seen an end that is not in the store yet."""
        return self.unsaved is not None and self.task.ended is not None

    @property
    def listed(self) -> bool:
        """True if a sweep can tell that the execution still runs."""
        task = self.task
        undelivered = task.cancel_requested is not None and not task.cancel_delivered
        return task.handle is not None and not (undelivered or self.stale)

    def latest(self, task: Task) -> Task:
        """Return the task of the last look, or the row at hand if that was changed since, perhaps by a replica."""
        return task if self.stale and not self.task.ended else self.since(task)

    def since(self, known: Task) -> Task:
        """Return the task of the last look, or `known` if that is newer, so that no client sees an older state."""
        seen = self.task
        newer = known.updated > seen.updated or known.answered > seen.answered
        return known if newer and not seen.ended else seen

    def next_result(self) -> anyio.Event:
        """Return an event that is set when the next look has finished."""
        self.look_finished = self.look_finished or anyio.Event()
        return self.look_finished

    def finish_look(self) -> None:
        """End the look in progress and notify its waiters."""
        look, self.look_in_progress = self.look_in_progress, None
        if look is not None:
            look.set()
        self.notify()

    def notify(self) -> None:
        """Wake the followers."""
        finished, self.look_finished = self.look_finished, None
        if finished is not None:
            finished.set()
