"""A workflow of a team that cancels by signal."""

from __future__ import annotations

from temporalio import workflow


@workflow.defn
class StopsBySignal:
    """Waits until it is told to stop."""

    def __init__(self) -> None:
        self._reason: str | None = None

    @workflow.signal
    def stop(self, reason: str) -> None:
        self._reason = reason

    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: self._reason is not None)
        return f"stopped {self._reason}"
