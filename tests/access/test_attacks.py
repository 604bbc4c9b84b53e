"""What somebody tries who wants more than they may: each was tried against a server before it became a test."""

from __future__ import annotations

import logging
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.server.lowlevel import Server
from starlette.requests import Request

from mcp_workflows import attach
from mcp_workflows.access.audit import Event
from mcp_workflows.adapter import Ref, Status
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings, MemoryTooling
from mcp_workflows.receiver.attach import swap
from mcp_workflows.sidecar import operators_listener as probes
from mcp_workflows.tasks.service import PAGE
from tests.support.here import data_of, elder
from tests.support.identified import house
from tests.support.tokens import ISSUER, KeyServer
from tests.support.waiting import until
from tests.tasks.test_authorization import APPROVED, YES, place, tool

pytestmark = pytest.mark.anyio

SECRET = "what-nobody-else-may-read-7f"
DROPPED: Mapping[str, Any] = {"call": {}, "see": {"scopes": ["audit"], "any_owner": True}}
ARGUMENTS: Mapping[str, Any] = {"note": SECRET}


@pytest.mark.parametrize("more", [{}, {"tasks": "wait"}, {"adaptive": "5s"}, {"tasks": "forbidden"}])
async def test_who_may_start_and_not_see_gets_nothing_of_it_in_any_answer(
    tmp_path: Path, more: Mapping[str, Any]
) -> None:
    async with place(tmp_path, tool("echo", "echo", allow=DROPPED, **more)) as here:
        key = {"mcp-workflows/idempotencyKey": "one call"}
        call: Mapping[str, Any] = {"name": "echo", "arguments": ARGUMENTS}
        plain, tasks = await here.peer("alice", capabilities={}), await here.peer("alice")
        for client in (plain, tasks, plain, tasks):
            reply = (await client.send("tools/call", call, meta=key)).result
            assert SECRET not in str(reply)
            assert "completed" not in str(reply)
        asked: list[dict[str, Any]] = [{}, {"task": {}}]
        async with elder(here.site.url, authorization="Bearer alice") as old:
            for task in asked:
                reply = await old.send("tools/call", {**call, **task, "_meta": key})
                assert SECRET not in str(reply)
                assert "result" in reply or (task and "tasks" in more)
        assert not here.recorded(Event.RETRIEVE)
        auditor = await here.peer("olga+audit")
        made = (await tasks.send("tools/call", call, meta=key)).result
        if "taskId" in made:
            assert (await tasks.send("tasks/get", {"taskId": made["taskId"]})).error["message"] == "Task not found"
            assert SECRET in str(await auditor.until(made["taskId"], "completed"))


async def test_a_plain_call_that_waits_gets_no_result_once_its_caller_may_not_see_it(tmp_path: Path) -> None:
    free: Mapping[str, Any] = {"call": {}, "see": {}, "answer": {}}
    async with place(tmp_path, tool("ask", allow=free, tasks="wait"), tool("other", "echo")) as here:
        alice = await here.peer("alice", capabilities={})
        engine = here.site.workflows.adapters["memory"]
        assert isinstance(engine, MemoryAdapter)
        sleeping = tool("nap", "sleep", allow=free, tasks="wait")
        await swap(here.site.workflows, tools=[sleeping], engines=here.site.workflows.adapters)
        replies: list[str] = []

        async def call() -> None:
            replies.append(str((await alice.call("nap", {"seconds": 1.5})).result))

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await until(lambda: bool(engine.handles))
            none = tool("nap", "sleep", allow={"call": {}, "see": {"scopes": ["audit"]}})
            await swap(here.site.workflows, tools=[none], engines=here.site.workflows.adapters)
        assert "slept" not in replies[0]
        assert "may not see its result" in replies[0]


async def test_a_state_that_is_none_does_not_tell_that_a_tool_is_there(tmp_path: Path) -> None:
    async with place(tmp_path, tool(allow=APPROVED)) as here:
        carol = await here.peer("carol")
        wrong: list[dict[str, Any]] = [{}, {"requestState": "x"}, {"requestState": 5}, {"inputResponses": {}}]
        heard = [
            str((await carol.send("tools/call", {"name": name, "arguments": {}, **more})).error).replace(name, "it")
            for name in ("order", "nothing")
            for more in wrong
        ]
        assert heard[:4] == heard[4:]
        assert len(here.recorded(Event.DENY)) == 4


async def test_who_loses_a_claim_hears_nothing_more_though_their_token_is_still_good(
    tmp_path: Path, key_server: KeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mcp_workflows.receiver.streams")
    answer: dict[str, Any] = {}
    key_server.asked["claims"] = lambda _, __: answer
    asked = {"issuer": ISSUER, "endpoint": f"{key_server.address}/claims", "client_id": "us", "client_secret": "s"}
    auth = {"introspection": [{**asked, "cache": "0s"}]}
    async with house(tmp_path, auth) as here:
        answer |= {"active": True, "aud": here.url, "sub": "alice", "groups": ["staff", "audit"]}
        rules: Mapping[str, Any] = {"call": {}, "see": {"claims": {"groups": "audit"}}, "answer": {}}
        workflows = here.sidecar.workflows
        await swap(workflows, tools=[tool("order", "ask", allow=rules)], engines=workflows.adapters)
        alice = here.peer("t")
        task_id = (await alice.call("order")).result["taskId"]
        await alice.until(task_id, "input_required")
        async with alice.stream("subscriptions/listen", {"notifications": {"taskIds": [task_id]}}) as (_, frames):
            assert (await anext(frames))["method"] == "notifications/subscriptions/acknowledged"
            assert (await anext(frames))["params"]["status"] == "input_required"
            [question] = (await alice.get(task_id))["inputRequests"]
            answer["groups"] = ["staff"]
            assert (await alice.answer(task_id, **{question: YES})).result["resultType"] == "complete"
            await until(lambda: "a subscription to a task ended: Task not found" in caplog.text)
            with anyio.move_on_after(0.1):
                raise AssertionError(f"it was told {await anext(frames)}")


@pytest.mark.parametrize("way", ["tasks/result", "tools/call", "confirm"])
async def test_an_answer_in_the_older_era_counts_with_the_rights_of_the_moment_it_is_given(
    tmp_path: Path, key_server: KeyServer, way: str
) -> None:
    answer: dict[str, Any] = {}
    key_server.asked["claims"] = lambda _, __: answer
    asked = {"issuer": ISSUER, "endpoint": f"{key_server.address}/claims", "client_id": "us", "client_secret": "s"}
    staff: Mapping[str, Any] = {"claims": {"groups": "staff"}}
    rules: Mapping[str, Any] = {"call": staff, "see": {}, "answer": staff}
    confirmed = tool("order", "echo", allow=rules, tasks="wait", questions={"confirm": {"message": "Sure?"}})
    order = confirmed if way == "confirm" else tool("order", "ask", allow=rules, tasks="wait")
    async with house(tmp_path, {"introspection": [{**asked, "cache": "0s"}]}) as here:
        answer |= {"active": True, "aud": here.url, "sub": "alice", "client_id": "app", "groups": ["staff"]}
        workflows = here.sidecar.workflows
        await swap(workflows, tools=[order], engines=workflows.adapters)
        engine = workflows.adapters["memory"]
        assert isinstance(engine, MemoryAdapter)
        before = engine.handles
        async with elder(here.url, {"elicitation": {}}, authorization="Bearer t") as old:
            call: Mapping[str, Any] = {"name": "order", "arguments": {}}
            request: tuple[str, Mapping[str, Any]] = ("tools/call", call)
            if way == "tasks/result":
                made = await old.send("tools/call", {**call, "task": {}})
                request = (way, {"taskId": made["result"]["task"]["taskId"]})
            async with old.stream(*request) as response:
                frames = data_of(response)
                question = await anext(frames)
                assert question["method"] == "elicitation/create"
                answer["groups"] = []
                given = {"action": "accept", "content": {"confirm": True}} if way == "confirm" else YES
                await old.respond(question["id"], given)
                assert "Not allowed" in str(await anext(frames))
        started = engine.handles[len(before) :]
        assert len(started) == (0 if way == "confirm" else 1)
        for handle in started:
            assert (await engine.describe(Ref(workflow="ask", handle=handle))).status is Status.INPUT_REQUIRED


async def test_a_cursor_holds_no_id_of_a_task_that_its_reader_is_not_shown(tmp_path: Path) -> None:
    async with place(tmp_path, tool("slow", "forever", allow=APPROVED)) as here:
        alice, bob = await here.peer("alice+orders:write"), await here.peer("bob+orders:approve")
        made = [(await alice.call("slow")).result["taskId"] for _ in range(PAGE + 1)]
        page = (await bob.call("open_questions")).result["structuredContent"]
        cursor: str = page["nextCursor"]
        assert page["tasks"] == []
        raw = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        assert not any(task_id.encode() in raw for task_id in made)


async def test_whoever_asks_how_engines_are_makes_no_more_than_one_question_in_a_second(tmp_path: Path) -> None:
    asked: list[str] = []

    def is_down(verb: str) -> bool:
        asked.append(verb)
        return False

    server: Server[Any] = Server("test", version="1")
    adapter = MemoryAdapter(MemorySettings(name=str(tmp_path)))
    adapter.tooling = MemoryTooling("memory", is_down, lambda _: True)
    engines = {"memory": adapter}
    async with attach(server, tools=[tool("echo", "echo")], engines=engines, store="sqlite:///:memory:") as workflows:
        answer = probes.enginez(workflows)
        statuses: list[int] = []

        async def ask() -> None:
            statuses.append((await answer(Request({"type": "http", "headers": []}))).status_code)

        began = anyio.current_time()
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(ask)
        assert statuses == [200] * 50
        assert len(asked) <= 1 + (anyio.current_time() - began) / probes.ASK_EVERY
