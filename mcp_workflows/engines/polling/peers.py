"""The other replicas of this server, as the poller uses them."""

from __future__ import annotations

from typing import Protocol


class Peers(Protocol):
    """The other replicas. By default there are none, and this process polls all executions.

    The executions are divided among the replicas. A replica with followers asks the owner to poll, and receives each
    result; without results for two intervals it polls itself.

    Times are seconds of this process's event loop. `interval` is how long the polling replica waits until its next
    poll, if the execution is of interest there.
    """

    replicas: int = 1  # sharing the rates
    resharded: int = 0  # number of ownership changes
    live_until: float = float("inf")  # until then no other replica can own this one's executions

    def is_mine(self, task_id: str) -> bool:
        """Return True if this process polls the execution in the background."""
        return True

    def last_poll(self, task_id: str) -> float | None:
        """Return when another replica last began to poll, if it reported that recently."""
        return None

    def publish(self, task_id: str, began: float, interval: float, *, changed: bool | None) -> None:
        """Report an answered poll to the other replicas; `changed`: the row has changed; None: it was a batch."""
        return

    def publish_change(self, task_id: str) -> None:
        """Notify the other replicas that the row was changed and the execution is worth polling."""
        return

    def want(self, task_id: str, *, now: bool = False) -> None:
        """Ask the owner to poll an execution for a while, or now."""
        return

    def forward_hint(self, engine: str, handle: str) -> None:
        """Notify the other replicas that an execution may have changed."""
        return


class Alone(Peers):
    """The absence of other replicas."""


ALONE = Alone()
