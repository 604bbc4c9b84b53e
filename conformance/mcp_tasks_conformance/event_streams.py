"""Checks of events/stream."""

from __future__ import annotations

from typing import Final

from mcp_tasks_conformance.check import (
    BlockedError,
    Feature,
    Level,
    Scenario,
    ToolRole,
    ViolationError,
    expect,
    skip_unless,
)
from mcp_tasks_conformance.event_polls import (
    CURSORS,
    ERRORS,
    OCCURRENCE,
    UNKNOWN,
    expect_unknown_event,
    is_cursor,
    occurrence_problem,
)
from mcp_tasks_conformance.events import INVALID_PARAMS, EventsUnderTest, each_revision, subscription_of
from mcp_tasks_conformance.schemas import wrong_arguments
from mcp_tasks_conformance.session import ClientSession
from mcp_tasks_conformance.traffic import Reply, as_list, as_object, format_json

PUSHING: Final = "Events, Push-Based Delivery"
LIFECYCLE: Final = "Events, Push-Based Delivery, Lifecycle"
MANY: Final = 24  # streams that are opened and closed one after another

event_streams = Scenario(name="streaming", title="Streamed events")


@event_streams.check(Level.MUST, PUSHING, Feature.PUSH)
@each_revision
async def active_first(events: EventsUnderTest) -> None:
    """The first frame is notifications/events/active, with a cursor, which may be null, and truncated."""
    async with events.session() as session, events.stream(session) as stream:
        first = stream.frames[0]
    good = is_cursor(first.params.get("cursor")) and isinstance(first.params.get("truncated"), bool)
    expect(first.method == "notifications/events/active" and good, format_json(first.body))


@event_streams.check(Level.MUST, PUSHING, Feature.PUSH, ToolRole.FIRES)
@each_revision
async def frames_name_the_request(events: EventsUnderTest) -> None:
    """Every notification of a stream has the id of its request in _meta, as io.modelcontextprotocol/subscriptionId."""
    async with events.session() as session, events.stream(session) as stream:
        await events.server.fire()
        await events.wait(lambda: len(stream.frames) > 1)
        wrong = [one for one in stream.frames if subscription_of(one) != stream.request.id]
        expect(not wrong, f"the request is {stream.request.id}: {format_json(wrong[0].body) if wrong else ''}")


@event_streams.check(Level.MUST, PUSHING, Feature.PUSH, ToolRole.FIRES)
@each_revision
async def event_arrives(events: EventsUnderTest) -> None:
    """An event that happens while a stream is open comes as notifications/events/event."""
    async with events.session() as session, events.stream(session) as stream:
        await events.server.fire()
        came = await events.wait(lambda: stream.named("event"))
    expect(came, f"no event came within {events.timeout:g} s")


@event_streams.check(Level.MUST, OCCURRENCE, Feature.PUSH, ToolRole.FIRES)
@each_revision
async def occurrence_shape(events: EventsUnderTest) -> None:
    """The params are an EventOccurrence, with the cursor behind it, or null if the type has no replay."""
    async with events.session() as session, events.stream(session) as stream:
        await events.server.fire()
        event = await events.next_event(stream)
        replays = stream.frames[0].params.get("cursor") is not None
    problem = occurrence_problem(event.params, events.wanted["name"])
    expect(not problem, problem)
    expect(not replays or event.params.get("cursor"), f"no cursor: {format_json(event.params)}")


@event_streams.check(Level.SHOULD, OCCURRENCE, Feature.PUSH, Feature.POLL, ToolRole.FIRES)
@each_revision
async def same_id_as_polled(events: EventsUnderTest) -> None:
    """An event has the same eventId on a stream and in a poll."""
    async with events.session() as session:
        cursor = await events.begin(session)
        async with events.stream(session) as stream:
            await events.server.fire()
            event = await events.next_event(stream)
        wanted = event.params.get("eventId")
        found, place = await events.poll_until(session, cursor)
        more = map(as_object, as_list((await events.poll(session, place)).get("events")))
    polled = [one.get("eventId") for one in (*found, *more)]
    expect(wanted in polled, f"streamed as {format_json(wanted)}, polled as {format_json(polled)}")


@event_streams.check(Level.MUST, CURSORS, Feature.PUSH, ToolRole.FIRES)
@each_revision
async def resumes(events: EventsUnderTest) -> None:
    """A stream from an earlier cursor begins with what was missed, with the same eventId."""
    async with events.session() as session:
        begin, event_id, _ = await _first_event(events, session)
        async with events.stream(session, begin) as stream:
            came = await events.wait(lambda: event_id in {one.params.get("eventId") for one in stream.named("event")})
            seen = [one.params.get("eventId") for one in stream.named("event")]
    expect(came, f"missed was {event_id}, there came {format_json(seen)}")


@event_streams.check(Level.MUST, PUSHING, Feature.PUSH, ToolRole.FIRES)
@each_revision
async def cursor_is_behind_its_event(events: EventsUnderTest) -> None:
    """A stream from the cursor of an event does not begin with that event."""
    async with events.session() as session:
        _, event_id, behind = await _first_event(events, session)
        async with events.stream(session, behind) as stream:
            await events.server.fire()
            await events.wait(lambda: stream.named("event"))
            seen = [one.params.get("eventId") for one in stream.named("event")]
    expect(seen and event_id not in seen, f"it was {event_id}, there came {format_json(seen)}")


@event_streams.check(Level.MUST, CURSORS, Feature.PUSH)
@each_revision
async def unknown_cursor(events: EventsUnderTest) -> None:
    """A cursor that the server cannot resume from is no error: active has truncated true and a fresh cursor."""
    async with events.session() as session:
        await _begin(events, session)
        try:
            async with events.stream(session, "conformance-no-such-cursor") as stream:
                first = stream.frames[0]
        except BlockedError as error:
            raise ViolationError(str(error)) from None
    expect(first.params.get("truncated") is True and first.params.get("cursor"), format_json(first.body))


@event_streams.check(Level.MUST, ERRORS, Feature.PUSH)
@each_revision
async def unknown_event(events: EventsUnderTest) -> None:
    """A stream of an unknown event is refused before it opens: NotFound, and no notification."""
    async with events.session() as session:
        reply = await session.request("events/stream", {"name": UNKNOWN, "arguments": {}, "cursor": None})
        expect_unknown_event(reply)
        _expect_unopened(session, reply)


@event_streams.check(Level.MUST, ERRORS, Feature.PUSH)
@each_revision
async def wrong_arguments_refused(events: EventsUnderTest) -> None:
    """A stream with arguments that do not fit the inputSchema is refused before it opens: -32602."""
    async with events.session() as session:
        for arguments in wrong_arguments(events.schema, events.wanted["arguments"]):
            reply = await session.request("events/stream", {**events.wanted, "arguments": arguments, "cursor": None})
            expect(reply.code == INVALID_PARAMS, f"{format_json(arguments)}: {reply}")
            _expect_unopened(session, reply)


@event_streams.check(Level.MUST, LIFECYCLE, Feature.PUSH, ToolRole.FIRES)
@each_revision
async def side_by_side(events: EventsUnderTest) -> None:
    """Two streams that are open at the same time both bring an event, each under its own id."""
    async with events.session() as session, events.stream(session) as one, events.stream(session) as two:
        await events.server.fire()
        both = await events.wait(lambda: one.named("event") and two.named("event"))
    expect(both, f"{len(one.named('event'))} events came on the one, {len(two.named('event'))} on the other")


@event_streams.check(Level.MUST, LIFECYCLE, Feature.PUSH)
@each_revision
async def closing_releases(events: EventsUnderTest) -> None:
    """A closed stream frees its place: a client can open many, one after another."""
    async with events.session() as session:
        for number in range(MANY):
            try:
                async with events.stream(session):
                    pass
            except BlockedError as error:
                raise ViolationError(f"stream {number + 1} of {MANY}: {error}") from None


@event_streams.check(Level.MUST, LIFECYCLE, Feature.HEARTBEAT)
@each_revision
async def heartbeat(events: EventsUnderTest) -> None:
    """A quiet stream sends notifications/events/heartbeat at least every 30 s, with a cursor, which may be null."""
    within = events.server.settings.heartbeat
    async with events.session() as session, events.stream(session) as stream:
        came = await events.wait(lambda: stream.named("heartbeat"), within=within)
        expect(came, f"none came within {within:g} s")
        cursor = stream.named("heartbeat")[0].params.get("cursor")
    expect(is_cursor(cursor), f"its cursor is {format_json(cursor)}")


async def _begin(events: EventsUnderTest, session: ClientSession) -> str:
    """Return the cursor at which a stream begins now."""
    async with events.stream(session) as stream:
        cursor = stream.frames[0].params.get("cursor")
    skip_unless(cursor is not None, "events of this type cannot be replayed: the cursor is null")
    return str(cursor)


async def _first_event(events: EventsUnderTest, session: ClientSession) -> tuple[str, str, str]:
    """Return the cursor before an event, its id, and the cursor behind it."""
    begin = await _begin(events, session)
    async with events.stream(session, begin) as stream:
        await events.server.fire()
        event = await events.next_event(stream)
    return begin, str(event.params.get("eventId")), str(event.params.get("cursor"))


def _expect_unopened(session: ClientSession, reply: Reply) -> None:
    frames = [one for one in session.inbox if one.method.startswith("notifications/events/")]
    expect(not frames, f"{len(frames)} notifications came, and then {reply}")
