"""Who is asked about next, of all whose tokens only their issuer can read: strangers keep nobody else waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TypeAlias

import anyio

from mcp_workflows.errors import IssuerUnavailable

MOST_QUESTIONS: Final = 32  # under way at once, of each kind: whoever likes can send made-up tokens
MOST_WAITING: Final = 256  # to be asked
MOST_OF_ONE: Final = 144  # under way and waiting about tokens that never were good, from one address: half of all

Asker: TypeAlias = Callable[[], str | None]
"""Where the token at hand comes from; None: nobody knows, and it counts for nobody."""

_TOO_MANY: Final = "it has too many questions to answer"


def nobody() -> None:
    """No address."""


class Turns:
    """Turns to ask one issuer: some for tokens that were good before, and others for all that may be made up."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._known = anyio.CapacityLimiter(MOST_QUESTIONS)
        self._strangers = anyio.CapacityLimiter(MOST_QUESTIONS)
        self._of: Counter[str] = Counter()  # questions of strangers, by address; as many as there are now

    @asynccontextmanager
    async def taken(self, *, known: bool) -> AsyncGenerator[None]:
        """While it is asked about one token; `known`: which was good before.

        Raises:
            IssuerUnavailable: too many wait already.
        """
        turns = self._known if known else self._strangers
        if turns.statistics().tasks_waiting >= MOST_WAITING:
            raise IssuerUnavailable(_TOO_MANY)
        with self._counted(None if known else self._asker()):
            async with turns:
                yield

    @contextmanager
    def _counted(self, address: str | None) -> Generator[None]:
        if address is None:
            yield
            return
        if self._of[address] >= MOST_OF_ONE:
            raise IssuerUnavailable(_TOO_MANY)
        self._of[address] += 1
        try:
            yield
        finally:
            self._of[address] -= 1
            if not self._of[address]:
                del self._of[address]
