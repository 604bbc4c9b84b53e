"""The other replicas of this server, as the poller knows them."""

from __future__ import annotations

from typing import Protocol


class Peers(Protocol):
    """The other replicas; by default there are none, and this process polls all executions.

    The executions are divided among the replicas. A replica with followers asks the owner to poll, and receives each
    result; without results for two intervals it polls itself.

    Times are in seconds of this process's event loop. `interval` is how long the replica that polled waits until it
    polls again, if the execution is of interest there.
    """

    replicas: int = 1  # that share the rates
    resharded: int = 0  # how often the owners changed
    live_until: float = float("inf")  # no other replica can have taken over before

    def is_mine(self, task_id: str) -> bool:
        """True if this process polls the execution in the background."""
        return True

    def last_poll(self, task_id: str) -> float | None:
        """Return the beginning of the last poll of another replica that was heard of lately."""
        return None

    def publish(self, task_id: str, began: float, interval: float, *, changed: bool | None) -> None:
        """Tell the other replicas of a poll that was answered; `changed`: the row has changed; None: it was a batch."""
        return

    def publish_change(self, task_id: str) -> None:
        """Tell the other replicas that the row was changed and the execution is worth a poll."""
        return

    def want(self, task_id: str, *, now: bool = False) -> None:
        """Ask the owner to poll an execution for a while, or now."""
        return

    def forward_hint(self, engine: str, handle: str) -> None:
        """Tell the other replicas that an execution may have changed."""
        return


class Alone(Peers):
    """No other replicas."""


ALONE = Alone()
