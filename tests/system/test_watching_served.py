"""docs/use/watching.md: its worker, its command and its configuration, with Temporal."""

from __future__ import annotations

import importlib
import re
import shlex
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from mcp_workflows_temporal.connection import quiet_runtime
from temporalio.client import Client
from temporalio.worker import Worker

from mcp_workflows.sidecar.app import build, http_app
from tests.support.config_files import load
from tests.support.dev_server import DevServer, temporal_binary
from tests.support.served import Peer, peer, serving
from tests.tasks.test_adopt import YES

pytestmark = pytest.mark.anyio


ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "use" / "watching.md"
SAMPLE = ROOT / "samples" / "watching"


def block(language: str) -> str:
    """The block of the page in this language."""
    [found] = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return found


@asynccontextmanager
async def billing(
    server: DevServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[tuple[Peer, Client]]:
    """The page's worker and server, and what it starts elsewhere."""
    monkeypatch.syspath_prepend(str(SAMPLE))  # pyright: ignore[reportUnknownMemberType]  # pytest leaves it untyped
    shop = importlib.import_module("billing")
    config = load(folder, block("yaml"), TEMPORAL_ADDRESS=server.address)
    client = await Client.connect(server.address, runtime=quiet_runtime())
    worker = Worker(client, task_queue="billing", workflows=[shop.NightlyBilling], activities=[shop.notify_accounting])
    command = [temporal_binary(), *shlex.split(block("sh"))[1:], "--address", server.address]
    await anyio.run_process(command)
    app = http_app(build(config), config, "127.0.0.1", 0)
    async with worker, serving(app) as url, peer(url) as host:
        yield host, client


@pytest.mark.slow
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
