"""Checks of the declaration of Events, and of events/list."""

from __future__ import annotations

from typing import Final

from mcp_tasks_conformance.check import Feature, Level, Scenario, expect, skip_unless
from mcp_tasks_conformance.events import INVALID_PARAMS, EventsUnderTest, each_revision
from mcp_tasks_conformance.schemas import schema_problem
from mcp_tasks_conformance.server_under_test import EVENTS, ServerUnderTest, declared_events, list_all
from mcp_tasks_conformance.traffic import as_list, as_object, format_json

CAPABILITY: Final = "Events, Capability Declaration"
LISTING: Final = "Events, Listing Available Events"
MODES: Final = frozenset({"poll", "push", "webhook"})

event_types = Scenario(name="events", title="Types of events")


@event_types.check(Level.MUST, CAPABILITY, Feature.EVENTS)
async def declared_in_each_revision(server: ServerUnderTest) -> None:
    """A server of both revisions declares Events in the results of initialize (2025-11-25) and server/discover."""
    skip_unless(server.modern is not None, "the server has no server/discover: it does not speak 2026-07-28")
    expect(len(server.event_versions) > 1, f"Events are declared only at {server.event_versions[0]}")


@event_types.check(Level.MUST, CAPABILITY, Feature.EVENTS)
async def settings_are_an_object(server: ServerUnderTest) -> None:
    """The capability is an object, and its listChanged, where present, is a boolean."""
    found = [one for each in (server.capabilities, server.modern or {}) for one in declared_events(each)]
    wrong = [
        one for one in found if not isinstance(as_object(one).get("listChanged", False), bool) or one != as_object(one)
    ]
    expect(not wrong, f"it is {format_json(wrong[0])}" if wrong else "")


@event_types.check(Level.INTEROP, CAPABILITY, Feature.EVENTS)
async def declared_where_clients_look(server: ServerUnderTest) -> None:
    """The same settings are in capabilities.events, as in the draft, and in extensions, as in SEP-3415."""
    for capabilities in filter(declared_events, (server.capabilities, server.modern or {})):
        plain, extension = capabilities.get("events"), as_object(capabilities.get("extensions")).get(EVENTS)
        expect(plain == extension, f"events is {format_json(plain)}, the extension is {format_json(extension)}")


@event_types.check(Level.MUST, LISTING, Feature.EVENTS)
@each_revision
async def names_are_unique(events: EventsUnderTest) -> None:
    """Each type in events/list has a name, which no other has."""
    async with events.session() as session:
        names = [each.get("name") for each in await list_all(session, "events")]
    expect(names, "no type of event is listed")
    wrong = [name for name in names if not isinstance(name, str) or not name or names.count(name) > 1]
    expect(not wrong, f"one of {len(names)} names is {format_json(wrong[0])}" if wrong else "")


@event_types.check(Level.MUST, LISTING, Feature.EVENTS)
@each_revision
async def modes_are_known(events: EventsUnderTest) -> None:
    """The delivery of each type is a non-empty list of poll, push and webhook."""
    async with events.session() as session:
        for each in await list_all(session, "events"):
            modes = as_list(each.get("delivery"))
            expect(
                modes and MODES.issuperset(map(str, modes)), f"{each.get('name')}: {format_json(each.get('delivery'))}"
            )


@event_types.check(Level.MUST, LISTING, Feature.EVENTS)
@each_revision
async def schemas_are_schemas(events: EventsUnderTest) -> None:
    """The inputSchema and the payloadSchema of each type are JSON Schemas."""
    async with events.session() as session:
        for each in await list_all(session, "events"):
            for name in ("inputSchema", "payloadSchema"):
                problem = schema_problem(each.get(name))
                expect(not problem, f"{name} of {each.get('name')}: {problem}")


@event_types.check(Level.SHOULD, LISTING, Feature.EVENTS)
@each_revision
async def bad_cursor(events: EventsUnderTest) -> None:
    """A cursor of events/list that the server did not issue is refused: -32602, as in other lists."""
    async with events.session() as session:
        reply = await session.request("events/list", {"cursor": "conformance-no-such-cursor"})
    expect(reply.code == INVALID_PARAMS, str(reply))
