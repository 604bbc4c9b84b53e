"""The events of a server for programs in Python, in both revisions, and the verifier for their webhooks."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx2
import pytest
from anyio.abc import TaskGroup, TaskStatus
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from standardwebhooks import Webhook

from mcp_workflows import TasksClient
from mcp_workflows.client import ServerEvents, reconnecting_http, verify_webhook
from mcp_workflows.errors import ClientError, ForgedDelivery, ServerUnreachable, StaleDelivery
from mcp_workflows.events.endpoints import EventSettings
from mcp_workflows.units import utc_now
from mcp_workflows.wire import events as wire
from tests.support.child_processes import free_port
from tests.support.endpoint import endpoint, new_secret
from tests.support.served import site
from tests.support.waiting import TIMEOUT, until

pytestmark = pytest.mark.anyio

Era = Literal["auto", "legacy"]
ERAS: Sequence[Era] = ("auto", "legacy")
LOCALLY = EventSettings(allow_private=True)


@asynccontextmanager
async def connected(url: str, era: Era = "auto", token: str = "alice") -> AsyncGenerator[tuple[Client, ServerEvents]]:
    """A client of that server, and its events."""
    tasks = TasksClient()
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=era, extensions=[tasks]) as client,
    ):
        yield client, tasks.events(client)


@pytest.fixture
async def url(tmp_path: Path) -> AsyncGenerator[str]:
    """A server whose tools are the workflows in memory."""
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with site(store=store, authenticated=True, events=LOCALLY) as found:
        yield found.url


async def take(stream: AsyncGenerator[Mapping[str, Any]], many: int) -> Sequence[Mapping[str, Any]]:
    """The next events of a stream."""
    with anyio.fail_after(TIMEOUT):
        return [await anext(stream) for _ in range(many)]


@pytest.mark.parametrize("era", ERAS)
async def test_events_are_listed_and_polled(url: str, era: Era) -> None:
    async with connected(url, era) as (client, events):
        listed = await events.list()
        assert [each["name"] for each in listed] == ["task.ended", "task.input_required", "task.progress"]
        first = await events.poll("task.ended")
        assert (first["events"], first["truncated"]) == ([], False)
        await client.call_tool("echo", {"text": "hi"})
        page = first
        with anyio.fail_after(TIMEOUT):
            while not page["events"]:
                page = await events.poll("task.ended", {"tool": "echo"}, first["cursor"])
        [event] = page["events"]
        assert (event["name"], event["data"]["status"]) == ("task.ended", "completed")
        assert (await events.poll("task.ended", {"tool": "echo"}, page["cursor"]))["events"] == []
        with pytest.raises(MCPError, match="there is no event nothing"):
            await events.poll("nothing")


@pytest.mark.parametrize("era", ERAS)
async def test_a_stream_tells_of_events_at_once_and_goes_on_with_a_cursor(
    url: str, era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows.events.service.NEXT_POLL", timedelta(hours=1))  # only the stream can tell
    got: list[Mapping[str, Any]] = []
    async with connected(url, era) as (_, events):
        begun: str = (await events.poll("task.ended"))["cursor"]
    async with connected(url, era) as (client, events), anyio.create_task_group() as group:

        async def follow() -> None:
            async for event in events.stream("task.ended", cursor=begun):
                got.append(event)

        group.start_soon(follow)
        with anyio.fail_after(TIMEOUT):
            for number in range(3):
                await client.call_tool("echo", {"number": number})
                while len(got) <= number:
                    await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    ids = [event["eventId"] for event in got]
    assert len(set(ids)) == 3
    assert not any(event["truncated"] for event in got)
    async with connected(url, era) as (_, events):
        again = events.stream("task.ended", cursor=got[0]["cursor"])
        assert [event["eventId"] for event in await take(again, 2)] == ids[1:]
        await again.aclose()
        everything = events.stream("task.ended", cursor=begun)
        replayed = await take(everything, 3)
        assert [event["eventId"] for event in replayed] == ids
        assert [event["cursor"] for event in replayed[:2]] == [begun] * 2, "from there none is missed"
        await everything.aclose()


async def test_a_stream_says_that_events_before_are_gone(url: str) -> None:
    got: list[Mapping[str, Any]] = []
    async with connected(url) as (client, events), anyio.create_task_group() as group:

        async def follow() -> None:
            async for event in events.stream("task.ended", cursor="of another server"):
                got.append(event)

        group.start_soon(follow)
        with anyio.fail_after(TIMEOUT):
            while len(got) < 2:  # the stream begins with its first poll
                await client.call_tool("echo", {})
                await anyio.sleep(0.05)
        group.cancel_scope.cancel()
    assert [event["truncated"] for event in got[:2]] == [True, False]


async def test_two_streams_of_one_client_do_not_mix(url: str) -> None:
    async with connected(url) as (client, events):
        one, other = (events.stream("task.ended", {"tool": tool}) for tool in ("echo", "fail"))
        found: dict[str, Mapping[str, Any]] = {}

        async def first(name: str, stream: AsyncGenerator[Mapping[str, Any]]) -> None:
            [found[name]] = await take(stream, 1)
            await stream.aclose()

        async with anyio.create_task_group() as group:
            group.start_soon(first, "echo", one)
            group.start_soon(first, "fail", other)
            while len(found) < 2:  # each stream begins with its first poll
                for tool in ("echo", "fail"):
                    await client.call_tool(tool, {})
                await anyio.sleep(0.05)
    assert {name: event["data"]["tool"] for name, event in found.items()} == {"echo": "echo", "fail": "fail"}


class Restarted:
    """A server that stops and starts while its clients stay."""

    def __init__(self, folder: Path, group: TaskGroup) -> None:
        self.port = free_port()
        self._store = f"sqlite:///{folder}/tasks.db"
        self._group = group
        self._over = self._stopped = anyio.Event()

    async def start(self) -> None:
        """Serve, until `stop`."""
        self._over, self._stopped = anyio.Event(), anyio.Event()
        await self._group.start(self._serve)

    async def stop(self) -> None:
        """Serve no longer."""
        self._over.set()
        await self._stopped.wait()

    async def _serve(self, *, task_status: TaskStatus[None]) -> None:
        async with site(store=self._store, port=self.port, authenticated=True):
            task_status.started()
            await self._over.wait()
        self._stopped.set()


@asynccontextmanager
async def restarted(folder: Path, **settings: Any) -> AsyncGenerator[tuple[Restarted, Client, ServerEvents]]:
    """Such a server, a client of it that survives that, and its events."""
    tasks = TasksClient(**settings)
    async with anyio.create_task_group() as group:
        server = Restarted(folder, group)
        await server.start()
        transport = reconnecting_http(f"http://127.0.0.1:{server.port}/mcp", headers={"authorization": "Bearer alice"})
        async with Client(transport, extensions=[tasks]) as client:
            yield server, client, tasks.events(client)
        await server.stop()


async def test_a_stream_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    got: list[Mapping[str, Any]] = []
    async with restarted(tmp_path) as (server, client, events), anyio.create_task_group() as group:
        cursor = (await events.poll("task.ended"))["cursor"]

        async def follow() -> None:
            async for event in events.stream("task.ended", cursor=cursor):
                got.append(event)

        group.start_soon(follow)
        await client.call_tool("echo", {"number": 1})
        await until(lambda: len(got) == 1)
        await server.stop()
        await server.start()
        await client.call_tool("echo", {"number": 2})
        await until(lambda: len(got) == 2)
        group.cancel_scope.cancel()
    assert len({event["eventId"] for event in got}) == 2


async def test_a_stream_ends_with_an_error_when_the_server_stays_away(tmp_path: Path) -> None:
    async with restarted(tmp_path, timeout_seconds=0.5) as (server, _, events):
        cursor = (await events.poll("task.ended"))["cursor"]
        await server.stop()
        with pytest.raises(ServerUnreachable):
            await take(events.stream("task.ended", cursor=cursor), 1)


async def test_a_webhook_that_was_subscribed_to_gets_verifiable_deliveries(url: str) -> None:
    async with connected(url) as (client, events), endpoint() as receiver:
        subscribed = await events.subscribe("task.ended", {"tool": "echo"}, url=receiver.url, secret=receiver.secret)
        assert datetime.fromisoformat(subscribed["refreshBefore"]) > utc_now()
        await client.call_tool("echo", {})
        await receiver.until(lambda: bool(receiver.events()))
        with pytest.raises(MCPError, match="must be whsec_"):
            await events.subscribe("task.ended", url=receiver.url, secret="short")


# --- the verifier


def delivery(secret: str, content: Mapping[str, Any], *, age: float = 0, secrets: Sequence[str] = ()) -> Any:
    """The headers and the body of a delivery."""
    body, sent = wire.body_of(content), utc_now() - timedelta(seconds=age)
    signing = secrets or [secret]
    headers = wire.headers_of(signing, message_id="evt_1", subscription_id="sub_1", sent=sent, body=body)
    return headers, body


def test_a_signed_delivery_is_returned() -> None:
    secret, content = new_secret(), {"eventId": "evt_1", "data": {"tool": "größe"}}
    headers, body = delivery(secret, content)
    assert verify_webhook(secret, headers, body) == content
    assert verify_webhook(secret, {name.title(): value for name, value in headers.items()}, body) == content


def test_a_delivery_of_another_implementation_is_returned() -> None:
    secret, now = new_secret(), utc_now()
    body = json.dumps({"type": "verification", "challenge": "abc"})
    signed = Webhook(secret).sign("msg_1", now, body)
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(int(now.timestamp())), "webhook-signature": signed}
    assert verify_webhook(secret, headers, body.encode())["challenge"] == "abc"


def test_a_delivery_is_good_if_one_of_two_secrets_signed_it() -> None:
    old, new = new_secret(), new_secret()
    headers, body = delivery(new, {}, secrets=[new, old])
    assert verify_webhook(old, headers, body) == verify_webhook(new, headers, body) == {}


@pytest.mark.parametrize("change", ["secret", "body", "webhook-id", "webhook-timestamp", "webhook-signature", "none"])
def test_a_forged_delivery_is_refused(change: str) -> None:
    secret = new_secret()
    headers, body = delivery(secret, {"a": 1})
    changed = {**headers, change: headers.get(change, "") + "1"} if change in headers else headers
    with pytest.raises(ForgedDelivery):
        verify_webhook(
            new_secret() if change == "secret" else secret,
            {} if change == "none" else changed,
            b"{}" if change == "body" else body,
        )


@pytest.mark.parametrize(("age", "is_fresh"), [(290, True), (310, False), (-290, True), (-310, False)])
def test_a_stale_delivery_is_refused(age: float, is_fresh: bool) -> None:
    secret = new_secret()
    headers, body = delivery(secret, {}, age=age)
    if is_fresh:
        assert verify_webhook(secret, headers, body) == {}
    else:
        with pytest.raises(StaleDelivery):
            verify_webhook(secret, headers, body)


@pytest.mark.parametrize("body", [b"no JSON", b"", b"\xff", b"[" * 100_000])
def test_a_signed_body_that_is_no_json_is_refused(body: bytes) -> None:
    secret, now = new_secret(), utc_now()
    headers = wire.headers_of([secret], message_id="msg_1", subscription_id="sub_1", sent=now, body=body)
    with pytest.raises(ClientError, match="not a JSON"):
        verify_webhook(secret, headers, body)


@pytest.mark.parametrize("seconds", ["9" * 400, "\u0663", "", "-1", "nan"])
def test_an_odd_time_is_stale(seconds: str) -> None:
    secret = new_secret()
    signed = wire.signature(secret, "msg_1", seconds, b"{}")
    headers = {"webhook-id": "msg_1", "webhook-timestamp": seconds, "webhook-signature": signed}
    with pytest.raises(StaleDelivery):
        verify_webhook(secret, headers, b"{}")
    with pytest.raises(ForgedDelivery):
        verify_webhook(secret, {**headers, "webhook-signature": "v1,\ud800"}, b"{}")


@pytest.mark.parametrize("secret", ["", "whsec_", "secret", "whsec_c2hvcnQ="])
def test_a_secret_that_is_none_verifies_nothing(secret: str) -> None:
    headers, body = delivery(new_secret(), {})
    with pytest.raises(ClientError, match="whsec_"):
        verify_webhook(secret, headers, body)
