"""The policy has what the adapter calls, and nothing else: everything it can do is done once, and watched."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import anyio
from mcp_workflows_stepfunctions import StepFunctionsAdapter

from adapters.stepfunctions.tests import machines
from adapters.stepfunctions.tests.looks import PATIENCE, until_asked, until_ended
from adapters.stepfunctions.tests.queues import arn, event, left_in, new_queue, send
from adapters.stepfunctions.tests.scene import settings
from mcp_workflows.adapter import Gate, InputRequest, Ref, Start
from mcp_workflows.kit.tooling import Use
from tests.support.stepfunctions_engine import StepFunctions

SERVICES: Final[Mapping[str, str]] = {"stepfunctions": "states", "sqs": "sqs", "resourcegroupstaggingapi": "tag"}
NAMES: Final[Mapping[str, str]] = {"sqs:DeleteMessageBatch": "sqs:DeleteMessage"}  # one action for two operations
NOT_NEEDED: Final = frozenset({"sts:GetCallerIdentity", "states:ListStateMachines"})  # never denied; may be denied
GATE: Final[Mapping[str, Any]] = {
    "when": {"state": "Wait"},
    "send": {"output": {"ok": "{{answer.ok}}"}},
    "decline": {"error": "Rejected"},
}

WAIT_ENTRY: Final = {
    "Source": "shop",
    "DetailType": "Approval",
    "Detail": {"cb.$": "$$.Task.Token", "executionArn.$": "$$.Execution.Id"},
}


def watch(adapter: StepFunctionsAdapter, used: set[str]) -> None:
    """Note what is called, before it is sent."""
    clients = adapter._opened.client._clients  # pyright: ignore[reportPrivateUsage]

    def note(model: Any, **_: Any) -> None:
        service = str(model.service_model.service_name)
        name = f"{SERVICES.get(service, service)}:{model.name}"
        used.add(NAMES.get(name, name))

    made: tuple[Any, ...] = (clients.states, clients.sync, clients.sts, clients.queue, clients.tagging)
    for client in filter(None, made):
        client.meta.events.register("before-call", note)


def plan(workflow: str, **more: Any) -> Start:
    return Start(workflow=workflow, arguments=[], key=uuid.uuid4().hex, created=datetime.now(UTC), **more)


async def start(adapter: StepFunctionsAdapter, workflow: str, gates: Mapping[str, Gate] | None = None) -> Ref:
    """Twice, as after a lost reply."""
    order = plan(workflow)
    assert await adapter.start(order) == await adapter.start(order)
    return Ref(workflow=workflow, handle=await adapter.start(order), gates=gates or {})


async def answer_and_cancel(adapter: StepFunctionsAdapter, workflow: str) -> None:
    """One of its executions is answered, another is cancelled."""
    first, second = [await start(adapter, workflow) for _ in range(2)]
    [key] = (await until_asked(adapter, first)).requests
    await adapter.answer(first, {key: {"action": "accept", "content": {"answer": "yes"}}})
    await until_ended(adapter, first)
    await adapter.describe_many([first, second])
    await adapter.tooling.explain(second)
    await adapter.cancel(second)
    await adapter.adopt(second.handle)


async def decline_at_gate(adapter: StepFunctionsAdapter, workflow: str) -> None:
    request = InputRequest(method="elicitation/create", params={"message": "ok?"})
    gate = Gate(when=GATE["when"], request=request, send=GATE["send"], decline=GATE["decline"])
    ref = await start(adapter, workflow, {"approve": gate})
    [key] = (await until_asked(adapter, ref)).requests
    await adapter.answer(ref, {key: {"action": "decline", "send": {"error": "Rejected"}}})
    await until_ended(adapter, ref)


async def hear(adapter: StepFunctionsAdapter, engine: StepFunctions, queue: str) -> None:
    """Of one message, until it is deleted."""
    heard: list[str] = []
    send(engine, queue, event(arn(engine, "one")))
    async with anyio.create_task_group() as group:
        group.start_soon(adapter.hints, heard.append)
        with anyio.fail_after(PATIENCE):
            while left_in(engine, queue):
                await anyio.sleep(0.02)
        group.cancel_scope.cancel()
    assert heard == [arn(engine, "one")]


async def test_everything_that_is_called_is_allowed_and_nothing_else(stepfunctions: StepFunctions) -> None:
    queue = new_queue(stepfunctions)
    tag = f"expose-{uuid.uuid4().hex[:8]}"
    waiting = machines.one_state("Wait", {**machines.asking("?"), "Parameters": {"Entries": [WAIT_ENTRY]}})
    asks, waits = stepfunctions.machine(machines.ASKS), stepfunctions.machine(waiting)
    quotes = stepfunctions.machine(machines.ECHO, type="EXPRESS", tags=[{"key": tag, "value": "true"}])
    aliased = with_alias(stepfunctions, asks)
    express = {"express": True}
    uses = [
        Use(tool="a", workflow=asks),
        Use(tool="b", workflow=aliased),
        Use(tool="c", workflow=quotes, options=express),
    ]
    uses.append(Use(tool="d", workflow=waits, gates={"approve": GATE}))
    used: set[str] = set()
    given = settings(stepfunctions, events={"queue_url": queue}, discover={"tag": f"{tag}=true"})
    async with StepFunctionsAdapter(given) as adapter:
        watch(adapter, used)
        await adapter.tooling.check_engine()
        for each in uses:
            assert (await adapter.tooling.check(each.workflow, each.options)).ok
            await adapter.tooling.verify(each.workflow, each.options, each.gates)
        await answer_and_cancel(adapter, asks)
        await start(adapter, aliased)
        await decline_at_gate(adapter, waits)
        handle = await adapter.start(plan(quotes, options=express))
        await until_ended(adapter, Ref(workflow=quotes, handle=handle, options=express))
        await hear(adapter, stepfunctions, queue)
        assert [found.workflow for found in await adapter.tooling.exposed()] == [quotes]
        policy = await adapter.tooling.permissions(uses)
    allowed = {action for statement in policy["Statement"] for action in statement["Action"]}
    assert used - NOT_NEEDED == allowed


def with_alias(engine: StepFunctions, machine: str) -> str:
    client = engine.client()
    version = client.publish_state_machine_version(stateMachineArn=machine)["stateMachineVersionArn"]
    routing = [{"stateMachineVersionArn": version, "weight": 100}]
    return str(client.create_state_machine_alias(name="PROD", routingConfiguration=routing)["stateMachineAliasArn"])
