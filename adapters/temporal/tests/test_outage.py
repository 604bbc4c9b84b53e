"""An engine that is down, restarted, unknown or unwilling: clear words, the right error, and recovery by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
from mcp_workflows_temporal import TemporalAdapter, TemporalSettings
from mcp_workflows_temporal.errors import translate
from mcp_workflows_temporal.settings import Place
from temporalio.service import RPCError, RPCStatusCode

from adapters.temporal.tests.scene import PATIENCE, Scene, connect, open_adapter, plan
from mcp_workflows.adapter import Ref, Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound
from tests.support.child_processes import free_port
from tests.support.dev_server import DevServer
from tests.support.stopwatch import stopwatch

YES = {"action": "accept", "content": {"size": "S"}}
NOBODY = Ref(workflow="Waits", handle="nobody/nothing")
HERE = Place(address="engine:7233", namespace="shop")

VERBS: list[Callable[[TemporalAdapter], Awaitable[object]]] = [
    lambda adapter: adapter.start(plan("Waits")),
    lambda adapter: adapter.describe(NOBODY),
    lambda adapter: adapter.answer(NOBODY, {"key": YES}),
    lambda adapter: adapter.cancel(NOBODY),
]


@pytest.mark.parametrize(("host", "why"), [("127.0.0.1", "connection refused"), ("nowhere.invalid", "unknown host")])
async def test_an_engine_that_cannot_be_reached_has_certainly_done_nothing(host: str, why: str) -> None:
    settings = TemporalSettings(address=f"{host}:{free_port()}", task_queue="q")
    async with TemporalAdapter(settings) as adapter:
        for verb in VERBS:
            with pytest.raises(EngineUnavailable, match=f"{host}.*{why}") as caught:
                await verb(adapter)
            assert not caught.value.sent


async def test_an_adapter_opened_before_its_engine_works_once_the_engine_is_there(own_dev_server: DevServer) -> None:
    own_dev_server.kill()
    async with open_adapter(own_dev_server, "q") as adapter:
        with pytest.raises(EngineUnavailable):
            await adapter.start(plan("Waits"))
        own_dev_server.start()
        handle = await adapter.start(plan("Waits"))
        assert (await adapter.describe(Ref(workflow="Waits", handle=handle))).status is Status.RUNNING


async def test_kill_9_of_the_engine_loses_neither_execution_nor_question_nor_waiting_answer(
    own_dev_server: DevServer,
) -> None:
    client = await connect(own_dev_server)
    scene = Scene.new(client)
    async with open_adapter(own_dev_server, scene.queue, timeout_seconds=2) as adapter:
        scene = scene.on(adapter)
        async with scene.worker():
            ref = await scene.start("Ask", "Bob")
            [key] = (await scene.asked(ref)).requests
        await adapter.answer(ref, {key: YES})
        own_dev_server.kill()
        with stopwatch() as seconds:
            with pytest.raises(EngineUnavailable) as caught:
                await adapter.describe(ref)
            assert seconds() < 3
        assert caught.value.sent
        own_dev_server.start()
        await recovered(scene, ref)
        assert list((await adapter.describe(ref)).requests) == [key]
        async with scene.worker():
            assert (await scene.ended(ref)).output["accepted"] is True


async def recovered(scene: Scene, ref: Ref) -> None:
    """The same client finds its engine again."""
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                await scene.adapter.describe(ref)
            except EngineUnavailable:
                await anyio.sleep(0.1)
            else:
                return


async def test_a_missing_namespace_is_named(dev_server: DevServer) -> None:
    async with open_adapter(dev_server, "q", namespace="atlantis") as adapter:
        for verb in VERBS:
            with pytest.raises(EngineRefused, match="no namespace 'atlantis'"):
                await verb(adapter)
        finding = await adapter.tooling.check_engine()
    assert not finding.ok
    assert "'atlantis'" in finding.text


async def test_tls_towards_plain_text_is_said_and_the_api_key_is_not(dev_server: DevServer) -> None:
    async with open_adapter(dev_server, "q", api_key="hush-hush") as adapter:
        with pytest.raises(EngineUnavailable, match="check tls") as caught:
            await adapter.describe(NOBODY)
    assert "hush-hush" not in str(caught.value)
    assert not caught.value.sent


OVER_THE_LIMIT = "grpc: received message after decompression larger than max 4194304"


@pytest.mark.parametrize(
    ("status", "message", "error", "hidden"),
    [
        (RPCStatusCode.UNAUTHENTICATED, "token hush-hush is bad", EngineRefused, "hush-hush"),
        (RPCStatusCode.PERMISSION_DENIED, "token hush-hush is bad", EngineRefused, "hush-hush"),
        (RPCStatusCode.RESOURCE_EXHAUSTED, OVER_THE_LIMIT, EngineRefused, "hush"),
        (RPCStatusCode.NOT_FOUND, "sql: no rows", ExecutionNotFound, "sql"),
    ],
)
def test_an_error_of_grpc_becomes_one_of_ours_that_repeats_no_secret(
    status: RPCStatusCode, message: str, error: type[Exception], hidden: str
) -> None:
    translated = translate(RPCError(message, status, b""), HERE)
    assert isinstance(translated, error)
    assert hidden not in str(translated)


def test_an_overload_is_no_refusal() -> None:
    error = translate(RPCError("namespace rate limit exceeded", RPCStatusCode.RESOURCE_EXHAUSTED, b""), HERE)
    assert isinstance(error, EngineUnavailable)
    assert error.throttled
    assert error.sent
