"""`kind: watch` over the wire, and with Temporal as docs/watching.md tells it."""

from __future__ import annotations

import importlib
import re
import shlex
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_workflows_temporal.connection import quiet_runtime
from temporalio.client import Client
from temporalio.worker import Worker

from mcp_workflows.adapter import Start
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.sidecar.app import build, http_app
from tests.support.client_2025 import session
from tests.support.config_files import load
from tests.support.dev_server import DevServer, temporal_binary
from tests.support.served import Peer, peer, serving, site
from tests.tasks.test_adopt import TOOLS, YES

pytestmark = pytest.mark.anyio


# --- over the wire


async def test_over_http_nobody_unknown_sees_it_and_the_one_user_does(tmp_path: Path) -> None:
    engine = MemoryAdapter(MemorySettings(name=str(tmp_path)))
    settings: dict[str, Any] = {"store": f"sqlite:///{tmp_path}/tasks.db", "adapters": {"memory": engine}}
    plan = Start(workflow="forever", arguments=[0], key=uuid.uuid4().hex, created=datetime.now(UTC))
    wanted = {"execution_id": await engine.start(plan)}
    async with site(tools=TOOLS, **settings) as served, peer(served.url) as stranger:
        names = {tool["name"] for tool in (await stranger.send("tools/list")).result["tools"]}
        assert "start" in names
        assert "billing" not in names
        assert (await stranger.call("billing", wanted)).code == -32602
    async with site(tools=TOOLS, single_user=True, **settings) as served, peer(served.url) as user:
        assert "billing" in {tool["name"] for tool in (await user.send("tools/list")).result["tools"]}
        created = (await user.call("billing", wanted)).result
        assert (created["resultType"], created["status"]) == ("task", "working")
        refused = await user.send("tasks/cancel", {"taskId": created["taskId"]})
        assert (refused.code, "nothing can be cancelled" in refused.error["message"]) == (-32602, True)
        plain = (await user.call("impatient", wanted, capabilities={})).result["structuredContent"]
        task_tool = (await user.call("task_cancel", {"taskId": plain["taskId"]}, capabilities={})).result
        assert task_tool["isError"]
        assert "nothing can be cancelled" in task_tool["content"][0]["text"]


async def test_with_authentication_each_caller_watches_for_themselves(tmp_path: Path) -> None:
    engine = MemoryAdapter(MemorySettings(name=str(tmp_path)))
    plan = Start(workflow="forever", arguments=[0], key=uuid.uuid4().hex, created=datetime.now(UTC))
    wanted = {"execution_id": await engine.start(plan)}
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with (
        site(tools=TOOLS, adapters={"memory": engine}, authenticated=True, store=store) as served,
        peer(served.url, token="ann") as ann,
        peer(served.url, token="ben") as ben,
    ):
        anns = (await ann.call("billing", wanted)).result["taskId"]
        bens = (await ben.call("billing", wanted)).result["taskId"]
        assert anns != bens
        assert (await ann.call("billing", wanted)).result["taskId"] == anns
        assert (await ben.send("tasks/get", {"taskId": anns})).code == -32602


async def test_a_client_of_2025_11_25_watches_too_and_cancels_only_what_it_may(tmp_path: Path) -> None:
    engine = MemoryAdapter(MemorySettings(name=str(tmp_path)))
    settings: dict[str, Any] = {"store": f"sqlite:///{tmp_path}/tasks.db", "adapters": {"memory": engine}}
    async with (
        site(tools=TOOLS, single_user=True, **settings) as served,
        session(served.url) as old,
    ):
        plan = Start(workflow="sleep", arguments=[2.5], key=uuid.uuid4().hex, created=datetime.now(UTC))
        wanted = {"execution_id": await engine.start(plan)}  # now: it must not end before two requests are answered
        created = (await old.request("tools/call", {"name": "nap", "arguments": wanted, "task": {}})).result["task"]
        assert created["status"] == "working"
        params = {"taskId": created["taskId"]}
        refused = await old.request("tasks/cancel", params)
        assert (refused.code, "nothing can be cancelled" in refused.error["message"]) == (-32602, True)
        done = (await old.request("tasks/result", params)).result
        assert done["structuredContent"] == {"slept": 2.5}
        assert (await old.request("tasks/get", params)).result["status"] == "completed"
        foreign = await old.request("tools/call", {"name": "billing", "arguments": wanted, "task": {}})
        assert "shows no execution" in str(foreign.body)


# --- Temporal, as docs/watching.md tells it

PAGE = Path(__file__).parents[2] / "docs" / "watching.md"


def block(language: str) -> str:
    """The block of the page in this language."""
    [found] = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return found


@asynccontextmanager
async def billing(
    server: DevServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[tuple[Peer, Client]]:
    """The page's worker and server, and what it starts elsewhere."""
    (folder / "billing.py").write_text(block("python"))
    monkeypatch.syspath_prepend(str(folder))  # pyright: ignore[reportUnknownMemberType]  # pytest leaves it untyped
    shop = importlib.import_module("billing")
    config = load(folder, block("yaml"), TEMPORAL_ADDRESS=server.address)
    client = await Client.connect(server.address, runtime=quiet_runtime())
    worker = Worker(client, task_queue="billing", workflows=[shop.NightlyBilling], activities=[shop.notify_accounting])
    command = [temporal_binary(), *shlex.split(block("sh"))[1:], "--address", server.address]
    await anyio.run_process(command)
    app = http_app(build(config), config, "127.0.0.1", 0)
    async with worker, serving(app) as url, peer(url) as host:
        yield host, client


async def test_a_billing_run_is_watched_to_its_end_and_released_by_who_may(
    dev_server: DevServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tonight = {"execution_id": "billing-2026-07-28"}
    async with billing(dev_server, tmp_path, monkeypatch) as (host, client):
        watching = (await host.call("billing_done", tonight)).result["taskId"]
        releasing = (await host.call("release_billing", tonight)).result["taskId"]
        asked = await host.until(releasing, "input_required", within=60)
        [key] = asked["inputRequests"]
        assert asked["inputRequests"][key]["params"]["message"] == "Release «billing-2026-07-28»?"
        seen = await host.get(watching)
        assert seen["status"] == "working"
        assert seen["statusMessage"] == "waits for somebody else's answer: Release «billing-2026-07-28»?"
        assert (await host.answer(watching, **{key: YES})).code == -32602
        for task in (watching, releasing):
            assert (await host.send("tasks/cancel", {"taskId": task})).code == -32602

        other = await client.start_workflow("Payroll", id=f"payroll-{uuid.uuid4().hex}", task_queue="nobodys")
        nightly = await client.start_workflow(
            "NightlyBilling", "x", id=f"cron-{uuid.uuid4().hex}", task_queue="nobodys", cron_schedule="0 3 * * *"
        )
        run = f"{other.id}/{other.first_execution_run_id}"
        for wanted in (other.id, run, nightly.id, "nobody", "billing-2026-07-28/x", "x" * 1500, "a\nb"):
            refused = (await host.call("billing_done", {"execution_id": wanted})).result
            text = f"Engine temporal shows no execution {wanted!r} of workflow NightlyBilling that can be watched"
            assert (refused["isError"], refused["content"][0]["text"]) == (True, text)
        for handle in (other, nightly):
            await handle.terminate()

        await host.answer(releasing, **{key: YES})
        for task in (watching, releasing):
            done = await host.until(task, within=60)
            assert done["result"]["structuredContent"] == {"date": "2026-07-28", "released": True}
        assert (await host.call("billing_done", tonight)).result["taskId"] == watching
