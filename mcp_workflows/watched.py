"""What is known of one execution, and who wants to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import anyio

from mcp_workflows.errors import WorkflowsError
from mcp_workflows.task import Task

NEVER: Final = float("-inf")
FOREVER: Final = float("inf")


@dataclass(slots=True, eq=False)
class Watched:
    """One execution; all times are seconds of the event loop's clock. There may be 10,000 of these: keep it small."""

    task: Task  # as seen last
    error: WorkflowsError | None = None  # why the last look failed
    began: float = NEVER  # of the last look that landed
    at: float = NEVER  # when that landed, or when a sweep found nothing new
    heard: float = NEVER  # when the engine last answered about it
    sure: float = NEVER  # when the last look began that got an answer
    doubt: float = NEVER  # when a sweep last gave a reason to look
    stale_at: float = NEVER  # looks that began before this do not count
    asked: float = NEVER  # when somebody last asked
    due: float = FOREVER  # when it is worth a look in the background
    mark: int | None = None  # of the last sweep
    flight: anyio.Event | None = None
    landed: anyio.Event | None = None  # for the followers
    followers: int = 0

    @property
    def stale(self) -> bool:
        """Whether something was done to it since the last look."""
        return self.began < self.stale_at

    @property
    def doubtful(self) -> bool:
        """Whether a sweep gave a reason to look that no look has answered yet."""
        return self.doubt > self.sure

    @property
    def sweepable(self) -> bool:
        """Whether a sweep can say that nothing is new; what has to be started or cancelled needs a look."""
        task = self.task
        undelivered = task.cancel_requested is not None and not task.cancel_delivered
        return task.handle is not None and not (undelivered or self.stale or self.error)

    def latest(self, task: Task) -> Task:
        """What was seen last, unless the row at hand is newer: something was done to it since, perhaps elsewhere."""
        seen = self.task
        if seen.ended:
            return seen
        return task if self.stale or task.updated > seen.updated or task.answered > seen.answered else seen

    def landing(self) -> anyio.Event:
        """Set at the next landing."""
        self.landed = self.landed or anyio.Event()
        return self.landed

    def land(self) -> None:
        """The look is over: tell those who wait for it, and those who follow."""
        flight, self.flight = self.flight, None
        if flight is not None:
            flight.set()
        self.tell()

    def tell(self) -> None:
        """Something is known of it."""
        landed, self.landed = self.landed, None
        if landed is not None:
            landed.set()
