"""Reads of histories what gates must know, from the end on, and remembers it: a look reads only what is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mcp_workflows.errors import EngineUnavailable
from mcp_workflows_temporal.gate_calls import Run, page_of_history
from mcp_workflows_temporal.gate_history import Names, Trail, fold, join
from mcp_workflows_temporal.gate_rules import Rule, names_of

PAGE = 100  # events
PAGES_PER_LOOK = 100  # some 4 ms each; the next look goes on where this one stopped
REMEMBERED_RUNS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What was read of one run's history."""

    trail: Trail
    before: bytes  # where what lies before it is read from; empty: nothing does


class TrailReader:
    """The histories of one namespace. Nothing depends on what it remembers: without that it reads again."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, str], Names], Known] = {}

    async def read(self, run: Run, rules: Sequence[Rule], *, patient: bool) -> Trail:
        """The history as far back as the gates need it; unless `patient`, only so many pages at a time.

        Asks Temporal nothing if the history has not grown and enough of it is known.
        """
        names = names_of(rules)
        known = self._known.get((run.place, names))
        if known is None or known.trail.high < run.length:
            known = self._remember(run, names, await _newest(run, names, known))
        pages = 0
        while known.before and any(rule.opened(known.trail) is None for rule in rules):
            if pages == PAGES_PER_LOOK and not patient:
                break
            known = self._remember(run, names, await _further_back(run, names, known))
            pages += 1
        return known.trail

    def _remember(self, run: Run, names: Names, known: Known) -> Known:
        self._known.pop((run.place, names), None)  # to the end: what was not read for longest goes first
        self._known[run.place, names] = known
        if len(self._known) > REMEMBERED_RUNS:
            self._known.pop(next(iter(self._known)))
        return known


async def _newest(run: Run, names: Names, known: Known | None) -> Known:
    """What happened since the last look joined to what was known; only that if it is too much to read at once."""
    high = known.trail.high if known else 0
    top: Trail | None = None
    before = b""
    for _ in range(PAGES_PER_LOOK):
        page = await page_of_history(run, min(PAGE, max(run.length - high, 1)), before)
        before = page.before
        new = fold((event for event in page.events if event.event_id > high), names)
        top = join(new, top) if new and top else (new or top)
        if known is None or not before or top is None or top.low == high + 1:
            break
    if known and (top is None or top.low == high + 1):
        return replace(known, trail=join(known.trail, top) if top else known.trail)
    if top is None:
        raise EngineUnavailable(f"Temporal at {run.frontend.place.address}: it gave no history", silent=False)
    return Known(trail=top, before=before)


async def _further_back(run: Run, names: Names, known: Known) -> Known:
    page = await page_of_history(run, PAGE, known.before)
    older = fold(page.events, names)
    return Known(trail=join(older, known.trail) if older else known.trail, before=page.before)
