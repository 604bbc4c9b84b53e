"""Executions that somebody else started: their ends reach those who may watch them, and nobody knows an id."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mcp_workflows import Tool, WatchTool
from mcp_workflows.access.policy import AccessRequest, Allow, Verb
from mcp_workflows.adapter import Execution, InputRequest, Ref, Status
from mcp_workflows.adapter.memory import MemoryExecution, Script, ScriptedAdapter
from mcp_workflows.events import interests
from mcp_workflows.events.endpoints import EventSettings
from tests.support.endpoint import Endpoint, endpoint
from tests.support.served import Peer, peer, site

pytestmark = pytest.mark.anyio

WATCH = WatchTool(
    name="billing",
    engine="memory",
    workflow="NightlyBilling",
    allow=Allow.model_validate({"call": {"scopes": ["billing:see"]}, "see": {}}),
)
START = Tool(name="bill", engine="memory", workflow="NightlyBilling")
ALICE, BOB = "alice+billing:see", "bob"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists are read as often as the log is."""
    monkeypatch.setattr(interests, "LIST_EVERY", 0.1)
    monkeypatch.setattr(interests, "SEARCH_EVERY", 0.1)


@asynccontextmanager
async def served(folder: Path, script: Script, *tokens: str, **settings: Any) -> AsyncGenerator[list[Peer]]:
    """A server of the two tools, and a client for each token."""
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(
            site(
                store=f"sqlite:///{folder}/tasks.db",
                tools=[WATCH, START],
                adapters={"memory": ScriptedAdapter(script)},
                authenticated=True,
                events=EventSettings(allow_private=True),
                **settings,
            )
        )
        yield [await stack.enter_async_context(peer(found.url, token=token)) for token in tokens]


async def subscribe(client: Peer, receiver: Endpoint, **arguments: str) -> None:
    delivery = {"mode": "webhook", "url": receiver.url, "secret": receiver.secret}
    params = {"name": "execution.ended", "arguments": {"tool": "billing", **arguments}, "delivery": delivery}
    assert "id" in (await client.send("events/subscribe", params)).result


async def test_the_failure_of_a_nightly_run_is_told_once(tmp_path: Path) -> None:
    script = Script()
    async with served(tmp_path, script, ALICE) as [alice], endpoint() as receiver, endpoint() as all_:
        await subscribe(alice, receiver, status="failed")
        await subscribe(alice, all_)
        script.run_elsewhere("billing-1", "NightlyBilling", tool="good")
        script.run_elsewhere("billing-2", "NightlyBilling", tool="bad")
        script.run_elsewhere("other-1", "AnotherWorkflow", tool="bad")
        script.succeed({"secret": 1}, tool="good")
        script.fail("disk full", tool="bad")
        await receiver.until(lambda: len(receiver.events()) == 1)
        await all_.until(lambda: len(all_.events()) == 2)
        watched = await alice.call("billing", {"execution_id": receiver.events()[0]["data"]["executionId"]})
        assert watched.result["resultType"] == "task"
    [event] = receiver.events()
    assert event["data"].items() >= {"tool": "billing", "executionId": "billing-2", "status": "failed"}.items()
    assert "endedAt" in event["data"]
    assert {each["data"]["executionId"] for each in all_.events()} == {"billing-1", "billing-2"}


async def test_an_end_while_the_server_was_down_is_told_later(tmp_path: Path) -> None:
    script = Script()
    async with endpoint() as receiver:
        async with served(tmp_path, script, ALICE) as [alice]:
            await subscribe(alice, receiver)
            script.run_elsewhere("billing-1", "NightlyBilling")
            script.succeed()
            await receiver.until(lambda: len(receiver.events()) == 1)
        script.run_elsewhere("billing-2", "NightlyBilling")
        async with served(tmp_path, script, ALICE):
            await receiver.until(lambda: len(receiver.events()) >= 2)
    ids = {event["data"]["executionId"]: event["eventId"] for event in receiver.events()}
    assert ids.keys() == {"billing-1", "billing-2"}
    assert {event["eventId"] for event in receiver.events()} == set(ids.values())


async def test_who_may_not_watch_hears_nothing_and_does_not_see_the_type(tmp_path: Path) -> None:
    script = Script()
    async with served(tmp_path, script, ALICE, BOB) as [alice, bob], endpoint() as receiver:
        listed = {each["name"]: each for each in (await alice.send("events/list")).result["events"]}
        assert listed["execution.ended"]["inputSchema"]["properties"]["tool"]["enum"] == ["billing"]
        assert "execution.ended" not in {each["name"] for each in (await bob.send("events/list")).result["events"]}
        wanted = {"name": "execution.ended", "arguments": {"tool": "billing"}, "cursor": None}
        refused = await bob.send("events/poll", wanted)
        assert (refused.code, refused.error["data"]) == (-32011, {"kind": "event"})
        for arguments in ({"tool": "bill"}, {}):
            assert (await alice.send("events/poll", {**wanted, "arguments": arguments})).code == -32602
        first = (await alice.send("events/poll", wanted)).result
        await subscribe(alice, receiver)
        script.run_elsewhere("billing-1", "NightlyBilling")
        script.succeed()
        await receiver.until(lambda: len(receiver.events()) == 1)
        polled = (await alice.send("events/poll", {**wanted, "cursor": first["cursor"]})).result
    assert [each["eventId"] for each in polled["events"]] == [receiver.events()[0]["eventId"]]


async def test_who_may_call_the_tool_and_not_see_its_tasks_hears_nothing(tmp_path: Path) -> None:
    async def no_one_sees(wish: AccessRequest) -> bool:
        return wish.verb != Verb.SEE

    async with served(tmp_path, Script(), ALICE, authorizer=no_one_sees) as [alice]:
        assert "execution.ended" not in {each["name"] for each in (await alice.send("events/list")).result["events"]}
        refused = await alice.send("events/poll", {"name": "execution.ended", "arguments": {"tool": "billing"}})
    assert (refused.code, refused.error["data"]) == (-32011, {"kind": "event"})


class Asking(Script):
    """Workflows that ask five questions at once, until they are to end."""

    ends = False

    def run(self, execution: MemoryExecution, ref: Ref) -> Execution:
        request = InputRequest(method="elicitation/create", params={"message": "Sure?", "requestedSchema": {}})
        asking = Execution(status=Status.INPUT_REQUIRED, requests=dict.fromkeys("abcde", request))
        return Execution(status=Status.SUCCEEDED) if self.ends else asking


async def test_a_poll_has_each_event_once_and_no_more_than_asked_for(tmp_path: Path) -> None:
    script = Asking()
    async with served(tmp_path, script, BOB) as [bob]:
        task_id = (await bob.call("bill", {})).result["taskId"]
        for name, number in (("task.input_required", 5), ("task.ended", 1)):
            params = {"name": name, "arguments": {"taskId": task_id, "tool": None}, "maxEvents": 2}
            page = (await bob.send("events/poll", params)).result
            script.ends = name == "task.ended"
            found = list[str]()
            while page["hasMore"] or len(set(found)) < number:
                page = (await bob.send("events/poll", {**params, "cursor": page["cursor"]})).result
                ids = [each["eventId"] for each in page["events"]]
                assert len(set(ids)) == len(ids) <= 2
                found += ids
            assert len(set(found)) == number


async def test_an_authorizer_decides_on_each_execution(tmp_path: Path) -> None:
    script = Script()

    async def only_ours(wish: AccessRequest) -> bool:
        watched = (wish.arguments or {}).get("execution_id", "ours")
        return str(watched).startswith("ours")

    async with served(tmp_path, script, ALICE, authorizer=only_ours) as [alice], endpoint() as receiver:
        await subscribe(alice, receiver)
        script.run_elsewhere("theirs-1", "NightlyBilling")
        script.run_elsewhere("ours-1", "NightlyBilling")
        script.succeed()
        await receiver.until(lambda: bool(receiver.events()))
    assert {event["data"]["executionId"] for event in receiver.events()} == {"ours-1"}
