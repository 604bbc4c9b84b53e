"""The server under test, and the steps that most checks begin with."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio
import httpx2

from mcp_workflows.conformance_2025.check import (
    JSON,
    BlockedError,
    Feature,
    Need,
    Role,
    ViolationError,
    need,
)
from mcp_workflows.conformance_2025.fixtures import Fixture
from mcp_workflows.conformance_2025.session import ELICITATION, VERSION, Pending, Session, opened
from mcp_workflows.conformance_2025.traffic import ENDED, Message, Reply, Traffic, as_list, as_object, related, shown

PAGES = 200  # of a list, before we believe that it has no end
LACKS: Final[Mapping[Feature, str]] = {
    Feature.TASKS: "the server does not declare tasks.requests.tools.call",
    Feature.LIST: "the server does not declare tasks.list to this caller",
    Feature.CANCEL: "the server does not declare tasks.cancel",
    Feature.OTHER: "needs a second identity: --header-other",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Whom to test, and how."""

    url: str
    fixtures: Mapping[Role, Fixture]
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    other: Mapping[str, str] | None = None  # headers of a second identity
    patience: float = 30.0  # seconds any one step may take
    poll: float = 0.2  # seconds between two looks at a task
    seconds: float = 2.0  # how long the slow tool works
    at_once: int = 8  # checks


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What a check gets: the server, what it declares, and steps to take."""

    settings: Settings
    http: httpx2.AsyncClient
    capabilities: Mapping[str, JSON]
    tools: Mapping[str, Mapping[str, JSON]]  # by name, as listed
    traffic: Traffic = field(default_factory=Traffic)

    @asynccontextmanager
    async def session(
        self,
        *,
        other: bool = False,
        version: str = VERSION,
        capabilities: Mapping[str, JSON] = ELICITATION,
        traffic: Traffic | None = None,
    ) -> AsyncGenerator[Session]:
        """A session of its own, of the first or of the other identity."""
        mine = self.settings
        headers = (mine.other or {}) if other else mine.headers
        kept = self.traffic if traffic is None else traffic
        async with opened(
            self.http, mine.url, headers, kept, mine.patience, version=version, capabilities=capabilities
        ) as session:
            yield session

    @property
    def declared(self) -> Mapping[str, JSON]:
        """`capabilities.tasks`."""
        return as_object(self.capabilities.get("tasks"))

    def lacks(self, what: Need) -> str | None:
        """Why a check that needs this has to be skipped; None if it has not."""
        if isinstance(what, Role):
            return self.lacks(Feature.TASKS) or self._lacks_tool(what)
        calls = as_object(as_object(self.declared.get("requests")).get("tools"))
        has = {
            Feature.TASKS: "call" in calls,
            Feature.LIST: "list" in self.declared,
            Feature.CANCEL: "cancel" in self.declared,
            Feature.OTHER: self.settings.other is not None,
        }
        return None if has[what] else LACKS[what]

    def support(self, role: Role) -> str:
        """`execution.taskSupport` of the tool."""
        tool = self.tools.get(self.settings.fixtures[role].tool, {})
        return str(as_object(tool.get("execution")).get("taskSupport", "forbidden"))

    def call(self, role: Role, **params: JSON) -> Mapping[str, JSON]:
        """The params of `tools/call`."""
        fixture = self.settings.fixtures[role]
        return {"name": fixture.tool, "arguments": fixture.arguments, **params}

    async def create(self, session: Session, role: Role, **params: JSON) -> str:
        """A task; its id.

        Raises:
            BlockedError: no task comes of it.
        """
        reply = await step(session, "tools/call", self.call(role, **{"task": {}, **params}))
        task_id = as_object(reply.result.get("task")).get("taskId")
        if not isinstance(task_id, str):
            raise BlockedError(f"{self.settings.fixtures[role].tool} as a task: {reply}")
        return task_id

    async def status(self, session: Session, task_id: str) -> str:
        """What `tasks/get` says, without our waiting for it to change."""
        return str((await self.seen(session, task_id)).get("status"))

    async def seen(self, session: Session, task_id: str) -> Mapping[str, JSON]:
        """The task as `tasks/get` shows it.

        Raises:
            BlockedError: it does not.
        """
        reply = await step(session, "tasks/get", {"taskId": task_id})
        if "result" not in reply.body:
            raise BlockedError(f"tasks/get: {reply}")
        return reply.result

    async def until(self, session: Session, task_id: str, statuses: Collection[str] = ENDED) -> Mapping[str, JSON]:
        """The task once it has one of these statuses, or a terminal one.

        Raises:
            BlockedError: it has none of them in time.
        """
        seen = await self.followed(session, task_id, statuses)
        if seen.get("status") not in statuses:
            raise BlockedError(f"the task is {shown(seen)}, not {' or '.join(sorted(statuses))}")
        return seen

    async def followed(self, session: Session, task_id: str, statuses: Collection[str] = ENDED) -> Mapping[str, JSON]:
        """The task once it has one of these statuses or a terminal one; or as it was last seen, when time is up."""
        seen: Mapping[str, JSON] = {}
        deadline = time.monotonic() + self.settings.patience
        while time.monotonic() < deadline:
            reply = await step(session, "tasks/get", {"taskId": task_id})
            seen = reply.result
            if "error" in reply.body or seen.get("status") in {*statuses, *ENDED}:
                break
            await anyio.sleep(self.settings.poll)
        return seen

    async def waiting(self, session: Session, task_id: str) -> Pending:
        """A `tasks/result` that is under way, and has had the time to reach the server."""
        pending = session.open("tasks/result", {"taskId": task_id})
        await anyio.sleep(self.settings.poll)
        await self.status(session, task_id)
        return pending

    async def ended(self, session: Session, role: Role, **params: JSON) -> Mapping[str, JSON]:
        """A task that has ended."""
        return await self.until(session, await self.create(session, role, **params))

    async def cancelled(self, session: Session, role: Role = Role.LONG) -> str:
        """A task that was cancelled; its id."""
        task_id = await self.create(session, role)
        reply = await step(session, "tasks/cancel", {"taskId": task_id})
        if "error" in reply.body:
            raise BlockedError(f"tasks/cancel of a {role} task: {reply}")
        return task_id

    async def asked(self, session: Session, task_id: str, count: int = 1) -> Sequence[Message]:
        """The first questions about this task, on whatever stream.

        Raises:
            BlockedError: they do not come in time.
        """
        await self.holds(lambda: len(questions(session, task_id)) >= count, f"fewer than {count} elicitation/create")
        return questions(session, task_id)

    async def holds(self, condition: Callable[[], bool], otherwise: str, *, within: float | None = None) -> None:
        """Wait for a condition.

        Raises:
            BlockedError: it does not come true in time.
        """
        patience = within or self.settings.patience
        deadline = time.monotonic() + patience
        while not condition():
            if time.monotonic() > deadline:
                raise BlockedError(f"{otherwise} within {patience:g} s")
            await anyio.sleep(min(self.settings.poll, 0.05))

    async def pages(self, session: Session) -> Sequence[Sequence[Mapping[str, JSON]]]:
        """All pages of `tasks/list`."""
        found: list[Sequence[Mapping[str, JSON]]] = []
        params: Mapping[str, JSON] = {}
        while len(found) < PAGES:
            reply = await step(session, "tasks/list", params)
            if "result" not in reply.body:
                raise BlockedError(f"tasks/list {params}: {reply}")
            found.append([as_object(task) for task in as_list(reply.result.get("tasks"))])
            if reply.result.get("nextCursor") is None:
                return found
            params = {"cursor": reply.result["nextCursor"]}
        raise ViolationError(f"tasks/list has more than {PAGES} pages")

    def _lacks_tool(self, role: Role) -> str | None:
        name = self.settings.fixtures[role].tool
        if name not in self.tools:
            return f"no tool {name!r}: --tool {role}=..."
        support = self.support(role)
        if (role is Role.PLAIN) == (support in ("optional", "required")):
            return f"the tool {name!r} has taskSupport {support}, which does not fit the role {role}"
        return None


async def step(session: Session, method: str, params: Mapping[str, JSON]) -> Reply:
    """A request on the way to what is checked.

    Raises:
        BlockedError: it gets no reply.
    """
    try:
        return await session.request(method, params)
    except ViolationError as error:
        raise BlockedError(str(error)) from None


def questions(session: Session, task_id: str) -> Sequence[Message]:
    """The elicitations about this task that have come; where a server does not say whose, those that say nothing."""
    elicitations = [one for one in session.inbox if one.method == "elicitation/create"]
    return [one for one in elicitations if related(one.params) in (task_id, None)]


async def look(settings: Settings, http: httpx2.AsyncClient) -> Site:
    """What the server declares and lists, before anything is checked.

    Raises:
        CheckError: it does not get that far.
    """
    traffic = Traffic()
    async with opened(http, settings.url, settings.headers, traffic, settings.patience) as session:
        capabilities = as_object(session.initialized.get("capabilities"))
        need(session.version == VERSION, f"the server answers initialize at {VERSION} with {session.version}")
        tools = await _tools(session)
    return Site(settings=settings, http=http, capabilities=capabilities, tools=tools)


async def _tools(session: Session) -> Mapping[str, Mapping[str, JSON]]:
    tools: dict[str, Mapping[str, JSON]] = {}
    params: Mapping[str, JSON] = {}
    for _ in range(PAGES):
        result = (await step(session, "tools/list", params)).result
        tools |= {str(tool.get("name")): tool for tool in map(as_object, as_list(result.get("tools")))}
        if result.get("nextCursor") is None:
            break
        params = {"cursor": result["nextCursor"]}
    return tools
