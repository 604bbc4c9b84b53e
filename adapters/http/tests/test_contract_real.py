"""The presets keep the contract on the real thing: Buildbot and Toil."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from adapters.http.tests.buildbot_engine import Buildbot
from adapters.http.tests.listing import ListingContract
from adapters.http.tests.real import subject_of
from adapters.http.tests.toil_engine import Toil
from mcp_workflows.adapter import Adapter, DescribesMany, HasLogs, Limited, Ref, StartGuarantee, Status
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows.kit.tooling import Checks
from mcp_workflows.testing import AdapterContract, Role, Subject
from mcp_workflows.testing.laws import new_start, ref_of, until_ended

pytestmark = pytest.mark.process


@pytest.mark.slow  # test_log_resource.py tries it
class TestBuildbot(ListingContract):
    """FINDABLE: the key is in the reason of the build."""

    starts = StartGuarantee.FINDABLE
    capabilities = frozenset({Checks, HasLogs, Limited, DescribesMany})
    lacks = frozenset({"asks", "asks_two", "has_stopped"})

    @pytest.fixture
    async def subject(self, buildbot: Buildbot) -> AsyncIterator[Subject]:
        output = {"output": {"text": "{{more.builds.body.builds[-1].properties.text[0]}}"}}
        roles: dict[str, Any] = {
            "finishes": Role(workflow="echo", arguments=[{"text": "hi"}]),
            "output": {"text": "hi"},
            "other_arguments": [{"text": "ho"}],
            "fails": Role(workflow="decline"),
            "failure": "the card was declined",
            "endless": Role(workflow="forever"),
            "refused": Role(workflow="nobody-wrote-this"),
            "unknown_handle": '{"v":1,"run":"999","workflow":"echo","at":0,"vars":{},"definition":"x"}',
        }
        async with subject_of(buildbot.url, roles, preset="buildbot", describe=output) as subject:
            yield subject

    async def test_a_build_that_is_cancelled_as_it_begins_ends(self, subject: Subject, adapter: Adapter) -> None:
        """Buildbot 4.3 never ends one whose request is cancelled between its claim and its first step."""
        for milliseconds in range(0, 200, 10):
            start = new_start(subject.endless)
            ref = ref_of(start, await adapter.start(start))
            await anyio.sleep(milliseconds / 1000)
            await cancel_until_taken(subject, adapter, ref)
            assert (await until_ended(subject, adapter, ref)).status is Status.CANCELLED


async def cancel_until_taken(subject: Subject, adapter: Adapter, ref: Ref) -> None:
    """Cancel as the core does: a cancellation that gets no answer in time is sent again."""
    with anyio.fail_after(subject.timeout):
        while True:
            try:
                return await adapter.cancel(ref)
            except EngineUnavailable:
                await anyio.sleep(0.1)


@pytest.mark.slow  # the test below tries it
class TestToil(AdapterContract):
    """ONCE: WES has no key for a start."""

    starts = StartGuarantee.ONCE
    capabilities = frozenset({Checks, HasLogs, Limited})
    lacks = frozenset({"asks", "asks_two", "has_stopped", "refused"})

    @pytest.fixture
    async def subject(self, toil: Toil) -> AsyncIterator[Subject]:
        async with on_toil(toil) as subject:
            yield subject


@asynccontextmanager
async def on_toil(toil: Toil) -> AsyncGenerator[Subject]:
    roles: dict[str, Any] = {
        "finishes": Role(workflow=toil.workflow("echo"), arguments=[{"text": "hi"}]),
        "output": {"said": "said.txt"},
        "other_arguments": [{"text": "ho"}],
        "fails": Role(workflow=toil.workflow("decline")),
        "failure": "the card was declined",
        "endless": Role(workflow=toil.workflow("forever")),
        "unknown_handle": '{"v":1,"run":"run-none","workflow":"echo","at":0,"vars":{},"definition":"x"}',
    }
    output = {"output": {"said": "{{reply.body.outputs.said.basename}}"}}
    async with subject_of(toil.url, roles, preset="wes", describe=output) as subject:
        yield subject


@pytest.mark.anyio
async def test_a_run_of_toil_ends_with_its_output(toil: Toil) -> None:
    async with on_toil(toil) as subject, subject.new_adapter() as adapter:
        start = new_start(subject.finishes)
        seen = await until_ended(subject, adapter, ref_of(start, await adapter.start(start)))
    assert (seen.status, seen.output) == (Status.SUCCEEDED, subject.output)
