"""The MCP adapter keeps the contract of adapters, over HTTP, for each guarantee."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from mcp_workflows_mcp import McpAdapter

from adapters.mcp.tests.support import ACTIONS, FIND, http, served
from mcp_workflows.adapter import JSON, Adapter, Limited, MessageRole, Ref, Start, StartGuarantee, Status
from mcp_workflows.kit.tooling import Checks
from mcp_workflows.testing import AdapterContract, Role, Subject, lossy_proxy

UNKNOWN = '{"v":1,"kind":"split","run":"none","workflow":"echo","at":0,"definition":"x","reply":null}'


def subject_of(
    new_adapter: Callable[[], McpAdapter], unreachable: Callable[[], McpAdapter], losing_replies: Any = None
) -> Subject:
    return Subject(
        new_adapter=new_adapter,
        finishes=Role(workflow="echo", arguments=[{"text": "hi"}]),
        output={"text": "hi"},
        other_arguments=[{"text": "ho"}],
        fails=Role(workflow="decline"),
        failure="the card was declined",
        endless=Role(workflow="forever"),
        asks=Role(workflow="ask"),
        asks_two=Role(workflow="ask-two"),
        content={"answer": "yes"},
        refused=Role(workflow="nobody-wrote-this"),
        unknown_handle=UNKNOWN,
        unreachable=unreachable,
        secret="s3cret-token",
        losing_replies=losing_replies,
    )


@asynccontextmanager
async def over_http(state: Path, *, dedupes: bool = True, **more: Any) -> AsyncGenerator[Subject]:
    async with served(state, dedupes=dedupes) as url, lossy_proxy(int(urlsplit(url).port or 0)) as lossy:
        there = f"http://127.0.0.1:{lossy.port}/mcp"

        @asynccontextmanager
        async def losing_replies(adapter: Adapter) -> AsyncGenerator[None]:
            assert isinstance(adapter, McpAdapter)
            await adapter.tooling.check_engine()  # it is connected by now: the reply of the start is lost, and no other
            async with lossy.losing():
                yield

        def unreachable() -> McpAdapter:
            return http("http://127.0.0.1:1/mcp", **{**more, "auth": {"bearer": "s3cret-token"}})

        async def received(_: Adapter, ref: Ref) -> Sequence[JSON]:
            job = json.loads(await anyio.Path(state).read_text())[json.loads(ref.handle)["run"]]
            return list(job.get("notes", {}).values())

        role = MessageRole(receiver=Role(workflow="forever"), settings={"tool": "note_job"}, received=received)
        subject = subject_of(lambda: http(there, timeout="4s", **more), unreachable, losing_replies)
        yield replace(subject, messages=role if "actions" in more else None)


WITHOUT_QUESTIONS = frozenset({"has_stopped", "asks", "asks_two"})
"""Questions are the same whatever a start guarantees: `TestKeyed` has their laws."""


class TestKeyed(AdapterContract):
    """A server over HTTP that dedupes by key."""

    capabilities = frozenset({Checks, Limited, MessageRole})

    @pytest.fixture
    async def subject(self, tmp_path: Path) -> AsyncIterator[Subject]:
        async with over_http(tmp_path / "jobs.json", actions=ACTIONS) as subject:
            yield subject


class TestFindable(AdapterContract):
    """A server over HTTP that takes no notice of keys, with a tool that lists executions."""

    starts = StartGuarantee.FINDABLE
    capabilities = frozenset({Checks, Limited})
    lacks = WITHOUT_QUESTIONS

    @pytest.fixture
    async def subject(self, tmp_path: Path) -> AsyncIterator[Subject]:
        async with over_http(tmp_path / "jobs.json", dedupes=False, starts="findable", find=FIND) as subject:
            yield replace(subject, asks=None, asks_two=None)


class TestOnce(AdapterContract):
    """A server over HTTP that promises nothing."""

    starts = StartGuarantee.ONCE
    capabilities = frozenset({Checks, Limited})
    lacks = WITHOUT_QUESTIONS

    @pytest.fixture
    async def subject(self, tmp_path: Path) -> AsyncIterator[Subject]:
        async with over_http(tmp_path / "jobs.json", dedupes=False, starts="once") as subject:
            yield replace(subject, asks=None, asks_two=None)

    async def test_a_start_whose_reply_was_lost_is_found_again(self, subject: Subject, adapter: Adapter) -> None:
        """A late reply still counts, so the call is a handle; when the connection is lost, its outcome is unknown."""
        assert subject.losing_replies is not None
        order = Start(workflow="echo", arguments=[{"text": "hi"}], key="lost", created=datetime.now(UTC))
        async with subject.losing_replies(adapter):
            handle = await adapter.start(order)
        ref = Ref(workflow="echo", handle=handle)
        with anyio.fail_after(60):
            while not (seen := await adapter.describe(ref)).terminal:
                await anyio.sleep(0.05)
        assert (seen.status, seen.failure and seen.failure.kind) == (Status.FAILED, "OutcomeUnknown")
