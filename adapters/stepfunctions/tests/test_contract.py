"""StepFunctionsAdapter keeps the laws of the boundary."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache

import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter, StepFunctionsSettings

from adapters.stepfunctions.tests import cloud
from adapters.stepfunctions.tests.cloud import new_queue, settings
from mcp_workflows.adapter import Adapter, Adopts, DescribesMany, Hints, Limited, ListsEnded, Status, Terminates
from mcp_workflows.kit.tooling import Checks, Explains, Exposes
from mcp_workflows.testing import LossyProxy, Role, Subject, lossy_proxy
from mcp_workflows.testing.laws import see_questions
from tests.support.child_processes import free_port
from tests.support.cloud_suites import CloudContract
from tests.support.stepfunctions_engine import StepFunctions


class TestStepFunctionsAdapter(CloudContract):
    """Against the local engine, through a proxy that can lose replies."""

    capabilities = frozenset({Adopts, Checks, Explains, Exposes, Hints, Limited, ListsEnded, DescribesMany, Terminates})

    @pytest.fixture
    async def subject(self, anyio_backend: str, stepfunctions: StepFunctions) -> AsyncIterator[Subject]:
        async with lossy_proxy(stepfunctions.port) as proxy:
            yield tell(proxy, stepfunctions)

    async def test_describe_many_shows_questions(self, subject: Subject, adapter: Adapter) -> None:
        """ListExecutions knows no questions: they are seen by a look, or told by an event. See test_hints.py."""
        assert isinstance(adapter, StepFunctionsAdapter)
        ref, seen = await see_questions(subject, adapter, subject.asks)
        (swept,) = (await adapter.describe_many([ref])).values()
        await adapter.cancel(ref)
        assert (seen.status, swept.status) == (Status.INPUT_REQUIRED, Status.RUNNING)
        assert not swept.requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What is deployed once for all tests: state machines by the part they play, and a queue of status events."""

    echo: str
    declines: str
    asks: str
    asks_two: str
    forever: str
    queue: str


@cache
def deployed(engine: StepFunctions) -> Parts:
    queue, events = new_queue(engine), engine.client("events")
    rule = queue.rpartition("/")[2]
    events.put_rule(Name=rule, EventPattern=json.dumps({"source": ["aws.states"]}))
    events.put_targets(Rule=rule, Targets=[{"Id": "1", "Arn": f"arn:aws:sqs:{engine.region}:{engine.account}:{rule}"}])
    return Parts(
        echo=engine.machine(cloud.ECHO, tags=[{"key": "mcp:contract", "value": "true"}]),
        declines=engine.machine(cloud.DECLINES),
        asks=engine.machine(cloud.ASKS),
        asks_two=engine.machine(cloud.ASKS_TWO),
        forever=engine.machine(cloud.FOREVER),
        queue=queue,
    )


def tell(proxy: LossyProxy, engine: StepFunctions) -> Subject:
    parts = deployed(engine)
    here = settings(
        engine,
        endpoint_url=f"http://127.0.0.1:{proxy.port}",
        timeout_seconds=8,
        events={"queue_url": parts.queue},
        discover={"tag": "mcp:contract=true"},
    )
    nowhere = StepFunctionsSettings.model_validate(
        {"endpoint_url": f"http://127.0.0.1:{free_port()}", "region": engine.region, "timeout_seconds": 3}
    )

    @asynccontextmanager
    async def losing_replies(adapter: Adapter) -> AsyncGenerator[None]:
        assert isinstance(adapter, StepFunctionsAdapter)
        assert (await adapter.tooling.check(parts.echo, {})).ok  # so that only the reply of the start is to be lost
        async with proxy.losing():
            yield

    return Subject(
        new_adapter=lambda: StepFunctionsAdapter(here),
        finishes=Role(workflow=parts.echo, arguments=[{"text": "hi"}]),
        output={"text": "hi"},
        other_arguments=[{"text": "ho"}],
        fails=Role(workflow=parts.declines),
        failure="the card was declined",
        asks=Role(workflow=parts.asks),
        asks_two=Role(workflow=parts.asks_two),
        content={"answer": "yes"},
        endless=Role(workflow=parts.forever),
        refused=Role(workflow=f"{parts.echo}-nobody-created"),
        unknown_handle=f"arn:aws:states:{engine.region}:{engine.account}:execution:nobody:nothing",
        unreachable=lambda: StepFunctionsAdapter(nowhere),
        losing_replies=losing_replies,
    )
