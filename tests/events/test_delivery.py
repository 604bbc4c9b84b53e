"""Deliveries through faults: none is lost, and one that comes twice has the same id."""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.streams.tls import TLSStream
from starlette.responses import RedirectResponse, Response

from mcp_workflows.access import Principal
from mcp_workflows.errors import RequestError, StoreUnavailable
from mcp_workflows.events import delivery, endpoints
from mcp_workflows.events.endpoints import EventSettings
from mcp_workflows.store.protocol import open_store
from mcp_workflows.wire import events as wire
from tests.store.places import PostgresSchema
from tests.support.authority import Authority
from tests.support.delivering import ANNA, Clock, Replica, delivering
from tests.support.endpoint import Endpoint, endpoint, new_secret
from tests.support.postgres_server import Postgres
from tests.support.unwritable import Disk
from tests.support.unwritable import disk as disk
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

BOB = Principal(id="bob")
LOCALLY = EventSettings(allow_private=True)
PRIVATE = (
    *("127.0.0.1", "10.1.2.3", "169.254.169.254", "224.0.0.1", "::1", "::ffff:10.0.0.1", "::a00:1", "fec0::1"),
    *("64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:a00:1::", "fd00::1", "not an address"),
)


def url(folder: Path) -> str:
    return f"sqlite:///{folder}/tasks.db"


def tasks_in(events: Sequence[Mapping[str, Any]]) -> Counter[str]:
    return Counter(event["data"]["taskId"] for event in events)


@asynccontextmanager
async def replica_and_endpoint(
    folder: Path, settings: EventSettings = LOCALLY
) -> AsyncGenerator[tuple[Replica, Endpoint]]:
    """A replica, and an endpoint with the same clock."""
    async with (
        delivering(open_store(url(folder)), settings=settings) as replica,
        endpoint(clock=replica.clock) as found,
    ):
        yield replica, found


def _here(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


async def refused(receiver: Endpoint, many: int) -> None:
    await receiver.until(lambda: sum(each.answered != 200 for each in receiver.got) >= many)


async def failed(replica: Replica, attempts: int) -> None:
    """Wait until each pending event has failed so often, as its replica knows."""
    await until(lambda: all(each.attempts >= attempts for each in replica.pending.values()))


async def test_a_receiver_that_is_down_for_an_hour_gets_every_event(tmp_path: Path) -> None:
    async with replica_and_endpoint(tmp_path) as (replica, receiver):
        await replica.subscribe(receiver)
        receiver.status = 503
        ended = await replica.ended(20)
        await refused(receiver, 20)
        for number, minutes in enumerate((1, 5, 15, 40), 1):
            await failed(replica, number)
            replica.clock.advance(minutes=minutes)
        await failed(replica, 5)
        receiver.status = 200
        replica.clock.advance(hours=2)
        await receiver.until(lambda: len(receiver.events()) >= 20)
    assert tasks_in(receiver.events()) == Counter(ended)
    assert len({each.headers["webhook-id"] for each in receiver.got if each.answered == 503}) == 20
    assert receiver.forged == []
    assert replica.outcomes("delivery") == []


async def test_an_attempt_has_the_same_id_and_a_fresh_time(tmp_path: Path) -> None:
    async with replica_and_endpoint(tmp_path) as (replica, receiver):
        await replica.subscribe(receiver)
        receiver.status = 500
        await replica.ended(1)
        await refused(receiver, 1)
        await failed(replica, 1)
        replica.clock.advance(seconds=100)
        receiver.status = 200
        await receiver.until(lambda: bool(receiver.events()))
    first, second = (each.headers for each in receiver.got[1:])
    assert first["webhook-id"] == second["webhook-id"]
    assert int(second["webhook-timestamp"]) - int(first["webhook-timestamp"]) >= 100


async def test_an_event_that_fails_holds_back_no_other(tmp_path: Path) -> None:
    async with replica_and_endpoint(tmp_path) as (replica, receiver):
        bad = await replica.task()

        async def reply(content: Mapping[str, Any]) -> Response:
            return Response(status_code=500 if content["data"]["taskId"] == bad.id else 200)

        receiver.reply = reply
        await replica.subscribe(receiver)
        await replica.end(bad)
        ended = Counter(await replica.ended(10))
        await receiver.until(lambda: tasks_in(receiver.events()) == ended)
        for number in range(len(delivery.PAUSES)):
            await failed(replica, number + 1)
            replica.clock.advance(hours=3)
            ended.update(await replica.ended(1))
            await receiver.until(lambda: tasks_in(receiver.events()) == ended)
        await until(lambda: replica.outcomes("delivery") == ["failed"])  # it is given up
        state = await replica.state()
    assert tasks_in(receiver.events()) == ended
    assert len(receiver.events(500)) == len(delivery.PAUSES) + 1
    assert state is not None
    assert state.suspended is None


async def test_an_endpoint_that_takes_nothing_is_suspended_and_resumed_by_a_refresh(tmp_path: Path) -> None:
    async with replica_and_endpoint(tmp_path) as (replica, receiver):
        await replica.subscribe(receiver, ttl=timedelta(days=20))
        receiver.status = 404
        ended = list(await replica.ended(1))
        await refused(receiver, 1)
        for number in range(len(delivery.PAUSES)):
            await failed(replica, number + 1)
            replica.clock.advance(hours=3)
        await until(lambda: "suspended" in replica.outcomes())
        while (state := await replica.state()) is None or state.suspended is None:
            await anyio.sleep(0.05)
        receiver.status = 200
        ended += await replica.ended(3)
        replica.clock.advance(hours=3)
        status = (await replica.subscribe(receiver)).status
        assert status is not None
        assert status.failed_since is not None
        assert (status.active, status.last_error) == (False, "http_4xx")
        await receiver.until(lambda: len(receiver.events()) == 4)
    assert tasks_in(receiver.events()) == Counter(ended)


async def test_a_full_window_waits_in_the_log_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "WINDOW", 5)
    async with replica_and_endpoint(tmp_path) as (replica, receiver):
        await replica.subscribe(receiver)
        receiver.status = 503
        ended = await replica.ended(30)
        await refused(receiver, 5)
        await failed(replica, 1)
        receiver.status = 200
        replica.clock.advance(minutes=2)
        await receiver.until(lambda: len(receiver.events()) == 30)
    assert tasks_in(receiver.events()) == Counter(ended)
    assert tasks_in(receiver.events(503)).total() == 5


async def test_410_ends_the_subscription_and_413_only_the_event(tmp_path: Path) -> None:
    async with replica_and_endpoint(tmp_path) as (replica, receiver):
        await replica.subscribe(receiver)
        receiver.status = 413
        await replica.ended(1)
        await refused(receiver, 1)
        receiver.status = 200
        [taken] = await replica.ended(1)
        await receiver.until(lambda: len(receiver.events()) == 1)
        assert replica.outcomes("delivery") == ["failed"]
        receiver.status = 410
        await replica.ended(1)
        await until(lambda: "terminated" in replica.outcomes())
        assert await replica.state() is None
        receiver.status = 200
        await replica.ended(3)
        replica.clock.advance(days=1)
        await anyio.sleep(1)
    assert tasks_in(receiver.events()) == {taken: 1}
    assert len(receiver.got) == 4


async def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    async with (
        replica_and_endpoint(tmp_path) as (replica, receiver),
        endpoint(secret=receiver.secret) as elsewhere,
    ):
        await replica.subscribe(receiver)

        async def reply(_: Mapping[str, Any]) -> Response:
            return RedirectResponse(elsewhere.url, status_code=307)

        receiver.reply = reply
        await replica.ended(1)
        await refused(receiver, 1)
        state = await replica.state()
        while state is None or state.last_error is None:
            await anyio.sleep(0.05)
            state = await replica.state()
    assert elsewhere.got == []
    assert state.last_error == "http_4xx"


async def test_a_slow_endpoint_and_one_that_hangs_up_delay_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "ANSWER_WITHIN", 0.5)

    async def hang_up(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")

    async with (
        replica_and_endpoint(tmp_path) as (replica, good),
        endpoint() as slow,
        await anyio.create_tcp_listener(local_host="127.0.0.1") as rude,
        anyio.create_task_group() as group,
    ):
        group.start_soon(rude.serve, hang_up)
        port = rude.extra(anyio.abc.SocketAttribute.local_port)
        with pytest.raises(RequestError, match="did not confirm"):
            await replica.subscribe(good, url=f"http://127.0.0.1:{port}/")

        async def reply(_: Mapping[str, Any]) -> Response:
            await anyio.sleep(5)
            return Response()

        await replica.subscribe(slow)
        slow.reply = reply
        await replica.subscribe(good)
        ended = await replica.ended(20)
        await good.until(lambda: len(good.events()) == 20)
        assert tasks_in(good.events()) == Counter(ended)
        group.cancel_scope.cancel()


async def test_slow_endpoints_of_one_caller_delay_nobody_else_at_their_host(tmp_path: Path) -> None:
    async with replica_and_endpoint(tmp_path) as (replica, slow), endpoint() as good:
        begun, is_over = list[str](), anyio.Event()

        async def reply(event: Mapping[str, Any]) -> Response:
            begun.append(event["eventId"])
            await is_over.wait()
            return Response()

        for number in range(3):
            await replica.subscribe(slow, url=f"{slow.url}/{number}")
        slow.reply = reply
        await replica.subscribe(good, by=BOB)
        await replica.ended(8)
        await until(lambda: len(begun) == delivery.OF_ONE_OWNER)
        await replica.ended(1, owner=BOB.id)
        await good.until(lambda: len(good.events()) == 1)
        assert len(begun) == delivery.OF_ONE_OWNER
        is_over.set()
        await slow.until(lambda: len(slow.events()) == 24)


async def test_callers_take_turns_at_the_rate_of_one_host(tmp_path: Path) -> None:
    settings = EventSettings(allow_private=True, deliveries_per_minute=30)
    async with replica_and_endpoint(tmp_path, settings) as (replica, busy), endpoint() as good:
        for number in range(3):
            await replica.subscribe(busy, url=f"{busy.url}/{number}")
        await replica.subscribe(good, by=BOB)
        await replica.ended(30)
        await busy.until(lambda: len(busy.events()) > 20)
        await replica.ended(1, owner=BOB.id)
        await good.until(lambda: len(good.events()) == 1)
        assert len(busy.events()) < 45


async def test_a_killed_process_loses_no_event(tmp_path: Path) -> None:
    clock, ended = Clock(), list[str]()
    async with endpoint(clock=clock) as receiver:
        for round_ in range(6):
            async with delivering(open_store(url(tmp_path)), clock=clock) as replica:
                if not round_:
                    await replica.subscribe(receiver)
                ended += await replica.ended(5)
                if round_ % 2:
                    await receiver.until(lambda: len(receiver.events()) > 2)
                replica.kill()
                ended += await replica.ended(2)  # committed, and nobody delivers
        async with delivering(open_store(url(tmp_path)), clock=clock):
            await receiver.until(lambda: tasks_in(receiver.events()).keys() >= set(ended))
    ids = {event["data"]["taskId"]: event["eventId"] for event in receiver.events()}
    assert all(event["eventId"] == ids[event["data"]["taskId"]] for event in receiver.events())
    assert ids.keys() == set(ended)


async def test_a_secret_that_was_replaced_signs_for_a_day_more(tmp_path: Path) -> None:
    async with replica_and_endpoint(tmp_path) as (replica, receiver):
        second = new_secret()
        await replica.subscribe(receiver)
        await replica.subscribe(receiver, secret=new_secret())
        await replica.subscribe(receiver, secret=second)
        await replica.ended(1)
        await receiver.until(lambda: len(receiver.events()) == 1)
        receiver.secret = second
        await replica.ended(1)
        await receiver.until(lambda: len(receiver.events()) == 2)
        assert len(receiver.got[-1].headers["webhook-signature"].split()) == 3
        replica.clock.advance(hours=25)
        await replica.ended(1)
        await receiver.until(lambda: len(receiver.events()) == 3)
    assert len(receiver.got[-1].headers["webhook-signature"].split()) == 1
    assert receiver.forged == []


async def test_a_subscription_that_is_not_refreshed_ends_with_a_word_to_its_endpoint(tmp_path: Path) -> None:
    async with replica_and_endpoint(tmp_path) as (replica, receiver):
        await replica.subscribe(receiver, ttl=timedelta(hours=2))
        replica.clock.advance(hours=1)
        await replica.ended(1)
        await receiver.until(lambda: len(receiver.events()) == 1)
        replica.clock.advance(hours=1, minutes=1)
        await until(lambda: "terminated" in replica.outcomes())
        await replica.ended(1)
        await receiver.until(lambda: receiver.got[-1].body.get("type") == "terminated")
        assert await replica.state() is None
    assert receiver.got[-1].body["error"]["code"] == -32012
    assert len(receiver.events()) == 1


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "::1", "169.254.169.254", "::ffff:10.0.0.1", "224.0.0.1", "fec0::1", "64:ff9b:1::a00:1"],
)
async def test_a_name_that_leads_to_a_private_address_is_never_connected_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """The name led to a public address when the endpoint was verified."""
    connected: list[str] = []

    def look_up(host: str, port: int) -> Sequence[str]:
        connected.append(host)
        return [address]

    async with replica_and_endpoint(tmp_path, EventSettings()) as (replica, receiver):
        port = receiver.url.partition("127.0.0.1:")[2].partition("/")[0]
        monkeypatch.setattr(endpoints.Endpoints, "post", _taken)
        await replica.subscribe(receiver, url=f"https://rebind.example:{port}/hook")
        monkeypatch.undo()
        monkeypatch.setattr(endpoints, "look_up", look_up)
        await replica.ended(1)
        state = None
        while state is None or state.last_error is None:
            await anyio.sleep(0.05)
            state = await replica.state()
    assert state.last_error == "connection_refused"
    assert connected == ["rebind.example"]
    assert receiver.got == receiver.forged == []


async def _taken(_: object, url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """The endpoint's echo, when it was at a public address, which no test can reach."""
    return body


@pytest.mark.usefixtures("processes")
async def test_three_replicas_deliver_each_event_and_one_takes_over_from_another(
    postgres_server: Postgres, tmp_path: Path
) -> None:
    place, clock, ended = PostgresSchema(postgres_server), Clock(), Counter[str]()
    async with endpoint(clock=clock) as receiver, AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(delivering(open_store(place.url), clock=clock)) for _ in range(3)]
        await replicas[2].subscribe(receiver)
        for replica in replicas:
            ended.update(await replica.ended(4))
        await receiver.until(lambda: tasks_in(receiver.events()) >= ended)
        assert tasks_in(receiver.events()) == ended
        for left in (2, 1):
            holder = next(each for each in replicas if each.is_delivering)
            for replica in replicas:
                ended.update(await replica.ended(2))
            holder.kill()
            replicas.remove(holder)
            for replica in replicas:
                ended.update(await replica.ended(2))
            await receiver.until(lambda: tasks_in(receiver.events()) >= ended)
            assert len(replicas) == left
    ids = {event["data"]["taskId"]: event["eventId"] for event in receiver.events()}
    assert {(event["data"]["taskId"], event["eventId"]) for event in receiver.events()} == set(ids.items())
    assert ids.keys() == ended.keys()


@pytest.mark.parametrize(("certified", "trouble"), [("hooks.example.com", None), ("other.example.com", "tls_error")])
async def test_the_certificate_is_checked_for_the_name_in_the_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certified: str, trouble: str | None
) -> None:
    """The connection goes to the address that was checked, with the name for TLS."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    certificate, key = authority.issue_into(tmp_path / "tls", "server", certified)
    serving_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving_tls.load_cert_chain(certificate, key)
    named: list[str | None] = []
    is_over = anyio.Event()
    serving_tls.sni_callback = lambda _, name, __: named.append(name)

    async def serve(stream: anyio.abc.SocketStream) -> None:
        try:
            async with await TLSStream.wrap(stream, server_side=True, ssl_context=serving_tls) as secured:
                request = await secured.receive()
                assert b"host: hooks.example.com" in request.lower()
                echo = request.partition(b"\r\n\r\n")[2] or await secured.receive()
                await secured.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(echo), echo))
        except (ssl.SSLError, anyio.BrokenResourceError, anyio.EndOfStream):
            pass  # the client does not trust it
        finally:
            await stream.aclose()
            is_over.set()

    async with (
        replica_and_endpoint(tmp_path) as (replica, receiver),
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as group,
    ):
        group.start_soon(listener.serve, serve)
        monkeypatch.setattr(endpoints, "look_up", _here)
        place = f"https://hooks.example.com:{listener.extra(anyio.abc.SocketAttribute.local_port)}/hook"
        if trouble is None:
            await replica.subscribe(receiver, url=place)
        else:
            with pytest.raises(RequestError) as refused:
                await replica.subscribe(receiver, url=place)
            assert refused.value.data == {"reason": trouble}
        await is_over.wait()
        group.cancel_scope.cancel()
    assert named == ["hooks.example.com"]


async def test_a_disk_without_room_loses_no_event(disk: Disk) -> None:
    async with delivering(disk.store) as replica, endpoint() as receiver:
        await replica.subscribe(receiver)
        ended = Counter(await replica.ended(3))
        late = [await replica.task() for _ in range(3)]
        await receiver.until(lambda: bool(receiver.events()))
        disk.refuse()  # while deliveries go on
        for task in late:
            with pytest.raises(StoreUnavailable):
                await replica.end(task)  # the poll that saw it tries again
        disk.recover()
        for task in late:
            await replica.end(task)
        ended.update(task.id for task in late)
        await receiver.until(lambda: tasks_in(receiver.events()).keys() == ended.keys())
    pairs = {(event["data"]["taskId"], event["eventId"]) for event in receiver.events()}
    assert len(pairs) == len(ended)


async def test_a_subscription_that_begins_again_is_told_nothing_from_between(tmp_path: Path) -> None:
    async with replica_and_endpoint(tmp_path) as (replica, receiver):
        wanted, webhook = wire.Wanted(name="task.ended", arguments={}), wire.Webhook(url=receiver.url)
        await replica.subscribe(receiver)
        await replica.ended(1)
        await receiver.until(lambda: len(receiver.events()) == 1)
        state = await replica.state()
        [before] = await replica.events.subscriptions.under()
        await replica.events.unsubscribe(wanted, webhook, ANNA)
        await replica.ended(3)
        if state is not None:  # a process that stood still writes what it knew
            await replica.events.subscriptions.save_deliveries(before, state)
        await replica.subscribe(receiver)
        [last] = await replica.ended(1)
        await receiver.until(lambda: len(receiver.events()) == 2)
        await until(lambda: not replica.pending)
    assert receiver.events()[1]["data"]["taskId"] == last
    assert len(receiver.events()) == 2


async def test_a_subscription_goes_on_at_a_cursor_within_its_greatest_age(tmp_path: Path) -> None:
    async with replica_and_endpoint(tmp_path) as (replica, receiver):
        first = (await replica.events.poll(wire.Wanted(name="task.ended", arguments={}), 10, ANNA)).cursor
        await replica.ended(2)
        replica.clock.advance(hours=2)
        late = await replica.ended(2)
        old, recent = f"{receiver.url}/old", f"{receiver.url}/recent"
        whole = await replica.subscribe(receiver, url=old, cursor=first)
        short = await replica.subscribe(receiver, url=recent, cursor=first, max_age=timedelta(hours=1))
        assert (whole.truncated, short.truncated) == (False, True)
        await receiver.until(lambda: len(receiver.events()) == 6)
        await until(lambda: not replica.pending)
    of_short = [each.body for each in receiver.got if each.headers["x-mcp-subscription-id"] == short.id]
    assert sorted(event["data"]["taskId"] for event in of_short if "data" in event) == sorted(late)


async def test_a_cursor_from_before_the_log_begins_is_truncated(tmp_path: Path) -> None:
    async with replica_and_endpoint(tmp_path) as (replica, receiver):
        wanted = wire.Wanted(name="task.ended", arguments={})
        await replica.ended(1)
        first = (await replica.events.poll(wanted, 10, ANNA)).cursor
        await replica.ended(3)
        replica.clock.advance(days=8)
        await replica.store.delete_expired(replica.clock(), replica.clock() - timedelta(days=90))
        [last] = await replica.ended(1)
        polled = await replica.events.poll(replace(wanted, cursor=first), 10, ANNA)
        subscribed = await replica.subscribe(receiver, cursor=first)
        assert (polled.truncated, subscribed.truncated) == (True, True)
        assert polled.events[-1].data["taskId"] == last
        again = await replica.events.poll(replace(wanted, cursor=polled.cursor), 10, ANNA)
        assert (again.events, again.truncated) == ([], False)
        await receiver.until(lambda: last in tasks_in(receiver.events()))


async def test_an_endpoint_is_told_of_events_that_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "WINDOW", 2)
    async with replica_and_endpoint(tmp_path) as (replica, receiver):
        await replica.subscribe(receiver, ttl=timedelta(days=30))
        receiver.status = 503
        await replica.ended(6)
        await refused(receiver, 2)
        await failed(replica, 1)
        replica.clock.advance(days=8)
        await replica.store.delete_expired(replica.clock(), replica.clock() - timedelta(days=90))
        receiver.status = 200
        [last] = await replica.ended(1)
        await receiver.until(lambda: any(event["data"]["taskId"] == last for event in receiver.events()))
        await receiver.until(lambda: any(each.body.get("type") == "gap" for each in receiver.got))


async def test_while_all_windows_are_full_new_subscriptions_and_refreshes_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "WINDOW", 3)
    async with replica_and_endpoint(tmp_path) as (replica, receiver), endpoint() as other:
        other.clock = replica.clock
        await replica.subscribe(receiver, ttl=timedelta(days=20))
        receiver.status = 503
        ended = Counter(await replica.ended(5))
        await refused(receiver, 3)
        bob = Principal(id="bob")
        await replica.subscribe(other, by=bob)
        of_bob = Counter(await replica.ended(5, owner="bob"))
        await other.until(lambda: tasks_in(other.events()) == of_bob)
        for number in range(len(delivery.PAUSES)):
            await failed(replica, number + 1)
            replica.clock.advance(hours=3)
        await until(lambda: "suspended" in replica.outcomes() and not replica.is_sending)
        ended.update(await replica.ended(5))
        receiver.status = 200
        await replica.subscribe(receiver, ttl=timedelta(days=20))
        await receiver.until(lambda: tasks_in(receiver.events()) == ended)


async def test_a_window_that_empties_beside_a_new_subscription_skips_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log holds events that wait for room, and between them the rows of other subscriptions."""
    monkeypatch.setattr(delivery, "WINDOW", 2)
    async with replica_and_endpoint(tmp_path) as (replica, receiver), endpoint() as other:
        await replica.subscribe(receiver)
        ended = Counter[str]()
        for number in range(8):
            ended.update(await replica.ended(5))
            await replica.subscribe(other, by=Principal(id=f"somebody-{number}"))
        await receiver.until(lambda: tasks_in(receiver.events()) == ended)


async def test_a_subscription_to_one_task_is_over_with_its_end_and_told_once_for_all_refreshes(tmp_path: Path) -> None:
    async with replica_and_endpoint(tmp_path) as (replica, receiver):
        task = await replica.task()
        one: dict[str, Any] = {"arguments": {"taskId": task.id}, "ttl": timedelta(hours=1)}
        await replica.subscribe(receiver, **one)
        await replica.end(task)
        await receiver.until(lambda: len(receiver.events()) == 1)
        while not (await replica.events.subscriptions.under())[0].is_over:
            await anyio.sleep(0.01)
        await replica.subscribe(receiver, **one)
        await replica.ended(1)
        replica.clock.advance(hours=2)
        while await replica.events.subscriptions.states():
            await anyio.sleep(0.01)
        await until(lambda: not replica.pending)
    assert len(receiver.events()) == 1
    assert [each.body.get("type") for each in receiver.got] == ["verification", None]
    assert "terminated" not in replica.outcomes()
