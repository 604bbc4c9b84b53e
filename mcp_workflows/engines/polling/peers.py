"""The other replicas of this server, as the poller knows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePoll:
    """A poll that another replica made. Times are in seconds, of this process's event loop."""

    began: float
    interval: float  # until that replica polls the execution again, if it is of interest there


class Peers:
    """No other replicas: this process polls all executions. `Replicas` of the room `tasks` has others.

    The executions are divided among the replicas. A replica that has followers of an execution asks its owner to poll
    it, and hears of each poll. If it hears nothing for a while, it polls for itself.
    """

    replicas: int = 1  # that share the rates
    resharded: int = 0  # how often the owners changed

    @property
    def is_live(self) -> bool:
        """True if this process may poll."""
        return True

    def is_mine(self, task_id: str) -> bool:
        """True if this process polls the execution in the background."""
        return True

    def last_poll(self, task_id: str) -> RemotePoll | None:
        """Return the last poll of another replica that was heard of lately."""
        return None

    def publish(self, task_id: str, began: float, interval: float, *, changed: bool) -> None:
        """Tell the other replicas of a poll that was answered; see `RemotePoll`. `changed`: the row has changed."""

    def publish_change(self, task_id: str) -> None:
        """Tell the other replicas that the row was changed and the execution is worth a poll."""

    def want(self, task_id: str, *, now: bool = False) -> None:
        """Ask the owner to poll an execution for a while, or now."""

    def forward_hint(self, engine: str, handle: str) -> None:
        """Tell the other replicas that an execution may have changed."""


ALONE = Peers()
