"""Calls of Google's APIs: quota, concurrency, deadlines, retries of reads, and the translation of errors."""

# pyright: reportUnknownMemberType=false
# Reason: google-api-core is typed in parts.

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, TypeVar

import anyio
import anyio.lowlevel
from google.api_core.exceptions import GoogleAPICallError, RetryError
from google.api_core.retry import AsyncRetry

from mcp_workflows.errors import EngineError, EngineUnavailable
from mcp_workflows.kit.token_bucket import BUCKETS, Bucket, Buckets, QuotaKey
from mcp_workflows_google.channels import EXECUTIONS, IN_OUR_CALL, GrpcClients
from mcp_workflows_google.credentials import Credentials
from mcp_workflows_google.error_table import CallKind
from mcp_workflows_google.error_translation import (
    CallContext,
    ErrorReply,
    ReplyError,
    is_transient,
    read_grpc_error,
    translate,
)
from mcp_workflows_google.names import Place
from mcp_workflows_google.quota import limits
from mcp_workflows_google.settings import GoogleSettings, Quota

logger = logging.getLogger(__name__)
T = TypeVar("T")

_QUOTA_WAIT: Final = {True: 1.0, False: 4.0}  # seconds to wait for a token: a read (True), a write (False)
_FOR_WRITES: Final = 4  # a quarter of the places is not for reads, so that slow reads never delay an answer or a cancel
_GRACE: Final = 0.5  # seconds: gRPC's own deadline comes first
_ELSEWHERE: Final = "elsewhere"  # all other locations share one bucket, because inbound requests can name any location
_MOST_ATTEMPTS: Final = 3  # of a read
_ATTEMPT: Final = 0.6  # of the time that there is for a read: another one fits in after it


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """One call of an API."""

    kind: CallKind
    api: str  # the key of its quota, see `quota`
    permission: str
    resource: str
    place: Place
    service: str = EXECUTIONS

    @property
    def repeatable(self) -> bool:
        """True if the call changes nothing."""
        return self.kind in {CallKind.DESCRIBE, CallKind.READ}


@dataclass(slots=True, kw_only=True)
class _Attempts:
    """The attempts of one call."""

    made: int = 0
    renewed: bool = False  # the token has been renewed once, because Google refused it
    deadline: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds until the deadline, at least 0.001."""
        return max(0.001, self.deadline - time.monotonic())


Attempt = Callable[[Mapping[str, str], float], Awaitable[T]]  # headers, seconds
Page = Callable[[str, Mapping[str, str], float], Awaitable[tuple[Sequence[T], str]]]  # page token, headers, seconds


class ApiCaller:
    """Makes all calls of one engine."""

    def __init__(
        self, settings: GoogleSettings, clients: GrpcClients, credentials: Credentials, buckets: Buckets = BUCKETS
    ) -> None:
        self._settings = settings
        self._clients = clients
        self._credentials = credentials
        self.buckets = buckets
        self.project = settings.project  # None until it is known
        self.quota = settings.quota or (None if settings.emulator else Quota())
        places = settings.max_connections
        self._places = anyio.CapacityLimiter(places)
        self._reads = anyio.CapacityLimiter(places - places // _FOR_WRITES)

    async def pages(
        self, call: ApiCall, page: Page[T], limit: int | None = None, enough: Callable[[T], bool] = lambda _: False
    ) -> Sequence[T]:
        """Return the rows of all pages, at most `limit`, up to the first row for which `enough` is true."""
        found: list[T] = []
        token = ""
        while True:
            rows, token = await self.make(call, _page_of(page, token))
            found += (kept := list(takewhile(lambda row: not enough(row), rows)))
            if not token or len(kept) < len(rows) or (limit is not None and len(found) >= limit):
                return found[:limit]

    async def make(self, call: ApiCall, attempt: Attempt[T]) -> T:
        """Make a call within the quota and the timeout.

        Raises:
            EngineError: the call failed; see `error_table`.
        """
        bucket = self.bucket(call.api, call.place.location)
        await self._turn(bucket, call)
        seconds = self._settings.timeout_seconds
        attempts = _Attempts(deadline=time.monotonic() + seconds)
        token = IN_OUR_CALL.set(True)
        try:
            with anyio.move_on_after(seconds + _GRACE, shield=not call.repeatable):
                return await self._placed(call, attempts, attempt)
        except ReplyError as error:
            ours = translate(error.reply, self._asked(call))
            self._heed(error.reply, ours, bucket, call)
            raise ours from None  # Google's own words may hold the input
        finally:
            IN_OUR_CALL.reset(token)
            bucket.debit(max(0, attempts.made - 1))
        raise EngineUnavailable(f"{self._asked(call).who}: no answer within {seconds:g} s", sent=attempts.made > 0)

    async def _placed(self, call: ApiCall, attempts: _Attempts, attempt: Attempt[T]) -> T:
        """Make the call as soon as a place is free."""
        if not call.repeatable:
            async with self._places:
                return await self._once(call, attempts, attempt, 1.0)
        async with self._reads, self._places:
            return await self._again(call, attempts, attempt)

    async def _again(self, call: ApiCall, attempts: _Attempts, attempt: Attempt[T]) -> T:
        """Make a read, and repeat it after errors that may pass."""
        asked = self._asked(call)

        def worth(error: Exception) -> bool:
            if not isinstance(error, ReplyError) or attempts.made >= _MOST_ATTEMPTS:
                return False
            return self._renewed(error.reply, attempts) or is_transient(error.reply, asked)

        async def once() -> T:
            return await self._once(call, attempts, attempt, _ATTEMPT)

        retrying = AsyncRetry(predicate=worth, initial=0.1, maximum=1.0, multiplier=2.0, timeout=attempts.left)
        try:
            return await retrying(once)()  # pyright: ignore[reportCallIssue]  # its ParamSpec is that of no call
        except RetryError as error:
            if isinstance(error.cause, ReplyError):
                raise error.cause from None
            raise

    async def _once(self, call: ApiCall, attempts: _Attempts, attempt: Attempt[T], share: float) -> T:
        headers = await self._credentials.headers()
        attempts.made += 1
        seconds = max(attempts.left * share, min(attempts.left, 1.0))
        try:
            return await attempt(headers, seconds)
        except GoogleAPICallError as error:
            raise ReplyError(read_grpc_error(error, connected=self._clients.connected(call.service))) from None
        except anyio.get_cancelled_exc_class():
            await (
                anyio.lowlevel.checkpoint()
            )  # gRPC raises a CancelledError of its own, unknown to anyio's cancel scopes
            raise

    def _renewed(self, reply: ErrorReply, attempts: _Attempts) -> bool:
        """Return whether a new token may help, which is tried once."""
        if reply.status != "UNAUTHENTICATED" or attempts.renewed:
            return False
        self._credentials.forget()
        attempts.renewed = True
        return True

    def _heed(self, reply: ErrorReply, ours: EngineError, bucket: Bucket, call: ApiCall) -> None:
        """Apply the consequences of an error for later calls: drop a refused token, slow down if throttled."""
        logger.debug("%s: %s %s", call.permission, reply.status, reply.reason)
        if reply.status == "UNAUTHENTICATED":
            self._credentials.forget()
        if isinstance(ours, EngineUnavailable) and ours.throttled and bucket.throttled():
            logger.warning("Google throttles %s%s", call.permission, bucket.slowed)

    async def _turn(self, bucket: Bucket, call: ApiCall) -> None:
        """Wait a short time for a token of the quota."""
        if not await bucket.turn(min(_QUOTA_WAIT[call.repeatable], self._settings.timeout_seconds / 2)):
            raise EngineUnavailable(
                f"{call.permission} is held back here, so that the project's quota in {call.place.location} lasts: "
                "ask later",
                sent=False,
                throttled=True,
            )

    def bucket(self, api: str, location: str | None = None) -> Bucket:
        key = QuotaKey(
            endpoint=self._settings.emulator or "google",  # all of Google's endpoints share one quota
            owner=self.project,  # as in the settings: resource names have the id or the number
            place=self._settings.location if location in {None, self._settings.location} else _ELSEWHERE,
            operation=api,
        )
        return self.buckets.bucket(key, limits(api, self.quota))

    def _asked(self, call: ApiCall) -> CallContext:
        ours = call.service == EXECUTIONS
        return CallContext(
            kind=call.kind,
            permission=call.permission,
            resource=call.resource,
            location=call.place.location,
            endpoint=self._clients.executions_endpoint if ours else self._clients.workflows_endpoint,
            custom=bool(self._settings.emulator or self._settings.endpoint),
            service=call.service,
        )


def _page_of(page: Page[T], token: str) -> Attempt[tuple[Sequence[T], str]]:
    """Return the attempt to get the page with this token."""

    async def attempt(headers: Mapping[str, str], seconds: float) -> tuple[Sequence[T], str]:
        return await page(token, headers, seconds)

    return attempt
