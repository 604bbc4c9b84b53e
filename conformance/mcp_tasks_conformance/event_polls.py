"""Checks of events/poll, and of the shape of events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import anyio

from mcp_tasks_conformance.check import JSON, BlockedError, Feature, Level, Scenario, ToolRole, expect, skip_unless
from mcp_tasks_conformance.events import INVALID_PARAMS, NOT_FOUND, UNSUPPORTED, EventsUnderTest, each_revision
from mcp_tasks_conformance.message_shapes import is_number, parse_timestamp
from mcp_tasks_conformance.schemas import misfit, wrong_arguments
from mcp_tasks_conformance.traffic import Reply, as_list, as_object, format_json

POLLING: Final = "Events, Poll-Based Delivery"
OCCURRENCE: Final = "Events, EventOccurrence schema"
CURSORS: Final = "Events, Cursor Lifecycle"
ERRORS: Final = "Events, Error Codes"
UNKNOWN: Final = "conformance.no-such-event"
OLD: Final = 1.0  # seconds after which an event is too old for the check of maxAgeMs

event_polls = Scenario(name="polling", title="Polled events")


def is_cursor(value: JSON) -> bool:
    """Return True for a cursor; null, or none, is that of a type without replay."""
    return value is None or (isinstance(value, str) and bool(value))


def occurrence_problem(event: Mapping[str, JSON], name: str) -> str:
    """Return a text that says why this is no EventOccurrence of the type, or an empty one."""
    if not isinstance(event.get("eventId"), str) or not event["eventId"]:
        return f"eventId is {format_json(event.get('eventId'))}"
    if event.get("name") != name:
        return f"name is {format_json(event.get('name'))}"
    if parse_timestamp(event.get("timestamp")) is None:
        return f"timestamp is {format_json(event.get('timestamp'))}"
    if not isinstance(event.get("data"), dict):
        return f"data is {format_json(event.get('data'))}"
    return "" if is_cursor(event.get("cursor")) else f"cursor is {format_json(event['cursor'])}"


def expect_unknown_event(reply: Reply) -> None:
    """Expect NotFound, whose data, where present, says that it is the event that is unknown."""
    kind = as_object(reply.error.get("data")).get("kind", "event")
    expect(reply.code in NOT_FOUND and kind == "event", str(reply))


@event_polls.check(Level.MUST, CURSORS, Feature.POLL, ToolRole.FIRES)
@each_revision
async def starts_now(events: EventsUnderTest) -> None:
    """A poll with the cursor null returns no events, and a cursor, or null if the type has no replay."""
    await events.server.fire()
    async with events.session() as session:
        result = await events.poll(session)
    expect(result.get("events") == [] and is_cursor(result.get("cursor")), format_json(result))


@event_polls.check(Level.MUST, POLLING, Feature.POLL)
@each_revision
async def result_shape(events: EventsUnderTest) -> None:
    """The result has a list of events, truncated and hasMore, which are booleans, and nextPollMs, a positive number."""
    async with events.session() as session:
        result = await events.poll(session)
    next_poll: JSON = result.get("nextPollMs")
    flags = all(isinstance(result.get(name), bool) for name in ("truncated", "hasMore"))
    expect(flags and isinstance(result.get("events"), list), format_json(result))
    expect(is_number(next_poll) and next_poll > 0, f"nextPollMs is {format_json(next_poll)}")


@event_polls.check(Level.MUST, POLLING, Feature.POLL, ToolRole.FIRES)
@each_revision
async def event_arrives(events: EventsUnderTest) -> None:
    """An event that happens after a poll is in a later one with the cursor of the first."""
    async with events.session() as session:
        cursor = await events.begin(session)
        await events.server.fire()
        try:
            await events.poll_until(session, cursor)
        except BlockedError as error:
            expect(False, str(error))


@event_polls.check(Level.MUST, OCCURRENCE, Feature.POLL, ToolRole.FIRES)
@each_revision
async def occurrence_shape(events: EventsUnderTest) -> None:
    """An event has an eventId, the name of its type, an ISO 8601 timestamp, and data, which is an object."""
    for event in await _fired(events):
        problem = occurrence_problem(event, events.wanted["name"])
        expect(not problem, problem)


@event_polls.check(Level.MUST, OCCURRENCE, Feature.POLL, ToolRole.FIRES)
@each_revision
async def data_fits(events: EventsUnderTest) -> None:
    """The data of an event fits the payloadSchema of its type."""
    schema = events.server.event_types[events.wanted["name"]].get("payloadSchema")
    for event in await _fired(events):
        problem = misfit(event.get("data"), schema)
        expect(not problem, problem)


@event_polls.check(Level.MUST, POLLING, Feature.POLL, ToolRole.FIRES)
@each_revision
async def cursor_advances(events: EventsUnderTest) -> None:
    """The cursor that comes with events is behind them: the next poll does not return them again."""
    async with events.session() as session:
        cursor = await events.begin(session)
        await events.server.fire()
        found, place = await events.poll_until(session, cursor)
        later = as_list((await events.poll(session, place)).get("events"))
    known = {event.get("eventId") for event in found}
    again = [one for one in map(as_object, later) if one.get("eventId") in known]
    expect(
        place != cursor and not again, f"{len(again)} of {len(found)} came again; the cursor was {cursor}, is {place}"
    )


@event_polls.check(Level.MUST, OCCURRENCE, Feature.POLL, ToolRole.FIRES)
@each_revision
async def ids_are_stable(events: EventsUnderTest) -> None:
    """Two polls with the same cursor return an event with the same eventId."""
    async with events.session() as session:
        cursor = await events.begin(session)
        await events.server.fire()
        first = [event.get("eventId") for event in (await events.poll_until(session, cursor))[0]]
        second = [event.get("eventId") for event in (await events.poll_until(session, cursor, len(first)))[0]]
    expect(set(first) <= set(second), f"{format_json(first)}, then {format_json(second)}")


@event_polls.check(Level.MUST, POLLING, Feature.POLL, ToolRole.FIRES)
@each_revision
async def max_events(events: EventsUnderTest) -> None:
    """With maxEvents 1 a poll returns at most one event, and hasMore true while more remain for the next poll."""
    async with events.session() as session:
        cursor = await events.begin(session)
        for _ in range(2):
            await events.server.fire()
        await events.poll_until(session, cursor, 2)
        first = await events.poll(session, cursor, maxEvents=1)
        second = await events.poll(session, first.get("cursor"), maxEvents=1)
    ids = [[as_object(one).get("eventId") for one in as_list(each.get("events"))] for each in (first, second)]
    one_each = [len(each) for each in ids] == [1, 1] and ids[0] != ids[1]
    expect(one_each and first.get("hasMore") is True, f"{format_json(first)}, then {format_json(second)}")


@event_polls.check(Level.MUST, CURSORS, Feature.POLL, ToolRole.FIRES)
@each_revision
async def max_age(events: EventsUnderTest) -> None:
    """With maxAgeMs a poll returns no event that is older."""
    old, result = await _with_max_age(events)
    again = [one for one in map(as_object, as_list(result.get("events"))) if one.get("eventId") in old]
    expect(not again, f"{len(again)} of {len(old)} old ones came")


@event_polls.check(Level.SHOULD, CURSORS, Feature.POLL, ToolRole.FIRES)
@each_revision
async def max_age_is_told(events: EventsUnderTest) -> None:
    """A poll that skips events because of maxAgeMs has truncated true."""
    _, result = await _with_max_age(events)
    expect(result.get("truncated") is True, format_json(result))


@event_polls.check(Level.MUST, CURSORS, Feature.POLL)
@each_revision
async def unknown_cursor(events: EventsUnderTest) -> None:
    """A cursor that the server cannot resume from is no error: truncated is true, with a fresh cursor."""
    async with events.session() as session:
        await events.begin(session)
        reply = await session.request("events/poll", {**events.wanted, "cursor": "conformance-no-such-cursor"})
    fresh = reply.result.get("cursor")
    expect(reply.result.get("truncated") is True and is_cursor(fresh) and fresh is not None, str(reply))


@event_polls.check(Level.MUST, ERRORS, Feature.POLL)
@each_revision
async def unknown_event(events: EventsUnderTest) -> None:
    """A poll of an unknown event is refused: NotFound, whose data.kind, where present, is event."""
    async with events.session() as session:
        reply = await session.request("events/poll", {"name": UNKNOWN, "arguments": {}, "cursor": None})
    expect_unknown_event(reply)


@event_polls.check(Level.MAY, ERRORS, Feature.POLL)
@each_revision
async def unknown_event_kind(events: EventsUnderTest) -> None:
    """NotFound of an unknown event has data.kind event, which is optional."""
    async with events.session() as session:
        reply = await session.request("events/poll", {"name": UNKNOWN, "arguments": {}, "cursor": None})
    expect(as_object(reply.error.get("data")).get("kind") == "event", str(reply))


@event_polls.check(Level.MUST, ERRORS, Feature.POLL)
@each_revision
async def wrong_arguments_refused(events: EventsUnderTest) -> None:
    """Arguments that do not fit the inputSchema are refused: -32602."""
    async with events.session() as session:
        for arguments in wrong_arguments(events.schema, events.wanted["arguments"]):
            reply = await session.request("events/poll", {**events.wanted, "arguments": arguments, "cursor": None})
            expect(reply.code == INVALID_PARAMS, f"{format_json(arguments)}: {reply}")


@event_polls.check(Level.MUST, ERRORS, Feature.EVENTS)
@each_revision
async def only_where_offered(events: EventsUnderTest) -> None:
    """A mode that another type offers, but this one does not, is refused: Unsupported with the feature deliveryMode."""
    methods = {"poll": "events/poll", "push": "events/stream", "webhook": "events/subscribe"}
    offered = {name: set(as_list(each.get("delivery"))) for name, each in events.server.event_types.items()}
    known = methods.keys() & set[str]().union(*offered.values())
    missing = [(name, mode) for name, modes in offered.items() for mode in sorted(known - modes)]
    skip_unless(missing, "each type is delivered in the same modes")
    async with events.session() as session:
        for name, mode in missing:
            params = events.subscription(name=name, arguments={})
            reply = await session.request(methods[mode], params)
            feature = as_object(reply.error.get("data")).get("feature")
            expect(reply.code in UNSUPPORTED and feature == "deliveryMode", f"{name} by {mode}: {reply}")


async def _fired(events: EventsUnderTest) -> list[Mapping[str, JSON]]:
    """Make the event happen, and return what came of it."""
    async with events.session() as session:
        cursor = await events.begin(session)
        await events.server.fire()
        return [*(await events.poll_until(session, cursor))[0]]


async def _with_max_age(events: EventsUnderTest) -> tuple[set[JSON], Mapping[str, JSON]]:
    """Return the ids of events that are older than a second, and the result of a poll that wants younger ones."""
    async with events.session() as session:
        cursor = await events.begin(session)
        await events.server.fire()
        found, _ = await events.poll_until(session, cursor)
        await anyio.sleep(OLD * 1.5)
        reply = await session.request("events/poll", {**events.wanted, "cursor": cursor, "maxAgeMs": OLD * 1000})
    if "result" not in reply.body:
        raise BlockedError(f"events/poll with maxAgeMs: {reply}")
    return {event.get("eventId") for event in found}, reply.result
