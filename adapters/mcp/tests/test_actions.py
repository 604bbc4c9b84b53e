"""Messages to the executions of a server: tools that tasks take as actions."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from mcp_workflows_mcp import McpAdapter

from adapters.mcp.tests.support import ACTIONS
from adapters.mcp.tests.test_contract import over_http
from mcp_workflows.adapter import JSON, Execution, Ref, Start, StartGuarantee, Status
from mcp_workflows.errors import EngineRefused

pytestmark = pytest.mark.anyio


async def message(adapter: McpAdapter, name: str, *arguments: JSON) -> Start:
    """Return a message to a job that runs."""
    start = Start(workflow="forever", arguments=[{}], key="k", created=datetime.now(UTC))
    target = await adapter.start(start)
    return replace(start, options={"tool": name}, arguments=list(arguments), target=target)


async def outcome(adapter: McpAdapter, order: Start) -> Execution:
    """Send a message, and return its outcome."""
    ref = Ref(workflow="", handle=await adapter.start(order), options=order.options)
    with anyio.fail_after(60):
        while not (seen := await adapter.describe(ref)).terminal:
            await anyio.sleep(0.05)
    return seen


async def test_the_result_of_the_tool_is_that_of_the_action(tmp_path: Path) -> None:
    async with over_http(tmp_path / "jobs.json", actions=ACTIONS) as subject, subject.new_adapter() as adapter:
        assert isinstance(adapter, McpAdapter)
        order = await message(adapter, "tell", {"text": "hi"})
        assert adapter.promise(order.options) is StartGuarantee.ONCE
        assert adapter.promise({"tool": "note_job"}) is StartGuarantee.KEYED
        seen = await outcome(adapter, order)
        assert (seen.status, seen.output["structuredContent"]) == (Status.SUCCEEDED, {"notes": 1})
        failed = await outcome(adapter, replace(order, arguments=[{"text": "nonsense"}]))
        assert failed.failure is not None
        assert "I do not understand" in failed.failure.text
        with pytest.raises(EngineRefused, match=r"no message shout \(actions: note_job, tell\)"):
            await adapter.start(replace(order, options={"tool": "shout"}))
        await adapter.cancel(Ref(workflow="forever", handle=order.target or ""))
        with pytest.raises(EngineRefused, match="409: it has ended"):
            await adapter.start(order)
        assert (await adapter.tooling.check_engine()).ok


async def test_a_message_without_a_key_whose_reply_is_lost_is_unknown(tmp_path: Path) -> None:
    async with over_http(tmp_path / "jobs.json", actions=ACTIONS) as subject, subject.new_adapter() as adapter:
        assert isinstance(adapter, McpAdapter)
        assert subject.losing_replies is not None
        order = await message(adapter, "tell", {"text": "hi"})
        async with subject.losing_replies(adapter):
            handle = await adapter.start(order)
        ref = Ref(workflow="", handle=handle, options=order.options)
        with anyio.fail_after(60):
            while not (seen := await adapter.describe(ref)).terminal:
                await anyio.sleep(0.05)
        assert (seen.status, seen.failure and seen.failure.kind) == (Status.FAILED, "OutcomeUnknown")
        assert (await anyio.Path(tmp_path / "jobs.json").read_text()).count('"hi"') == 1
