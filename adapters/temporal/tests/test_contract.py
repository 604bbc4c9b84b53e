"""TemporalAdapter keeps the laws of the boundary: no gaps."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from mcp_workflows_temporal import TemporalAdapter, TemporalSettings
from mcp_workflows_temporal.tooling.fixtures import received
from temporalio.client import Client

from adapters.temporal.tests.scene import PATIENCE, Scene, open_adapter
from mcp_workflows.adapter import Adapter, Adopts, DescribesMany, ListsEnded, MessageRole, Terminates, Waits
from mcp_workflows.kit.tooling import Checks, Explains
from mcp_workflows.testing import AdapterContract, LossyProxy, Role, Subject, lossy_proxy
from tests.support.child_processes import free_port
from tests.support.dev_server import DevServer

SECRET = "s3cret"


class TestTemporalAdapter(AdapterContract):
    """Against the dev server, through a proxy that can lose replies, with a worker."""

    capabilities = frozenset({Adopts, Checks, Explains, DescribesMany, ListsEnded, MessageRole, Terminates, Waits})
    lacks = frozenset({"has_stopped", "refused"})

    @pytest.fixture
    async def subject(self, anyio_backend: str, dev_server: DevServer, client: Client) -> AsyncIterator[Subject]:
        scene = Scene.new(client)
        async with scene.worker(), lossy_proxy(dev_server.port) as proxy:
            await until_polled(dev_server, scene.queue)
            yield tell(proxy, scene.queue)


def tell(proxy: LossyProxy, queue: str) -> Subject:
    settings = TemporalSettings(address=f"127.0.0.1:{proxy.port}", task_queue=queue, timeout_seconds=8)
    nowhere = TemporalSettings.model_validate(
        {"address": f"127.0.0.1:{free_port()}", "task_queue": queue, "api_key": SECRET}
    )

    @asynccontextmanager
    async def losing_replies(adapter: Adapter) -> AsyncGenerator[None]:
        assert isinstance(adapter, TemporalAdapter)
        assert (await adapter.tooling.check_engine()).ok  # connected: now only the reply of the start is to be lost
        async with proxy.losing():
            yield

    return Subject(
        new_adapter=lambda: TemporalAdapter(settings),
        finishes=Role(workflow="Echo", arguments=[{"text": "hi"}]),
        output={"text": "hi"},
        other_arguments=[{"text": "ho"}],
        fails=Role(workflow="Charges", arguments=["declined"]),
        failure="the card was declined",
        asks=Role(workflow="Approve", arguments=[1]),
        asks_two=Role(workflow="Approve", arguments=[2]),
        content={"answer": "yes"},
        endless=Role(workflow="Waits"),
        unknown_handle="nobody/no-run",
        unreachable=lambda: TemporalAdapter(nowhere),
        secret=SECRET,
        losing_replies=losing_replies,
        messages=MessageRole(receiver=Role(workflow="Basket"), settings={"signal": "put"}, received=received),
    )


async def until_polled(server: DevServer, queue: str) -> None:
    """The worker's first poll has arrived."""
    async with open_adapter(server, queue) as adapter:
        with anyio.fail_after(PATIENCE):
            while not (await adapter.tooling.check("Echo", {})).ok:  # no event tells us
                await anyio.sleep(0.03)
