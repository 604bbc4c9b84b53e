"""Fixtures of the Temporal adapter's tests: a queue of its own per test, on the shared dev server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from mcp_workflows_temporal import TemporalAdapter
from temporalio.client import Client

from adapters.temporal.tests.gated import SHOP, notify_approver
from adapters.temporal.tests.scene import Scene, connect, open_adapter
from adapters.temporal.tests.troubled import troubled_worker
from tests.support.dev_server import DevServer


@pytest.fixture
async def client(dev_server: DevServer) -> Client:
    """A client of the tests themselves, for what the adapter does not do."""
    return await connect(dev_server)


@pytest.fixture
async def scene(dev_server: DevServer, client: Client) -> AsyncIterator[Scene]:
    """The adapter on a task queue that nobody polls yet."""
    scene = Scene.new(client)
    async with open_adapter(dev_server, scene.queue) as adapter:
        yield scene.on(adapter)


@pytest.fixture
async def adapter(scene: Scene) -> TemporalAdapter:
    return scene.adapter


@pytest.fixture
async def working(scene: Scene) -> AsyncIterator[Scene]:
    """The scene with a worker of the tests' own workflows."""
    async with scene.worker():
        yield scene


@pytest.fixture
async def selling(scene: Scene) -> AsyncIterator[Scene]:
    """The scene with a worker of the shop."""
    async with scene.worker(SHOP, [notify_approver]):
        yield scene


@pytest.fixture
async def troubled(scene: Scene) -> AsyncIterator[Scene]:
    """The scene with a worker of the workflows that do not get on."""
    async with troubled_worker(scene.client, scene.queue):
        yield scene
