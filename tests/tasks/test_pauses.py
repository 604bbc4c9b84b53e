"""Pauses: new starts are refused with the reason, on every replica within a second, and all else goes on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from mcp_workflows import Tool
from mcp_workflows.adapter.memory import Script, ScriptedAdapter
from mcp_workflows.store.protocol import open_store
from mcp_workflows.tasks.pauses import EVERYTHING, READ_EVERY, Pauses
from mcp_workflows.units import utc_now
from tests.support.postgres_server import Postgres, new_schema
from tests.support.served import Peer, peer, site
from tests.support.waiting import TIMEOUT
from tests.tasks.test_approvals import YES, deploying, start

pytestmark = pytest.mark.anyio

TOOLS = [
    Tool(name="charge", engine="shop", workflow="charge"),
    Tool(name="ship", engine="shop", workflow="ship"),
    Tool(name="mail", engine="post", workflow="mail"),
    deploying(),
]


@asynccontextmanager
async def served(place: Path | str, script: Script, *tokens: str) -> AsyncGenerator[list[Peer]]:
    """Two engines with four tools, and a client for each token; the place is a folder, or the URL of a store."""
    engines = {name: ScriptedAdapter(script) for name in ("shop", "post", "memory")}
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(
            site(store=_url(place), tools=TOOLS, adapters=engines, authenticated=True)
        )
        yield [await stack.enter_async_context(peer(found.url, token=token)) for token in tokens]


@asynccontextmanager
async def pausing(place: Path | str) -> AsyncGenerator[Pauses]:
    """The pauses as another process changes them."""
    async with open_store(_url(place)) as store:
        yield Pauses(store, utc_now)


def _url(place: Path | str) -> str:
    return place if isinstance(place, str) else f"sqlite:///{place}/tasks.db"


async def started(client: Peer) -> Mapping[str, bool]:
    """Whether each of the tools starts something."""
    return {tool: "taskId" in (await client.call(tool, {})).result for tool in ("charge", "ship", "mail")}


@pytest.mark.parametrize(
    ("what", "stopped"),
    [
        (EVERYTHING, {"charge", "ship", "mail"}),
        ("engine shop", {"charge", "ship"}),
        ("tool ship", {"ship"}),
        ("principal anna", {"charge", "ship", "mail"}),
        ("principal bob", set[str]()),
    ],
)
async def test_only_the_starts_that_are_meant_are_refused(tmp_path: Path, what: str, stopped: set[str]) -> None:
    async with served(tmp_path, Script(), "anna") as [anna], pausing(tmp_path) as pauses:
        await pauses.begin(what, "audit")
        await anyio.sleep(READ_EVERY)
        assert await started(anna) == {tool: tool not in stopped for tool in ("charge", "ship", "mail")}
        assert await pauses.end(what)
        assert not await pauses.end(what)
        await anyio.sleep(READ_EVERY)
        assert all((await started(anna)).values())


async def test_what_runs_goes_on_and_a_repeated_call_is_found(tmp_path: Path) -> None:
    script = Script()
    script.ask("Sure?", key="sure")
    key = {"mcp-workflows/idempotencyKey": "k1"}
    async with served(tmp_path, script, "anna") as [anna], pausing(tmp_path) as pauses:
        task_id = (await anna.call("charge", {}, meta=key)).result["taskId"]
        await pauses.begin(EVERYTHING, "the bank is down")
        await anyio.sleep(READ_EVERY)
        refused = (await anna.call("ship", {})).result
        assert refused["isError"]
        text = refused["content"][0]["text"]
        assert text.startswith("starts of everything have been paused since 20")
        assert text.endswith("UTC: the bank is down; nothing was started")
        assert (await anna.call("charge", {}, meta=key)).result["taskId"] == task_id
        await anna.until(task_id, "input_required")
        assert (await anna.answer(task_id, sure={"action": "accept", "content": {}})).status == 200
        script.succeed({})
        assert (await anna.until(task_id))["status"] == "completed"
        assert len(script.starts) == 1


async def test_an_approval_waits_until_starts_are_resumed(tmp_path: Path) -> None:
    script = Script()
    async with served(tmp_path, script, "anna", "bob+approve") as [anna, bob], pausing(tmp_path) as pauses:
        task_id = (await anna.call("deploy", {"version": "1.4"})).result["taskId"]
        await pauses.begin("tool deploy", "freeze")
        await anyio.sleep(READ_EVERY)
        refused = await bob.answer(task_id, **start(YES))
        assert "freeze" in refused.error["message"]
        assert script.starts == []
        await pauses.end("tool deploy")
        await anyio.sleep(READ_EVERY)
        assert (await bob.answer(task_id, **start(YES))).status == 200
    assert len(script.starts) == 1


async def test_what_was_approved_before_a_pause_and_is_not_started_yet_waits_for_its_end(tmp_path: Path) -> None:
    script = Script()
    script.succeed({})
    async with served(tmp_path, script, "anna", "bob+approve") as [anna, bob], pausing(tmp_path) as pauses:
        task_id = (await anna.call("deploy", {"version": "1.4"})).result["taskId"]
        script.go_down()
        assert (await bob.answer(task_id, **start(YES))).status == 200
        await pauses.begin("principal anna", "freeze")
        with anyio.fail_after(TIMEOUT):
            while "freeze; nothing was started" not in (await anna.get(task_id))["statusMessage"]:
                await anyio.sleep(0.05)
        script.come_back()
        with anyio.fail_after(TIMEOUT):
            while "freeze; nothing was started" not in (await anna.get(task_id))["statusMessage"]:
                await anyio.sleep(0.05)
        assert script.starts == []
        await pauses.end("principal anna")
        assert (await anna.until(task_id))["status"] == "completed"
    assert len(script.starts) == 1


@pytest.mark.process
async def test_a_pause_holds_on_two_replicas_that_share_postgresql(postgres_server: Postgres) -> None:
    script, url = Script(), postgres_server.url(new_schema())
    script.ask("Sure?", key="sure")
    script.succeed({})
    async with (
        served(url, script, "anna") as [here],
        served(url, script, "anna") as [there],
        pausing(url) as pauses,
    ):
        running = (await here.call("charge", {})).result["taskId"]
        assert all((await started(there)).values())  # the pauses were read a moment ago
        await pauses.begin("engine shop", "the bank is down")
        await anyio.sleep(READ_EVERY)
        for replica in (here, there):
            assert await started(replica) == {"charge": False, "ship": False, "mail": True}
        await there.until(running, "input_required")
        assert (await there.answer(running, sure={"action": "accept", "content": {}})).status == 200
        assert (await here.until(running))["status"] == "completed"
        assert [each.what for each in await pauses.every()] == ["engine shop"]
        assert await pauses.end("engine shop")
        await anyio.sleep(READ_EVERY)
        for replica in (here, there):
            assert all((await started(replica)).values())
