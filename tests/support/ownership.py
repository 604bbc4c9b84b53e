"""A sidecar behind two real OpenID providers, and all who may come with an id of alice's: in both eras, over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2

from mcp_workflows.tasks.results import uri_of
from tests.support.here import OLD, Elder, Scene, data_of, hello, over_http, scene
from tests.support.oidc import AUDIENCE, CLIENTS, INTROSPECTOR, SECRET, Granted, Provider, Providers
from tests.support.served import TASKS, VERSION, Peer, Reply

MARK: Final = "alices-secret-52c1"  # in the arguments and results of her tasks
MODERN: Final = VERSION
STREAMS: Final = frozenset({"subscriptions/listen", "events/stream"})
AFTER: Final = {"echo": ["completed"], "ask": ["input_required"], "approve": ["working"]}  # as the owner sees them
NO_TASKS: Final[Mapping[str, Any]] = {"elicitation": {"form": {}}}
CARDS: Final[Mapping[str, Any]] = {
    "extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}
}
TOOLS: Final = """
  echo: {engine: here, workflow: echo}
  ask: {engine: here, workflow: ask, wait: 300ms, actions: {poke: {event: poke, input: {type: object}}}}
  approve:
    engine: here
    workflow: ask
    allow: {call: {}, see: {}, cancel: {}, answer: {scopes: [orders:approve], not_owner: true}}
limits: {polls_per_minute: null, failed_lookups_per_minute: null, creates_per_minute: null}
"""


@dataclass(slots=True, kw_only=True)
class Caller:
    """Somebody with a token, or without, in both eras."""

    name: str
    modern: Peer
    elder: Elder
    granted: Granted | None

    async def asks(
        self, era: str, method: str, params: Mapping[str, Any], calls_with: Mapping[str, Any] = NO_TASKS
    ) -> Reply:
        """One request; of a stream, its first frame."""
        if era == MODERN:
            capabilities = calls_with if method == "tools/call" else TASKS
            async with self.modern.stream(method, params, capabilities=capabilities) as (status, frames):
                async for frame in frames:
                    if method in STREAMS or "method" not in frame:
                        return Reply(status, frame)
        async with self.elder.stream(method, params) as response:
            async for frame in data_of(response):
                if method in STREAMS or "method" not in frame:
                    return Reply(response.status_code, frame)
        raise AssertionError(f"no answer to {method}")


@dataclass(slots=True, kw_only=True)
class Town:
    """The sidecar, and all of them."""

    scene: Scene
    url: str
    providers: Providers
    owns: str  # whose tasks are: `client` or `subject`
    callers: dict[str, Caller] = field(default_factory=dict[str, Caller])

    @property
    def owner(self) -> Caller:
        """Whose tasks it is about."""
        return self.callers["owner"]

    async def task(self, tool: str) -> str:
        """A new one of the owner's: `ask` asks, `echo` has ended."""
        alice = self.owner.modern
        made = str((await alice.call(tool, {"secret": MARK})).result["taskId"])
        await alice.until(made, *AFTER[tool])
        return made

    async def round(self) -> str:
        """The state of a call of the owner's that waits for an answer: where a client without tasks calls again."""
        reply = await self.owner.asks(MODERN, "tools/call", {"name": "ask", "arguments": {"secret": MARK}})
        assert reply.result["resultType"] == "input_required", reply.body
        return str(reply.result["requestState"])

    @asynccontextmanager
    async def caller(self, name: str, granted: Granted | None) -> AsyncGenerator[Caller]:
        """Somebody new, with a session of 2025-11-25 if they are let in."""
        async with httpx2.AsyncClient() as http:
            token = None if granted is None else granted.access
            headers = {"accept": "application/json, text/event-stream"}
            elder = Elder(http, self.url, headers | ({} if token is None else {"authorization": f"Bearer {token}"}))
            async with elder.stream("initialize", hello({**NO_TASKS, **CARDS})) as response:
                await response.aread()
                if response.status_code == 200:
                    session = {"mcp-session-id": response.headers["mcp-session-id"], "mcp-protocol-version": OLD}
                    elder.headers |= session
            if "mcp-session-id" in elder.headers:
                await elder.notify("notifications/initialized")
            yield Caller(name=name, modern=Peer(http, self.url, token=token), elder=elder, granted=granted)


def auth_of(first: Provider, second: Provider, *, owner: str, endpoint: str) -> Mapping[str, Any]:
    """The first is asked about each token, each time; those of the second are verified here."""
    introspection = {
        "issuer": first.issuer,
        "endpoint": endpoint,
        "audience": AUDIENCE,
        "client_id": INTROSPECTOR,
        "client_secret": SECRET,
        "cache": "0s",
    }
    return {
        "introspection": [introspection],
        "issuers": [{"issuer": second.issuer}],
        "required_scopes": ["tasks"],
        "owner": owner,
        "clock_skew": "0s",
    }


@asynccontextmanager
async def town(folder: Path, providers: Providers, owner: str = "client") -> AsyncGenerator[Town]:
    """The sidecar with nobody in it; its tokens are for `AUDIENCE`, whatever its port."""
    endpoint = (await providers.first.discover())["introspection_endpoint"]
    auth = auth_of(providers.first, providers.second, owner=owner, endpoint=endpoint)
    public = AUDIENCE.removesuffix("/mcp")
    server = f"public_url: {json.dumps(public)}, my_tasks: true, auth: {json.dumps(auth)}"
    found = scene(folder, TOOLS, server)
    async with over_http(found) as url:
        yield Town(scene=found, url=url, providers=providers, owns=owner)


@asynccontextmanager
async def everybody(place: Town) -> AsyncGenerator[None]:
    """Everybody of the table."""
    first, second = place.providers.first, place.providers.second
    alice = await first.log_in("alice")
    given: Mapping[str, Granted | None] = {
        "owner": alice,
        "again": await first.log_in("alice"),
        "person": await first.log_in("bob"),
        "client": await first.log_in("alice", CLIENTS[1]),
        "issuer": await second.log_in("alice"),
        "robot": await first.for_itself(),
        "nobody": None,
        "revoked": await first.log_in("alice"),
        "expired": await first.log_in("alice", lifetime=-60),
        "elapsed": await second.log_in("alice", lifetime=-60),
    }
    async with AsyncExitStack() as stack:
        for name, granted in given.items():
            place.callers[name] = await stack.enter_async_context(place.caller(name, granted))
        revoked = given["revoked"]
        assert revoked is not None
        await first.revoke(revoked)
        yield


# --- what they do, with a task of the owner's or an id of nobody's

Deed = Callable[[Caller, str, str], Awaitable[Reply]]
"""Something a caller does in an era with a task id, or with the state of a call."""


def request(method: str, **more: Any) -> Deed:
    """A method of a task."""

    async def do(caller: Caller, era: str, task_id: str) -> Reply:
        return await caller.asks(era, method, {"taskId": task_id, **more})

    return do


def task_tool(tool: str, **more: Any) -> Deed:
    """A task tool with a task id."""

    async def do(caller: Caller, era: str, task_id: str) -> Reply:
        return await caller.asks(era, "tools/call", {"name": tool, "arguments": {"taskId": task_id, **more}})

    return do


def of_card(tool: str, **more: Any) -> Deed:
    """A task tool with a task id, called by a card's host, which may show it to anybody."""

    async def do(caller: Caller, era: str, task_id: str) -> Reply:
        arguments = {"taskId": task_id, **more}
        return await caller.asks(era, "tools/call", {"name": tool, "arguments": arguments}, CARDS)

    return do


async def finds(caller: Caller, era: str, _: str) -> Reply:
    """`task_find`, with the arguments of the owner's call."""
    arguments = {"tool": "echo", "arguments": {"secret": MARK}}
    return await caller.asks(era, "tools/call", {"name": "task_find", "arguments": arguments}, CARDS)


def lister(tool: str) -> Deed:
    """A task tool that lists."""

    async def do(caller: Caller, era: str, _: str) -> Reply:
        return await caller.asks(era, "tools/call", {"name": tool, "arguments": {}})

    return do


async def lists(caller: Caller, era: str, _: str) -> Reply:
    """`tasks/list`."""
    return await caller.asks(era, "tasks/list", {})


async def reads(caller: Caller, era: str, task_id: str) -> Reply:
    """`resources/read` of its result."""
    return await caller.asks(era, "resources/read", {"uri": uri_of(task_id)})


def event(name: str, *, again: bool = False, **of_whom: str) -> Deed:
    """`events/poll` for the events of one task, or of this tool's; `again`: with the cursor of the first poll."""

    async def do(caller: Caller, era: str, task_id: str) -> Reply:
        params = {"name": name, "arguments": of_whom or {"taskId": task_id}, "cursor": None}
        reply = await caller.asks(era, "events/poll", params)
        if again and "result" in reply.body:
            return await caller.asks(era, "events/poll", {**params, "cursor": reply.result["cursor"]})
        return reply

    return do


async def streams(caller: Caller, era: str, task_id: str) -> Reply:
    """`events/stream` of one task: its first frame."""
    params = {"name": "task.ended", "arguments": {"taskId": task_id}, "cursor": None}
    return await caller.asks(era, "events/stream", params)


async def subscribes(caller: Caller, era: str, task_id: str) -> Reply:
    """`events/subscribe` to one task, at an endpoint that nobody may have called."""
    delivery = {"mode": "webhook", "url": "https://127.0.0.1:1/", "secret": f"whsec_{'A' * 44}"}
    params = {"name": "task.ended", "arguments": {"taskId": task_id}, "delivery": delivery}
    return await caller.asks(era, "events/subscribe", params)


async def unsubscribes(caller: Caller, era: str, task_id: str) -> Reply:
    """`events/unsubscribe` from that."""
    params = {"name": "task.ended", "arguments": {"taskId": task_id}, "delivery": {"url": "https://127.0.0.1:1/"}}
    return await caller.asks(era, "events/unsubscribe", params)


async def listens(caller: Caller, era: str, task_id: str) -> Reply:
    """`subscriptions/listen`: what is acknowledged."""
    return await caller.asks(era, "subscriptions/listen", {"notifications": {"taskIds": [task_id]}})


async def retries(caller: Caller, era: str, state: str) -> Reply:
    """The next round of the owner's call, with the state of it."""
    answer = {"question": {"action": "accept", "content": {"answer": MARK}}}
    params = {"name": "ask", "arguments": {"secret": MARK}, "requestState": state, "inputResponses": answer}
    return await caller.asks(era, "tools/call", params)


def word(reply: Reply, task_id: str) -> str:
    """What came of it, in a word of the table."""
    if reply.status == 401:
        return "401"
    if "error" in reply.body:
        message = str(reply.error["message"])
        known = {"Task not found": "not found", "Invalid or expired requestState": "refused"}
        known |= dict.fromkeys([message] if reply.code in {-32011, -32015} else (), str(reply.code))
        return "no such" if reply.code == -32601 or message.startswith("Unknown tool") else known.get(message, message)
    result: Mapping[str, Any] = reply.body.get("result") or reply.body["params"]
    whole = json.dumps(result)
    if result.get("isError"):
        return "not found" if "Task not found" in whole else whole
    if reply.body.get("method") == "notifications/events/active":
        return "yes"
    if "nextPollMs" in result:
        return "yes" if task_id in whole else "cursor"
    return "yes" if task_id in whole or MARK in whole or result.keys() <= {"resultType", "_meta"} else "none"


def plain(reply: Reply) -> Mapping[str, Any]:
    """It without the ids of the request."""
    whole = dict(reply.body.get("params") or reply.body)
    return {**whole, "_meta": None, "id": None}


def table(text: str) -> tuple[Sequence[str], Sequence[tuple[str, str, Mapping[str, str]]]]:
    """The names of the columns; and of each row its deed, its era, and what is expected of whom."""
    head, *lines = [line for line in text.strip().splitlines() if line.strip()]
    names = [cell.strip() for cell in head.split("|")]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    return names[2:], [(row[0], row[1], dict(zip(names[2:], row[2:], strict=True))) for row in rows]
