"""Sessions of 2025-11-25 over HTTP: how many a caller may open, and how their places become free again."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_workflows.access import LOCAL, Principal
from mcp_workflows.access.audit import Event, Record
from mcp_workflows.access.authn.verifier import make_token, sha256_of
from mcp_workflows.access.limit_settings import DEFAULTS, UNLIMITED, Limits
from mcp_workflows.access.rate_limits import RateLimits
from mcp_workflows.receiver.context import Callers
from mcp_workflows.receiver.http_limits import Sessions
from mcp_workflows.sidecar.app import Sidecar, build, http_app
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.sidecar.config.models import Config
from tests.support.configured import written
from tests.support.here import OLD, hello
from tests.support.served import VERSION, Peer, serving, site

pytestmark = pytest.mark.anyio

ACCEPT = {"accept": "application/json, text/event-stream"}
TEXT = "at most {most} sessions of one caller may be open: end one (DELETE), or try again later"


def only(most: int) -> Limits:
    """This limit alone."""
    return UNLIMITED.model_copy(update={"sessions_per_principal": most})


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What is served, and requests to it that no SDK made."""

    http: httpx2.AsyncClient
    url: str
    records: list[Record]

    async def opens(self, who: str | None = "alice", **headers: str) -> httpx2.Response:
        """`initialize`."""
        return await self.asks("initialize", who, hello({}), **headers)

    async def asks(
        self, method: str, who: str | None, params: Mapping[str, Any] | None = None, **headers: str
    ) -> httpx2.Response:
        """One request, and its response when all of it is there."""
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        return await self.http.post(self.url, json=body, headers=_headers(who, headers), timeout=60)

    async def session(self, who: str = "alice") -> str:
        """The id of a new session."""
        response = await self.opens(who)
        assert response.status_code == 200, response.text
        return str(response.headers["mcp-session-id"])

    async def ends(self, session: str, who: str = "alice") -> int:
        """The status of `DELETE`."""
        headers = _headers(who, {"mcp_session_id": session, "mcp_protocol_version": OLD})
        return (await self.http.delete(self.url, headers=headers)).status_code

    async def has_room(self, who: str = "alice") -> str:
        """Once another session can be opened: its id."""
        with anyio.fail_after(60):
            while (response := await self.opens(who)).status_code != 200:
                await anyio.sleep(0.01)
        return str(response.headers["mcp-session-id"])


def _headers(who: str | None, more: Mapping[str, str]) -> dict[str, str]:
    named = {} if who is None else {"authorization": f"Bearer {who}"}
    return ACCEPT | named | {name.replace("_", "-"): value for name, value in more.items()}


@asynccontextmanager
async def door(folder: Path, most: int, **settings: Any) -> AsyncGenerator[Door]:
    """A server where everybody has a name and so many sessions at most."""
    records = list[Record]()
    settings |= {"limits": only(most), "audit": records.append, "authenticated": True}
    async with site(store=f"sqlite:///{folder}/tasks.db", **settings) as served, httpx2.AsyncClient() as http:
        yield Door(http=http, url=served.url, records=records)


def configured(folder: Path, names: Collection[str], **server: Any) -> tuple[Config, Mapping[str, str]]:
    """The configuration of a sidecar, one session for each at most, and the tokens of these people."""
    tokens = {name: make_token() for name in names}
    auth = {"tokens": [{"name": name, "sha256": sha256_of(token)} for name, token in tokens.items()]}
    tools = {"echo": {"workflow": "echo"}}
    config = load_config(written(folder, "memory", {"adapter": "memory"}, tools, {"auth": auth, **server}), {})
    assert config.limits.sessions_per_principal == DEFAULTS.sessions_per_principal == 1000
    return replace(config, limits=only(1)), tokens


@asynccontextmanager
async def in_sidecar(config: Config, sidecar: Sidecar) -> AsyncGenerator[Door]:
    """What is served by a sidecar."""
    async with serving(http_app(sidecar, config, "127.0.0.1", 0)) as url, httpx2.AsyncClient() as http:
        yield Door(http=http, url=url, records=[])


# --- what is refused, and what is not


async def test_who_has_too_many_sessions_opens_no_other_and_everybody_else_does(tmp_path: Path) -> None:
    async with door(tmp_path, 2) as here:
        first, _ = await here.session(), await here.session()
        refused = await here.opens()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "30")
        told = {"code": -32050, "message": TEXT.format(most=2), "data": {"retryAfterMs": 30_000}}
        assert refused.json() == {"jsonrpc": "2.0", "id": None, "error": told}
        limits = [record for record in here.records if record.event is Event.LIMIT]
        assert [(record.subject, record.outcome, record.reason) for record in limits] == [
            ("alice", "refused", TEXT.format(most=2))
        ]
        assert (await here.opens("bob")).status_code == 200
        listed = await here.asks("tools/list", "alice", mcp_session_id=first, mcp_protocol_version=OLD)
        assert listed.status_code == 200, "the sessions there are go on"
        assert (await Peer(here.http, here.url, token="alice").call("echo")).status == 200, "2026-07-28 has none"


async def test_sessions_that_are_opened_at_the_same_moment_do_not_pass_together(tmp_path: Path) -> None:
    async with door(tmp_path, 3) as here:
        seen = Counter[int]()

        async def open_one() -> None:
            seen[(await here.opens()).status_code] += 1

        async with anyio.create_task_group() as group:
            for _ in range(12):
                group.start_soon(open_one)
        assert seen == {200: 3, 429: 9}


async def test_what_opens_no_session_takes_no_place(tmp_path: Path) -> None:
    async with door(tmp_path, 1) as here:
        headers = _headers("alice", {})
        garbage = [
            await here.http.post(here.url, content=b"{", headers={**headers, "content-type": "application/json"}),
            await here.http.post(here.url, json=[], headers=headers),
            await here.http.get(here.url, headers=headers),
            await here.http.put(here.url, headers=headers),
            await here.http.delete(here.url, headers=headers),
            await here.asks("tools/list", "alice"),
            await here.opens(accept="text/html"),
            await here.opens(host="evil.example"),
            await here.opens(mcp_session_id="made-up"),
            await here.opens(mcp_session_id=""),
            await here.opens(mcp_protocol_version="no-version"),
        ]
        assert [answer.status_code for answer in garbage if answer.status_code < 400] == []
        assert 429 not in {answer.status_code for answer in garbage}
        await here.session()
        assert (await here.opens()).status_code == 429


async def test_a_session_counts_for_whom_it_was_opened_by_whoever_guesses_its_id(tmp_path: Path) -> None:
    async with door(tmp_path, 1) as here:
        session = await here.session("alice")
        assert await here.ends(session, "bob") == 404
        assert (await here.opens("alice")).status_code == 429
        assert (await here.opens("bob")).status_code == 200


# --- where it counts


async def test_a_sidecar_bounds_the_sessions_of_each_and_those_of_all(tmp_path: Path) -> None:
    config, tokens = configured(tmp_path, ("alice", "bob", "carol"), max_sessions=2)
    async with in_sidecar(config, build(config)) as here:
        answers = [await here.opens(tokens[name]) for name in ("alice", "alice", "bob", "carol")]
        assert [answer.status_code for answer in answers] == [200, 429, 200, 503]


# --- the counting itself, in front of something that opens sessions


class Rooms(Collection[str]):
    """Ids of sessions as the SDK keeps them, and how often each was asked for."""

    def __init__(self) -> None:
        self.there = set[str]()
        self.asked = Counter[str]()

    def __contains__(self, name: object) -> bool:
        self.asked[str(name)] += 1
        return name in self.there

    def __iter__(self) -> Iterator[str]:
        return iter(self.there)

    def __len__(self) -> int:
        return len(self.there)


def opening(rooms: Rooms) -> ASGIApp:
    """Opens a session at each request without one."""
    numbers = itertools.count(1)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        session = f"session-{next(numbers)}"
        rooms.there.add(session)
        await Response(headers={"mcp-session-id": session})(scope, receive, send)

    return app


async def status_of(app: ASGIApp, address: str = "192.0.2.1", *headers: tuple[bytes, bytes]) -> int:
    """What an application answers to an anonymous caller."""
    seen = list[int]()

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            seen.append(message["status"])

    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": list(headers), "client": (address, 1)}
    await app(scope, receive, send)
    return seen[0]


CALLERS = Callers(local=LOCAL, single_user=False)


async def test_callers_without_a_name_are_told_apart_by_where_they_come_from() -> None:
    rooms = Rooms()
    app = Sessions(opening(rooms), rooms, CALLERS.sender, RateLimits(only(1)))
    seen = [
        await status_of(app, address)
        for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1")
    ]
    assert seen == [200, 429, 200, 200, 429, 200]


SESSION = (b"mcp-session-id", b"s")
MODERN, ANCIENT = (b"mcp-protocol-version", VERSION.encode()), (b"mcp-protocol-version", OLD.encode())


@pytest.mark.parametrize(
    ("headers", "asked"),
    [
        ([SESSION], False),
        ([ANCIENT, SESSION], False),
        ([MODERN], False),
        ([MODERN, ANCIENT], False),
        ([], True),
        ([ANCIENT], True),
        ([ANCIENT, MODERN], True),
    ],
    ids=["session", "session and version", "modern", "modern first", "nothing", "version", "version first"],
)
async def test_only_what_the_sdk_would_open_a_session_for_is_counted(
    headers: list[tuple[bytes, bytes]], asked: bool
) -> None:
    rooms, senders = Rooms(), list[Request]()

    def sender(request: Request) -> Principal:
        senders.append(request)
        return LOCAL

    app = Sessions(opening(rooms), rooms, sender, RateLimits(only(1)))
    assert await status_of(app, "192.0.2.1", *headers) == 200
    assert bool(senders) is asked


@pytest.mark.parametrize("end", ["raises", "says nothing", "refuses"])
async def test_a_request_that_opens_nothing_gives_its_place_back(end: str) -> None:
    async def raises(_: Scope, __: Receive, ___: Send) -> None:
        raise OSError("broken")

    async def says_nothing(_: Scope, __: Receive, ___: Send) -> None:
        """As when the client has left."""

    ways: Mapping[str, Callable[[Scope, Receive, Send], Awaitable[None]]] = {
        "raises": raises,
        "says nothing": says_nothing,
        "refuses": Response(status_code=400, headers={"mcp-session-id": "gone"}),
    }
    rooms = Rooms()
    works, way = opening(rooms), [ways[end]]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (way[0] if way else works)(scope, receive, send)

    bounded = Sessions(app, rooms, CALLERS.sender, RateLimits(only(1)))
    for _ in range(3):
        with suppress(OSError, IndexError):  # there is no answer to take a status from
            await status_of(bounded)
    way.clear()
    assert [await status_of(bounded), await status_of(bounded)] == [200, 429]


async def test_whose_ended_sessions_were_is_forgotten_though_they_never_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcp_workflows.receiver.http_limits.SPARE", 10)
    rooms = Rooms()
    app = Sessions(opening(rooms), rooms, CALLERS.sender, RateLimits(only(1)))
    for number in range(100):
        assert await status_of(app, f"192.0.2.{number}") == 200
        rooms.there.clear()
    assert max(rooms.asked.values()) <= 3, "a session that has ended is looked for once more, and then forgotten"
    assert len([name for name, many in rooms.asked.items() if many > 1]) >= 85, "all but the last ones are forgotten"
