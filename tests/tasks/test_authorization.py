"""Rules at work, on both wires: who sees a tool, whose task it is, who approves, and what stops that may not go on."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_workflows import Kind
from mcp_workflows.access import AccessRequest, Verb
from mcp_workflows.access.audit import Event, Record
from mcp_workflows.access.limit_settings import Limits
from mcp_workflows.adapter import Ref
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.errors import LIMIT_REACHED
from mcp_workflows.receiver.attach import swap
from mcp_workflows.tools.tool import MODELS, AnyTool
from tests.support.here import Elder, elder
from tests.support.served import Peer, Site, peer, site, told
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

APPROVED = {
    "call": {"scopes": ["orders:write"]},
    "see": {},
    "answer": {"scopes": ["orders:approve"], "not_owner": True},
    "cancel": {},
}
ALICE, BOB, CAROL = "alice+orders:write", "bob+orders:approve", "carol"
YES = {"action": "accept", "content": {"answer": "yes"}}


def tool(name: str = "order", workflow: str = "ask", **more: Any) -> AnyTool:
    """A tool of the engine in memory."""
    model = MODELS[Kind(more.get("kind", Kind.START))]
    return model.model_validate({"name": name, "engine": "memory", "workflow": workflow, **more})


@dataclass(slots=True)
class Place:
    """A server with rules, and what went on record."""

    site: Site
    records: list[Record] = field(default_factory=list[Record])
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def peer(self, token: str, **more: Any) -> Peer:
        """A client of 2026-07-28 with this token."""
        return await self.stack.enter_async_context(peer(self.site.url, token=token, **more))

    def recorded(self, event: Event) -> list[Record]:
        """Those of one kind."""
        return [record for record in self.records if record.event is event]


@asynccontextmanager
async def place(folder: Path, *tools: AnyTool, **settings: Any) -> AsyncGenerator[Place]:
    """These tools on a server where a token is a subject and its scopes."""
    records: list[Record] = []
    async with (
        site(
            store=f"sqlite:///{folder}/tasks.db",
            tools=tools,
            adapters={"memory": MemoryAdapter(MemorySettings(name=str(folder)))},
            authenticated=True,
            audit=records.append,
            **settings,
        ) as found,
        AsyncExitStack() as stack,
    ):
        yield Place(found, records, stack)


async def listed(client: Peer) -> set[str]:
    return {each["name"] for each in (await client.send("tools/list")).result["tools"]}


async def test_a_tool_is_shown_to_those_and_called_by_those_alone_whom_its_rules_let(tmp_path: Path) -> None:
    async with place(tmp_path, tool(allow=APPROVED), tool("free", "echo")) as here:
        alice, carol = await here.peer(ALICE), await here.peer(CAROL)
        assert {"order", "free"} <= await listed(alice)
        assert "order" not in await listed(carol)
        denied, unknown = await carol.call("order"), await carol.call("nothing")
        assert denied.error == {**unknown.error, "message": unknown.error["message"].replace("nothing", "order")}
        assert [record.reason for record in here.recorded(Event.DENY)] == ["may not call it"]
        assert (await alice.call("order")).result["resultType"] == "task"


async def test_somebody_else_approves_with_a_login_of_their_own(tmp_path: Path) -> None:
    async with place(tmp_path, tool(allow=APPROVED)) as here:
        alice, bob, carol = [await here.peer(token) for token in (ALICE, BOB, CAROL)]
        task_id = (await alice.call("order")).result["taskId"]
        seen = await alice.get(task_id)
        assert seen["status"] == "working"  # a question that its owner may not answer is none to them
        assert "waits for somebody else's answer" in seen["statusMessage"]
        refused = await alice.answer(task_id, answer=YES)
        assert "somebody else must answer" in refused.error["message"]

        assert "open_questions" not in await listed(alice)
        assert {"open_questions", "task_answer"} <= await listed(bob)
        found = (await bob.call("open_questions")).result
        [asked] = found["structuredContent"]["tasks"]
        assert asked["taskId"] == task_id
        assert asked["startedBy"] == "alice"
        ready = {"taskId": task_id, "key": "question", "content": {"answer": "..."}}
        assert f"such as {json.dumps(ready)}" in found["structuredContent"]["next"]
        assert task_id not in str((await carol.call("open_questions")).result)
        assert (await bob.get(task_id))["status"] == "input_required"
        answered = (await bob.call("task_answer", {"taskId": task_id, "content": {"answer": "yes"}})).result
        assert not answered["isError"]
        assert (await alice.until(task_id, "completed"))["status"] == "completed"
        assert (await bob.send("tasks/get", {"taskId": task_id})).error["message"] == "Task not found"
        assert [(record.subject, record.tool) for record in here.recorded(Event.ANSWER)] == [("bob", "order")]


async def test_who_approves_is_not_denied_anything_and_who_tries_it_on_their_own_task_is(tmp_path: Path) -> None:
    async with place(tmp_path, tool(allow=APPROVED)) as here:
        alice, bob = [await here.peer(token) for token in (ALICE, BOB)]
        task_id = (await alice.call("order")).result["taskId"]
        answer = {"taskId": task_id, "content": {"answer": "yes"}}
        own = (await alice.call("task_answer", answer)).result
        assert own["isError"]
        assert "somebody else must answer" in own["content"][0]["text"]
        assert not (await bob.call("task_answer", answer)).result["isError"]
        assert [(each.subject, each.reason) for each in here.recorded(Event.DENY)] == [("alice", "may not answer it")]


async def test_an_approver_may_do_no_more_than_answer(tmp_path: Path) -> None:
    async with place(tmp_path, tool(allow=APPROVED)) as here:
        alice, bob, carol = [await here.peer(token) for token in (ALICE, BOB, CAROL)]
        task_id = (await alice.call("order")).result["taskId"]
        assert "may not cancel" in (await bob.send("tasks/cancel", {"taskId": task_id})).error["message"]
        missing = (await carol.send("tasks/get", {"taskId": "0" * 40})).error
        for method in ("tasks/get", "tasks/cancel"):
            assert (await carol.send(method, {"taskId": task_id})).error == missing
        assert (await carol.send("tasks/update", {"taskId": task_id, "inputResponses": {}})).error == missing
        assert (await alice.send("tasks/cancel", {"taskId": task_id})).result["resultType"] == "complete"


async def test_the_owner_approves_neither_through_another_client_nor_in_the_older_era(tmp_path: Path) -> None:
    async with place(tmp_path, tool(allow={**APPROVED, "call": {}})) as here:
        me = "alice+orders:approve"
        alice = await here.peer(me)
        task_id = (await alice.call("order")).result["taskId"]
        assert "open_questions" in await listed(alice)
        assert (await alice.call("open_questions")).result["structuredContent"]["tasks"] == []
        async with elder_of(here.site.url, me) as old:
            seen = (await old.send("tasks/get", {"taskId": task_id}))["result"]
            assert seen["status"] == "working"
        assert "somebody else must answer" in (await alice.answer(task_id, answer=YES)).error["message"]


@asynccontextmanager
async def elder_of(url: str, token: str) -> AsyncGenerator[Elder]:
    """A client of 2025-11-25 with this token."""
    async with elder(url, {"elicitation": {}}, authorization=f"Bearer {token}") as old:
        yield old


async def test_in_the_older_era_too_tools_are_hidden_and_tasks_are_their_owners(tmp_path: Path) -> None:
    async with place(tmp_path, tool(allow=APPROVED)) as here, elder_of(here.site.url, ALICE) as old:
        made = await old.send("tools/call", {"name": "order", "arguments": {}, "task": {}})
        task_id = made["result"]["task"]["taskId"]
        async with elder_of(here.site.url, CAROL) as other:
            tools = (await other.send("tools/list"))["result"]["tools"]
            assert "order" not in {each["name"] for each in tools}
            missing = (await other.send("tasks/get", {"taskId": "0" * 40}))["error"]
            for method in ("tasks/get", "tasks/result", "tasks/cancel"):
                assert (await other.send(method, {"taskId": task_id}))["error"] == missing
        async with elder_of(here.site.url, BOB) as approver:
            assert (await approver.send("tasks/get", {"taskId": task_id}))["result"]["status"] == "input_required"
        async with elder_of(here.site.url, ALICE) as again:
            assert (await again.send("tasks/cancel", {"taskId": task_id}))["result"]["status"] == "cancelled"


async def test_rules_are_asked_anew_at_each_poll_and_each_push(tmp_path: Path) -> None:
    """An ended task that was given out before is not given out again to who has lost the right to see it."""
    ended, asking = tool("quick", "echo", allow={"call": {}, "see": {}}), tool(allow={"call": {}, "see": {}})
    async with place(tmp_path, ended, asking) as here:
        alice = await here.peer(ALICE)
        quick = (await alice.call("quick")).result["taskId"]
        slow = (await alice.call("order")).result["taskId"]
        await told(alice, slow, "waits for somebody else's answer")  # or that comes while it listens
        assert (await alice.until(quick, "completed"))["status"] == "completed"
        assert (await alice.get(quick))["status"] == "completed"
        async with alice.stream("subscriptions/listen", {"notifications": {"taskIds": [slow]}}) as (_, frames):
            assert (await anext(frames))["method"] == "notifications/subscriptions/acknowledged"
            assert (await anext(frames))["params"]["taskId"] == slow
            adapters = here.site.workflows.adapters
            new = [ended.model_copy(update={"allow": None}), asking]  # or what it asks would be told in between
            await swap(here.site.workflows, tools=new, engines=adapters)
            assert (await alice.get(quick))["status"] == "completed"
            see = {"scopes": ["more"]}
            new = [tool("quick", "echo", allow={"call": {}, "see": see}), tool(allow={"call": {}, "see": see})]
            await swap(here.site.workflows, tools=new, engines=adapters)
            for task_id in (quick, slow):
                assert (await alice.send("tasks/get", {"taskId": task_id})).error["message"] == "Task not found"
            engine = adapters["memory"]
            assert isinstance(engine, MemoryAdapter)
            [key] = (await engine.describe(Ref(workflow="ask", handle=engine.handles[-1]))).requests
            await engine.answer(Ref(workflow="ask", handle=engine.handles[-1]), {key: YES})
            await until(lambda: any(each.reason == "may no longer see it" for each in here.records))
            with anyio.move_on_after(0.2):
                raise AssertionError(f"it was told {await anext(frames)}")


async def test_what_is_tried_in_vain_is_on_record_too(tmp_path: Path) -> None:
    tools = tool(), tool("quick", "echo"), tool("watch", "echo", kind="watch")
    async with place(tmp_path, *tools, limits=Limits(max_answer=200)) as here:
        alice = await here.peer(ALICE)
        asking, quick = [(await alice.call(name)).result["taskId"] for name in ("order", "quick")]
        [key] = (await alice.until(asking, "input_required"))["inputRequests"]
        long = {"action": "accept", "content": {"answer": "x" * 200}}
        assert (await alice.answer(asking, **{key: long})).error["code"] == LIMIT_REACHED
        [limit] = here.recorded(Event.LIMIT)
        assert limit.tool == "order"
        await alice.until(quick, "completed")
        await alice.send("tasks/cancel", {"taskId": quick})
        assert [(each.tool, each.outcome) for each in here.recorded(Event.CANCEL)] == [("quick", "ended")]
        assert (await alice.call("watch", {"execution_id": "somebody-elses"})).result["isError"]
        assert [(each.tool, each.outcome) for each in here.recorded(Event.DENY)] == [("watch", "refused")]


async def test_a_tool_that_had_rules_and_is_gone_leaves_its_owner_nothing_but_to_see(tmp_path: Path) -> None:
    async with place(tmp_path, tool(allow=APPROVED), tool("free", "echo")) as here:
        alice, bob = await here.peer(ALICE), await here.peer(BOB)
        task_id = (await alice.call("order")).result["taskId"]
        await swap(here.site.workflows, tools=[tool("free", "echo")], engines=here.site.workflows.adapters)
        assert (await alice.get(task_id))["status"] == "working"
        assert "somebody else" in (await alice.answer(task_id, answer=YES)).error["message"]
        assert (await bob.send("tasks/get", {"taskId": task_id})).error["message"] == "Task not found"


async def test_an_authorizer_has_the_last_word_and_an_error_of_its_own_is_a_no(tmp_path: Path) -> None:
    asked: list[AccessRequest] = []

    async def authorizer(wish: AccessRequest) -> bool:
        asked.append(wish)
        if wish.principal.subject == "carol":
            raise RuntimeError("no policy loaded")
        return not (wish.arguments and wish.arguments.get("amount", 0) > 100)

    async with place(tmp_path, tool("charge", "echo"), authorizer=authorizer) as here:
        alice, carol = await here.peer(ALICE), await here.peer(CAROL)
        assert (await alice.call("charge", {"amount": 5})).result["resultType"] == "task"
        denied = (await alice.call("charge", {"amount": 500})).result
        assert denied["isError"]
        assert "Not allowed: charge with these arguments" in denied["content"][0]["text"]
        assert "charge" in await listed(alice)
        assert "charge" not in await listed(carol)
        assert (await carol.call("charge", {"amount": 5})).error["message"] == "Unknown tool: charge"
        assert {wish.verb for wish in asked} >= {Verb.CALL}
        assert any(wish.arguments == {"amount": 500} for wish in asked)


async def test_who_may_see_the_tasks_of_all_sees_them_and_hears_of_them(tmp_path: Path) -> None:
    rules: dict[str, Any] = {
        "call": {},
        "see": [{}, {"scopes": ["audit"], "any_owner": True}],
        "cancel": {},
        "answer": {},
    }
    async with place(tmp_path, tool("quick", "echo", allow=rules)) as here:
        alice, auditor = await here.peer(ALICE), await here.peer("olga+audit")
        task_id = (await alice.call("quick", {"n": 1})).result["taskId"]
        assert (await auditor.until(task_id, "completed"))["result"]["structuredContent"] == {"n": 1}
        assert (await auditor.get(task_id))["status"] == "completed"
        read = [record.subject for record in here.recorded(Event.RETRIEVE)]
        assert read.count("olga") == 2


async def test_a_plain_call_whose_question_is_for_somebody_else_waits_for_the_answer(tmp_path: Path) -> None:
    async with place(tmp_path, tool(allow=APPROVED, tasks="wait")) as here:
        alice, bob = await here.peer(ALICE, capabilities={"elicitation": {}}), await here.peer(BOB)
        results: list[Mapping[str, Any]] = []

        async def call() -> None:
            results.append((await alice.call("order")).result)

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            with anyio.fail_after(60):
                while not (asked := (await bob.call("open_questions")).result["structuredContent"]["tasks"]):
                    await anyio.sleep(0.02)
            assert results == []
            answer = {"taskId": asked[0]["taskId"], "content": {"answer": "yes"}}
            assert not (await bob.call("task_answer", answer)).result["isError"]
        assert not results[0].get("isError")
