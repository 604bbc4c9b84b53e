"""Tasks of a server's own when something goes wrong: our restart, a session that is gone, errors as outcomes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from adapters.mcp.tests.programs import asks, has_ended, seen_when, started
from adapters.mcp.tests.scripted_server import MODERN, TASKS, Error, ScriptedServer, text, tool
from adapters.mcp.tests.test_real_servers import adapter_of
from adapters.mcp.tests.upstreams import everything_upstream, fastmcp_upstream
from mcp_workflows.adapter import Failure, Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows.testing import MemoryNotes

pytestmark = [pytest.mark.anyio, pytest.mark.process]

YES: Mapping[str, Any] = {"action": "accept", "content": {"approved": True}}


def modern() -> ScriptedServer:
    """Return a server that makes a task of each call."""
    server = ScriptedServer(revision=MODERN, capabilities={"tools": {}, "extensions": {TASKS: {}}}, tools=[tool("it")])
    server.replies["it"] = {"resultType": "task", "taskId": "t-1", "status": "working"}
    server.replies["tasks/get"] = {"taskId": "t-1", "status": "working"}
    return server


def legacy() -> ScriptedServer:
    """Return the same in 2025-11-25."""
    tasks: Mapping[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    offered = tool("it", execution={"taskSupport": "optional"})
    server = ScriptedServer(capabilities={"tools": {}, "tasks": tasks}, tools=[offered])
    server.replies["it"] = {"task": state_of("working")}
    server.replies["tasks/get"] = state_of("working")
    return server


def state_of(status: str, **more: Any) -> Mapping[str, Any]:
    about = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttl": None}
    return {"taskId": "t-1", "status": status, **about, **more}


# --- 2025-11-25


async def test_a_task_whose_session_is_gone_is_not_found(tmp_path: Path) -> None:
    with everything_upstream.everything_over_http(tmp_path) as listening:
        async with adapter_of(listening.engine(everything_upstream.CONFIG)) as adapter:
            ref = await started(adapter, everything_upstream.TOOL, {"topic": "tasks", "ambiguous": True})
            assert asks(await seen_when(adapter, ref, asks))
        async with adapter_of(listening.engine(everything_upstream.CONFIG)) as fresh:  # our restart: another session
            with pytest.raises(ExecutionNotFound):
                await fresh.describe(ref)


async def test_the_outcome_of_a_task_is_its_result_whatever_its_status_is() -> None:
    server = legacy()
    async with server.served() as url, adapter_of({"url": url, "starts": "keyed"}) as adapter:
        ref = await started(adapter, "it")
        assert (await adapter.describe(ref)).status is Status.RUNNING
        for payload, status, told in (
            (Error(code=-32603, message="no luck"), Status.FAILED, "no luck"),
            (text("no luck", is_error=True), Status.FAILED, "no luck"),
            (text("done"), Status.SUCCEEDED, "done"),
        ):
            for state in ("completed", "failed"):
                server.replies |= {"tasks/get": state_of(state), "tasks/result": payload}
                seen = await adapter.describe(ref)
                assert seen.status is status
                assert told in json.dumps([seen.output, seen.failure and seen.failure.text])


async def test_the_structured_content_of_an_error_is_the_details_of_the_failure() -> None:
    server = legacy()
    async with server.served() as url, adapter_of({"url": url, "starts": "keyed"}) as adapter:
        ref = await started(adapter, "it")
        refused = {**text("no luck", is_error=True), "structuredContent": {"code": "OUT_OF_STOCK", "sku": 7}}
        server.replies |= {"tasks/get": state_of("completed"), "tasks/result": refused}
        failure = (await adapter.describe(ref)).failure
        assert failure == Failure(text="no luck", details={"code": "OUT_OF_STOCK", "sku": 7})


async def test_a_task_of_another_session_in_place_of_ours_is_not_believed() -> None:
    server = legacy()
    async with server.served() as url, adapter_of({"url": url}) as adapter:
        ref = await started(adapter, "it")
        server.replies |= {"tasks/get": {**state_of("completed"), "taskId": "t-2"}, "tasks/result": text("of another")}
        with pytest.raises(EngineUnavailable, match="another"):
            await adapter.describe(ref)


async def test_a_lost_reply_to_the_result_of_a_task_ends_nothing() -> None:
    server = legacy()
    async with server.served() as url, adapter_of({"url": url}) as adapter:
        ref = await started(adapter, "it")
        server.replies |= {"tasks/get": state_of("completed"), "tasks/result": Error(code=-32000, message="later")}
        with pytest.raises(EngineUnavailable):
            await adapter.describe(ref)
        server.replies["tasks/result"] = text("done")
        assert (await seen_when(adapter, ref, has_ended)).status is Status.SUCCEEDED


# --- 2026-07-28


async def test_a_task_outlives_our_restart_while_it_asks(tmp_path: Path) -> None:
    server = fastmcp_upstream.TaskServer(folder=tmp_path)
    with server.over_http() as listening:
        notes = MemoryNotes()
        async with adapter_of(listening.engine(fastmcp_upstream.CONFIG), notes) as adapter:
            ref = await started(adapter, "release", {"version": "1.2"})
            [key] = (await seen_when(adapter, ref, asks)).requests
        async with adapter_of(listening.engine(fastmcp_upstream.CONFIG), notes) as fresh:
            assert list((await seen_when(fresh, ref, asks)).requests) == [key]
            await fresh.answer(ref, {key: YES})
            assert "released 1.2" in str((await seen_when(fresh, ref, has_ended)).output)
            await fresh.answer(ref, {key: YES})  # ignored
            await fresh.cancel(ref)  # a no-op


async def test_a_task_that_expired_or_is_unknown_is_not_found() -> None:
    server = modern()
    async with server.served() as url, adapter_of({"url": url}) as adapter:
        ref = await started(adapter, "it")
        server.replies["tasks/update"] = Error(code=-32602, message="approved: it must be a boolean")
        with pytest.raises(EngineRefused, match="it must be a boolean"):
            await adapter.answer(ref, {"q": YES})
        for message in ("Task not found", "Task expired: t-1", "unknown task t-1"):
            gone = Error(code=-32602, message=message)
            server.replies |= dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), gone)
            for verb in (adapter.describe(ref), adapter.cancel(ref), adapter.answer(ref, {"q": YES})):
                with pytest.raises(ExecutionNotFound):
                    await verb


async def test_what_a_server_asks_of_a_model_is_no_question_for_people() -> None:
    server = modern()
    sampling: Mapping[str, Any] = {"method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 10}}
    async with server.served() as url, adapter_of({"url": url}) as adapter:
        ref = await started(adapter, "it")
        server.replies["tasks/get"] = {"taskId": "t-1", "status": "input_required", "inputRequests": {"s": sampling}}
        seen = await adapter.describe(ref)
        assert (seen.status, seen.requests) == (Status.RUNNING, {})
