"""Opaque tokens: ask the issuer about each one (RFC 7662), and cache the reply briefly.

Requests about unknown tokens have their own queue, so that a flood of bad tokens does not delay valid ones.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from base64 import b64encode
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, cast
from urllib.parse import quote_plus

import anyio

from mcp_workflows.access.authn.fetch import JsonFetcher
from mcp_workflows.access.authn.identity import ClaimsReader, Identity
from mcp_workflows.access.authn.issuers import LONGEST_TOKEN
from mcp_workflows.access.authn.settings import ClientAuth, IntrospectionSettings
from mcp_workflows.errors import IssuerUnavailable, TokenRefused

MOST_QUESTIONS: Final = 32  # concurrent requests of each kind; anyone can send made-up tokens
MOST_WAITING: Final = 256  # for a place
MOST_OF_ONE: Final = 144  # running and waiting requests of one address about unknown tokens: half of the total

Asker: TypeAlias = Callable[[], str | None]
"""Returns the address from which the current token comes. None: unknown, and counted for no address."""

_TOO_MANY: Final = "it has too many questions to answer"


def nobody() -> None:
    """Return no address."""


class FairQueue:
    """The queue of one issuer, with separate capacity for known valid tokens and for unknown ones, which may be made
    up."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._known = anyio.CapacityLimiter(MOST_QUESTIONS)
        self._strangers = anyio.CapacityLimiter(MOST_QUESTIONS)
        self._of: Counter[str] = Counter()  # current requests about unknown tokens, by address

    @asynccontextmanager
    async def taken(self, *, known: bool) -> AsyncGenerator[None]:
        """Hold a place while the issuer is asked about a token. `known`: the token was valid before.

        Raises:
            IssuerUnavailable: too many requests wait already.
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


MOST_ANSWERS: Final = 10_000  # cached replies; the oldest is evicted first
AGAIN: Final = 1.0  # seconds before a failed request about a token is repeated

Found: TypeAlias = Identity | str | IssuerUnavailable
"""The identity, the reason for the refusal, or the error that leaves the question open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    found: Found
    until: float


@dataclass(slots=True)
class _Asking:
    done: anyio.Event = field(default_factory=anyio.Event)
    found: Found | None = None


class IntrospectionVerifier:
    """Verifies the tokens of one issuer; concurrent requests with the same token share one introspection request."""

    def __init__(
        self,
        settings: IntrospectionSettings,
        reading: ClaimsReader,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        asker: Asker = nobody,
    ) -> None:
        """`clock` counts seconds, `now` returns the time, `asker` returns the address of the current token's caller."""
        self.issuer, self.prefix, self.endpoint = settings.issuer, settings.prefix, settings.endpoint
        self._settings = settings
        self.reading = reading
        self._clock, self._now = clock, now
        self._fetching = JsonFetcher()
        # by the hash of the token, which is not stored; tokens that were valid in the last reply
        self._good: OrderedDict[bytes, _Answer] = OrderedDict()
        self._others: OrderedDict[bytes, _Answer] = OrderedDict()  # separate, so that made-up tokens evict no valid one
        self._asking: dict[bytes, _Asking] = {}
        self._turns = FairQueue(asker)

    async def verify(self, token: str) -> Identity:
        """Return the identity that the token proves.

        Raises:
            TokenRefused, IssuerUnavailable: the token is not valid, or the issuer cannot be asked.
        """
        if len(token) > LONGEST_TOKEN or not token.isascii():
            raise TokenRefused("it is too long, or not a token")
        found = await self._find(hashlib.sha256(token.encode()).digest(), token)
        if isinstance(found, IssuerUnavailable):
            raise IssuerUnavailable(str(found))
        if isinstance(found, str):
            raise TokenRefused(found)
        if found.expires is not None and found.expires <= self._now():
            raise TokenRefused("it has expired")
        return found

    async def probe(self) -> str:
        """Return a message that the issuer can be asked now; check with a random token.

        Raises:
            IssuerUnavailable: it cannot be asked.
        """
        found = await self._introspect(f"{self.prefix}{secrets.token_urlsafe(16)}")
        if isinstance(found, IssuerUnavailable):
            raise found
        return f"{self.endpoint} answers"

    async def _find(self, name: bytes, token: str) -> Found:
        while (asking := self._asking.get(name)) is not None:
            await asking.done.wait()
            if asking.found is not None:
                return asking.found  # None: the request that asked was cancelled before the reply
        kept = self._good.get(name) or self._others.get(name)
        if kept is not None and self._clock() < kept.until:
            return kept.found
        return await self._ask(name, token)

    async def _ask(self, name: bytes, token: str) -> Found:
        asking = self._asking[name] = _Asking()
        try:
            asked = self._clock()
            asking.found = await self._introspect(token, known=name in self._good)
            self._keep(name, _Answer(found=asking.found, until=asked + self._seconds(asking.found)))
            return asking.found
        finally:
            del self._asking[name]
            asking.done.set()

    def _seconds(self, found: Found) -> float:
        cache = self._settings.cache.total_seconds()
        return min(cache, AGAIN) if isinstance(found, IssuerUnavailable) else cache

    async def _introspect(self, token: str, *, known: bool = False) -> Found:
        try:
            async with self._turns.taken(known=known):
                return self._read(await self._fetching.post(self.endpoint, self._form(token), self._headers()))
        except IssuerUnavailable as error:
            return IssuerUnavailable(f"{self.endpoint} cannot be asked about it: {error}")

    def _read(self, answer: Any) -> Identity | str:  # Any: a JSON value
        if not isinstance(answer, dict):
            raise IssuerUnavailable("its answer is not an object")
        claims = cast("Mapping[str, Any]", answer)
        if not isinstance(claims.get("active"), bool):
            raise IssuerUnavailable("its answer does not say whether the token is active")
        if not claims["active"]:
            return "its issuer says that it is not active"
        try:
            return self.reading.identity(claims)
        except TokenRefused as error:
            return str(error)

    def _keep(self, name: bytes, answer: _Answer) -> None:
        unanswered = name in self._good and isinstance(answer.found, IssuerUnavailable)
        for each in (self._good, self._others):
            each.pop(name, None)
        answers = self._good if unanswered or isinstance(answer.found, Identity) else self._others
        answers[name] = answer
        while len(answers) > MOST_ANSWERS:
            answers.popitem(last=False)

    def _form(self, token: str) -> Mapping[str, str]:
        form = {"token": token, "token_type_hint": "access_token"}
        if self._settings.client_auth is ClientAuth.POST:
            form |= {"client_id": self._settings.client_id, "client_secret": self._secret}
        return form

    def _headers(self) -> Mapping[str, str]:
        if self._settings.client_auth is ClientAuth.POST:
            return {}
        known = f"{quote_plus(self._settings.client_id)}:{quote_plus(self._secret)}"
        return {"authorization": f"Basic {b64encode(known.encode()).decode()}"}

    @property
    def _secret(self) -> str:
        return self._settings.client_secret.get_secret_value()
