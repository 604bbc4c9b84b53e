"""The HTTP adapter keeps the contract of adapters, for each guarantee that an API can give."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from mcp_workflows_http import HttpAdapter, HttpSettings
from mcp_workflows_http.adapter import SweepingHttpAdapter

from adapters.http.tests.jobs_api import DEFINITION, FIND, LIST, jobs_api
from mcp_workflows.adapter import Adapter, Ref, Status
from mcp_workflows.testing import AdapterContract, Role, Subject, lossy_proxy
from mcp_workflows.testing.subject import cancelled_afterwards, new_start, ref_of, see_questions, until_ended


def adapter_at(url: str, **more: Any) -> HttpAdapter:
    return HttpAdapter(HttpSettings.model_validate({**DEFINITION, "url": url, **more}))


def subject_of(url: str, lossy: Any, **more: Any) -> Subject:
    @asynccontextmanager
    async def losing_replies(adapter: Adapter) -> AsyncGenerator[None]:
        async with lossy.losing():
            yield

    return Subject(
        new_adapter=lambda: adapter_at(url, **more),
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
        unknown_handle='{"v":1,"run":"none","workflow":"echo","at":0,"vars":{},"definition":"x"}',
        unreachable=lambda: adapter_at("http://127.0.0.1:1", **{**more, "auth": {"bearer": "s3cret"}}),
        secret="s3cret",
        losing_replies=losing_replies,
    )


class TestKeyed(AdapterContract):
    """An API that dedupes by key."""

    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        async with jobs_api() as (_, url), lossy_proxy(int(urlsplit(url).port or 0)) as lossy:
            yield subject_of(f"http://127.0.0.1:{lossy.port}", lossy, starts="keyed", timeout="4s")


class TestFindable(AdapterContract):
    """An API that takes no notice of keys, with a list in which they are found."""

    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        async with jobs_api(dedupes=False) as (_, url), lossy_proxy(int(urlsplit(url).port or 0)) as lossy:
            yield subject_of(f"http://127.0.0.1:{lossy.port}", lossy, starts="findable", find=FIND, timeout="4s")


class TestSwept(AdapterContract):
    """An API that dedupes by key, and lists those that run."""

    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        async with jobs_api() as (_, url), lossy_proxy(int(urlsplit(url).port or 0)) as lossy:
            sweep = {**LIST, "status": "{{item.state}}", "asking": "{{item.questions}}"}
            yield subject_of(f"http://127.0.0.1:{lossy.port}", lossy, starts="keyed", sweep=sweep, timeout="4s")

    async def test_a_sweep_sees_what_describe_sees_by_handle(self, subject: Subject, adapter: Adapter) -> None:
        """The list tells who runs; who has ended is left out, and then described."""
        assert isinstance(adapter, SweepingHttpAdapter)
        ended = new_start(subject.finishes)
        over = ref_of(ended, await adapter.start(ended))
        await until_ended(subject, adapter, over)
        async with cancelled_afterwards(subject, adapter, new_start(subject.endless)) as ref:
            swept = await adapter.describe_many([ref, over, Ref(workflow="", handle=subject.unknown_handle)])
        assert {handle: seen.status for handle, seen in swept.items()} == {ref.handle: Status.RUNNING}

    async def test_a_sweep_shows_questions(self, subject: Subject, adapter: Adapter) -> None:
        """No list shows questions: an execution that may ask is left out, and then described."""
        assert isinstance(adapter, SweepingHttpAdapter)
        ref, _ = await see_questions(subject, adapter, subject.asks)
        assert await adapter.describe_many([ref]) == {}


class TestOnce(AdapterContract):
    """An API that promises nothing."""

    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        async with jobs_api(dedupes=False) as (_, url), lossy_proxy(int(urlsplit(url).port or 0)) as lossy:
            yield subject_of(f"http://127.0.0.1:{lossy.port}", lossy, starts="once", timeout="4s")
