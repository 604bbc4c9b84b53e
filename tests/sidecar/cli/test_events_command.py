"""`mcp-workflows events` beside a running server, and without one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from mcp_workflows.access import Principal
from mcp_workflows.events import delivery, endpoints
from mcp_workflows.events.subscriptions import Deliveries, Pending, Subscription, Subscriptions, channel_of
from mcp_workflows.store.protocol import open_store
from mcp_workflows.units import utc_now
from mcp_workflows.wire.events import Trouble
from tests.events.test_webhooks import served, wanted
from tests.sidecar.cli.terminal import Ended, Terminal
from tests.support.child_processes import free_port
from tests.support.endpoint import endpoint, new_secret
from tests.support.served import serving
from tests.support.waiting import TIMEOUT

pytestmark = pytest.mark.anyio

CONFIG = """
store: sqlite:///tasks.db
audit: {to: audit.jsonl}
server: {events: {allow_private: PRIVATE}}
engines: {here: {adapter: memory}}
tools: {echo: {engine: here, workflow: echo}}
"""
NAME = "sub_0123456789abcdef0123456789abcdef"


async def run(terminal: Terminal, *words: str, private: bool = True) -> Ended:
    """`mcp-workflows events WORDS`."""
    config = CONFIG.replace("PRIVATE", str(private).lower())
    await anyio.Path(terminal.folder / "workflows.yaml").write_text(config)
    return await anyio.to_thread.run_sync(lambda: terminal.run("events", *words))


async def test_a_store_in_memory_is_said_to_be_out_of_reach(terminal: Terminal) -> None:
    config = CONFIG.replace("store: sqlite:///tasks.db", "store: 'sqlite:///:memory:'").replace("PRIVATE", "true")
    await anyio.Path(terminal.folder / "workflows.yaml").write_text(config)
    for words in (("events", "list"), ("tasks", "list")):
        ended = await anyio.to_thread.run_sync(lambda words=words: terminal.run(*words))
        assert (ended.code, "only the server itself can read a store in memory" in ended.err) == (1, True)


async def listed(terminal: Terminal) -> Mapping[str, Any]:
    """The only subscription."""
    [found] = (await run(terminal, "list", "--json")).json
    return found


async def store(
    folder: Path,
    url: str,
    *,
    name: str = NAME,
    secret: str | None = None,
    ended: str | None = None,
    state: Deliveries | None = None,
) -> None:
    """Store a subscription, as an earlier server has left it."""
    now = utc_now()
    subscription = Subscription(
        id=name,
        name="task.ended",
        arguments={},
        url=url,
        principal=Principal(id="anna"),
        secret=secret or new_secret(),
        until=now + timedelta(days=1),
        ended=ended,
        created=now,
        refreshed=now,
        verified=now,
        position=0,
    )
    async with open_store(f"sqlite:///{folder}/tasks.db") as opened:
        await Subscriptions(opened).save(subscription, now)
        if state is not None:
            await Subscriptions(opened).save_deliveries(subscription, replace(state, of=now))


async def test_an_operator_sees_tests_and_resumes_a_subscription_beside_the_server(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "PAUSES", ())
    async with served(terminal.folder) as (_, alice), endpoint() as receiver:
        receiver.url += "?token=hush"
        name = (await alice.send("events/subscribe", wanted(receiver, "task.ended", tool="echo"))).result["id"]
        shown = (await run(terminal, "list")).out
        facts = dict(re.split(r": +", line, maxsplit=1) for line in shown.splitlines())
        assert (facts["id"], facts["event"], facts["arguments"]) == (name, "task.ended", '{"tool": "echo"}')
        assert (facts["host"], facts["state"], facts["pending"]) == ("127.0.0.1", "active", "0")
        assert "alice" in facts["owner"]
        everything = shown + (await run(terminal, "list", "--json")).out
        assert "hush" not in everything
        assert receiver.secret not in everything
        tested = await run(terminal, "test", name[:12])
        assert (tested.code, tested.out) == (0, "127.0.0.1: the challenge was echoed; deliveries arrive there\n")
        assert receiver.forged == []

        receiver.status = 503
        await alice.call("echo", {"text": "hi"})
        with anyio.fail_after(TIMEOUT):
            while (found := await listed(terminal))["state"] != "suspended":
                await anyio.sleep(0.1)
        assert (found["pending"], found["lastError"]) == (1, "http_5xx")
        receiver.status = 200
        resumed = await run(terminal, "retry", name)
        assert (resumed.code, resumed.out) == (0, "resumed; pending events: 1\n")
        await receiver.until(lambda: bool(receiver.events()))
        with anyio.fail_after(TIMEOUT):
            while (found := await listed(terminal))["pending"]:
                await anyio.sleep(0.1)
        assert (found["state"], found["why"]) == ("active", None)
    records = [json.loads(line) for line in (terminal.folder / "audit.jsonl").read_text().splitlines()]
    [record] = [each for each in records if each["principal"] == "operator"]
    assert (record["event"], record["outcome"]) == ("subscription", "resumed")


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (404, "http_4xx (404); check the receiver's path"),
        (
            307,
            "http_4xx (307); check the receiver's path and signature check; redirects are not followed",
        ),
        (500, "http_5xx (500); the receiver's log says why"),
        (200, "challenge_failed; it accepts events, but"),
        (0, "timeout; the receiver must answer within"),
    ],
)
async def test_a_test_that_fails_says_what_came_back_and_what_to_do(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, answers: int, said: str
) -> None:
    monkeypatch.setattr(endpoints, "ANSWER_WITHIN", 0.5 if not answers else 10)

    over = anyio.Event()

    async def answer(_: Request) -> Response:
        if not answers:
            await over.wait()
        return RedirectResponse("/", 307) if answers == 307 else Response(status_code=answers or 200)

    async with serving(Starlette(routes=[Route("/mcp", answer, methods=["POST"])])) as url:
        await store(terminal.folder, url)
        tested = await run(terminal, "test", NAME)
        over.set()
    assert tested.code == 1
    assert tested.err.startswith(f"127.0.0.1: {said}")


async def test_a_test_says_that_nobody_is_there_or_that_the_address_is_private(terminal: Terminal) -> None:
    port = free_port()
    await store(terminal.folder, f"http://127.0.0.1:{port}/hook?token=hush")
    refused = await run(terminal, "test", NAME)
    assert refused.err.startswith("127.0.0.1: connection_refused: ")
    assert "check that the receiver runs" in refused.err
    private = await run(terminal, "test", NAME, private=False)
    assert private.err.startswith("127.0.0.1: connection_refused: its address is not public: 127.0.0.1; ")
    async with endpoint() as receiver:
        await store(terminal.folder, receiver.url.replace("http://", "https://"))
        insecure = await run(terminal, "test", NAME)
    assert insecure.err.startswith("127.0.0.1: tls_error: ")
    assert [each.code for each in (refused, private, insecure)] == [1, 1, 1]
    assert "hush" not in refused.err + private.err


async def test_a_suspended_subscription_is_resumed_while_no_server_runs(terminal: Terminal) -> None:
    async with endpoint() as receiver:
        past = utc_now() - timedelta(hours=1)
        state = Deliveries(
            of=past,
            position=0,
            pending={1: Pending(since=past, attempts=8, due=past)},
            suspended=past,
            failed_since=past,
        )
        await store(terminal.folder, receiver.url, secret=receiver.secret, state=state)
        assert (await listed(terminal))["state"] == "suspended"
        assert (await run(terminal, "retry", NAME)).code == 0
        async with served(terminal.folder):
            with anyio.fail_after(TIMEOUT):
                while (await listed(terminal))["state"] != "active":
                    await anyio.sleep(0.1)


async def test_what_cannot_be_done_is_said(terminal: Terminal) -> None:
    assert (await run(terminal, "list")).out == "no subscriptions\n"
    await store(terminal.folder, "https://hooks.example.com/")
    wrong = await run(terminal, "test", "sub_1")
    assert (wrong.code, "begin with 'sub_1': none" in wrong.err) == (1, True)
    active = await run(terminal, "retry", NAME)
    assert (active.code, active.err) == (1, "nothing was done: it is not suspended\n")
    await store(terminal.folder, "https://hooks.example.com/", name="sub_0x", ended="the endpoint answered 410 Gone")
    two = await run(terminal, "retry", "sub_0")
    assert f"begin with 'sub_0': {NAME}, sub_0x" in two.err
    for command in ("test", "retry"):
        ended = await run(terminal, command, "sub_0x")
        assert (ended.code, "as the endpoint answered 410 Gone: only its client can" in ended.err) == (1, True)


async def test_channels_are_listed_with_what_is_wrong_and_without_their_addresses(terminal: Terminal) -> None:
    channel = "notify: {releases: {slack: 'https://hooks.slack.com/services/s3cret'}}\n"
    config = CONFIG.replace("PRIVATE", "true") + channel
    await anyio.Path(terminal.folder / "workflows.yaml").write_text(config)
    ended = await anyio.to_thread.run_sync(lambda: terminal.run("events", "list", "--json"))
    [fresh] = json.loads(ended.out)
    assert {name: fresh[name] for name in ("channel", "to", "host", "state")} == {
        "channel": "releases",
        "to": "slack",
        "host": "hooks.slack.com",
        "state": "active",
    }
    past = utc_now() - timedelta(hours=1)
    async with open_store(f"sqlite:///{terminal.folder}/tasks.db") as opened:
        found = channel_of("releases", "hooks.slack.com")
        state = Deliveries(
            of=found.created,
            position=0,
            pending={1: Pending(since=past, attempts=2, due=past)},
            failed_since=past,
            last_error=Trouble.HTTP_5XX,
        )
        await Subscriptions(opened).save_deliveries(found, state)
    ended = await anyio.to_thread.run_sync(lambda: terminal.run("events", "list"))
    for text in ("failing", "http_5xx", "releases"):
        assert text in ended.out
    assert "s3cret" not in ended.out
