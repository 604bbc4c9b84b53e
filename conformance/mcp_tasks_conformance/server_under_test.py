"""The server under test, and the steps that most checks share."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import anyio
import httpx2

from mcp_tasks_conformance.check import (
    JSON,
    BlockedError,
    CheckError,
    Feature,
    Need,
    ToolRole,
    ViolationError,
    skip_unless,
)
from mcp_tasks_conformance.endpoint import Endpoint
from mcp_tasks_conformance.fixtures import EventFixture, Fixture, default_event
from mcp_tasks_conformance.session import ELICITATION, MODERN, VERSION, ClientSession, PendingRequest, open_session
from mcp_tasks_conformance.traffic import (
    TERMINAL,
    Message,
    Reply,
    Traffic,
    as_list,
    as_object,
    format_json,
    related_task_id,
)
from mcp_tasks_conformance.webhook_trial import WebhookTrial

MAX_PAGES = 200  # of a list: a longer one is taken to be endless
EVENTS: Final = "io.modelcontextprotocol/events"
MODES: Final[Mapping[Feature, str]] = {Feature.POLL: "poll", Feature.PUSH: "push", Feature.WEBHOOK: "webhook"}
SKIP_REASONS: Final[Mapping[Feature, str]] = {
    Feature.TASKS: "the server does not declare tasks.requests.tools.call",
    Feature.LIST: "the server does not declare tasks.list to this caller",
    Feature.CANCEL: "the server does not declare tasks.cancel",
    Feature.SECOND_IDENTITY: "needs a second identity: --header-other",
    Feature.EVENTS: "the server does not declare events",
    Feature.CALLBACK: "needs an endpoint that the server can call: --callback",
    Feature.HEARTBEAT: "takes up to half a minute: --heartbeat 30",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The server to test and the pace of the run; times are in seconds."""

    url: str
    fixtures: Mapping[ToolRole, Fixture]
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    other_headers: Mapping[str, str] | None = None  # of a second identity
    timeout: float = 30.0  # for each step
    poll_interval: float = 0.2  # between two `tasks/get` of one task
    slow_seconds: float = 2.0  # duration of the slow tool
    concurrency: int = 8  # checks at the same time
    event: EventFixture | None = None  # None: `default_event`
    callback: str | None = None  # the URL of the suite's endpoint, as the server reaches it
    listen: str | None = None  # HOST:PORT of the endpoint here; None: as in `callback`
    heartbeat: float = 0.0  # how long to wait for a heartbeat; 0: not at all

    @property
    def awaited(self) -> EventFixture:
        """The event that the checks of Events subscribe to."""
        return self.event or default_event(self.fixtures)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUnderTest:
    """The subject of a check: the server with its capabilities and tools, and shared steps."""

    settings: RunSettings
    http: httpx2.AsyncClient
    capabilities: Mapping[str, JSON]
    tools: Mapping[str, Mapping[str, JSON]]  # by name, from `tools/list`
    modern: Mapping[str, JSON] | None = None  # the capabilities at 2026-07-28; None: the server does not speak it
    event_types: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict[str, Mapping[str, JSON]])  # by name
    endpoint: Endpoint | None = None
    trials: dict[str, WebhookTrial] = field(default_factory=dict[str, WebhookTrial])  # by revision
    traffic: Traffic = field(default_factory=Traffic)

    @asynccontextmanager
    async def session(
        self,
        *,
        other: bool = False,
        version: str = VERSION,
        capabilities: Mapping[str, JSON] = ELICITATION,
        traffic: Traffic | None = None,
    ) -> AsyncGenerator[ClientSession]:
        """Open a new session of the first identity, or of the second one if `other`."""
        settings = self.settings
        headers = (settings.other_headers or {}) if other else settings.headers
        recorded = self.traffic if traffic is None else traffic
        async with open_session(
            self.http, settings.url, headers, recorded, settings.timeout, version=version, capabilities=capabilities
        ) as session:
            yield session

    @property
    def task_capabilities(self) -> Mapping[str, JSON]:
        """The `tasks` capability; empty if it is not declared."""
        return as_object(self.capabilities.get("tasks"))

    def skip_reason(self, need: Need) -> str | None:
        """Return the reason to skip a check with this prerequisite, or None if the server meets it."""
        if need is ToolRole.FIRES:
            return None if self.fires_tool in self.tools else f"no tool {self.fires_tool!r}: --tool {need}=..."
        if isinstance(need, ToolRole):
            return self.skip_reason(Feature.TASKS) or self._tool_skip_reason(need)
        if need is Feature.EVENT:
            return self.skip_reason(Feature.EVENTS) or self._event_skip_reason()
        if need in MODES:
            return self.skip_reason(Feature.EVENT) or self._mode_skip_reason(MODES[need])
        if need in (Feature.CALLBACK, Feature.HEARTBEAT):
            first = self.skip_reason(Feature.WEBHOOK if need is Feature.CALLBACK else Feature.PUSH)
            has = self.endpoint if need is Feature.CALLBACK else self.settings.heartbeat
            return first or (None if has else SKIP_REASONS[need])
        calls = as_object(as_object(self.task_capabilities.get("requests")).get("tools"))
        available = {
            Feature.TASKS: "call" in calls,
            Feature.LIST: "list" in self.task_capabilities,
            Feature.CANCEL: "cancel" in self.task_capabilities,
            Feature.SECOND_IDENTITY: self.settings.other_headers is not None,
            Feature.EVENTS: bool(self.event_versions),
        }
        return None if available[need] else SKIP_REASONS[need]

    @property
    def event_versions(self) -> Sequence[str]:
        """The revisions at which the server declares Events."""
        return [
            version
            for version, capabilities in ((VERSION, self.capabilities), (MODERN, self.modern or {}))
            if declared_events(capabilities)
        ]

    @property
    def fires_tool(self) -> str:
        """The tool that makes the awaited event happen."""
        return self.settings.fixtures[ToolRole.FIRES].tool

    async def fire(self) -> None:
        """Make the awaited event happen: call its tool, as a task if it can be one.

        Raises:
            BlockedError: the call failed.
        """
        async with self.session() as session:
            if self.skip_reason(Feature.TASKS) is None and self.task_support(ToolRole.FIRES) != "forbidden":
                await self.run_to_end(session, ToolRole.FIRES)
                return
            reply = await require_reply(session, "tools/call", self.call_params(ToolRole.FIRES))
            if "result" not in reply.body:
                raise BlockedError(f"{self.fires_tool}: {reply}")

    def task_support(self, role: ToolRole) -> str:
        """Return `execution.taskSupport` of the tool; its default is forbidden."""
        tool = self.tools.get(self.settings.fixtures[role].tool, {})
        return str(as_object(tool.get("execution")).get("taskSupport", "forbidden"))

    def call_params(self, role: ToolRole, **params: JSON) -> Mapping[str, JSON]:
        """Return the params of `tools/call` for the tool, with these added."""
        fixture = self.settings.fixtures[role]
        return {"name": fixture.tool, "arguments": fixture.arguments, **params}

    async def create_task(self, session: ClientSession, role: ToolRole, **params: JSON) -> str:
        """Call the tool as a task and return the task id.

        Raises:
            BlockedError: the call created no task.
        """
        reply = await require_reply(session, "tools/call", self.call_params(role, **{"task": {}, **params}))
        task_id = as_object(reply.result.get("task")).get("taskId")
        if not isinstance(task_id, str):
            raise BlockedError(f"{self.settings.fixtures[role].tool} as a task: {reply}")
        return task_id

    async def get_task(self, session: ClientSession, task_id: str) -> Mapping[str, JSON]:
        """Return the result of one `tasks/get`.

        Raises:
            BlockedError: there is no result.
        """
        reply = await require_reply(session, "tasks/get", {"taskId": task_id})
        if "result" not in reply.body:
            raise BlockedError(f"tasks/get: {reply}")
        return reply.result

    async def get_status(self, session: ClientSession, task_id: str) -> str:
        """Return the status from one `tasks/get`.

        Raises:
            BlockedError: there is no result.
        """
        return str((await self.get_task(session, task_id)).get("status"))

    async def wait_for_status(
        self, session: ClientSession, task_id: str, statuses: Collection[str] = TERMINAL
    ) -> Mapping[str, JSON]:
        """Poll until the task has one of these statuses, and return the task.

        Raises:
            BlockedError: the task ended with another status, or has none of these in time.
        """
        task = await self.poll_until(session, task_id, statuses)
        if task.get("status") not in statuses:
            raise BlockedError(f"the task is {format_json(task)}, not {' or '.join(sorted(statuses))}")
        return task

    async def poll_until(
        self, session: ClientSession, task_id: str, statuses: Collection[str] = TERMINAL
    ) -> Mapping[str, JSON]:
        """Poll until the task has one of these statuses, ends, or time is up; return the last `tasks/get` result."""
        task: Mapping[str, JSON] = {}
        deadline = time.monotonic() + self.settings.timeout
        while time.monotonic() < deadline:
            reply = await require_reply(session, "tasks/get", {"taskId": task_id})
            task = reply.result
            if "error" in reply.body or task.get("status") in {*statuses, *TERMINAL}:
                break
            await anyio.sleep(self.settings.poll_interval)
        return task

    async def open_result(self, session: ClientSession, task_id: str) -> PendingRequest:
        """Start a `tasks/result`, and give it time to reach the server."""
        pending = session.start_request("tasks/result", {"taskId": task_id})
        await anyio.sleep(self.settings.poll_interval)
        await self.get_status(session, task_id)
        return pending

    async def run_to_end(self, session: ClientSession, role: ToolRole, **params: JSON) -> Mapping[str, JSON]:
        """Create a task, and return it once it has ended."""
        return await self.wait_for_status(session, await self.create_task(session, role, **params))

    async def create_cancelled(self, session: ClientSession, role: ToolRole = ToolRole.LONG) -> str:
        """Create a task, cancel it, and return its id.

        Raises:
            BlockedError: the server refused to cancel it.
        """
        task_id = await self.create_task(session, role)
        reply = await require_reply(session, "tasks/cancel", {"taskId": task_id})
        if "error" in reply.body:
            raise BlockedError(f"tasks/cancel of a {role} task: {reply}")
        return task_id

    async def wait_for_question(self, session: ClientSession, task_id: str) -> Message:
        """Return the first elicitation of the task, from any stream.

        Raises:
            BlockedError: none arrived in time.
        """
        deadline = time.monotonic() + self.settings.timeout
        while not (questions := find_questions(session, task_id)):
            if time.monotonic() > deadline:
                raise BlockedError(f"no elicitation/create within {self.settings.timeout:g} s")
            await anyio.sleep(min(self.settings.poll_interval, 0.05))
        return questions[0]

    async def list_pages(self, session: ClientSession) -> Sequence[Sequence[Mapping[str, JSON]]]:
        """Return the tasks on each page of `tasks/list`.

        Raises:
            BlockedError: the server refused a page.
            ViolationError: there are more than `MAX_PAGES` pages.
        """
        pages: list[Sequence[Mapping[str, JSON]]] = []
        params: Mapping[str, JSON] = {}
        while len(pages) < MAX_PAGES:
            reply = await require_reply(session, "tasks/list", params)
            if "result" not in reply.body:
                raise BlockedError(f"tasks/list {params}: {reply}")
            pages.append([as_object(task) for task in as_list(reply.result.get("tasks"))])
            if reply.result.get("nextCursor") is None:
                return pages
            params = {"cursor": reply.result["nextCursor"]}
        raise ViolationError(f"tasks/list has more than {MAX_PAGES} pages")

    def _event_skip_reason(self) -> str | None:
        event = self.settings.awaited
        if event.name not in self.event_types:
            return f"no event {event.name!r} is listed: --event NAME"
        required = as_list(as_object(self.event_types[event.name].get("inputSchema")).get("required"))
        missing = [name for name in required if name not in event.arguments]
        if missing:
            named = ", ".join(map(str, missing))
            return f"the event {event.name!r} wants {named}: --event, or credentials with which it needs less"
        return None

    def _mode_skip_reason(self, mode: str) -> str | None:
        name = self.settings.awaited.name
        modes = as_list(self.event_types[name].get("delivery"))
        return None if mode in modes else f"the event {name!r} is not delivered by {mode}"

    def _tool_skip_reason(self, role: ToolRole) -> str | None:
        name = self.settings.fixtures[role].tool
        if name not in self.tools:
            return f"no tool {name!r}: --tool {role}=..."
        support = self.task_support(role)
        if (role is ToolRole.PLAIN) == (support in ("optional", "required")):
            return f"the tool {name!r} has taskSupport {support}, which does not fit the role {role}"
        return None


async def require_reply(session: ClientSession, method: str, params: Mapping[str, JSON]) -> Reply:
    """Send a request that prepares a check, and return its reply.

    Raises:
        BlockedError: no reply in time, or the connection broke.
    """
    try:
        return await session.request(method, params)
    except ViolationError as error:
        raise BlockedError(str(error)) from None


def find_questions(session: ClientSession, task_id: str) -> Sequence[Message]:
    """Return the elicitations of this task so far, and those without a related task."""
    elicitations = [one for one in session.inbox if one.method == "elicitation/create"]
    return [one for one in elicitations if related_task_id(one.params) in (task_id, None)]


def declared_events(capabilities: Mapping[str, JSON]) -> Sequence[JSON]:
    """Return the settings of Events in these capabilities, from each place where a server may declare them."""
    found = (capabilities.get("events"), as_object(capabilities.get("extensions")).get(EVENTS))
    return [each for each in found if each is not None]


async def inspect_server(
    settings: RunSettings, http: httpx2.AsyncClient, endpoint: Endpoint | None = None
) -> ServerUnderTest:
    """Connect to the server, and read its capabilities, tools and types of events.

    Raises:
        CheckError: the server cannot be reached, or does not speak 2025-11-25.
    """
    traffic = Traffic()
    async with open_session(http, settings.url, settings.headers, traffic, settings.timeout) as session:
        capabilities = as_object(session.initialize_result.get("capabilities"))
        skip_unless(session.version == VERSION, f"the server answers initialize at {VERSION} with {session.version}")
        tools = await _list_by_name(session, "tools")
        events: Mapping[str, Mapping[str, JSON]] = {}
        if declared_events(capabilities):
            events = await _list_by_name(session, "events")
    modern: Mapping[str, JSON] | None = None
    with suppress(CheckError):
        async with open_session(
            http, settings.url, settings.headers, traffic, settings.timeout, version=MODERN
        ) as session:
            modern = as_object(session.initialize_result.get("capabilities"))
            if declared_events(modern) and not events:
                events = await _list_by_name(session, "events")
    return ServerUnderTest(
        settings=settings,
        http=http,
        capabilities=capabilities,
        tools=tools,
        modern=modern,
        event_types=events,
        endpoint=endpoint,
    )


async def list_all(session: ClientSession, kind: str) -> Sequence[Mapping[str, JSON]]:
    """Return all tools or events; the errors of a list are those of the checks that need it."""
    found: list[Mapping[str, JSON]] = []
    params: Mapping[str, JSON] = {}
    for _ in range(MAX_PAGES):
        result = (await require_reply(session, f"{kind}/list", params)).result
        found += map(as_object, as_list(result.get(kind)))
        if result.get("nextCursor") is None:
            break
        params = {"cursor": result["nextCursor"]}
    return found


async def _list_by_name(session: ClientSession, kind: str) -> Mapping[str, Mapping[str, JSON]]:
    return {str(each.get("name")): each for each in await list_all(session, kind)}
