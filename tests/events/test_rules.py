"""The rules of tasks count for events: for each one, at the time when it is told."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import ValidationError

from mcp_workflows import Tool
from mcp_workflows.access import ANONYMOUS, Principal
from mcp_workflows.access.policy import Allow
from mcp_workflows.errors import RequestError
from mcp_workflows.events.endpoints import EventSettings
from mcp_workflows.events.service import CLAIMS_KEPT
from mcp_workflows.events.subscriptions import owner_key
from mcp_workflows.store.protocol import open_store
from mcp_workflows.wire import events as wire
from tests.support.delivering import ANNA, Replica, delivering
from tests.support.endpoint import Endpoint, body_text, endpoint
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

BOB = Principal(id="bob", subject="bob", claims={"groups": ["release-managers"], "ssn": "078-05-1120"})
EVE = Principal(id="eve", subject="eve")
APPROVED = Allow.model_validate(
    {"call": {}, "see": {}, "answer": {"claims": {"groups": "release-managers"}, "any_owner": True}, "cancel": {}}
)
TOOL = Tool(name="fulfil_order", engine="orders", workflow="echo", allow=APPROVED)
SECRET_OUTPUT = "annas-result-4711"


@asynccontextmanager
async def ruled(folder: Path, **settings: Any) -> AsyncGenerator[tuple[Replica, Endpoint]]:
    """A replica whose only tool lets release managers answer."""
    store = open_store(f"sqlite:///{folder}/tasks.db")
    async with delivering(store, tools={TOOL.name: TOOL}, **settings) as replica, endpoint() as found:
        found.clock = replica.clock
        yield replica, found


async def test_an_approver_hears_of_questions_and_never_of_results(tmp_path: Path) -> None:
    async with ruled(tmp_path) as (replica, receiver), endpoint() as annas:
        for name in ("task.ended", "task.input_required"):
            await replica.subscribe(receiver, name, BOB)
            await replica.subscribe(annas, name, ANNA)
        task = await replica.task()
        await replica.ask(task, "approve")
        await receiver.until(lambda: bool(receiver.events()))
        await replica.end(task, output={"text": SECRET_OUTPUT})
        await annas.until(lambda: bool(annas.events()))
        await until(lambda: not replica.pending)
    [question] = receiver.events()
    assert (question["name"], question["data"]["key"]) == ("task.input_required", "approve")
    assert question["data"]["startedBy"] == "anna"
    assert SECRET_OUTPUT not in "".join(map(body_text, receiver.got))
    [ended] = annas.events()  # the owner may not answer
    assert ended["data"]["result"]["structuredContent"] == {"text": SECRET_OUTPUT}


@pytest.mark.parametrize("name", ["task.ended", "task.input_required"])
async def test_others_hear_nothing(tmp_path: Path, name: str) -> None:
    async with ruled(tmp_path) as (replica, receiver), endpoint() as annas:
        await replica.subscribe(receiver, name, EVE)
        await replica.subscribe(annas, "task.ended", ANNA)
        tasks = [await replica.task() for _ in range(5)]
        for task in tasks:
            await replica.ask(task, "approve")
            await replica.end(task, output={"text": SECRET_OUTPUT})
        with pytest.raises(RequestError, match="Task not found"):
            await replica.subscribe(receiver, name, EVE, arguments={"taskId": tasks[0].id})
        first = await replica.events.poll(wire.Wanted(name=name, arguments={}), 100, EVE)
        again = wire.Wanted(name=name, arguments={}, cursor=first.cursor)
        await annas.until(lambda: len(annas.events()) == 5)
        polled = await replica.events.poll(again, 100, EVE)
        await until(lambda: not replica.pending)
    assert receiver.events() == []
    assert polled.events == []


async def test_rules_that_change_count_at_once(tmp_path: Path) -> None:
    async with ruled(tmp_path) as (replica, receiver), endpoint() as annas:
        await replica.subscribe(receiver, "task.input_required", BOB)
        await replica.subscribe(annas, "task.ended", ANNA)
        closed = TOOL.model_copy(update={"allow": Allow.model_validate({"call": {}, "see": {}})})
        await replica.use(closed)
        task = await replica.task()
        await replica.ask(task, "approve")
        await replica.end(task)
        await annas.until(lambda: bool(annas.events()))
        await until(lambda: not replica.pending)
        assert receiver.events() == []
        await replica.use(TOOL)
        await replica.ask(await replica.task(), "approve")
        await receiver.until(lambda: bool(receiver.events()))


async def test_only_the_claims_that_rules_need_are_kept_and_nothing_is_readable_in_the_store(tmp_path: Path) -> None:
    async with ruled(tmp_path) as (replica, receiver):
        await replica.subscribe(receiver, "task.input_required", BOB)
        [kept] = await replica.events.subscriptions.under(owner_key("bob"))
        assert kept.principal.claims == {"groups": ["release-managers"]}
        notes = await replica.store.notes_under("(subscriptions)", "")
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())  # noqa: ASYNC240
    for text in (receiver.secret, "078-05-1120", "release-managers"):
        assert text not in json.dumps(dict(notes))
        assert text.encode() not in files


async def test_a_token_that_is_over_ends_the_subscription_after_a_day(tmp_path: Path) -> None:
    async with ruled(tmp_path) as (replica, receiver):
        expires = replica.clock() + timedelta(hours=1)
        bob = replace(BOB, expires=expires)
        subscribed = await replica.subscribe(receiver, "task.input_required", bob, ttl=timedelta(days=20))
        assert subscribed.refresh_before == expires + CLAIMS_KEPT
        replica.clock.advance(hours=20)
        await replica.ask(await replica.task(), "approve")
        await receiver.until(lambda: len(receiver.events()) == 1)
        replica.clock.advance(hours=6)
        await receiver.until(lambda: receiver.got[-1].body.get("type") == "terminated")
        await replica.ask(await replica.task(), "approve")
        await until(lambda: not replica.pending)
        assert await replica.events.subscriptions.under(owner_key("bob")) == []
    assert len(receiver.events()) == 1


async def test_a_refresh_takes_over_the_claims_of_today(tmp_path: Path) -> None:
    async with ruled(tmp_path) as (replica, receiver), endpoint() as annas:
        await replica.subscribe(receiver, "task.input_required", BOB)
        await replica.subscribe(receiver, "task.input_required", replace(BOB, claims={"groups": ["interns"]}))
        await replica.subscribe(annas, "task.ended", ANNA)
        task = await replica.task()
        await replica.ask(task, "approve")
        await replica.end(task)
        await annas.until(lambda: bool(annas.events()))
        await until(lambda: not replica.pending)
    assert receiver.events() == []


async def test_anonymous_callers_hear_of_tasks_whose_id_they_know_alone(tmp_path: Path) -> None:
    open_ = Tool(name=TOOL.name, engine="orders", workflow="echo")
    store = open_store(f"sqlite:///{tmp_path}/tasks.db")
    async with delivering(store, tools={open_.name: open_}) as replica, endpoint() as receiver:
        types = await replica.events.types(ANONYMOUS)
        assert set(types) == {"task.ended", "task.input_required", "task.progress"}
        assert {mode for kind, _ in types.values() for mode in kind.modes} == {"poll", "push"}
        task = await replica.task(owner=ANONYMOUS.id)
        await replica.end(task)
        for arguments in ({}, {"tool": TOOL.name}):
            with pytest.raises(RequestError, match="taskId"):
                await replica.events.poll(wire.Wanted(name="task.ended", arguments=arguments), 10, ANONYMOUS)
        with pytest.raises(RequestError, match="identified") as refused:
            await replica.subscribe(receiver, by=ANONYMOUS, arguments={"taskId": task.id})
        assert refused.value.code == wire.Code.FORBIDDEN
        known = wire.Wanted(name="task.ended", arguments={"taskId": task.id})
        first = await replica.events.poll(known, 10, ANONYMOUS)
        second = await replica.events.poll(replace(known, cursor=first.cursor), 10, ANONYMOUS)
        assert [event.data["taskId"] for event in second.events] == [task.id]


async def test_a_stream_that_is_far_behind_lets_others_go_on(tmp_path: Path) -> None:
    async with ruled(tmp_path) as (replica, _):
        wanted = wire.Wanted(name="task.ended", arguments={})
        first = await replica.events.poll(wanted, 1, EVE)
        await replica.ended(1200)
        await replica.ended(1, owner=EVE.id)
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await anyio.lowlevel.checkpoint()
                turns += 1

        async with (
            anyio.create_task_group() as group,
            aclosing(replica.events.stream(replace(wanted, cursor=first.cursor), EVE)) as stream,
        ):
            group.start_soon(count_turns)
            while (await anext(stream))[0] != wire.Notice.EVENT:
                pass
            assert turns >= 2  # between the pages of the log
            group.cancel_scope.cancel()


async def test_a_caller_who_may_call_nothing_sees_no_events(tmp_path: Path) -> None:
    closed = TOOL.model_copy(update={"allow": Allow.model_validate({"call": {"scopes": ["orders:write"]}})})
    store = open_store(f"sqlite:///{tmp_path}/tasks.db")
    async with delivering(store, tools={closed.name: closed}) as replica:
        assert await replica.events.types(EVE) == {}
        with pytest.raises(RequestError) as refused:
            await replica.events.poll(wire.Wanted(name="task.ended", arguments={}), 10, EVE)
    assert (refused.value.code, refused.value.data) == (wire.Code.NOT_FOUND, {"kind": "event"})


async def test_a_cursor_of_another_caller_is_of_no_use(tmp_path: Path) -> None:
    async with ruled(tmp_path) as (replica, _):
        wanted = wire.Wanted(name="task.ended", arguments={})
        annas = (await replica.events.poll(wanted, 10, ANNA)).cursor
        await replica.ended(1)
        found = await replica.events.poll(replace(wanted, cursor=annas), 10, EVE)
        assert (found.events, found.truncated) == ([], True)
        mine = await replica.events.poll(replace(wanted, cursor=annas), 10, ANNA)
        assert (len(mine.events), mine.truncated) == (1, False)


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("http://127.0.0.1:1/", EventSettings()),
        ("http://hooks.example.com/", EventSettings(allow_private=True)),
        ("https://hooks.example.com/", EventSettings(allow=[])),
        ("https://hooks.example.com/", EventSettings(allow=["example.com", "*.hooks.example.com"])),
        ("https://evilexample.com/", EventSettings(allow=["*.example.com"])),
        ("https://example.com./", EventSettings(allow=["*.example.com"])),
    ],
)
async def test_an_endpoint_that_the_settings_do_not_allow_is_refused(
    tmp_path: Path, url: str, settings: EventSettings
) -> None:
    async with ruled(tmp_path, settings=settings) as (replica, receiver):
        with pytest.raises(RequestError) as refused:
            await replica.subscribe(receiver, url=url)
    assert refused.value.code in {-32602, wire.Code.UNSUPPORTED}


@pytest.mark.parametrize(
    "entry", ["*", "*example.com", "https://a.example", "a.example:443", "10.0.0.0/8", "a.example/x", "", "a b", "a."]
)
def test_an_entry_of_allow_that_fits_no_host_is_refused(entry: str) -> None:
    with pytest.raises(ValidationError, match=r"name a host, such as hooks\.example\.com"):
        EventSettings(allow=[entry])


@pytest.mark.parametrize(
    "entry", ["Hooks.Example.com", "*.example.com", "localhost", "10.0.0.1", "::1", "a_b.internal"]
)
def test_an_entry_of_allow_is_a_host(entry: str) -> None:
    assert EventSettings(allow=[entry]).allows(entry.lower().replace("*", "x"))


async def test_one_caller_has_so_many_subscriptions(tmp_path: Path) -> None:
    settings = EventSettings(allow_private=True, subscriptions_per_principal=3)
    async with ruled(tmp_path, settings=settings) as (replica, receiver):
        refusals: list[RequestError] = []

        async def subscribe(number: int) -> None:
            try:
                await replica.subscribe(receiver, url=f"{receiver.url}/{number}")
            except RequestError as error:
                refusals.append(error)

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(subscribe, number)
        assert [(each.code, each.data) for each in refusals] == [(-32013, {"limit": "subscriptions", "max": 3})] * 5
        await replica.subscribe(receiver, by=BOB)
        wanted, webhook = wire.Wanted(name="task.ended", arguments={}), wire.Webhook(url=f"{receiver.url}/0")
        living = await replica.events.subscriptions.under(owner_key("anna"))
        webhook = wire.Webhook(url=living[0].url)
        await replica.events.unsubscribe(wanted, webhook, ANNA)
        await replica.subscribe(receiver, url=f"{receiver.url}/new")


async def test_subscriptions_that_are_over_are_kept_in_a_bounded_number(tmp_path: Path) -> None:
    settings = EventSettings(allow_private=True, subscriptions_per_principal=3)
    async with ruled(tmp_path, settings=settings) as (replica, receiver):
        for number in range(8):
            [task_id] = await replica.ended(1)
            await replica.subscribe(receiver, arguments={"taskId": task_id})
            await receiver.until(lambda number=number: len(receiver.events()) > number)
            await until(lambda: not replica.pending)
        every = await replica.events.subscriptions.states(owner_key("anna"))
    assert len(every) <= 4


async def test_no_one_ends_the_subscription_of_another(tmp_path: Path) -> None:
    async with ruled(tmp_path) as (replica, receiver):
        await replica.subscribe(receiver)
        wanted, webhook = wire.Wanted(name="task.ended", arguments={}), wire.Webhook(url=receiver.url)
        with pytest.raises(RequestError) as refused:
            await replica.events.unsubscribe(wanted, webhook, EVE)
        assert (refused.value.code, refused.value.data) == (wire.Code.NOT_FOUND, {"kind": "subscription"})
        await replica.ended(1)
        await receiver.until(lambda: bool(receiver.events()))


async def test_an_endpoint_that_does_not_want_events_gets_one_request(tmp_path: Path) -> None:
    async with ruled(tmp_path) as (replica, receiver):
        receiver.echoes = False
        with pytest.raises(RequestError) as refused:
            await replica.subscribe(receiver)
        await replica.ended(3)
        assert await replica.events.subscriptions.under() == []
    assert (refused.value.code, refused.value.data) == (wire.Code.ENDPOINT, {"reason": "challenge_failed"})
    assert len(receiver.got) == 1


async def test_an_endpoint_is_asked_once_for_all_subscriptions_of_one_caller(tmp_path: Path) -> None:
    async with ruled(tmp_path) as (replica, receiver):
        for name in ("task.ended", "task.input_required"):
            await replica.subscribe(receiver, name)
            await replica.subscribe(receiver, name)
        asked: list[Mapping[str, Any]] = [each.body for each in receiver.got]
        await replica.subscribe(receiver, by=BOB)
    assert len(asked) == 1
    assert len(receiver.got) == 2


async def test_a_subscription_ends_with_the_rules_that_allowed_it(tmp_path: Path) -> None:
    async with ruled(tmp_path) as (replica, receiver), endpoint() as annas:
        annas.clock = replica.clock
        await replica.subscribe(receiver, "task.input_required", BOB)
        await replica.subscribe(annas, "task.ended", ANNA)
        more = {**APPROVED.model_dump(exclude_unset=True), "cancel": {"claims": {"department": "it"}}}
        await replica.use(TOOL.model_copy(update={"allow": Allow.model_validate(more)}))
        await receiver.until(lambda: receiver.got[-1].body.get("type") == "terminated")
        assert "subscribe again" in receiver.got[-1].body["error"]["message"]
        await annas.until(lambda: annas.got[-1].body.get("type") == "terminated")
        assert await replica.events.subscriptions.under() == []
