"""Tasks of 2025-11-25 on a real port: what the black-box suite cannot see: other eras, other owners, odd clients."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_workflows import Question, Tool
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.receiver.v2025_11_25 import session as asking
from mcp_workflows.tasks import service
from tests.support import client_2025
from tests.support.client_2025 import RELATED_TASK, Message, Session, accept, hold
from tests.support.served import Site, memory_tools, peer, site

pytestmark = pytest.mark.anyio

FOREVER = 20.0
WRONG_TTLS: tuple[Any, ...] = (-1, "60000", True, [])
YES: Mapping[str, Any] = {"action": "accept", "content": {"answer": "yes"}}


def _tools() -> list[Tool]:
    question = Question.model_validate({"message": "Why?", "schema": {"type": "string"}})
    return [
        *memory_tools(),
        Tool(name="asks_first", engine="memory", workflow="echo", questions={"reason": question}),
        Tool(name="hasty", engine="memory", workflow="ask", wait=timedelta(milliseconds=300)),
    ]


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Site]:
    """A server whose callers are known by their tokens, and which is quick to see that a stream is dead."""
    monkeypatch.setattr(asking, "_REACHED_WITHIN", 0.5)
    async with site(store=f"sqlite:///{tmp_path}/tasks.db", tools=_tools(), authenticated=True) as found:
        yield found


session = partial(client_2025.session, token="ada")


async def _start(
    client: Session, tool: str, arguments: Mapping[str, Any] | None = None, *, meta: Mapping[str, Any] | None = None
) -> str:
    params = {"name": tool, "arguments": arguments or {}, "task": {}, "_meta": meta or {}}
    reply = await client.request("tools/call", params)
    assert "task" in reply.result, reply
    return str(reply.result["task"]["taskId"])


async def _until(client: Session, task_id: str, *statuses: str) -> Mapping[str, Any]:
    with anyio.fail_after(FOREVER):
        while True:
            seen = (await client.request("tasks/get", {"taskId": task_id})).result
            if seen["status"] in statuses:
                return seen
            await anyio.sleep(0.05)


async def _heard(client: Session, fits: Callable[[Message], bool]) -> Message:
    """The first message of the server that fits."""
    with anyio.fail_after(FOREVER):
        while True:
            for message in client.inbox:
                if fits(message):
                    return message
            await anyio.sleep(0.02)


async def _until_asked(client: Session, task_id: str) -> None:
    with anyio.fail_after(FOREVER):
        while not any(map(_is("elicitation/create"), client.inbox)):
            await client.request("tasks/get", {"taskId": task_id})


def _is(method: str, channel: str | None = None) -> Callable[[Message], bool]:
    return lambda message: message.method == method and channel in (None, message.channel)


async def test_a_task_of_one_era_is_its_owners_in_the_other(served: Site) -> None:
    async with session(served.url) as old, peer(served.url, token="ada") as new:
        theirs = await _start(old, "echo", {"a": 1})
        assert (await new.until(theirs))["result"]["structuredContent"] == {"a": 1}
        ours = (await new.call("fail")).result["taskId"]
        assert (await _until(old, ours, "failed"))["statusMessage"] == "the card was declined"
        assert (await old.request("tasks/result", {"taskId": ours})).result["isError"] is True


@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
async def test_somebody_elses_task_looks_like_none(method: str, served: Site) -> None:
    async with session(served.url) as owner, session(served.url, token="eve") as other:
        task_id = await _start(owner, "forever")
        foreign = await other.request(method, {"taskId": task_id})
        assert foreign.error == (await other.request(method, {"taskId": "0" * 40})).error
        assert foreign.code == -32602
        assert (await other.request("tasks/list", {})).result == {"tasks": []}


async def test_an_answer_of_one_era_withdraws_the_question_in_the_other(served: Site) -> None:
    async with session(served.url, answer=hold) as old, peer(served.url, token="ada") as new:
        task_id = await _start(old, "ask")
        waiting = old.start_request("tasks/result", {"taskId": task_id})
        asked = await _heard(old, _is("elicitation/create", "tasks/result"))
        assert asked.params["_meta"] == {RELATED_TASK: {"taskId": task_id}}
        key = next(iter((await new.until(task_id, "input_required"))["inputRequests"]))
        await new.answer(task_id, **{key: YES})
        assert (await waiting.reply()).result["structuredContent"] == {"answer": "yes"}
        withdrawn = await _heard(old, _is("notifications/cancelled"))
        assert withdrawn.params["requestId"] == asked.body["id"]


async def test_what_was_cancelled_stays_cancelled_in_this_era_whatever_the_engine_says(served: Site) -> None:
    async with session(served.url) as old, peer(served.url, token="ada") as new:
        task_id = await _start(old, "stubborn", {"seconds": 0.3})
        waiting = old.start_request("tasks/result", {"taskId": task_id})
        assert (await old.request("tasks/cancel", {"taskId": task_id})).result["status"] == "cancelled"
        assert (await waiting.reply()).result["isError"] is True
        assert (await new.until(task_id))["status"] == "completed"
        assert (await old.request("tasks/get", {"taskId": task_id})).result["status"] == "cancelled"
        assert "cancelled" in (await old.request("tasks/result", {"taskId": task_id})).result["content"][0]["text"]
        assert (await old.request("tasks/cancel", {"taskId": task_id})).code == -32602


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "on another replica"])
async def test_what_was_cancelled_is_so_for_who_waits_though_the_engine_gives_no_answer(
    tmp_path: Path, elsewhere: bool
) -> None:
    engine = MemoryAdapter(MemorySettings(name=str(tmp_path)))
    settings: Mapping[str, Any] = {
        "store": f"sqlite:///{tmp_path}/tasks.db",
        "adapters": {"memory": engine},
        "authenticated": True,
    }
    async with (
        site(**settings) as first,
        site(**settings) as second,
        session(first.url) as waits,
        session((second if elsewhere else first).url) as cancels,
    ):
        task_id = await _start(waits, "forever")
        waiting = waits.start_request("tasks/result", {"taskId": task_id})
        await _until(waits, task_id, "working")
        engine.faults.unavailable = frozenset({"describe", "cancel"})
        assert (await cancels.request("tasks/cancel", {"taskId": task_id})).result["status"] == "cancelled"
        assert (await waiting.reply()).result["isError"] is True


async def test_a_client_that_only_polls_and_listens_nowhere_is_asked_on_its_poll(served: Site) -> None:
    async with session(served.url) as client:
        await _until(client, await _start(client, "ask"), "completed")
        asked = [message for message in client.inbox if message.method == "elicitation/create"]
        assert [message.channel for message in asked] == ["tasks/get"]


async def test_who_only_polls_and_takes_time_to_answer_is_asked_once(served: Site) -> None:
    async with session(served.url, answer=hold) as client:
        task_id = await _start(client, "ask")
        await _until_asked(client, task_id)
        with anyio.move_on_after(1.2):
            while True:
                await client.request("tasks/get", {"taskId": task_id})
        assert sum(map(_is("elicitation/create"), client.inbox)) == 1


async def test_what_is_answered_while_a_dropped_stream_is_found_out_is_not_asked_again(
    served: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_REACHED_WITHIN", 3.0)  # a busy machine, too, answers sooner
    async with session(served.url, answer=hold) as client:
        task_id = await _start(client, "ask_in_turn")
        waiting = client.start_request("tasks/result", {"taskId": task_id})
        asked = await _heard(client, _is("elicitation/create", "tasks/result"))
        waiting.disconnect()
        again = client.start_request("tasks/result", {"taskId": task_id})
        await _until(client, task_id, "input_required")  # which comes after the request before it
        client.answer = accept
        await client.respond(asked, {"result": YES})
        await again.reply()
        messages = [message.params["message"] for message in client.inbox if message.method == "elicitation/create"]
        assert messages == ["first?", "second?"]


async def test_a_client_that_cannot_ask_after_all_is_not_asked_at_every_poll(served: Site) -> None:
    async with session(served.url, answer=lambda _: {"nonsense": True}) as client:
        await client.listen()
        task_id = await _start(client, "ask")

        def asked() -> int:
            return sum(one.method == "elicitation/create" for one in client.inbox)

        with anyio.fail_after(FOREVER):
            while not asked():
                await client.request("tasks/get", {"taskId": task_id})
        for _ in range(10):
            await client.request("tasks/get", {"taskId": task_id})
        assert asked() == 1


@pytest.mark.parametrize(("tool", "field", "said"), [("ask", "answer", "yes"), ("asks_first", "reason", "I know why")])
async def test_an_answer_to_a_plain_call_that_does_not_fit_is_asked_for_again(
    tool: str, field: str, said: str, served: Site
) -> None:
    def wrong_first(message: Message) -> Any:
        right = {field: said} if "does not match" in message.params["message"] else {}
        return {"action": "accept", "content": right}

    async with session(served.url, answer=wrong_first) as client:
        reply = await client.request("tools/call", {"name": tool, "arguments": {}})
        assert said in reply.result["structuredContent"].values()
        assert len([message for message in client.inbox if message.method == "elicitation/create"]) == 2


async def test_a_plain_call_whose_answers_never_fit_ends_with_a_handle(served: Site) -> None:
    async with session(served.url, answer=lambda _: {"action": "accept", "content": {"answer": 7}}) as client:
        reply = await client.request("tools/call", {"name": "ask", "arguments": {}})
        assert reply.result["structuredContent"]["status"] == "input_required"
        assert len([message for message in client.inbox if message.method == "elicitation/create"]) == 3
        refused = await client.request("tools/call", {"name": "asks_first", "arguments": {}})
        assert "does not match the question" in refused.error["message"]


async def test_questions_of_a_tool_come_before_its_task(served: Site) -> None:
    async with session(served.url) as client:
        task_id = await _start(client, "asks_first", {"a": 1})
        assert [message.channel for message in client.inbox] == ["tools/call"]
        reply = await client.request("tasks/result", {"taskId": task_id})
        assert reply.result["structuredContent"] == {"a": 1, "reason": "Ada"}


async def test_a_question_that_is_refused_before_the_start_starts_nothing(served: Site) -> None:
    async with session(served.url, answer=lambda _: {"action": "decline"}) as client:
        params: Mapping[str, Any] = {"name": "asks_first", "arguments": {}, "task": {}}
        reply = await client.request("tools/call", params)
        assert reply.code == -32602
        assert "nothing was started" in reply.error["message"]
        assert (await client.request("tasks/list", {})).result == {"tasks": []}


async def test_changes_and_progress_are_told_outside_of_requests(served: Site) -> None:
    async with session(served.url) as client:
        await client.listen()
        task_id = await _start(client, "sleep", {"seconds": 2}, meta={"progressToken": "t"})
        last = await _heard(client, lambda one: one.params.get("status") == "completed")
        assert (last.method, last.params["taskId"]) == ("notifications/tasks/status", task_id)
        progress = [one.params for one in client.inbox if one.method == "notifications/progress"]
        assert {one["progressToken"] for one in progress} == {"t"}
        assert all(one["_meta"] == {RELATED_TASK: {"taskId": task_id}} for one in progress)


async def test_the_first_task_of_a_session_takes_the_task_tools_away(served: Site) -> None:
    async with session(served.url) as client:
        await client.listen()
        before = {tool["name"] for tool in (await client.request("tools/list", {})).result["tools"]}
        await _start(client, "echo")
        await _heard(client, _is("notifications/tools/list_changed"))
        after = {tool["name"] for tool in (await client.request("tools/list", {})).result["tools"]}
        assert before - after >= {"task_status", "task_wait"}
        assert after == {tool.name for tool in _tools()}


async def test_tasks_are_listed_page_by_page_newest_first(served: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PAGE", 3)
    async with session(served.url) as client:
        created = [await _start(client, "echo", {"n": n}) for n in range(5)]
        first = (await client.request("tasks/list", {})).result
        rest = (await client.request("tasks/list", {"cursor": first["nextCursor"]})).result
        assert [task["taskId"] for task in [*first["tasks"], *rest["tasks"]]] == created[::-1]
        assert "nextCursor" not in rest
        async with session(served.url, token="eve") as other:
            assert (await other.request("tasks/list", {"cursor": first["nextCursor"]})).code == -32602


async def test_a_cursor_we_did_not_make_is_refused(served: Site) -> None:
    async with session(served.url) as client:
        for cursor in ("", "x", "ü", "AAAA", 7, "A" * 2000):
            assert (await client.request("tasks/list", {"cursor": cursor})).code == -32602


async def test_who_is_not_known_has_no_list(tmp_path: Path) -> None:
    async with site(store=f"sqlite:///{tmp_path}/tasks.db") as open_site, session(open_site.url, token=None) as client:
        assert "list" not in client.capabilities["tasks"]
        assert (await client.request("tasks/list", {})).code == -32601


async def test_a_single_user_on_this_machine_has_a_list(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with site(store=store, single_user=True) as mine, session(mine.url, token=None) as client:
        assert "list" in client.capabilities["tasks"]
        task_id = await _start(client, "echo")
        assert [task["taskId"] for task in (await client.request("tasks/list", {})).result["tasks"]] == [task_id]


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "x-real-ip"])
async def test_who_comes_through_a_proxy_is_not_the_single_user_whatever_it_says(tmp_path: Path, header: str) -> None:
    async with (
        site(store=f"sqlite:///{tmp_path}/tasks.db", single_user=True) as mine,
        session(mine.url, token=None, headers={header: "127.0.0.1"}) as client,
    ):
        assert "list" not in client.capabilities["tasks"]


async def test_a_ttl_is_honoured_within_limits_and_refused_when_it_is_none(served: Site) -> None:
    most, least = 90 * 86_400_000, 60_000
    expected = ((None, most), (120_000, 120_000), (0, least), (1.5, least), (1e300, most))
    async with session(served.url) as client:
        for wanted, given in expected:
            reply = await client.request("tools/call", {"name": "echo", "arguments": {}, "task": {"ttl": wanted}})
            assert reply.result["task"]["ttl"] == given

        for wrong in WRONG_TTLS:
            reply = await client.request("tools/call", {"name": "echo", "arguments": {}, "task": {"ttl": wrong}})
            assert reply.code == -32602


@pytest.mark.parametrize("transport", ["json_response", "stateless_http"])
async def test_a_server_that_cannot_send_requests_serves_everything_but_questions(
    tmp_path: Path, transport: str
) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with (
        site(store=store, single_user=True, transport={transport: True}) as mine,
        session(mine.url, token=None) as old,
        peer(mine.url) as new,
    ):
        called = await old.request("tools/call", {"name": "echo", "arguments": {"a": 1}})
        assert called.result["structuredContent"] == {"a": 1}
        task_id = await _start(old, "ask")
        assert (await old.request("tasks/list", {})).result["tasks"][0]["taskId"] == task_id
        waiting = old.start_request("tasks/result", {"taskId": task_id})
        assert "asks" in (await _until(old, task_id, "input_required"))["statusMessage"]
        key = next(iter((await new.get(task_id))["inputRequests"]))
        await new.answer(task_id, **{key: YES})
        assert (await waiting.reply()).result["structuredContent"] == {"answer": "yes"}


async def test_who_waits_for_a_task_hears_that_its_time_is_over(tmp_path: Path) -> None:
    tools = [Tool(name="brief", engine="memory", workflow="forever", ttl=timedelta(seconds=0.5))]
    async with (
        site(store=f"sqlite:///{tmp_path}/tasks.db", tools=tools, authenticated=True) as served,
        session(served.url) as client,
    ):
        waiting = client.start_request("tasks/result", {"taskId": await _start(client, "brief")})
        reply = await waiting.reply()
        assert (reply.code, reply.error["message"]) == (-32602, "Task expired: its time to live is over")
