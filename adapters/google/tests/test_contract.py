"""GoogleAdapter keeps the laws of the boundary."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import anyio.lowlevel
import pytest
from mcp_workflows_google import GoogleAdapter, GoogleSettings
from mcp_workflows_google.resources import ExecutionName

from adapters.google.tests import cloud
from adapters.google.tests.cloud import adapter as adapter_of
from adapters.google.tests.cloud import called_at, environment
from mcp_workflows.adapter import (
    Adapter,
    Adopts,
    DescribesMany,
    Hints,
    Limited,
    ListsEnded,
    Routes,
    StartGuarantee,
    Terminates,
)
from mcp_workflows.kit.tooling import Checks, Explains, Exposes
from mcp_workflows.store.key_value import StoreNotes
from mcp_workflows.store.sqlite.store import SQLiteStore
from mcp_workflows.testing import Role, Subject, lossy_proxy
from mcp_workflows.testing.laws import cancelled_afterwards, new_start
from tests.support.child_processes import free_port
from tests.support.cloud_suites import CloudContract
from tests.support.google_engine import ACCOUNT, LOCATION, PROJECT, GoogleEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A local engine behind a proxy that can lose replies, and what is deployed there once for all tests."""

    engine: GoogleEngine
    proxy_port: int
    inbound_port: int
    echo: str
    declines: str
    asks: str
    asks_two: str
    forever: str


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    proxy, inbound = free_port(), free_port()
    with GoogleEngine(tmp_path_factory.mktemp("google"), more=["--url", f"http://127.0.0.1:{proxy}"]) as engine:
        env = environment(inbound)
        yield Stage(
            engine=engine,
            proxy_port=proxy,
            inbound_port=inbound,
            echo=engine.deploy("echo", cloud.ECHO, labels={"mcp-contract": "true"}),
            declines=engine.deploy("declines", cloud.DECLINES),
            asks=engine.deploy("asks", cloud.ASKS, env=env),
            asks_two=engine.deploy("asks-two", cloud.ASKS_TWO, env=env),
            forever=engine.deploy("forever", cloud.FOREVER),
        )


@pytest.mark.usefixtures("processes")
class TestGoogleAdapter(CloudContract):
    """Against the local engine, through a proxy that can lose replies; questions come in over HTTP."""

    starts = StartGuarantee.FINDABLE
    capabilities = frozenset(
        {Adopts, Checks, Explains, Exposes, Hints, Limited, ListsEnded, Routes, DescribesMany, Terminates}
    )

    @pytest.fixture
    async def subject(self, anyio_backend: str, stage: Stage) -> AsyncIterator[Subject]:
        async with (
            lossy_proxy(stage.engine.port, port=stage.proxy_port) as proxy,
            SQLiteStore("sqlite:///:memory:") as store,
        ):
            notes = StoreNotes(store, "google")
            more = {
                "emulator": f"127.0.0.1:{stage.proxy_port}",
                "timeout_seconds": 4,
                "discover": {"label": "mcp-contract=true"},
            }

            @asynccontextmanager
            async def losing_replies(adapter: Adapter) -> AsyncGenerator[None]:
                assert isinstance(adapter, GoogleAdapter)
                assert (
                    await adapter.tooling.check(stage.echo, {})
                ).ok  # connected: only the reply of the start is to be lost
                assert await adapter.find(new_start(Role(workflow=stage.echo))) is None  # likewise, for executions
                async with proxy.losing():
                    yield

            nowhere = {"emulator": f"127.0.0.1:{free_port()}", "project": PROJECT, "location": LOCATION}
            async with called_at(stage.inbound_port, adapter_of(stage.engine, notes, **more)):
                yield Subject(
                    new_adapter=lambda: adapter_of(stage.engine, notes, **more),
                    finishes=Role(workflow=stage.echo, arguments=[{"text": "hi"}]),
                    output={"text": "hi"},
                    other_arguments=[{"text": "ho"}],
                    fails=Role(workflow=stage.declines),
                    failure="the card was declined",
                    asks=Role(workflow=stage.asks),
                    asks_two=Role(workflow=stage.asks_two),
                    content={"answer": "yes"},
                    endless=Role(workflow=stage.forever),
                    refused=Role(workflow=f"{stage.echo}-nobody-deployed"),
                    unknown_handle=f"{stage.echo}/executions/nothing",
                    unreachable=lambda: GoogleAdapter(GoogleSettings.model_validate({**nowhere, "timeout_seconds": 2})),
                    losing_replies=losing_replies,
                )

    async def test_an_execution_that_ends_is_hinted_at_by_its_handle(  # pyright: ignore[reportIncompatibleMethodOverride]  # a fixture more
        self, subject: Subject, adapter: Adapter, stage: Stage
    ) -> None:
        """Google tells nobody that an execution has ended; a question that comes in is hinted at, by the handle."""
        assert isinstance(adapter, GoogleAdapter)
        heard: list[str] = []
        [receive] = [route.receive for route in adapter.routes() if route.path == "input"]
        async with (
            cancelled_afterwards(subject, adapter, new_start(subject.endless)) as ref,
            anyio.create_task_group() as group,
        ):
            group.start_soon(adapter.hints, heard.append)
            await anyio.lowlevel.checkpoint()
            name = ExecutionName.parse(ref.handle)
            posted = {
                "project": PROJECT,
                "location": LOCATION,
                "workflow": name.workflow.workflow,
                "execution": name.execution,
                "callback_url": f"http://127.0.0.1:{stage.proxy_port}/v1/{ref.handle}/callbacks/one",
                "message": "Ship it?",
            }
            await receive(posted, ACCOUNT)
            group.cancel_scope.cancel()
        assert heard == [ref.handle]
