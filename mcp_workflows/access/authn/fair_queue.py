"""A fair queue for questions to an issuer about tokens: unknown callers keep no others waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TypeAlias

import anyio

from mcp_workflows.errors import IssuerUnavailable

MOST_QUESTIONS: Final = 32  # in progress at once, of each kind: anybody can send made-up tokens
MOST_WAITING: Final = 256  # for a place
MOST_OF_ONE: Final = 144  # in progress and waiting, of one address, about tokens that never were good: half of all

Asker: TypeAlias = Callable[[], str | None]
"""Returns the address that the current token comes from; None: unknown, and it counts for no address."""

_TOO_MANY: Final = "it has too many questions to answer"


def nobody() -> None:
    """Return no address."""


class FairQueue:
    """The queue of one issuer, with places for tokens that were good before and others for all that may be made up."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._known = anyio.CapacityLimiter(MOST_QUESTIONS)
        self._strangers = anyio.CapacityLimiter(MOST_QUESTIONS)
        self._of: Counter[str] = Counter()  # current questions about unknown tokens, by address

    @asynccontextmanager
    async def taken(self, *, known: bool) -> AsyncGenerator[None]:
        """Take a place while the issuer is asked about one token; `known`: the token was good before.

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
