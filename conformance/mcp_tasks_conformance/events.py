"""The Events extension of the server under test in one revision, and the steps that its checks share."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Final, TypeVar

import anyio

from mcp_tasks_conformance.check import (
    JSON,
    UNEXPECTED,
    BlockedError,
    CheckError,
    SkippedError,
    ViolationError,
    skip_unless,
    unexpected,
)
from mcp_tasks_conformance.endpoint import Delivery, Endpoint, new_secret
from mcp_tasks_conformance.server_under_test import EVENTS, ServerUnderTest, require_reply
from mcp_tasks_conformance.session import ClientSession, PendingRequest
from mcp_tasks_conformance.traffic import Message, Reply, as_list, as_object, format_json
from mcp_tasks_conformance.webhook_trial import WebhookTrial

INVALID_PARAMS: Final = -32602
NOT_FOUND: Final = frozenset({-32011, -32023})
FORBIDDEN: Final = frozenset({-32012, -32024})
EXHAUSTED: Final = frozenset({-32013, -32025})
UNSUPPORTED: Final = frozenset({-32014, -32026})
CALLBACK_FAILED: Final = frozenset({-32015, -32027})
"""Each code as the draft has it, which clients in use know, and as SEP-3415 of October 2026 numbers it."""

NOWHERE: Final = "https://hooks.invalid/hook"  # a good URL, which no server can reach
TICK: Final = 0.02  # seconds between two looks
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStream:
    """An open `events/stream`."""

    session: ClientSession
    request: PendingRequest
    known: int  # messages of the session that came before

    @property
    def frames(self) -> Sequence[Message]:
        """The notifications on streams of the session since this one was asked for."""
        return [one for one in self.session.inbox[self.known :] if one.channel == "events/stream"]

    @property
    def own_frames(self) -> Sequence[Message]:
        """Those that name this stream."""
        return [one for one in self.frames if subscription_of(one) == self.request.id]

    def named(self, name: str) -> Sequence[Message]:
        """Return those of its frames whose method ends with this name."""
        return [one for one in self.own_frames if one.method == f"notifications/events/{name}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsUnderTest:
    """The subject of a check of Events: the server in one revision."""

    server: ServerUnderTest
    version: str
    wanted: Mapping[str, JSON] = field(default_factory=dict[str, JSON])  # name and arguments of the awaited event

    @property
    def timeout(self) -> float:
        """The time that a step may take, in seconds."""
        return self.server.settings.timeout

    @property
    def schema(self) -> Mapping[str, JSON]:
        """The JSON Schema of arguments of the awaited event."""
        return as_object(self.server.event_types[self.wanted["name"]].get("inputSchema"))

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint of the suite."""
        if self.server.endpoint is None:
            raise SkippedError("there is no endpoint: --callback")
        return self.server.endpoint

    @asynccontextmanager
    async def session(self, *, other: bool = False) -> AsyncGenerator[ClientSession]:
        """Open a session in this revision, in which the client declares Events."""
        capabilities: Mapping[str, JSON] = {"extensions": {EVENTS: {}}}
        async with self.server.session(other=other, version=self.version, capabilities=capabilities) as session:
            yield session

    # --- poll

    async def poll(self, session: ClientSession, cursor: JSON = None, **more: JSON) -> Mapping[str, JSON]:
        """Return the result of one `events/poll`.

        Raises:
            BlockedError: there is none.
        """
        reply = await require_reply(session, "events/poll", {**self.wanted, "cursor": cursor, **more})
        if "result" not in reply.body:
            raise BlockedError(f"events/poll: {reply}")
        return reply.result

    async def begin(self, session: ClientSession) -> str:
        """Return a cursor of now.

        Raises:
            SkippedError: the event type has no cursors.
        """
        cursor = (await self.poll(session)).get("cursor")
        skip_unless(cursor is not None, "events of this type cannot be replayed: the cursor is null")
        return str(cursor)

    async def poll_until(
        self, session: ClientSession, cursor: str, count: int = 1, **more: JSON
    ) -> tuple[Sequence[Mapping[str, JSON]], JSON]:
        """Poll from a cursor until so many events have come; return every event so far, and the last cursor.

        Raises:
            BlockedError: they have not come in time.
        """
        found: list[Mapping[str, JSON]] = []
        place: JSON = cursor
        deadline = time.monotonic() + self.timeout
        while len(found) < count:
            if time.monotonic() > deadline:
                raise BlockedError(f"{len(found)} of {count} events came within {self.timeout:g} s")
            result = await self.poll(session, place, **more)
            found += map(as_object, as_list(result.get("events")))
            place = result.get("cursor")
            if not result.get("hasMore"):
                await anyio.sleep(self.server.settings.poll_interval)
        return found, place

    # --- push

    @asynccontextmanager
    async def stream(self, session: ClientSession, cursor: JSON = None) -> AsyncGenerator[EventStream]:
        """Open a stream once its first notification has come, and close its connection at the end.

        Raises:
            BlockedError: it was refused, or nothing came in time.
        """
        known = len(session.inbox)
        request = session.start_request("events/stream", {**self.wanted, "cursor": cursor}, endless=True)
        opened = EventStream(session=session, request=request, known=known)
        try:
            await self.wait(lambda: opened.frames or request.done.is_set())
            if not opened.frames:
                raise BlockedError(f"events/stream: {request.outcome or 'no notification came'}")
            yield opened
        finally:
            request.disconnect()

    async def next_event(self, stream: EventStream) -> Message:
        """Return the first event on a stream.

        Raises:
            BlockedError: none came in time.
        """
        await self.wait(lambda: stream.named("event"))
        if not stream.named("event"):
            raise BlockedError(f"no event came within {self.timeout:g} s, only {len(stream.own_frames)} notifications")
        return stream.named("event")[0]

    async def wait(self, condition: Callable[[], object], within: float | None = None) -> bool:
        """Wait until the condition is true, and return False if that takes too long."""
        with anyio.move_on_after(self.timeout if within is None else within):
            while not condition():  # noqa: ASYNC110  # no event tells of it
                await anyio.sleep(TICK)
            return True
        return False

    # --- webhook

    async def subscribe(self, session: ClientSession, **params: JSON) -> Reply:
        """Send `events/subscribe`, again later if the server takes only so many at a time.

        Raises:
            BlockedError: no reply in time.
            SkippedError: this caller may have no webhooks.
        """
        deadline = time.monotonic() + self.timeout
        while True:
            reply = await require_reply(session, "events/subscribe", self.subscription(**params))
            if reply.code in FORBIDDEN and not self.server.settings.headers:
                raise SkippedError("webhooks are for callers with credentials: --header")
            if reply.code not in EXHAUSTED or time.monotonic() > deadline:
                return reply
            await anyio.sleep(1)

    def subscription(self, **params: JSON) -> Mapping[str, JSON]:
        """Return the params of `events/subscribe` with these in place of good ones."""
        delivery = {"mode": "webhook", "url": NOWHERE, "secret": new_secret()}
        return {**self.wanted, "delivery": delivery, "cursor": None, **params}

    def delivery(self, **changes: JSON) -> Mapping[str, JSON]:
        """Return a good `delivery` with these changes; None leaves a member out."""
        given = {"mode": "webhook", "url": NOWHERE, "secret": new_secret(), **changes}
        return {name: value for name, value in given.items() if value is not None}


def events_of(server: ServerUnderTest) -> Sequence[EventsUnderTest]:
    """Return Events in each revision in which the server declares them."""
    event = server.settings.awaited
    wanted: Mapping[str, JSON] = {"name": event.name, "arguments": event.arguments}
    return [EventsUnderTest(server=server, version=version, wanted=wanted) for version in server.event_versions]


def subscription_of(notification: Message) -> JSON:
    """Return the id of the stream that a notification names."""
    return as_object(notification.params.get("_meta")).get("io.modelcontextprotocol/subscriptionId")


def each_revision(
    check: Callable[[EventsUnderTest], Awaitable[None]],
) -> Callable[[ServerUnderTest], Awaitable[None]]:
    """Make a check of the server of one that takes place in each revision in which it declares Events."""

    @wraps(check)
    async def checked(server: ServerUnderTest) -> None:
        errors: dict[str, CheckError] = {}

        async def one(events: EventsUnderTest) -> None:
            try:
                await check(events)
            except CheckError as error:
                errors[events.version] = error
            except UNEXPECTED as error:  # not in a group of errors, which says nothing
                errors[events.version] = ViolationError(unexpected(error))

        async with anyio.create_task_group() as group:
            for events in events_of(server):
                group.start_soon(one, events)
        _raise_worst(errors, len(server.event_versions))

    return checked


def each_trial(check: Callable[[WebhookTrial], Awaitable[None]]) -> Callable[[ServerUnderTest], Awaitable[None]]:
    """Make a check of the server of one that judges its trials."""

    @wraps(check)
    async def checked(server: ServerUnderTest) -> None:
        skip_unless(server.trials, "there was no trial")
        errors: dict[str, CheckError] = {}
        for version, trial in server.trials.items():
            try:
                await check(trial)
            except CheckError as error:
                errors[version] = error
        _raise_worst(errors, len(server.trials))

    return checked


def _raise_worst(errors: Mapping[str, CheckError], tried: int) -> None:
    for kind in (ViolationError, BlockedError, SkippedError):
        found = {version: error for version, error in errors.items() if isinstance(error, kind)}
        if found and (kind is not SkippedError or len(found) == tried):
            texts = {str(error) for error in found.values()}
            raise kind(texts.pop() if len(texts) == 1 and len(found) == tried else _texts(found))


def _texts(errors: Mapping[str, CheckError]) -> str:
    return "; ".join(f"{version}: {error}" for version, error in errors.items())


def first_wrong(deliveries: Sequence[Delivery], is_good: Callable[[Delivery], object]) -> str:
    """Return a description of the first of these requests that is not good, or an empty text."""
    wrong = next((one for one in deliveries if not is_good(one)), None)
    if wrong is None:
        return ""
    headers = {
        name: value for name, value in wrong.headers.items() if name.startswith(("webhook-", "x-mcp-", "content"))
    }
    return f"{wrong.method} {format_json(headers)} {format_json(wrong.content)}"
