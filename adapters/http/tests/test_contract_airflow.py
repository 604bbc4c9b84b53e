"""The preset `airflow` keeps the contract on a real Airflow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import anyio
import pytest
from mcp_workflows_http import HttpAdapter

from adapters.http.tests.airflow_engine import Airflow
from adapters.http.tests.real import subject_of
from mcp_workflows.adapter import Adapter, Execution, HasLogs, Limited, Progress, Status
from mcp_workflows.kit.tooling import Checks
from mcp_workflows.testing import AdapterContract, Role, Subject
from mcp_workflows.testing.laws import (
    cancelled_afterwards,
    new_start,
    ref_of,
    see_end,
    see_questions,
    until,
    until_ended,
)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send one change at a time, as Airflow on SQLite can take no more.

    Its API commits in the event loop (`action_logging`), which then waits for the lock of a request that waits for the
    event loop, until SQLite's time-out.
    """
    lock = anyio.Lock()

    def locked(send: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def alone(*arguments: Any) -> Any:
            async with lock:
                return await send(*arguments)

        return alone

    for verb in ("start", "answer", "cancel"):
        monkeypatch.setattr(HttpAdapter, verb, locked(getattr(HttpAdapter, verb)))


class TestAirflow(AdapterContract):
    """KEYED: by the id of a run of a DAG."""

    capabilities = frozenset({Checks, HasLogs, Limited})

    @pytest.fixture
    async def subject(self, airflow: Airflow) -> AsyncIterator[Subject]:
        roles: dict[str, Any] = {
            "finishes": Role(workflow="echo", arguments=[{"text": "hi"}], options={"options": {"result": "say"}}),
            "output": {"text": "hi"},
            "other_arguments": [{"text": "ho"}],
            "fails": Role(workflow="decline"),
            "failure": "the card was declined",
            "endless": Role(workflow="forever"),
            "asks": Role(workflow="ask", options={"options": {"result": "approve"}}),
            "asks_two": Role(workflow="ask-two"),
            "content": {"option": "Approve"},
            "refused": Role(workflow="nobody-wrote-this"),
            "unknown_handle": '{"v":1,"run":"mcp-none","workflow":"echo","at":0,"vars":{},"definition":"x"}',
        }
        output = {"output": "{{more.result.body.value}}"}
        async with subject_of(airflow.url, roles, preset="airflow", describe=output) as subject:
            yield subject

    async def test_another_workflow_under_the_same_key_is_refused(self, subject: Subject, adapter: Adapter) -> None:
        """Airflow keeps the runs of each DAG apart: the key starts the other DAG."""
        start = new_start(subject.finishes)
        other = replace(new_start(subject.fails), key=start.key)
        assert await adapter.start(start) != await adapter.start(other)

    async def test_a_failure_names_the_task_and_has_the_end_of_its_log(
        self, subject: Subject, adapter: Adapter
    ) -> None:
        seen = await see_end(subject, adapter, subject.fails)
        assert seen.failure is not None
        name, *log = seen.failure.text.splitlines()
        assert (name, set(log)) == ("charge", {"4242 4242 is charged", "ValueError: the card was declined"})
        assert seen.progress == Progress(value=1, total=2)
        assert [(step.name, step.status) for step in seen.steps] == [
            ("say", Status.SUCCEEDED),
            ("charge", Status.FAILED),
        ]

    async def test_a_run_tells_the_task_that_runs_now(self, subject: Subject, adapter: Adapter) -> None:
        async with cancelled_afterwards(subject, adapter, new_start(subject.endless)) as ref:
            seen = await until(subject, adapter, ref, lambda now: now.message is not None)
            assert (seen.message, seen.progress) == ("stage 1 of 1: wait", Progress(value=0, total=1))

    async def test_cancelling_a_run_that_has_succeeded_does_not_rewrite_it(
        self, airflow: Airflow, subject: Subject, adapter: Adapter
    ) -> None:
        start = new_start(subject.finishes)
        ref = ref_of(start, await adapter.start(start))
        ended = await until_ended(subject, adapter, ref)
        await adapter.cancel(ref)
        assert airflow.read(f"dags/echo/dagRuns/{ended.execution_id}")["state"] == "success"

    async def test_the_params_of_a_task_are_fields_and_what_is_left_out_has_its_default(
        self, subject: Subject, adapter: Adapter
    ) -> None:
        role = Role(workflow="enter", options={"options": {"result": "enter"}})
        ref, seen = await see_questions(subject, adapter, role)
        [(key, question)] = seen.requests.items()
        assert question.params["requestedSchema"] == {
            "type": "object",
            "properties": {
                "amount": {"type": "integer", "minimum": 1, "description": "How many", "default": 1},
                "note": {"type": "string", "title": "Note"},
                "urgent": {"type": "boolean", "default": False},
            },
            "required": [],
        }
        await adapter.answer(ref, {key: {"action": "accept", "content": {"amount": 3}}})
        ended = chosen(await until_ended(subject, adapter, ref))
        assert (ended["chosen_options"], ended["params_input"]) == (
            ["OK"],
            {"amount": 3, "note": None, "urgent": False},
        )


def chosen(ended: Execution) -> dict[str, Any]:
    """What Airflow kept of the answer."""
    assert ended.status is Status.SUCCEEDED
    return cast("dict[str, Any]", ended.output)
