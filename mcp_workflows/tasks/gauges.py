"""Gauges: the number of tasks by status, and the used share of the engines' quotas.

The store counts, so all its replicas report the same numbers. Counting stops when no collector reads the gauges.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import anyio

from mcp_workflows.adapter import Status
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import StoreError
from mcp_workflows.store.protocol import Count, Store
from mcp_workflows.task import split_engine_key
from mcp_workflows.tasks.maintenance import RetentionRound, retention_rounds
from mcp_workflows.tasks.pauses import Pause, Pauses
from mcp_workflows.telemetry import Labels, Telemetry

logger = logging.getLogger(__name__)

FRESH: Final = 5.0  # seconds for which a count is reused
EVERY: Final = 15.0  # seconds between counts while a collector reads them without asking for fresh ones
_WANTED: Final = 300.0  # seconds from the last collection until counting stops
_TIMEOUT: Final = 5.0  # seconds for the store
_NEVER: Final = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counts:
    """One count and its time."""

    counts: Sequence[Count] = ()
    quotas: Mapping[str, float] = field(default_factory=dict[str, float])
    rounds: Mapping[str, RetentionRound] = field(default_factory=dict[str, RetentionRound])
    paused: Sequence[Pause] = ()
    at: datetime | None = None


class TaskGauges:
    """Gauges of the last count; a collection never waits for the store."""

    def __init__(
        self,
        store: Store,
        engines: Engines,
        telemetry: Telemetry,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._engines = engines
        self._telemetry = telemetry
        self._clock = clock
        self._counts = _Counts()
        self._tried = self._wanted = _NEVER  # on the event loop's clock
        self._asked = False
        observe = telemetry.observe
        observe("tasks", self._tasks)
        observe("oldest_working_age", self._oldest)
        observe("oldest_question_age", self._unanswered)
        observe("quota_used_ratio", self._quota)
        observe("retention_round_age", self._since_round)
        observe("retention_skipped", self._skipped)
        observe("paused", self._paused)
        observe("counts_age", self._age)

    async def run(self) -> None:
        """Count periodically while a collector reads the gauges, until cancelled."""
        while True:
            await anyio.sleep(EVERY)
            if self._asked:
                self._asked, self._wanted = False, anyio.current_time()
            if anyio.current_time() - self._wanted < _WANTED:
                await self.take()

    async def take(self) -> None:
        """Count unless the last count is fresh. If the store does not answer, the last count stays."""
        now = anyio.current_time()
        if now - self._tried < FRESH:
            return
        self._tried = now
        try:
            with anyio.fail_after(_TIMEOUT):
                counts = await self._store.counts(self._clock())
                rounds = await retention_rounds(self._store, self._engines)
                paused = await Pauses(self._store, self._clock).every()
        except (StoreError, TimeoutError) as error:
            logger.warning("tasks cannot be counted; the last count stays: %s", error or "the store does not answer")
            return
        keys = self._engines.keys
        counts = [each for each in counts if each.engine in keys or split_engine_key(each.engine)[0] not in keys]
        self._counts = _Counts(
            counts=counts, quotas=dict(self._quotas()), rounds=rounds, paused=paused, at=self._clock()
        )

    def _quotas(self) -> Iterable[tuple[str, float]]:
        for name in self._engines.names:
            if (allowance := self._engines.allowance(name)) and math.isfinite(allowance.polls_per_second):
                yield name, self._telemetry.polls_per_second(name) / max(allowance.polls_per_second, 1e-9)

    # --- collected, in any thread

    def _tasks(self) -> Iterable[tuple[float, Labels]]:
        self._asked = True
        found: dict[tuple[str, str], int] = {}
        for count in self._counts.counts:
            key = (count.tool, count.status)
            found[key] = found.get(key, 0) + count.tasks
        return [(tasks, {"tool": tool, "status": status}) for (tool, status), tasks in found.items()]

    def _oldest(self) -> Iterable[tuple[float, Labels]]:
        return self._longest(Status.RUNNING, lambda count: count.oldest_created)

    def _unanswered(self) -> Iterable[tuple[float, Labels]]:
        return self._longest(Status.INPUT_REQUIRED, lambda count: count.oldest_updated)

    def _longest(self, status: Status, since: Callable[[Count], datetime]) -> Iterable[tuple[float, Labels]]:
        now, oldest = self._clock(), dict[str, datetime]()
        for count in self._counts.counts:
            if count.status is status:
                oldest[count.tool] = min(oldest.get(count.tool, now), since(count))
        return [((now - at).total_seconds(), {"tool": tool}) for tool, at in oldest.items()]

    def _quota(self) -> Iterable[tuple[float, Labels]]:
        return [(used, {"engine": engine}) for engine, used in self._counts.quotas.items()]

    def _since_round(self) -> Iterable[tuple[float, Labels]]:
        ended = {engine: known.ended for engine, known in self._counts.rounds.items()}
        return [((self._clock() - at).total_seconds(), {"engine": engine}) for engine, at in ended.items() if at]

    def _skipped(self) -> Iterable[tuple[float, Labels]]:
        return [(known.skipped, {"engine": engine}) for engine, known in self._counts.rounds.items()]

    def _paused(self) -> Iterable[tuple[float, Labels]]:
        return [(1.0, {"scope": each.what}) for each in self._counts.paused]

    def _age(self) -> Iterable[tuple[float, Labels]]:
        at = self._counts.at
        return [] if at is None else [((self._clock() - at).total_seconds(), {})]
