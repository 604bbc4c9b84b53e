"""Deliveries to the endpoints of subscriptions, by one process at a time.

A notification channel is also a target: it belongs to the operator, and is never suspended and never ends.

Each subscription has a position in the event log. Every event up to the position was accepted by the endpoint, was
given up, or is pending. Only `_take_events` moves the position, and it awaits nothing. A pending event is retried
independently and does not delay others. While `WINDOW` events are pending, the position does not move, and later events
stay in the log.

Positions and pending events are saved after deliveries. A crash, or a second process that is still delivering, may
therefore send an event twice, with the same id. Each attempt first reads the subscription, so an ended one receives
nothing, whichever process ended it.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import count, product
from typing import Final

import anyio
from anyio.abc import TaskGroup

from mcp_workflows.access.audit import Event, record_of
from mcp_workflows.access.rate_limits import Rate
from mcp_workflows.adapter import JSON
from mcp_workflows.errors import RequestError, StoreError
from mcp_workflows.events.endpoints import EndpointFailed, host_of
from mcp_workflows.events.interests import Interest
from mcp_workflows.events.log import END_OF_LOG, PAGE
from mcp_workflows.events.service import EventService
from mcp_workflows.events.subscriptions import NOT_REFRESHED, Deliveries, Pending, Subscription
from mcp_workflows.store.leases import Leases
from mcp_workflows.store.protocol import EventPage, Store
from mcp_workflows.task import EventName, LoggedEvent
from mcp_workflows.telemetry import Labels, Seen, Telemetry
from mcp_workflows.wire import events as wire

logger = logging.getLogger(__name__)

PAUSES: Final[Sequence[float]] = (5, 30, 120, 600, 1800, 3600, 7200)  # seconds before each retry
JITTER: Final = 0.2  # fraction of a pause, in both directions
WINDOW: Final = 50  # pending events of one subscription
AT_ONCE: Final = 4  # requests of one subscription; a channel has one, since people read its messages in order
OF_ONE_OWNER: Final = 8  # at once: slow endpoints of one owner leave room for others
AT_ONE_HOST: Final = 16  # at once: a slow host leaves room for others
MOST_AT_ONCE: Final = 64  # of this process
TURN_EVERY: Final = 0.5  # seconds, if there are no new events or finished attempts
SAVE_EVERY: Final = 1.0  # seconds: after a crash, events delivered since the last save are sent again
SAVE_QUIET_EVERY: Final = 3600.0  # seconds, if only the position has moved: it is still within the log
CLAIM_EVERY: Final = 2.0  # seconds
_LEASE: Final = "events"
_PRESENT: Final = -1  # pseudo-position: the current state of the single task, sent first
_GONE, _TOO_LARGE = 410, 413


@dataclass(slots=True, kw_only=True, eq=False)
class _Target:
    """A subscription or a channel while this process delivers to it."""

    subscription: Subscription
    state: Deliveries
    interest: Interest
    channel: str | None = None  # its name
    events: dict[int, LoggedEvent] = field(default_factory=dict[int, LoggedEvent])  # pending ones, by position
    sending: set[int] = field(default_factory=set[int])
    told: set[str] = field(default_factory=set[str])  # ids of the events that reported the current state
    saved: float = field(default_factory=anyio.current_time)  # time of the last save
    is_dirty: bool = False
    version: int = 0  # of the rules at its last check

    @property
    def host(self) -> str:
        return host_of(self.subscription.url)

    @property
    def owner(self) -> str:
        return self.interest.owner if self.channel is None else self.subscription.key  # one owner per channel

    def turn(self, pending: Pending) -> datetime:
        """Return the time of a pending event's turn. Events of a channel that are due go by position."""
        return pending.due if self.channel is None else min(each.due for each in self.state.pending.values())

    @property
    def has_room(self) -> bool:
        return len(self.state.pending) < WINDOW


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
        self._read = 0  # position up to which new, refreshed and ended subscriptions were loaded
        self._wake = anyio.Event()
        self._is_needed = False  # True if subscriptions are known to exist
        self._version = 0  # of the rules; 0: some subscriptions are unchecked
        self._has_news = True  # in the log
        self._waiting: set[_Target] = set()  # all targets with pending events, maybe more
        self._served: dict[str, float] = {}  # start of each principal's last attempt, on the event loop's clock
        self._looked = 0.0  # last check of all subscriptions, on the event loop's clock
        self._group: TaskGroup | None = None
        self._samples: Mapping[str, Seen] = {}
        self._measure()
        for name in ("event_subscriptions", "event_queue", "oldest_event_age"):
            telemetry.observe(name, partial(self._sample, name))

    def _sample(self, name: str) -> Iterable[tuple[float, Labels]]:
        return self._samples[name]()

    async def run(self) -> None:
        """Deliver while there are subscriptions and this process holds the lease, until cancelled."""
        while True:
            changed = self._events.subscriptions.changed
            try:
                self._is_needed = self._is_needed or bool(
                    self._events.channels or await self._events.subscriptions.under()
                )
                if self._is_needed:
                    await self._leases.alone(_LEASE, self._deliver)
            except StoreError as error:
                logger.warning("events will be delivered later: %s", error)
            except Exception:  # no error may end the server: docs/decisions/0002
                logger.exception("the delivery of events failed and restarts")
            with anyio.move_on_after(CLAIM_EVERY):
                await changed.wait()

    async def _deliver(self) -> None:
        self._targets, self._waiting, self._served = {}, set(), {}
        try:
            self._read = (await self._store.events(END_OF_LOG, 0)).last
            for subscription in await self._events.subscriptions.under():
                await self._load(subscription)
            await self._use_channels()
            async with self._events.log.waiting(self._note_news), anyio.create_task_group() as self._group:
                while self._targets:
                    self._wake = anyio.Event()
                    try:
                        await self._go_on(self._group)
                    except StoreError as error:
                        logger.warning("events will be delivered later: %s", error)
                    with anyio.move_on_after(TURN_EVERY):
                        await self._wake.wait()
                self._is_needed = False
        except StoreError as error:
            logger.warning("events will be delivered later: %s", error)
        finally:
            for target in self._targets.values():
                self._events.interests.remove(target.interest)
            with anyio.CancelScope(shield=True), anyio.move_on_after(SAVE_EVERY), suppress(StoreError):
                await self._save(at_once=True)
            self._targets = {}
            self._measure()

    def _note_news(self) -> None:
        self._has_news = True
        self._wake.set()

    async def _go_on(self, group: TaskGroup) -> None:
        if self._version != self._events.version:
            self._version = self._events.version
            await self._use_channels()
            every = [each for each in self._targets.values() if each.channel is None]
            for target in [each for each in every if each.version != self._version]:
                target.version = self._version
                await self._load(target.subscription)  # it may cover other tools now
                if reason := await self._events.no_longer(target.subscription):
                    await self._end(target, reason)
        if self._has_news:
            self._has_news = False
            await self._read_log()
        self._start_due(group)
        if (now := anyio.current_time()) - self._looked >= SAVE_EVERY:
            self._looked, self._has_news = now, True  # a window may have room again
            await self._expire()
            self._measure()
            await self._save()

    def _measure(self) -> None:
        states = [target.state for target in self._targets.values()]
        waiting = [pending.since for each in states if not each.suspended for pending in each.pending.values()]
        suspended, oldest = sum(each.suspended is not None for each in states), min(waiting, default=self._clock())
        channels = sum(target.channel is not None for target in self._targets.values())
        counts = {"active": len(states) - channels - suspended, "suspended": suspended}
        self._samples = {
            "event_subscriptions": lambda: [(count, {"state": state}) for state, count in counts.items()],
            "event_queue": lambda: [(len(waiting), {})],
            "oldest_event_age": lambda: [((self._clock() - oldest).total_seconds() if waiting else 0.0, {})],
        }

    # --- subscriptions

    async def _load(self, subscription: Subscription) -> None:
        """Start with a subscription, or update it."""
        interest = self._events.interest_of(subscription)
        target = self._targets.get(subscription.key)
        if target is not None and target.state.of != subscription.created:  # it ended and was created again
            self._forget(subscription.key)
            target = None
        if target is None:
            state = await self._events.subscriptions.deliveries(subscription)
            is_new = state is None
            state = state or Deliveries(of=subscription.created, position=subscription.position)
            if is_new and subscription.tells_present:
                state.pending[_PRESENT] = Pending(since=self._clock(), due=self._clock())
            target = _Target(subscription=subscription, state=state, interest=interest, is_dirty=is_new)
            self._targets[subscription.key] = target
            self._version, self._has_news = 0, True
        else:
            self._events.interests.remove(target.interest)
            target.subscription, target.interest = subscription, interest
        self._events.interests.add(interest)
        self._waiting.add(target)
        suspended = target.state.suspended
        if suspended is not None and subscription.refreshed >= suspended:
            target.state.suspended, target.is_dirty = None, True
            for pending in target.state.pending.values():
                pending.attempts, pending.due, pending.failing_since = 0, self._clock(), None

    async def _use_channels(self) -> None:
        """Add, update and remove targets to match the configured channels."""
        for key, known in list(self._targets.items()):
            if known.channel is not None and known.channel not in self._events.channels:
                self._forget(key)
        for name in self._events.channels:
            subscription, interest = self._events.channel_interest(name)
            target = self._targets.get(subscription.key)
            if target is None:
                state = await self._events.subscriptions.deliveries(subscription)
                if state is None:  # it was added after its process started
                    last = (await self._store.events(END_OF_LOG, 0)).last
                    state = Deliveries(of=subscription.created, position=last)
                target = _Target(subscription=subscription, state=state, interest=interest, channel=name, is_dirty=True)
                self._targets[subscription.key], self._has_news = target, True
                self._waiting.add(target)
            elif target.interest.shared_tools != interest.shared_tools:
                self._events.interests.remove(target.interest)
            target.subscription, target.interest = subscription, interest
            self._events.interests.add(interest)

    async def _is_current(self, target: _Target) -> bool:
        """Reread the subscription, update its target, and return True if it is still active."""
        key = target.subscription.key
        if target.channel is not None:
            return self._targets.get(key) is target
        subscription = await self._events.subscriptions.at(key)
        if subscription is None or subscription.ended:
            self._forget(key)
        elif subscription != target.subscription:
            await self._load(subscription)
        return self._targets.get(key) is target

    async def _end(self, target: _Target, reason: str, *, tells: bool = True) -> None:
        """End a subscription and notify its endpoint once, unless it was refreshed meanwhile."""
        known = target.subscription
        if not await self._is_current(target) or target.subscription.refreshed != known.refreshed:
            return
        await self._events.subscriptions.end(target.subscription, reason, self._clock())
        self._forget(known.key)
        self._events.record(known.principal, "terminated", known.name, reason)
        if tells:
            self._tell(target, "terminated", wire.terminated(RequestError(wire.Code.FORBIDDEN, reason)))

    def _tell(self, target: _Target, kind: str, content: Mapping[str, JSON]) -> None:
        """Send the endpoint one message about its subscription, without retries."""
        if target.channel is not None:
            logger.warning("channel %r was not notified of an earlier event: %s", target.channel, kind)
            return

        async def tell() -> None:
            try:
                body = wire.body_of({"type": kind, **content})
                await self._post(target, f"msg_{kind}_{secrets.token_hex(12)}", body)
            except EndpointFailed as failed:
                logger.info("an endpoint was not notified of %r: %s", kind, failed)

        if self._group is not None and not self._rate.take(target.host):
            self._group.start_soon(tell)

    def _forget(self, key: str) -> None:
        if target := self._targets.pop(key, None):
            self._events.interests.remove(target.interest)
            self._waiting.discard(target)

    async def _expire(self) -> None:
        for target in [each for each in self._targets.values() if each.subscription.until <= self._clock()]:
            if await self._is_current(target) and target.subscription.is_over:
                await self._events.subscriptions.delete(target.subscription, self._clock())
                self._forget(target.subscription.key)
            elif target.subscription.until <= self._clock():
                await self._end(target, NOT_REFRESHED)

    # --- the log

    async def _read_log(self) -> None:
        """Add the next events of the log to the pending ones while there is room."""
        is_behind = True
        while is_behind:
            start = min([self._read, *(each.state.position for each in self._targets.values() if each.has_room)])
            page = await self._events.log.after(start)
            changed = [each for each in page.events if each.name == EventName.SUBSCRIPTION]
            for key in dict.fromkeys(event.key for event in changed if event.position > self._read):
                if key in self._targets:
                    await self._is_current(self._targets[key])
                elif (subscription := await self._events.subscriptions.at(key)) and not subscription.ended:
                    await self._load(subscription)
            self._read = max(self._read, page.events[-1].position if page.events else 0)
            open_ = [target for target in self._targets.values() if target.has_room]
            self._take_events([each for each in open_ if each.state.position >= start], page)
            is_behind = len(page.events) == PAGE or any(each.state.position < start for each in open_)
            await anyio.lowlevel.checkpoint()

    def _take_events(self, targets: Sequence[_Target], page: EventPage) -> None:
        """Move the positions of targets past a page; all start at or after its beginning. Nothing here may await."""
        mine: dict[tuple[str, str, JSON], list[_Target]] = {}  # by event name, owner and tool
        for target in targets:
            if target.state.position < page.first:
                self._skip(target, page.first)
            for name, owner in product(target.interest.names, target.interest.owners):
                mine.setdefault((name, owner, target.interest.arguments.get("tool")), []).append(target)
        for event in page.events:
            keys = [(event.name, owner, tool) for owner in (event.owner, "") for tool in (event.tool, None)]
            for target in {each for key in keys for each in mine.get(key, ())}:
                if target.has_room and event.position > target.state.position:
                    target.state.position = event.position
                    if target.interest.matches(event) and not target.subscription.is_too_old(event):
                        target.state.pending[event.position] = Pending(since=event.at, due=self._clock())
                        target.events[event.position] = event
                        target.is_dirty = True
                        self._waiting.add(target)
        for target in targets if page.events else ():
            if target.has_room:
                target.state.position = max(target.state.position, page.events[-1].position)

    def _skip(self, target: _Target, first: int) -> None:
        """Skip events that the log no longer holds, and notify the endpoint of the gap."""
        target.state.position, target.is_dirty = max(first, target.state.position), True
        self._tell(target, "gap", {"cursor": self._events.cursor_at(first, target.subscription.principal)})

    # --- attempts

    def _start_due(self, group: TaskGroup) -> None:
        """Start attempts. Principals take turns; for each principal, the events that waited longest come first."""
        self._waiting = {each for each in self._waiting if each.state.pending or each.sending}
        now, busy = self._clock(), [target for target in self._waiting for _ in target.sending]
        in_flight, of_owner = Counter(each.host for each in busy), Counter(each.owner for each in busy)
        due = [
            (target.turn(pending), position, target)
            for target in self._waiting
            if target.state.suspended is None
            for position, pending in target.state.pending.items()
            if pending.due <= now and position not in target.sending
            if position == _PRESENT or _PRESENT not in target.state.pending
        ]
        due.sort(key=lambda each: each[:2])
        turns = defaultdict[str, Iterator[int]](count)
        in_turn = sorted(due, key=lambda each: (next(turns[each[2].owner]), self._served.get(each[2].owner, 0.0)))
        for _, position, target in in_turn:
            host, owner = target.host, target.owner
            if len(target.sending) >= (AT_ONCE if target.channel is None else 1) or of_owner[owner] >= OF_ONE_OWNER:
                continue
            if in_flight[host] >= AT_ONE_HOST or in_flight.total() >= MOST_AT_ONCE:
                continue
            if wait := self._rate.take(host):
                target.state.pending[position].due = now + timedelta(seconds=wait)
                continue
            target.sending.add(position)
            in_flight[host] += 1
            of_owner[owner] += 1
            self._served[owner] = anyio.current_time()
            group.start_soon(self._try, target, position)

    async def _try(self, target: _Target, position: int) -> None:
        try:
            if await self._is_current(target) and position in target.state.pending:
                attempt = self._attempt if target.channel is None else partial(self._notify, target.channel)
                await attempt(target, position)
        except Exception as error:  # no error may end the server: docs/decisions/0002
            if not isinstance(error, StoreError):
                logger.exception("an event could not be delivered and will be retried")
            if pending := target.state.pending.get(position):
                pending.attempts += not isinstance(error, StoreError)
                pending.due = self._clock() + timedelta(seconds=PAUSES[min(pending.attempts, len(PAUSES) - 1)])
        finally:
            target.sending.discard(position)
            self._wake.set()

    async def _attempt(self, target: _Target, position: int) -> None:
        """Send an event if the principal may still see it, and record the outcome."""
        subscription, state = target.subscription, target.state
        if position == _PRESENT:
            found = await self._events.present(subscription.name, subscription.arguments, subscription.principal)
        else:
            event = target.events.get(position) or await self._logged(target, position)
            one = None
            if event is not None and event.id not in target.told:
                one = await self._events.occurrence(event, subscription.arguments, subscription.principal)
            found = [one] if one else []
        outcome, failed = "ok" if found else "withheld", None
        try:
            for occurrence in found:
                cursor = self._events.cursor_at(state.watermark, subscription.principal)
                await self._post(target, occurrence.event_id, _body(occurrence, cursor))
                state.last_delivery, state.failed_since, state.last_error = self._clock(), None, None
                target.told |= {occurrence.event_id} if position == _PRESENT else set()
        except EndpointFailed as error:
            failed, outcome = error, error.trouble.value
        self._telemetry.count("event_deliveries", outcome=outcome)
        target.is_dirty = True
        if failed is not None and failed.status == _GONE:
            await self._end(target, "the endpoint answered 410 Gone", tells=False)
            return
        self._settle(target, position, failed)
        if failed is None and found and not subscription.is_over and subscription.is_of_one_end:
            await self._events.subscriptions.mark_over(target.subscription, self._clock())

    async def _notify(self, channel: str, target: _Target, position: int) -> None:
        """Notify a channel of an event if it is still relevant; record the outcome, also on the task."""
        state, failed, settings = target.state, None, self._events.channels.get(channel)
        if settings is None:  # a reload has just removed it
            return
        event = target.events.get(position) or await self._logged(target, position)
        told = None if event is None else await self._events.notification(event, channel, settings)
        if told is not None:
            now = self._clock()
            try:
                await self._events.sender.send(channel, settings, told, now)
                state.last_delivery, state.failed_since, state.last_error = now, None, None
            except EndpointFailed as error:
                failed = error
                if state.failed_since is None:
                    logger.warning("channel %r will be notified later: %s %s", channel, failed, failed.detail)
            with suppress(StoreError):  # the notification was sent in any case
                await self._events.note_notification(told, channel, None if failed else now)
        target.is_dirty = True
        outcome = failed.trouble.value if failed else "ok" if told else "withheld"
        self._telemetry.count("event_deliveries", outcome=outcome)
        self._settle(target, position, failed)

    async def _logged(self, target: _Target, position: int) -> LoggedEvent | None:
        page = await self._events.log.after(position - 1)
        if position <= page.first:
            self._skip(target, page.first)
        return page.events[0] if page.events and page.events[0].position == position else None

    def _settle(self, target: _Target, position: int, failed: EndpointFailed | None) -> None:
        """Remove an event that is done, or schedule its retry."""
        if failed is None:
            self._finish(target, position)
        elif failed.status == _TOO_LARGE:
            self._give_up(target, position, "413 Content Too Large")
        else:
            self._fail(target, position, failed)

    def _finish(self, target: _Target, position: int) -> None:
        self._has_news |= not target.has_room  # the log holds more events
        target.state.pending.pop(position, None)
        target.events.pop(position, None)

    def _fail(self, target: _Target, position: int, failed: EndpointFailed) -> None:
        """Retry later; after the last attempt suspend the subscription, unless other events were accepted meanwhile.

        Nothing would resume a channel, so it only loses the event.
        """
        state, pending, now = target.state, target.state.pending[position], self._clock()
        state.last_error, state.failed_since = failed.trouble, state.failed_since or now
        pending.failing_since = pending.failing_since or now
        pending.attempts += 1
        if pending.attempts <= len(PAUSES):
            pause = PAUSES[pending.attempts - 1] * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311  # jitter
            pending.due = now + timedelta(seconds=pause)
        elif target.channel or (state.last_delivery is not None and state.last_delivery > pending.failing_since):
            self._give_up(target, position, str(failed))
        else:
            state.suspended = now
            reason = f"{failed} since {state.failed_since:%Y-%m-%d %H:%M} UTC"
            self._events.record(target.subscription.principal, "suspended", target.subscription.name, reason)
            logger.warning("an endpoint accepts no events (%s): its subscription is suspended until a refresh", reason)

    def _give_up(self, target: _Target, position: int, reason: str) -> None:
        event = target.events.get(position)
        self._finish(target, position)
        self._telemetry.count("event_deliveries", outcome="given_up")
        name = f"notify.{target.channel}" if target.channel else target.subscription.name
        principal = None if target.channel else target.subscription.principal
        tool = event.tool if event and target.channel else None
        record = record_of(Event.DELIVERY, principal, tool=tool, outcome="failed", reason=f"{name}: {reason}")
        self._events.audit(record)
        logger.warning("an event was dropped; %s rejects it: %s", target.channel or "its endpoint", reason)

    async def _post(self, target: _Target, message_id: str, body: bytes) -> None:
        subscription, now = target.subscription, self._clock()
        headers = wire.headers_of(
            subscription.secrets(now), message_id=message_id, subscription_id=subscription.id, sent=now, body=body
        )
        await self._events.endpoints.post(subscription.url, body, headers)

    async def _save(self, *, at_once: bool = False) -> None:
        """Save the states that changed and were not saved a moment ago."""
        for target in list(self._targets.values()):
            if target.channel is not None and target.channel not in self._events.channels:
                continue  # it was just removed: its state must not come back
            now = anyio.current_time()
            pause = SAVE_QUIET_EVERY if not target.is_dirty else 0.0 if at_once else SAVE_EVERY
            if now - target.saved >= pause:
                target.is_dirty = False
                try:
                    await self._events.subscriptions.save_deliveries(target.subscription, target.state)
                except StoreError:
                    target.is_dirty = True
                    raise
                target.saved = now
                await anyio.lowlevel.checkpoint()  # a store may complete without yielding


def _body(occurrence: wire.Occurrence, cursor: str) -> bytes:
    """Return the body of a delivery, shortened if it is too large."""
    body = wire.body_of(wire.occurrence(occurrence, cursor=cursor))
    if len(body) <= wire.MAX_BODY:
        return body
    return wire.body_of(wire.occurrence(wire.shortened(occurrence), cursor=cursor))
