"""The HTTP adapter keeps the contract of adapters, for each guarantee that an API can give."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from mcp_workflows_http import HttpAdapter, HttpSettings

from adapters.http.tests.jobs_api import ACTIONS, DEFINITION, FIND, LIST, jobs_api
from adapters.http.tests.listing import ListingContract
from mcp_workflows.adapter import JSON, Adapter, DescribesMany, Limited, MessageRole, Ref, StartGuarantee
from mcp_workflows.kit.tooling import Checks
from mcp_workflows.testing import AdapterContract, Role, Subject, lossy_proxy


def adapter_at(url: str, **more: Any) -> HttpAdapter:
    return HttpAdapter(HttpSettings.model_validate({**DEFINITION, "url": url, **more}))


@asynccontextmanager
async def subject_of(*, dedupes: bool = True, **more: Any) -> AsyncGenerator[Subject]:
    """The subject of an API that loses replies when it is told to."""
    async with jobs_api(dedupes=dedupes) as (api, there), lossy_proxy(int(urlsplit(there).port or 0)) as lossy:
        url = f"http://127.0.0.1:{lossy.port}"

        @asynccontextmanager
        async def losing_replies(adapter: Adapter) -> AsyncGenerator[None]:
            async with lossy.losing():
                yield

        async def received(_: Adapter, ref: Ref) -> Sequence[JSON]:
            notes = api.jobs[json.loads(ref.handle)["run"]].notes.values()
            assert {(note["of"], note["color"]) for note in notes} <= {("forever", "red")}
            return [note["text"] for note in notes]

        settings = {"request": "note", "options": {"color": "red"}}
        role = MessageRole(receiver=Role(workflow="forever"), settings=settings, received=received)

        yield Subject(
            messages=role if "actions" in more else None,
            new_adapter=lambda: adapter_at(url, timeout="4s", **more),
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


WITHOUT_QUESTIONS = frozenset({"has_stopped", "asks", "asks_two"})
"""Questions are the same whatever a start guarantees: `TestKeyed` has their laws."""


class TestKeyed(ListingContract):
    """An API that dedupes by key, and lists those that run."""

    capabilities = frozenset({Checks, Limited, DescribesMany, MessageRole})

    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        batch_status = {**LIST, "status": "{{item.state}}", "asking": "{{item.questions}}"}
        async with subject_of(starts="keyed", batch_status=batch_status, actions=ACTIONS) as subject:
            yield subject


class TestFindable(AdapterContract):
    """An API that takes no notice of keys, with a list in which they are found."""

    starts = StartGuarantee.FINDABLE
    capabilities = frozenset({Checks, Limited})
    lacks = WITHOUT_QUESTIONS

    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        async with subject_of(dedupes=False, starts="findable", find=FIND) as subject:
            yield replace(subject, asks=None, asks_two=None)


class TestOnce(AdapterContract):
    """An API that promises nothing."""

    starts = StartGuarantee.ONCE
    capabilities = frozenset({Checks, Limited})
    lacks = WITHOUT_QUESTIONS

    @pytest.fixture
    async def subject(self) -> AsyncIterator[Subject]:
        async with subject_of(dedupes=False, starts="once") as subject:
            yield replace(subject, asks=None, asks_two=None)
