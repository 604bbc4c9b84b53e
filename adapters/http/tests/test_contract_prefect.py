"""The preset `prefect` keeps the contract on a real Prefect."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp_workflows_http import HttpAdapter

from adapters.http.tests.listing import ListingContract
from adapters.http.tests.prefect_engine import Prefect
from adapters.http.tests.real import subject_of
from mcp_workflows.adapter import Adapter, DescribesMany, HasLogs, Limited, Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows.kit.tooling import Checks
from mcp_workflows.testing import Role, Subject
from mcp_workflows.testing.laws import new_start, see_questions, until, until_ended

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat what Prefect answers 503 to, as the core does: on SQLite that is any write that collides with another."""

    def repeating(send: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def repeated(*arguments: Any) -> Any:
            while True:
                try:
                    return await send(*arguments)
                except EngineUnavailable as error:
                    if "503" not in str(error):
                        raise
                await anyio.sleep(random.uniform(0.05, 0.5))

        return repeated

    for verb in ("start", "answer", "cancel"):
        monkeypatch.setattr(HttpAdapter, verb, repeating(getattr(HttpAdapter, verb)))


class TestPrefect(ListingContract):
    """KEYED: by the idempotency key of a flow."""

    capabilities = frozenset({Checks, HasLogs, Limited, DescribesMany})
    lacks = frozenset({"asks_two", "has_stopped"})

    @pytest.fixture
    async def subject(self, prefect: Prefect) -> AsyncIterator[Subject]:
        options: dict[str, Any] = {"options": {"result": "result"}}
        roles: dict[str, Any] = {
            "finishes": Role(workflow=prefect.deployment("echo"), arguments=[{"text": "hi"}], options=options),
            "output": {"text": "hi"},
            "other_arguments": [{"text": "ho"}],
            "fails": Role(workflow=prefect.deployment("decline")),
            "failure": "the card was declined",
            "endless": Role(workflow=prefect.deployment("forever")),
            "asks": Role(workflow=prefect.deployment("ask")),
            "content": {"answer": "yes"},
            "refused": Role(workflow="00000000-0000-0000-0000-000000000000"),
            "unknown_handle": '{"v":1,"run":"00000000-0000-0000-0000-000000000000","workflow":"echo","at":0,'
            '"vars":{},"definition":"x"}',
        }
        output = {"output": {"text": "{{more.result.body[0].data}}"}}
        async with subject_of(prefect.url, roles, preset="prefect", describe=output) as subject:
            yield subject

    async def test_another_workflow_under_the_same_key_is_refused(self, subject: Subject, adapter: Adapter) -> None:
        """Prefect keeps the keys of each flow apart: the key starts the other workflow."""
        start = new_start(subject.finishes)
        other = replace(new_start(subject.fails), key=start.key)
        assert await adapter.start(start) != await adapter.start(other)

    async def test_a_run_ends_with_its_answer_and_tells_its_steps(
        self, prefect: Prefect, subject: Subject, adapter: Adapter
    ) -> None:
        role = Role(workflow=prefect.deployment("approve"), options={"options": {"result": "result"}})
        ref, _ = await see_questions(subject, adapter, role)
        seen = await until(  # Prefect saves the text after the schema
            subject, adapter, ref, lambda now: "Ship it?" in {each.params["message"] for each in now.requests.values()}
        )
        [(key, question)] = seen.requests.items()
        assert question.params["requestedSchema"]["required"] == ["answer"]
        with pytest.raises(EngineRefused, match="'answer' is a required property"):
            await adapter.answer(ref, {key: {"action": "accept", "content": {}}})
        await adapter.answer(ref, {key: {"action": "accept", "content": {"answer": "yes"}}})
        ended = await until_ended(subject, adapter, ref)
        assert (ended.status, ended.output) == (Status.SUCCEEDED, {"text": "yes"})
        told = await until(subject, adapter, ref, lambda now: {Status.SUCCEEDED} == {each.status for each in now.steps})
        assert [step.name.split("-")[0] for step in told.steps] == ["write"]

    async def test_a_pause_without_a_form_goes_on_once_accepted(
        self, prefect: Prefect, subject: Subject, adapter: Adapter
    ) -> None:
        ref, seen = await see_questions(subject, adapter, Role(workflow=prefect.deployment("hold")))
        [(key, question)] = seen.requests.items()
        assert question.params["requestedSchema"] == {"type": "object", "properties": {}}
        await adapter.answer(ref, {key: {"action": "accept", "content": {}}})
        assert (await until_ended(subject, adapter, ref)).status is Status.SUCCEEDED
