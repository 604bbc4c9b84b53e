"""Events for one caller: its event types, polls, streams and webhook subscriptions.

The rules of tasks apply: `task.ended` is for principals who may see a task, `task.input_required` for those who may
answer it. They are checked for each event when it is delivered.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final, NamedTuple, NoReturn, Self

import anyio

from mcp_workflows.access import Principal, person_of
from mcp_workflows.access.audit import Audit, Event, record_of, silent
from mcp_workflows.access.rate_limits import Rate
from mcp_workflows.adapter import JSON, ListsEnded, digest
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import INTERNAL_ERROR, INVALID_PARAMS, RequestError, ServerStopping, StoreError
from mcp_workflows.events.endpoints import EndpointFailed, Endpoints, EventSettings, host_of
from mcp_workflows.events.interests import Interest, Interests
from mcp_workflows.events.log import END_OF_LOG, PAGE, EventLog
from mcp_workflows.events.notifications import (
    NOTIFIED_OF,
    Channels,
    Notification,
    NotificationChannel,
    Sender,
    channels_of,
    notification_of,
    question_of,
)
from mcp_workflows.events.subscriptions import (
    Subscription,
    Subscriptions,
    channel_of,
    owner_key,
    refreshed,
    subscription_id,
)
from mcp_workflows.store.protocol import Store
from mcp_workflows.task import EventName, LoggedEvent, Task, event_id, event_of, question_digest
from mcp_workflows.tasks.executions import Executions, read_cursor, write_cursor
from mcp_workflows.tasks.results import view
from mcp_workflows.tasks.service import Authorization, TaskService
from mcp_workflows.tools.json_schema import Checker
from mcp_workflows.tools.tool import EXECUTION_ID, AnyTool, Kind
from mcp_workflows.wire import events as wire

CLAIMS_KEPT: Final = timedelta(days=1)  # how long subscriptions outlive the principal's token
DEFAULT_TTL: Final = timedelta(days=7)
LONGEST_TTL: Final = timedelta(days=30)
SHORTEST_TTL: Final = timedelta(hours=1)  # unless the token expires earlier
VERIFIED_FOR: Final = timedelta(days=1)
MOST_EVENTS: Final = 100  # of one poll
NEXT_POLL: Final = timedelta(seconds=5)
HEARTBEAT: Final = 15.0  # seconds; clients give up after 60
POLLED_FOR: Final = 120.0  # seconds after a poll in which its executions are still observed
VERIFICATIONS_PER_MINUTE: Final = 20  # for one caller
VERIFICATIONS_PER_HOST: Final = 120  # for all callers: users of a host such as ChatGPT share one
EXAMINED: Final = 200  # candidate events per poll
_CURSORS: Final = "event-cursors"  # name of the key in the store


class _Place(NamedTuple):
    """A place in the events of a subscription."""

    position: int  # in the log
    is_new: bool = False  # the current state of the single task has not been sent
    shown: str = ""  # id of the last event sent of that state; for `task.progress`, a digest of its data


class _Batch(NamedTuple):
    events: Sequence[tuple[wire.Occurrence, _Place]]  # each with the place after it
    place: _Place
    truncated: bool = False
    has_more: bool = False


class EventService:
    """Handles clients' event requests and renders each event for a principal; enter it before use."""

    def __init__(
        self,
        *,
        store: Store,
        engines: Engines,
        executions: Executions,
        authorization: Authorization,
        settings: EventSettings = EventSettings(),  # noqa: B008  # it cannot be changed
        audit: Audit = silent,
    ) -> None:
        self.endpoints = Endpoints(settings)
        self.sender = Sender()
        self.channels: Channels = {}
        self.subscriptions = Subscriptions(store)
        self.log = EventLog(store)
        self.interests = Interests(store=store, engines=engines, executions=executions)
        self.audit = audit
        self.clock = executions.clock
        self._settings = settings
        self._store = store
        self._engines = engines
        self._executions = executions
        self._authorization = authorization
        self.version = 0  # of the tools and their rules
        self._cursor_key = b""
        self._subscribing = anyio.Lock()
        self._verified_by = Rate(VERIFICATIONS_PER_MINUTE)
        self._verified_at = Rate(VERIFICATIONS_PER_HOST)
        self._tools: Mapping[str, AnyTool] = {}
        self._tasks: TaskService | None = None

    async def __aenter__(self) -> Self:
        self._cursor_key = await self._store.secret(_CURSORS)
        await self.endpoints.__aenter__()
        await self.sender.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.sender.__aexit__(kind, error, trace)
        await self.endpoints.__aexit__(kind, error, trace)

    def use(self, tools: Mapping[str, AnyTool], tasks: TaskService, channels: Channels | None = None) -> None:
        """Replace the tools, the service of their tasks and the channels; None keeps the channels."""
        self._tools, self._tasks = tools, tasks
        self.channels = self.channels if channels is None else channels
        self.version += 1
        self.interests.use(tools)

    # --- events/list

    async def types(self, principal: Principal) -> Mapping[str, tuple[wire.EventType, Sequence[str]]]:
        """Return the event types that the principal may subscribe to, by name, each with the tools it may name."""
        offered = await self._authorization.offered(principal)
        mine = offered | set(self._authorization.shared_tools(principal))
        watching = [
            name
            for name in offered
            if self._lists_ended(self._tools.get(name)) and await self._authorization.may_watch(name, principal)
        ]
        named = {name: watching if name == EventName.EXECUTION_ENDED else sorted(mine) for name in wire.TYPES}
        found = {name: (wire.TYPES[name], tools) for name, tools in named.items() if tools}
        if not principal.identified or self._settings.allow == []:
            modes = (wire.Mode.POLL, wire.Mode.PUSH)
            found = {name: (replace(kind, modes=modes), tools) for name, (kind, tools) in found.items()}
        if principal.identified:
            return found
        found.pop(EventName.EXECUTION_ENDED, None)
        # all anonymous callers are one owner, so each must name the id of its task
        return {name: (replace(kind, required=("taskId",)), tools) for name, (kind, tools) in found.items()}

    def _lists_ended(self, tool: AnyTool | None) -> bool:
        return tool is not None and tool.kind is Kind.WATCH and self._engines.has(tool.engine, ListsEnded)

    async def _check(self, wanted: wire.Wanted, principal: Principal, mode: wire.Mode) -> None:
        """Check a request, and start listing executions if it concerns those.

        Raises:
            RequestError: the principal may not receive these events.
        """
        if wanted.name not in (types := await self.types(principal)):
            raise wire.unknown_event(wanted.name)
        kind, tools = types[wanted.name]
        if mode not in kind.modes:
            data: JSON = {"feature": "deliveryMode", "value": mode.value}
            raise RequestError(wire.Code.UNSUPPORTED, f"{wanted.name} is not delivered by {mode.value}", data)
        if wrong := Checker(kind.schema(tools)).violations(dict(wanted.arguments)):
            raise RequestError(INVALID_PARAMS, f"arguments of {wanted.name}: {'; '.join(wrong)}")
        task_id = wanted.arguments.get("taskId")
        assert self._tasks is not None, "`use` comes before requests"
        if isinstance(task_id, str):
            await self._tasks.owned(task_id, principal)
        if wanted.name == EventName.EXECUTION_ENDED:
            tool = str(wanted.arguments["tool"])

            async def is_waited_for() -> bool:
                every = await self.subscriptions.under()
                return any(each.name == wanted.name and each.arguments["tool"] == tool for each in every)

            await self.interests.begin(self._tools[tool], is_waited_for)

    # --- events/poll and events/stream

    async def poll(self, wanted: wire.Wanted, most: int, principal: Principal) -> wire.Polled:
        """Return the events after a cursor. A first poll without a cursor returns only a cursor."""
        await self._check(wanted, principal, wire.Mode.POLL)
        self.interests.add(self._interest(wanted, principal, key=wanted.key), lasting=POLLED_FOR)
        place, truncated = await self._place(wanted, principal)
        batch = _Batch((), place, truncated, has_more=place.is_new)
        if wanted.cursor is not None and not truncated:
            since = None if wanted.max_age is None else self.clock() - wanted.max_age
            batch = await self._after(place, wanted, principal, most, since)
        return wire.Polled(
            events=[event for event, _ in batch.events],
            cursor=self._cursor(batch.place, principal),
            truncated=batch.truncated,
            has_more=batch.has_more,
            next_poll=NEXT_POLL,
        )

    async def stream(
        self, wanted: wire.Wanted, principal: Principal
    ) -> AsyncGenerator[tuple[wire.Notice, Mapping[str, JSON]]]:
        """Yield the notifications of a stream: its start, each event as it happens, and heartbeats in between.

        Raises:
            RequestError: the principal may not receive these events, or may no longer.
            ServerStopping: the server is stopping.
        """
        await self._check(wanted, principal, wire.Mode.PUSH)
        place, truncated = await self._place(wanted, principal)
        since = None if wanted.max_age is None else self.clock() - wanted.max_age
        interest = self._interest(wanted, principal, key=secrets.token_hex(8))  # an identical stream may exist
        pause, is_active, told = 1.0 if wanted.name == EventName.PROGRESS else HEARTBEAT, False, anyio.current_time()
        current = principal
        async with self.log.waiting():
            self.interests.add(interest)
            try:
                while not self._executions.stopping:
                    changed = self.log.changed
                    try:
                        batch = await self._after(place, wanted, current, MOST_EVENTS, since)
                    except StoreError as error:
                        yield wire.Notice.ERROR, wire.terminated(RequestError(INTERNAL_ERROR, str(error)))
                        batch, changed = _Batch((), place), anyio.Event()
                    is_due = batch.events or anyio.current_time() - told >= HEARTBEAT
                    if is_due:
                        current = await principal.revalidated(self.clock()) or _refuse_token()
                    if not is_active or batch.truncated:
                        cursor = self._cursor(place if batch.events else batch.place, principal)
                        yield wire.Notice.ACTIVE, {"cursor": cursor, "truncated": truncated or batch.truncated}
                        is_active, truncated = True, False
                    for event, after in batch.events:
                        yield wire.Notice.EVENT, wire.occurrence(event, cursor=self._cursor(after, principal))
                    place = batch.place
                    if is_due:
                        told = anyio.current_time()
                        yield wire.Notice.HEARTBEAT, {"cursor": self._cursor(place, principal)}
                    if not batch.has_more:
                        with self._executions.until_stop(), anyio.move_on_after(pause):
                            await changed.wait()
            finally:
                self.interests.remove(interest)
        raise ServerStopping

    async def _after(
        self, place: _Place, wanted: wire.Wanted, principal: Principal, most: int, since: datetime | None
    ) -> _Batch:
        """Return the next events after a place, leaving out those before `since`."""
        await anyio.lowlevel.checkpoint()  # a store may not yield, and a reader far behind calls this often
        events: list[tuple[wire.Occurrence, _Place]] = []
        if wanted.name == EventName.PROGRESS:
            present = await self.present(wanted.name, wanted.arguments, principal)
            shown = digest([each.data for each in present])
            if shown != place.shown:
                place = _Place(place.position, shown=shown)
                events = [(each, place) for each in present]
            return _Batch(events, place)
        if place.is_new:
            present = await self.present(wanted.name, wanted.arguments, principal)
            begin = 1 + next((at for at, each in enumerate(present) if each.event_id == place.shown), -1)
            events = [(each, place._replace(shown=each.event_id)) for each in present[begin : begin + most]]
            if len(present) > begin + most:
                return _Batch(events, events[-1][1], has_more=True)
            place = _Place(place.position)
            events = [*events[:-1], *((each, place) for each, _ in events[-1:])]
        page, interest = await self.log.after(place.position), self._interest(wanted, principal, key="")
        if place.position > page.last:  # the store was restored from a backup
            return _Batch(events, _Place(page.last), truncated=True)
        truncated, examined = place.position < page.first, 0
        for event in page.events:
            if len(events) >= most or examined >= EXAMINED:
                return _Batch(events, place, truncated, has_more=True)
            place = _Place(event.position)
            if not interest.matches(event):
                continue
            examined += 1
            if since is not None and event.at < since:
                truncated = True
            elif all(event.id != told.event_id for told, _ in events) and (
                found := await self.occurrence(event, wanted.arguments, principal)
            ):
                events.append((found, place))
        return _Batch(events, place, truncated, has_more=len(page.events) == PAGE)

    async def _place(self, wanted: wire.Wanted, principal: Principal) -> tuple[_Place, bool]:
        """Return the place of a cursor. For an invalid cursor return the present and True."""
        if wanted.cursor is not None:
            with suppress(RequestError):
                _, text = read_cursor(self._cursor_key, _reader(principal), wanted.cursor)
                return _Place(*json.loads(text)), False
        last = (await self._store.events(END_OF_LOG, 0)).last
        return _Place(last, is_new="taskId" in wanted.arguments), wanted.cursor is not None

    def cursor_at(self, position: int, principal: Principal) -> str:
        """Return a cursor for a position in the log."""
        return self._cursor(_Place(position), principal)

    def interest_of(self, subscription: Subscription) -> Interest:
        """Return the interest of a subscription."""
        wanted = wire.Wanted(name=subscription.name, arguments=subscription.arguments)
        return self._interest(wanted, subscription.principal, key=subscription.key)

    def channel_interest(self, name: str) -> tuple[Subscription, Interest]:
        """Return a channel as a subscription, and its interest: all tasks of the tools that name it."""
        found = channel_of(name, self.channels[name].host)
        tools = [tool.name for tool in self._tools.values() if name in channels_of(tool)]
        interest = Interest(
            names=NOTIFIED_OF,
            arguments={},
            owner="",
            key=found.key,
            shared_tools=tools,
        )
        return found, interest

    def _interest(self, wanted: wire.Wanted, principal: Principal, key: str) -> Interest:
        return Interest(
            names=(wanted.name,),
            arguments=wanted.arguments,
            owner=principal.id,
            key=key,
            shared_tools=self._authorization.shared_tools(principal),
        )

    def _cursor(self, place: _Place, principal: Principal) -> str:
        return write_cursor(self._cursor_key, _reader(principal), (self.clock(), json.dumps(place)))

    # --- events

    async def present(
        self, name: str, arguments: Mapping[str, JSON], principal: Principal
    ) -> Sequence[wire.Occurrence]:
        """Return the events that describe the current state of the task in the arguments; empty if they name none."""
        task_id = arguments.get("taskId")
        if not isinstance(task_id, str):
            return []
        task = await self._executions.find(task_id, principal.id, self._authorization.shared_tools(principal))
        if task is None:
            return []
        task = (await self._executions.observe(task)).task
        if name == EventName.PROGRESS:
            events = [replace(event_of(task), name=name)]
        elif name == EventName.ENDED:
            events = [event_of(task)] if task.ended else []
        else:
            events = [event_of(task, key) for key in task.seen.requests]
        found = [await self.occurrence(event, arguments, principal, task) for event in events]
        return [each for each in found if each is not None]

    async def occurrence(
        self, event: LoggedEvent, arguments: Mapping[str, JSON], principal: Principal, task: Task | None = None
    ) -> wire.Occurrence | None:
        """Return the event as the principal may see it now; None: no access, filtered out, or no longer true.

        Raises:
            StoreError: the task cannot be read.
        """
        status = arguments.get("status")
        if event.name == EventName.EXECUTION_ENDED:
            data = await self._execution_data(event, principal)
            return None if data is None or status not in {None, data["status"]} else _occurrence(event, data)
        task = task or await self._store.get(event.task_id, event.owner)
        if task is None or task.tombstone:
            return None
        rights = await self._authorization.rights(task, principal)
        assert self._tasks is not None, "`use` comes before events are told"
        shown = self._tasks.rendered(rights.within(task))
        shown = shown if principal.id == task.owner else replace(shown, started_by=person_of(task.owner)[1])
        if event.name == EventName.INPUT_REQUIRED:
            keys = [key for key in shown.requests if question_digest(task.id, key) == event.key]
            if not (rights.answer and keys):
                return None
            return _occurrence(event, wire.input_required(shown, keys[0], shown.requests[keys[0]]))
        if not rights.see:
            return None
        if event.name == EventName.PROGRESS:
            data = wire.task_progress(shown)
            return _occurrence(replace(event, id=event_id(EventName.PROGRESS, task.id, digest(data))), data)
        if task.ended is None or status not in {None, wire.outcome(shown)}:
            return None
        return _occurrence(event, wire.task_ended(shown))

    async def notification(
        self, event: LoggedEvent, channel: str, settings: NotificationChannel
    ) -> Notification | None:
        """Return the notification of an event for a channel; None: send nothing.

        Raises:
            StoreError: the task cannot be read.
        """
        task, tool = await self._store.get(event.task_id, event.owner), self._tools.get(event.tool)
        if task is None or task.tombstone or tool is None:
            return None
        key = question_of(event, task, channel, tool)
        if key is None:
            return None
        return notification_of(
            event,
            task,
            key,
            url=self._executions.page_url(task.id, key) if key else None,
            outcome=wire.outcome(view(task, timedelta())) if task.ended else "",
            with_arguments="arguments" in settings.include,
        )

    async def note_notification(self, told: Notification, channel: str, at: datetime | None) -> None:
        """Record on the task when a channel accepted a notification; None: it did not."""
        await self._executions.note_delivery(told.event.task_id, told.event.owner, told.key, channel, at)

    async def begin_channels(self) -> None:
        """Start new channels at the current end of the log, and delete the state of removed ones.

        Raises:
            StoreError: the store cannot be read or written.
        """
        subscriptions = [channel_of(name, each.host) for name, each in self.channels.items()]
        await self.subscriptions.begin_channels(subscriptions, self.clock())

    async def _execution_data(self, event: LoggedEvent, principal: Principal) -> dict[str, JSON] | None:
        found = await self.interests.ended(event.key)
        watched = {} if found is None else {EXECUTION_ID: found.execution_id}
        if found is None or not await self._authorization.may_watch(event.tool, principal, watched):
            return None
        return wire.execution_ended(event.tool, found.execution_id, found.status, found.ended)

    # --- events/subscribe and events/unsubscribe

    async def subscribe(self, wanted: wire.Wanted, webhook: wire.Webhook, principal: Principal) -> wire.Subscribed:
        """Create or refresh a subscription, after its endpoint has confirmed that it wants the events.

        Raises:
            RequestError: the principal may not receive these events or has too many subscriptions, or the endpoint
                did not confirm.
        """
        _refuse_anonymous(principal)
        await self._check(wanted, principal, wire.Mode.WEBHOOK)
        self.endpoints.check(webhook.url)
        now, name = self.clock(), subscription_id(principal.id, webhook.url, wanted.key)
        until = _until(now, webhook.ttl, principal.expires)
        mine = await self._mine(name, principal, now)
        verified = max((each.verified for each in mine.values() if each.url == webhook.url), default=None)
        if verified is None or (name not in mine and now - verified > VERIFIED_FOR):
            await self._verify(name, webhook, principal)
            now = verified = self.clock()
        async with self._subscribing:
            old = (await self._mine(name, principal, now)).get(name)
            kept = self._authorization.kept(principal)
            place, truncated = await self._beginning(wanted, principal, now)
            if old is None:
                new = Subscription(
                    id=name,
                    name=wanted.name,
                    arguments=wanted.arguments,
                    url=webhook.url,
                    principal=kept,
                    secret=webhook.secret,
                    created=now,
                    refreshed=now,
                    until=until,
                    verified=verified,
                    position=place.position,
                    max_age=wanted.max_age,
                    tells_present=place.is_new,
                )
            else:
                new = refreshed(old, secret=webhook.secret, principal=kept, now=now, until=until, verified=verified)
            await self.subscriptions.save(new, now)
        self.record(principal, "refreshed" if old else "created", wanted.name)
        state = None if old is None else await self.subscriptions.deliveries(new)
        watermark = place if state is None else _Place(state.watermark)
        return wire.Subscribed(
            id=new.id,
            refresh_before=until,
            cursor=self._cursor(watermark, principal),
            truncated=truncated and old is None,
            status=None if state is None else state.status,
        )

    async def _beginning(self, wanted: wire.Wanted, principal: Principal, now: datetime) -> tuple[_Place, bool]:
        """Return the start of a subscription, and True if events after the cursor are skipped."""
        place, truncated = await self._place(wanted, principal)
        if wanted.cursor is None or truncated:
            return place, truncated
        page = await self._store.events(place.position, 1)
        position = max(page.first, min(place.position, page.last))
        is_old = wanted.max_age is not None and any(now - event.at > wanted.max_age for event in page.events)
        return place._replace(position=position), is_old or position != place.position

    async def _mine(self, name: str, principal: Principal, now: datetime) -> Mapping[str, Subscription]:
        """Return the principal's subscriptions by id, and delete the oldest ended ones beyond the limit.

        Raises:
            RequestError: the principal has the maximum number, and none with this id.
        """
        most = self._settings.subscriptions_per_principal
        every = await self.subscriptions.under(owner_key(principal.id), ended=True)
        over = [each for each in every if each.is_over or each.ended or each.until <= now]
        for each in sorted(over, key=lambda each: each.refreshed)[:-most]:
            await self.subscriptions.delete(each, now)
        found = {each.id: each for each in every if each.until > now}
        if name not in found and len(every) - len(over) >= most:
            data: JSON = {"limit": "subscriptions", "max": most}
            raise RequestError(wire.Code.EXHAUSTED, f"at most {most} subscriptions of one caller: end one", data)
        return found

    async def _verify(self, name: str, webhook: wire.Webhook, principal: Principal) -> None:
        """Ask the endpoint to confirm that it wants deliveries.

        Raises:
            RequestError: it does not confirm, or there were too many such requests.
        """
        if wait := self._verified_by.take(principal.id) or self._verified_at.take(host_of(webhook.url)):
            most = VERIFICATIONS_PER_MINUTE
            data: JSON = {"limit": "verificationsPerMinute", "max": most, "retryAfterMs": round(wait * 1000)}
            raise RequestError(wire.Code.EXHAUSTED, f"at most {most} new endpoints in a minute", data)
        try:
            await self.endpoints.verify(webhook.url, [webhook.secret], subscription_id=name, now=self.clock())
        except EndpointFailed as failed:
            text = "the endpoint did not confirm that it wants events: it must answer 2xx and echo the challenge"
            raise RequestError(wire.Code.ENDPOINT, text, {"reason": failed.trouble.value}) from None

    async def no_longer(self, subscription: Subscription) -> str | None:
        """Return why the current rules forbid a subscription; None: they allow it."""
        types = await self.types(subscription.principal)
        kind, tools = types.get(subscription.name, (None, ()))
        if kind is None or Checker(kind.schema(tools)).violations(dict(subscription.arguments)):
            return "its owner may no longer receive these events"
        known = subscription.principal.claims
        if not self._authorization.has_authorizer and not self._authorization.needed_claims <= known.keys():
            return "the rules now need more claims of the owner's token: subscribe again"
        return None

    async def unsubscribe(self, wanted: wire.Wanted, webhook: wire.Webhook, principal: Principal) -> None:
        """End a subscription.

        Raises:
            RequestError: the principal has none like this.
        """
        _refuse_anonymous(principal)
        name = subscription_id(principal.id, webhook.url, wanted.key)
        found = await self.subscriptions.at(f"{owner_key(principal.id)}{name}")
        if found is None:
            raise RequestError(wire.Code.NOT_FOUND, "you have no such subscription", {"kind": "subscription"})
        await self.subscriptions.delete(found, self.clock())
        self.record(principal, "ended", wanted.name)

    def record(self, principal: Principal, outcome: str, name: str, reason: str | None = None) -> None:
        """Record the start or end of a subscription in the audit log."""
        text = f"{name}: {reason}" if reason else name
        self.audit(record_of(Event.SUBSCRIPTION, principal, outcome=outcome, reason=text))


def _occurrence(event: LoggedEvent, data: dict[str, JSON]) -> wire.Occurrence:
    return wire.Occurrence(event_id=event.id, name=event.name, at=event.at, data=data)


def _reader(principal: Principal) -> str:
    return f"events {principal.id}"


def _refuse_token() -> NoReturn:
    raise RequestError(wire.Code.FORBIDDEN, "the token of this stream is no longer valid")


def _refuse_anonymous(principal: Principal) -> None:
    if not principal.identified:
        raise RequestError(wire.Code.FORBIDDEN, "webhooks are for identified callers; anonymous ones may poll")


def _until(now: datetime, asked: timedelta | None, expires: datetime | None) -> datetime:
    """Return when a subscription expires without a refresh."""
    until = now + min(max(DEFAULT_TTL if asked is None else asked, SHORTEST_TTL), LONGEST_TTL)
    return until if expires is None else min(until, expires + CLAIMS_KEPT)
