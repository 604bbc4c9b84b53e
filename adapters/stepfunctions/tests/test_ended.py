"""What has ended, as ListExecutions tells it: by the end, of a version or an alias, and how far a list is read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter, StepFunctionsSettings
from mcp_workflows_stepfunctions.tooling import discover

from adapters.stepfunctions.tests import cloud
from adapters.stepfunctions.tests.injecting import Answer, error, injecting
from mcp_workflows.adapter import EndedExecution, Status
from mcp_workflows.errors import EngineRefused
from tests.support.stepfunctions_engine import StepFunctions

pytestmark = pytest.mark.anyio

BEGAN = datetime(2026, 1, 31, 3, tzinfo=UTC)
MACHINE = "arn:aws:states:eu-west-1:123456789012:stateMachine:billing"


def row(name: str, minute: int, status: str = "SUCCEEDED", *, hours: int = 0) -> dict[str, Any]:
    """A row of an execution that ended in this minute, so many hours after it began; a running one began then."""
    at = BEGAN + timedelta(minutes=minute)
    ended = {} if status == "RUNNING" else {"stopDate": at.timestamp()}
    arn = f"{MACHINE.replace('stateMachine', 'execution')}:{name}"
    began = (at - timedelta(hours=hours)).timestamp()
    return {
        "executionArn": arn,
        "stateMachineArn": MACHINE,
        "name": name,
        "status": status,
        "startDate": began,
        **ended,
    }


async def listed(*pages: list[dict[str, Any]], minute: int = 0) -> tuple[list[str], int]:
    """The names of what ended in this minute or later, and the number of calls."""
    replies = [Answer(body={"executions": page, "nextToken": "more"}) for page in pages[:-1]]
    with injecting() as server:
        server.tell("ListExecutions", *replies, Answer(body={"executions": pages[-1]}))
        settings = StepFunctionsSettings.model_validate({"region": "eu-west-1", "endpoint_url": server.url})
        async with StepFunctionsAdapter(settings) as adapter:
            found = await adapter.list_ended(MACHINE, BEGAN + timedelta(minutes=minute))
        assert all(each.ended.utcoffset() == timedelta() and each.handle == each.execution_id for each in found)
        return [each.handle.rpartition(":")[2] for each in found], server.counts["ListExecutions"]


async def test_a_list_is_read_to_the_first_page_with_an_earlier_end() -> None:
    pages = (
        [row("d", 9), row("running", 8, "RUNNING"), row("c", 7)],
        [row("b", 6, hours=30), row("long", -1, "RUNNING"), row("early", -2)],
        [row("unread", -3)],
    )
    assert await listed(*pages) == (["b", "c", "d"], 2)


async def test_a_running_execution_of_long_ago_ends_no_list() -> None:
    """It is not documented if running executions stand among the others, or before them."""
    pages = ([row("long", -90, "RUNNING")], [row("b", 9), row("a", 8)])
    assert await listed(*pages) == (["a", "b"], 2)


async def test_an_execution_on_two_pages_is_told_once() -> None:
    """It may be pushed to the next page between two calls."""
    assert await listed([row("b", 9), row("a", 8)], [row("a", 8)]) == (["a", "b"], 2)


async def test_of_more_than_fit_the_earliest_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discover, "MOST_ENDED", 2)
    pages = ([row("d", 9), row("c", 8)], [row("b", 7), row("a", 6)])
    assert await listed(*pages) == (["a", "b"], 2)
    assert await listed(*pages, minute=7) == (["b", "c"], 2)


async def test_a_list_that_is_read_no_further_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(discover, "MOST_LISTED", 2)
    assert await listed([row("d", 9), row("c", 8)], [row("b", 7)]) == (["c", "d"], 1)
    assert "only the latest 2 executions are looked at" in caplog.text


async def test_each_end_has_its_status() -> None:
    words = ("SUCCEEDED", "FAILED", "TIMED_OUT", "ABORTED", "PENDING_REDRIVE", "SLEEPING")
    with injecting() as server:
        server.tell("ListExecutions", Answer(body={"executions": [row(word, 1, word) for word in words]}))
        settings = StepFunctionsSettings.model_validate({"region": "eu-west-1", "endpoint_url": server.url})
        async with StepFunctionsAdapter(settings) as adapter:
            found = await adapter.list_ended(MACHINE, BEGAN)
            server.tell("ListExecutions", error("AccessDeniedException"))
            with pytest.raises(EngineRefused, match="states:ListExecutions"):
                await adapter.list_ended(MACHINE, BEGAN)
    seen = {each.handle.rpartition(":")[2]: each.status for each in found}
    assert seen == dict(zip(words, [Status.SUCCEEDED, Status.FAILED, Status.FAILED, Status.CANCELLED], strict=False))


async def test_a_version_or_alias_has_its_own_ends_and_the_machine_has_all(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions
) -> None:
    arn, client = stepfunctions.machine(cloud.ECHO), stepfunctions.client()
    version = client.publish_state_machine_version(stateMachineArn=arn)["stateMachineVersionArn"]
    routing = [{"stateMachineVersionArn": version, "weight": 100}]
    alias = client.create_state_machine_alias(name="PROD", routingConfiguration=routing)["stateMachineAliasArn"]
    names: list[str] = []
    for target in (arn, version, alias):
        names.append(client.start_execution(stateMachineArn=target, input="{}")["executionArn"])
        stepfunctions.ended(names[-1])
    since = datetime.now(UTC) - timedelta(minutes=1)

    async def handles(workflow: str) -> list[str]:
        return [each.handle for each in await adapter.list_ended(workflow, since)]

    assert await handles(arn) == await handles(arn.rpartition(":")[2]) == names
    assert (await handles(version), await handles(alias)) == (names[1:2], names[2:])


async def test_an_execution_that_was_redriven_ends_again(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions
) -> None:
    arn, since = stepfunctions.machine(cloud.DECLINES), datetime.now(UTC) - timedelta(minutes=1)
    execution = stepfunctions.client().start_execution(stateMachineArn=arn, input="{}")["executionArn"]
    ends: list[EndedExecution] = []
    for _ in range(2):
        stepfunctions.ended(execution)
        ends += await adapter.list_ended(arn, since)
        stepfunctions.client().redrive_execution(executionArn=execution)
    assert [each.handle for each in ends] == [execution] * 2
    assert all(before.ended < after.ended for before, after in pairwise(ends))


async def test_executions_of_an_express_machine_cannot_be_listed(
    adapter: StepFunctionsAdapter, stepfunctions: StepFunctions
) -> None:
    with pytest.raises(EngineRefused, match="Express"):
        await adapter.list_ended(stepfunctions.machine(cloud.ECHO, "EXPRESS"), BEGAN)
