"""Deliveries to the endpoints of subscriptions, by one process at a time.

Each subscription has a position in the log of events: each event up to it was taken by the endpoint, was given up, or
is pending. The position and what is pending are written after the fact, so a crash, or a second process that still
delivers, sends an event again under the same id, and loses none. A pending event is tried again by itself, and holds
back no other, until `WINDOW` are pending.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import product
from typing import Final, TypeAlias

import anyio
from anyio.abc import TaskGroup

from mcp_workflows.access import Principal
from mcp_workflows.access.audit import Event, record_of
from mcp_workflows.access.rate_limits import Rate
from mcp_workflows.adapter import JSON
from mcp_workflows.errors import RequestError, StoreError
from mcp_workflows.events.endpoints import EndpointFailed, host_of
from mcp_workflows.events.interests import Interest
from mcp_workflows.events.log import PAGE
from mcp_workflows.events.service import EventService
from mcp_workflows.events.subscriptions import Deliveries, Pending, Subscription
from mcp_workflows.store.leases import Leases
from mcp_workflows.store.protocol import Store
from mcp_workflows.task import EventName, LoggedEvent
from mcp_workflows.telemetry import Labels, Telemetry
from mcp_workflows.wire import events as wire

logger = logging.getLogger(__name__)

PAUSES: Final[Sequence[float]] = (5, 30, 120, 600, 1800, 3600, 7200)  # seconds before each further attempt
JITTER: Final = 0.2  # of a pause, either way
WINDOW: Final = 50  # pending events of one subscription
AT_ONCE: Final = 4  # requests to one endpoint
MOST_AT_ONCE: Final = 64
TURN_EVERY: Final = 0.5  # seconds, without new events and finished attempts
SAVE_EVERY: Final = 1.0  # seconds: after a crash what was delivered since is sent again
CLAIM_EVERY: Final = 2.0  # seconds
FAR_BEHIND: Final = 10_000  # positions after which the place of a quiet subscription is written anew
_LEASE: Final = "events"
_PRESENT: Final = -1  # among positions: the present state of the one task, told at the beginning
_GONE, _TOO_LARGE = 410, 413
_Filter: TypeAlias = tuple[str, JSON, JSON]  # the name of events, and of which task and tool; None: of all
_AUTHORIZATION_ENDED: Final = "the subscription was not refreshed in time"


@dataclass(slots=True, kw_only=True, eq=False)
class _Target:
    """One subscription while this process delivers."""

    subscription: Subscription
    state: Deliveries
    interest: Interest
    principal: Principal
    events: dict[int, LoggedEvent] = field(default_factory=dict[int, LoggedEvent])  # pending ones, by position
    sending: set[int] = field(default_factory=set[int])
    saved_at: int = 0  # the position that is in the store
    is_dirty: bool = False

    @property
    def filter(self) -> _Filter:
        arguments = self.subscription.arguments
        return self.subscription.name, arguments.get("taskId"), arguments.get("tool")

    @property
    def has_room(self) -> bool:
        return len(self.state.pending) < WINDOW


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """The numbers for gauges, which are collected in another thread."""

    active: int = 0
    suspended: int = 0
    events: int = 0
    since: datetime | None = None


class Delivery:
    """Delivers to all subscriptions while this process has the lease; `run` it."""

    def __init__(self, store: Store, events: EventService, telemetry: Telemetry) -> None:
        self._store = store
        self._events = events
        self._telemetry = telemetry
        self._leases = Leases(store)
        self._clock = events.clock
        self._rate = Rate(events.endpoints.settings.deliveries_per_minute)
        self._targets: dict[str, _Target] = {}  # by the key of the subscription
        self._turns = anyio.CapacityLimiter(MOST_AT_ONCE)
        self._wake = anyio.Event()
        self._by_filter: dict[_Filter, dict[str, _Target]] = {}
        self._has_news = True  # in the log, or for a target that has read less of it
        self._read = 0.0  # when the log was read last
        self._is_needed = False  # there are subscriptions, as far as is known
        self._version = 0
        self._saved = 0.0  # when the states were written last
        self._group: TaskGroup | None = None
        self._waiting = _Waiting()
        observe = telemetry.observe
        observe("event_subscriptions", self._subscriptions, description="Webhook subscriptions to events.")
        observe("event_queue", lambda: [(self._waiting.events, {})], description="Events that wait for delivery.")
        observe("event_oldest", self._oldest, unit="s", description="How long the oldest of them has waited.")

    async def run(self) -> None:
        """Deliver while there are subscriptions and no other process does, until cancelled."""
        while True:
            try:
                self._is_needed = self._is_needed or bool(await self._events.subscriptions.under())
                if self._is_needed:
                    await self._leases.alone(_LEASE, self._deliver)
            except StoreError as error:
                logger.warning("events are delivered later: %s", error)
            except Exception:  # no error may end the server: docs/decisions/0002
                logger.exception("the delivery of events broke, and goes on")
            with anyio.move_on_after(CLAIM_EVERY):
                await self._events.subscribed.wait()
            self._events.subscribed = anyio.Event()

    async def _deliver(self) -> None:
        self._targets, self._by_filter = {}, {}
        try:
            async with self._events.log.waiting(self._note_news), anyio.create_task_group() as group:
                self._group, self._version = group, self._events.version
                for subscription in await self._events.subscriptions.under():
                    await self._use(subscription)
                while self._targets:
                    self._wake = anyio.Event()
                    try:
                        await self._take_turn(group)
                    except StoreError as error:
                        logger.warning("events are delivered later: %s", error)
                    with anyio.move_on_after(TURN_EVERY):
                        await self._wake.wait()
                self._is_needed = False
        finally:
            for target in self._targets.values():
                self._events.interests.remove(target.interest)
            self._waiting = _Waiting()
            with anyio.CancelScope(shield=True), anyio.move_on_after(SAVE_EVERY), suppress(StoreError):
                await self._save()

    def _note_news(self) -> None:
        self._has_news = True
        self._wake.set()

    async def _take_turn(self, group: TaskGroup) -> None:
        if self._version != self._events.version:  # other rules may let principals see tasks of others
            self._version = self._events.version
            for target in list(self._targets.values()):
                await self._use(target.subscription)
        if self._has_news or anyio.current_time() - self._read > TURN_EVERY:
            self._has_news, self._read = False, anyio.current_time()
            await self._read_log()
        self._start_due(group)
        if anyio.current_time() - self._saved > SAVE_EVERY:
            self._saved = anyio.current_time()
            await self._expire()
            self._count()
            await self._save()

    def _count(self) -> None:
        states = [target.state for target in self._targets.values()]
        suspended = sum(state.suspended is not None for state in states)
        waiting = [pending.since for state in states for pending in state.pending.values()]
        self._waiting = _Waiting(
            active=len(states) - suspended,
            suspended=suspended,
            events=len(waiting),
            since=min(waiting, default=None),
        )

    def _subscriptions(self) -> Iterable[tuple[float, Labels]]:
        return [(getattr(self._waiting, state), {"state": state}) for state in ("active", "suspended")]

    def _oldest(self) -> Iterable[tuple[float, Labels]]:
        since = self._waiting.since
        return [(0.0 if since is None else (self._clock() - since).total_seconds(), {})]

    # --- subscriptions

    async def _use(self, subscription: Subscription) -> None:
        """Begin with a subscription, or go on with it as it was refreshed."""
        principal = subscription.subscriber.principal
        interest = Interest(
            name=subscription.name,
            arguments=subscription.arguments,
            owner=principal.id,
            key=f"{subscription.name} {subscription.id}",
            shared_tools=self._events.shared_tools(principal),
            is_kept=True,
        )
        target = self._targets.get(subscription.key)
        if target is not None and target.state.of != subscription.created:  # it ended, and began again
            self._forget(subscription.key)
            target = None
        if target is not None:
            self._events.interests.remove(target.interest)
            target.subscription, target.principal, target.interest = subscription, principal, interest
        else:
            state = await self._events.subscriptions.deliveries(subscription)
            is_new = state is None
            state = state or Deliveries(of=subscription.created, position=subscription.position)
            if is_new and subscription.tells_present:
                state.pending[_PRESENT] = Pending(since=self._clock(), due=self._clock())
            target = _Target(
                subscription=subscription,
                state=state,
                interest=interest,
                principal=principal,
                saved_at=state.position,
                is_dirty=is_new,
            )
            self._targets[subscription.key] = target
            self._by_filter.setdefault(target.filter, {})[subscription.key] = target
            self._has_news = True
        self._events.interests.add(interest)
        suspended = target.state.suspended
        if suspended is not None and subscription.refreshed > suspended:
            self._resume(target)

    def _resume(self, target: _Target) -> None:
        now = self._clock()
        target.state.suspended, target.is_dirty = None, True
        for pending in target.state.pending.values():
            pending.attempts, pending.due, pending.failing_since = 0, now, None

    async def _end(self, target: _Target, reason: str, *, tells: bool = True) -> None:
        """End a subscription, and tell its endpoint once."""
        subscription = target.subscription
        if self._targets.get(subscription.key) is not target:
            return  # it ended before
        self._forget(subscription.key)
        await self._events.subscriptions.end(subscription, reason, self._clock())
        self._events.record(target.principal, "terminated", subscription.name, reason)
        if tells:
            self._tell(target, "terminated", wire.terminated(RequestError(wire.Code.FORBIDDEN, reason)))

    def _tell(self, target: _Target, kind: str, content: Mapping[str, JSON]) -> None:
        """Tell the endpoint something about its subscription, once."""

        async def tell() -> None:
            try:
                body = wire.body_of({"type": kind, **content})
                await self._post(target, f"msg_{kind}_{secrets.token_hex(12)}", body)
            except EndpointFailed as failed:
                logger.info("an endpoint was not told %r: %s", kind, failed)

        if self._group is not None:
            self._group.start_soon(tell)

    def _forget(self, key: str) -> None:
        if target := self._targets.pop(key, None):
            self._events.interests.remove(target.interest)
            del self._by_filter[target.filter][key]
            if not self._by_filter[target.filter]:
                del self._by_filter[target.filter]

    async def _expire(self) -> None:
        now = self._clock()
        for target in [each for each in self._targets.values() if each.subscription.until <= now]:
            await self._reload(target.subscription.key)
            if target.subscription.until <= now and target.subscription.key in self._targets:
                await self._end(target, _AUTHORIZATION_ENDED)

    # --- the log

    async def _read_log(self) -> None:
        """Add the events after the last place to what is pending, as far as there is room."""
        is_behind = True
        while is_behind and (open_ := {key: each for key, each in self._targets.items() if each.has_room}):
            start = min(each.state.position for each in open_.values())
            page = await self._events.log.after(start)
            is_behind = len(page.events) == PAGE
            for target in open_.values():
                if target.state.position < page.first:
                    self._skip(target, page.first)
            for event in page.events:
                if event.name == EventName.SUBSCRIPTION:
                    await self._reload(event.key)
                for targets in [found for each in _filters_of(event) if (found := self._by_filter.get(each))]:
                    for key in targets.keys() & open_.keys():
                        if not self._take(open_[key], event):
                            del open_[key]  # it may soon have room again, but must not go on after this event
            end = page.events[-1].position if page.events else max(start, page.last)
            for target in open_.values():
                if target.has_room and target.state.position < end:
                    target.state.position = end
                    target.is_dirty |= end - target.saved_at > FAR_BEHIND

    def _take(self, target: _Target, event: LoggedEvent) -> bool:
        """Add an event to what is pending, if it is one of the target's; False: there is no room."""
        state = target.state
        if event.position <= state.position:
            return True
        if not target.has_room:
            return False
        state.position = event.position
        if target.subscription.tells(event, target.interest.shared_tools):
            state.pending[event.position] = Pending(since=event.at, due=self._clock())
            target.events[event.position] = event
            target.is_dirty = True
        return True

    async def _reload(self, key: str) -> None:
        """Take over a subscription that was made, refreshed or ended."""
        subscription = await self._events.subscriptions.at(key)
        if subscription is None or subscription.ended:
            self._forget(key)
        elif (known := self._targets.get(key)) is None or known.subscription != subscription:
            await self._use(subscription)

    def _skip(self, target: _Target, first: int) -> None:
        """Go on after events that are gone from the log, and tell the endpoint."""
        target.state.position, target.is_dirty = first, True
        self._tell(target, "gap", {"cursor": self._events.cursor_at(first, target.principal)})

    # --- attempts

    def _start_due(self, group: TaskGroup) -> None:
        now = self._clock()
        for target in self._targets.values():
            if not target.state.pending or target.state.suspended or target.subscription.until <= now:
                continue
            due = [position for position, each in target.state.pending.items() if each.due <= now]
            for position in sorted(set(due) - target.sending)[: AT_ONCE - len(target.sending)]:
                if self._turns.available_tokens <= 0:
                    return
                if wait := self._rate.take(host_of(target.subscription.url)):
                    target.state.pending[position].due = now + timedelta(seconds=wait)
                    continue
                target.sending.add(position)
                self._turns.acquire_on_behalf_of_nowait((target, position))
                group.start_soon(self._try, target, position)

    async def _try(self, target: _Target, position: int) -> None:
        try:
            await self._attempt(target, position)
        except StoreError as error:
            logger.warning("an event is delivered later: %s", error)
            target.state.pending[position].due = self._clock() + timedelta(seconds=PAUSES[0])
        except Exception:  # no error may end the server: docs/decisions/0002
            logger.exception("an event could not be delivered, and is tried again")
            target.state.pending[position].due = self._clock() + timedelta(seconds=PAUSES[0])
        finally:
            target.sending.discard(position)
            self._turns.release_on_behalf_of((target, position))
            self._wake.set()

    async def _attempt(self, target: _Target, position: int) -> None:
        """Send an event if the principal may still see it, and note the outcome."""
        subscription, state = target.subscription, target.state
        if position == _PRESENT:
            found = await self._events.present(subscription.name, subscription.arguments, target.principal)
        else:
            event = target.events.get(position) or await self._logged(position)
            one = event and await self._events.occurrence(event, subscription.arguments, target.principal)
            found = [one] if one else []
        outcome, trouble = "ok" if found else "withheld", None
        try:
            for occurrence in found:
                cursor = self._events.cursor_at(state.watermark, target.principal)
                await self._post(target, occurrence.event_id, _body(occurrence, cursor))
                state.last_delivery, state.failed_since, state.last_error = self._clock(), None, None
        except EndpointFailed as failed:
            trouble, outcome = failed, failed.trouble.value
        self._telemetry.event_delivery(outcome)
        target.is_dirty = True
        if trouble is not None and trouble.status == _GONE:
            await self._end(target, "the endpoint answered 410 Gone", tells=False)
        elif trouble is not None and trouble.status == _TOO_LARGE:
            self._give_up(target, position, "413 Content Too Large")
        elif trouble is not None:
            self._fail(target, position, trouble)
        else:
            self._finish(target, position)

    async def _logged(self, position: int) -> LoggedEvent | None:
        page = await self._events.log.after(position - 1)
        return page.events[0] if page.events and page.events[0].position == position else None

    def _finish(self, target: _Target, position: int) -> None:
        self._has_news |= not target.has_room
        target.state.pending.pop(position, None)
        target.events.pop(position, None)

    def _fail(self, target: _Target, position: int, failed: EndpointFailed) -> None:
        """Try again later; after the last attempt suspend the subscription, unless other events were taken since."""
        state, pending, now = target.state, target.state.pending[position], self._clock()
        state.last_error, state.failed_since = failed.trouble, state.failed_since or now
        pending.failing_since = pending.failing_since or now
        pending.attempts += 1
        if pending.attempts <= len(PAUSES):
            pause = PAUSES[pending.attempts - 1] * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311  # jitter
            pending.due = now + timedelta(seconds=pause)
        elif state.last_delivery is not None and state.last_delivery > pending.failing_since:
            self._give_up(target, position, str(failed))
        else:
            state.suspended = now
            reason = f"{failed} since {state.failed_since:%Y-%m-%d %H:%M} UTC"
            self._events.record(target.principal, "suspended", target.subscription.name, reason)
            logger.warning("an endpoint takes no events (%s): its subscription waits for a refresh", reason)

    def _give_up(self, target: _Target, position: int, reason: str) -> None:
        self._finish(target, position)
        self._telemetry.event_delivery("given_up")
        text = f"{target.subscription.name}: {reason}"
        self._events.audit(record_of(Event.DELIVERY, target.principal, outcome="failed", reason=text))
        logger.warning("an event was given up, its endpoint does not take it: %s", reason)

    async def _post(self, target: _Target, message_id: str, body: bytes) -> None:
        subscription, now = target.subscription, self._clock()
        headers = wire.headers_of(
            subscription.secrets(now), message_id=message_id, subscription_id=subscription.id, sent=now, body=body
        )
        await self._events.endpoints.post(subscription.url, body, headers)

    async def _save(self) -> None:
        for target in list(self._targets.values()):
            if target.is_dirty:
                target.is_dirty = False
                try:
                    await self._events.subscriptions.save_deliveries(target.subscription, target.state)
                except StoreError:
                    target.is_dirty = True
                    raise
                target.saved_at = target.state.position


def _filters_of(event: LoggedEvent) -> Iterable[_Filter]:
    """Return the filters that the event fits."""
    return product([event.name], [event.task_id, None], [event.tool, None])


def _body(occurrence: wire.Occurrence, cursor: str) -> bytes:
    """Return the body of a delivery, without what makes it too large."""
    body = wire.body_of(wire.occurrence(occurrence, cursor=cursor))
    if len(body) <= wire.MAX_BODY:
        return body
    return wire.body_of(wire.occurrence(wire.shortened(occurrence), cursor=cursor))
