"""Webhook subscriptions and the state of their deliveries, as notes in the store.

Their owners and signing secrets are encrypted with a key that the store holds, so a copy of the notes alone does not
reveal them. In an encrypted store, that key is encrypted too.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final

import anyio
from pydantic import TypeAdapter, ValidationError

from mcp_workflows.access import Principal
from mcp_workflows.adapter import JSON, digest
from mcp_workflows.events.log import END_OF_LOG
from mcp_workflows.store.encryption import seal, unseal
from mcp_workflows.store.protocol import EVENTS_KEPT, Store
from mcp_workflows.task import EventName, LoggedEvent, event_id
from mcp_workflows.wire.events import DeliveryStatus, Trouble

ROTATION: Final = timedelta(days=1)  # how long a former secret also signs deliveries
MOST_FORMER: Final = 4  # former secrets that still sign
NOT_REFRESHED: Final = "it was not refreshed in time"  # why a subscription ended
_KEY: Final = "events"  # name of the key in the store
_CHANNEL: Final = "channel "  # prefix of the ids of channels
_ALWAYS, _NEVER = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
_SUBSCRIPTIONS: Final = "(subscriptions)"  # note spaces
_DELIVERIES: Final = "(deliveries)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Events of one name with these arguments, for one endpoint of one principal."""

    id: str
    name: str
    arguments: Mapping[str, JSON]
    url: str
    principal: Principal  # without its token, and with only the claims that rules need
    secret: str = field(repr=False)
    former_secrets: Sequence[tuple[datetime, str]] = field(default=(), repr=False)  # each with the time it was replaced
    created: datetime
    refreshed: datetime
    until: datetime
    verified: datetime  # when the endpoint confirmed that it wants deliveries
    position: int  # in the log, where it started
    max_age: timedelta | None = None  # when it started; older events are not sent
    tells_present: bool = False  # it started with the current state of its single task
    is_over: bool = False  # the end of its single task was accepted
    ended: str | None = None  # reason the server ended it; its client may not know

    @property
    def key(self) -> str:
        """Its note key."""
        return f"{owner_key(self.principal.id)}{self.id}"

    def secrets(self, now: datetime) -> Sequence[str]:
        """Return the secrets that sign a delivery now, the latest first."""
        return [self.secret, *(secret for replaced, secret in self.former_secrets if now - replaced <= ROTATION)]

    def is_too_old(self, event: LoggedEvent) -> bool:
        """Return True if the event was older than `max_age` when the client subscribed."""
        return self.max_age is not None and self.created - event.at > self.max_age

    @property
    def is_of_one_end(self) -> bool:
        """True if it concerns a single event, the end of one task."""
        return self.name == EventName.ENDED and "taskId" in self.arguments


def subscription_id(owner: str, url: str, wanted: str) -> str:
    """Return the id of a subscription, for routing only; the same principal, URL and `Wanted.key` give the same id."""
    return f"sub_{sha256(repr((owner, url, wanted)).encode()).hexdigest()[:32]}"


def channel_of(name: str, host: str) -> Subscription:
    """Return a configured channel as a subscription. Only its deliveries are stored."""
    return Subscription(
        id=f"{_CHANNEL}{name}",
        name=EventName.INPUT_REQUIRED,
        arguments={},
        url=f"https://{host}",  # only for the limits per host
        principal=Principal(id=""),
        secret="",
        created=_ALWAYS,
        refreshed=_ALWAYS,
        until=_NEVER,
        verified=_ALWAYS,
        position=0,
    )


def owner_key(owner: str) -> str:
    """Return the key prefix of a principal's subscriptions."""
    return f"{digest(owner)[:32]}/"


@dataclass(slots=True, kw_only=True)
class Pending:
    """An event that the endpoint has not accepted yet."""

    since: datetime  # the time of the event
    due: datetime
    attempts: int = 0
    failing_since: datetime | None = None


@dataclass(slots=True, kw_only=True)
class Deliveries:
    """The state of a subscription's deliveries. Each event up to `position` is finished or pending."""

    of: datetime  # creation of the subscription, to tell it from an earlier one with the same id
    position: int
    pending: dict[int, Pending] = field(default_factory=dict[int, Pending])  # by position
    suspended: datetime | None = None  # nothing is sent after this time until the client refreshes
    last_delivery: datetime | None = None
    last_error: Trouble | None = None
    failed_since: datetime | None = None

    @property
    def status(self) -> DeliveryStatus:
        """The status as the client sees it."""
        return DeliveryStatus(
            active=self.suspended is None,
            last_delivery=self.last_delivery,
            last_error=self.last_error,
            failed_since=self.failed_since,
        )

    @property
    def watermark(self) -> int:
        """The position up to which every event is finished."""
        waiting = [position for position in self.pending if position > 0]
        return min(waiting) - 1 if waiting else self.position


_SUBSCRIPTION: Final = TypeAdapter(Subscription)
_STATE: Final = TypeAdapter(Deliveries)


class Subscriptions:
    """The subscriptions in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key = b""
        self.changed = anyio.Event()  # set and replaced when this process changes a subscription

    async def _sealing(self) -> bytes:
        self._key = self._key or await self._store.secret(_KEY)
        return self._key

    async def save(self, subscription: Subscription, now: datetime) -> None:
        """Store a subscription, then announce the change."""
        await self._put(subscription)
        await self._announce(subscription, now)

    async def _put(self, subscription: Subscription) -> None:
        sealed = seal(await self._sealing(), _SUBSCRIPTION.dump_json(subscription), subscription.key)
        await self._store.put_note(_SUBSCRIPTIONS, subscription.key, sealed, until=subscription.until + EVENTS_KEPT)

    async def end(self, subscription: Subscription, reason: str, now: datetime) -> None:
        """End a subscription, then announce it. Keep the reason for a while, but not the secrets and claims."""
        nobody = Principal(id=subscription.principal.id)
        rest = replace(subscription, principal=nobody, secret="", former_secrets=(), until=now, ended=reason)
        await self._put(rest)
        await self._store.put_note(_DELIVERIES, subscription.id, None, until=now)
        await self._announce(subscription, now)

    async def mark_over(self, subscription: Subscription, now: datetime) -> None:
        """Record that nothing remains to be sent, so a later refresh sends no duplicates."""
        await self.save(replace(subscription, is_over=True), now)

    async def delete(self, subscription: Subscription, now: datetime) -> None:
        """Delete a subscription, then announce it."""
        for space, key in ((_SUBSCRIPTIONS, subscription.key), (_DELIVERIES, subscription.id)):
            await self._store.put_note(space, key, None, until=now)
        await self._announce(subscription, now)

    async def _announce(self, subscription: Subscription, now: datetime) -> None:
        name = EventName.SUBSCRIPTION
        key = event_id(name, subscription.key, secrets.token_hex(8))
        await self._store.add_event(LoggedEvent(id=key, name=name, at=now, key=subscription.key))
        changed, self.changed = self.changed, anyio.Event()
        changed.set()

    async def at(self, key: str) -> Subscription | None:
        """Return the subscription of a key, even an ended one; None: it does not exist or cannot be read."""
        return _opened(await self._sealing(), key, await self._store.note(_SUBSCRIPTIONS, key))

    async def under(self, beginning: str = "", *, ended: bool = False) -> Sequence[Subscription]:
        """Return the subscriptions with this key prefix (see `owner_key`); `ended`: include ended ones."""
        return [each for each in await self._all(beginning) if ended or not each.ended]

    async def states(self, beginning: str = "") -> Sequence[tuple[Subscription, Deliveries | None]]:
        """Return the subscriptions with this key prefix, including ended ones, each with its delivery state."""
        return [(each, await self.deliveries(each)) for each in await self._all(beginning)]

    async def _all(self, beginning: str) -> Sequence[Subscription]:
        found = await self._store.notes_under(_SUBSCRIPTIONS, beginning)
        if not found:
            return []
        secret = await self._sealing()
        return [each for key, note in found.items() if (each := _opened(secret, key, note))]

    async def deliveries(self, subscription: Subscription) -> Deliveries | None:
        """Return the delivery state; None: deliveries have not started."""
        try:
            found = _STATE.validate_python(await self._store.note(_DELIVERIES, subscription.id))
        except ValidationError:
            return None
        return found if found.of == subscription.created else None

    async def begin_channels(self, channels: Sequence[Subscription], now: datetime) -> None:
        """Start new channels at the end of the log, and delete the state of all others."""
        found = await self._store.notes_under(_DELIVERIES, _CHANNEL)
        known = {key for key, note in found.items() if note is not None}
        for key in known - {each.id for each in channels}:
            await self._store.put_note(_DELIVERIES, key, None, until=now)
        new = [each for each in channels if each.id not in known]
        last = (await self._store.events(END_OF_LOG, 0)).last if new else 0
        for each in new:
            value = _STATE.dump_python(Deliveries(of=each.created, position=last), mode="json")
            if each.id in found:  # it was deleted a moment ago
                await self._store.put_note(_DELIVERIES, each.id, value, until=each.until)
            else:
                await self._store.add_note(_DELIVERIES, each.id, value, until=each.until)

    async def save_deliveries(self, subscription: Subscription, state: Deliveries) -> None:
        """Store the delivery state. A power failure may lose it; some events are then sent again."""
        value = _STATE.dump_python(state, mode="json")
        until = subscription.until + EVENTS_KEPT
        await self._store.put_note(_DELIVERIES, subscription.id, value, until=until, durable=False)


def _opened(secret: bytes, key: str, note: JSON) -> Subscription | None:
    text = unseal(secret, note, key) if isinstance(note, str) else None
    try:
        return None if text is None else _SUBSCRIPTION.validate_json(text)
    except ValidationError:  # written by a newer version
        return None


def trouble(subscription: Subscription, state: Deliveries | None, now: datetime) -> str | None:
    """Return why a subscription gets no events; None: it gets them."""
    if subscription.is_over:
        return None
    if subscription.ended or subscription.until <= now:
        why = subscription.ended or NOT_REFRESHED
        return f"ended at {subscription.until:%Y-%m-%d %H:%M} UTC, as {why}"
    if state is None or state.suspended is None:
        return None
    return f"suspended at {state.suspended:%Y-%m-%d %H:%M} UTC, as its endpoint accepts no events ({state.last_error})"


def refreshed(
    old: Subscription, *, secret: str, principal: Principal, now: datetime, until: datetime, verified: datetime
) -> Subscription:
    """Return the subscription after a refresh; former secrets also sign for `ROTATION`."""
    new = replace(old, principal=principal, refreshed=now, until=until, verified=verified)
    if secret == old.secret:
        return new
    former = [(now, old.secret), *(each for each in old.former_secrets if now - each[0] <= ROTATION)]
    return replace(new, secret=secret, former_secrets=former[:MOST_FORMER])
