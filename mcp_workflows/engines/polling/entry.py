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
    unsaved: str | None = None  # why what the last one saw is not in the store
    began: float = NEVER  # of the last look that landed
    at: float = NEVER  # when that landed, or when a sweep found nothing new
    heard: float = NEVER  # when the engine last answered about it
    failing: float = FOREVER  # since when looks get no answer, though the engine does not say that it is throttled
    sure: float = NEVER  # when the last look began that got an answer
    doubt: float = NEVER  # when a sweep or a hint last gave a reason to look
    hinted: float = NEVER  # when a hint last was news
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
        """Whether there is a reason to look that no look has answered yet."""
        return self.doubt > self.sure

    @property
    def sweepable(self) -> bool:
        """Whether a sweep can say that nothing is new; what has to be started, cancelled or saved needs a look."""
        return self.listed and not self.error and not self.unsaved

    @property
    def unsaved_end(self) -> bool:
        """Whether clients may have seen an end that is not in the store: it must get there."""
        return self.unsaved is not None and self.task.ended is not None

    @property
    def listed(self) -> bool:
        """Whether a sweep can say that it still runs."""
        task = self.task
        undelivered = task.cancel_requested is not None and not task.cancel_delivered
        return task.handle is not None and not (undelivered or self.stale)

    def latest(self, task: Task) -> Task:
        """What was seen last, unless the row at hand is newer: something was done to it since, perhaps elsewhere."""
        return task if self.stale and not self.task.ended else self.since(task)

    def since(self, told: Task) -> Task:
        """What was seen last, unless what was told is newer: nobody is told what was before that."""
        seen = self.task
        newer = told.updated > seen.updated or told.answered > seen.answered
        return told if newer and not seen.ended else seen

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
