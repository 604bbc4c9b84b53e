"""What Google seldom answers, and the local engine never: keys that are lost, lists that leave things out."""

# pyright: reportUnknownMemberType=false
# Reason: the messages of Google's client have no types.

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.cloud import workflows_v1 as wf
from google.cloud.workflows import executions_v1 as ev
from mcp_workflows_google.client import Client, open_client
from mcp_workflows_google.resources import ExecutionName
from mcp_workflows_google.settings import Discover
from mcp_workflows_google.tooling.check import check_engine, check_workflow, verify
from mcp_workflows_google.tooling.discover import LabelledWorkflows
from mcp_workflows_google.tooling.explain import explain

from adapters.google.tests.injecting import Fault, Injecting, Reply
from adapters.google.tests.stubbed import settings
from adapters.google.tests.test_expose import DRAFT, READS
from mcp_workflows.adapter import Execution, Status

pytestmark = pytest.mark.anyio

PLACE = "projects/acme-shop/locations/europe-west1"
DENIED = Fault(code="PERMISSION_DENIED", text="Permission 'workflows.workflows.list' denied on resource")
RUNNING = Execution(status=Status.RUNNING)
State = ev.Execution.State


@pytest.fixture
async def calls(stub: Injecting) -> AsyncIterator[Client]:
    async with open_client(settings(stub)) as calls:
        yield calls


def deployed(stub: Injecting, name: str, **more: Any) -> str:
    written: dict[str, Any] = {
        "state": wf.Workflow.State.ACTIVE,
        "labels": {"mcp-tool": "true"},
        "revision_id": "1",
        **more,
    }
    stub.workflows[f"{PLACE}/workflows/{name}"] = wf.Workflow(name=f"{PLACE}/workflows/{name}", **written)
    return f"{PLACE}/workflows/{name}"


def unavailable(stub: Injecting) -> str:
    lost = {"details": "the key is disabled", "type_": wf.Workflow.StateError.Type.KMS_ERROR}
    return deployed(stub, "lost", state=wf.Workflow.State.UNAVAILABLE, state_error=lost)


async def test_who_may_not_list_workflows_is_answered_all_the_same(stub: Injecting, calls: Client) -> None:
    stub.tell("ListWorkflows", DENIED)
    googles = settings(stub).model_copy(update={"emulator": None})  # a local engine has no permissions
    found = await check_engine(calls, googles)
    assert (found.ok, found.text.partition(";")[0]) == (True, f"Google Cloud Workflows answers in {PLACE}")
    stub.tell("ListWorkflows", *[Fault(code="UNAUTHENTICATED")] * 3)
    refused = await check_engine(calls, settings(stub))
    assert not refused.ok
    assert "does not accept our credentials" in refused.text


async def test_a_workflow_whose_key_is_lost_is_told_with_why(stub: Injecting, calls: Client) -> None:
    found = await check_workflow(calls, unavailable(stub))
    assert not found.ok
    assert found.text.startswith("workflow lost is UNAVAILABLE: ")
    assert found.text.endswith(": the key is disabled")
    future = await check_workflow(calls, deployed(stub, "future", state=9))
    assert future.text == "workflow future has a state that is not known yet (9)"


async def test_what_is_not_active_is_not_offered_and_the_log_says_so_once(
    stub: Injecting, calls: Client, caplog: pytest.LogCaptureFixture
) -> None:
    lost, _ = unavailable(stub), deployed(stub, "fine")
    exposing = LabelledWorkflows(calls, Discover())
    with caplog.at_level(logging.WARNING, "mcp_workflows_google.tooling.discover"):
        assert [[each.name for each in await exposing.exposed()] for _ in range(2)] == [["fine"], ["fine"]]
    assert caplog.text.count(f"{lost} is not offered: it is not ACTIVE") == 1


async def test_what_is_no_workflow_is_not_offered(
    stub: Injecting, calls: Client, caplog: pytest.LogCaptureFixture
) -> None:
    deployed(stub, "a/../b")
    with caplog.at_level(logging.WARNING, "mcp_workflows_google.tooling.discover"):
        assert await LabelledWorkflows(calls, Discover()).exposed() == []
    assert "that is no name of a workflow" in caplog.text


async def test_a_source_that_the_list_leaves_out_is_asked_for_once_a_revision(
    stub: Injecting, calls: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, whole = deployed(stub, "bare"), wf.Workflow(name="any", source_contents=READS)

    def get(request: wf.GetWorkflowRequest) -> wf.Workflow:
        return whole

    monkeypatch.setattr(stub, "get_workflow", get)  # the stub's own list has what it has
    exposing = LabelledWorkflows(calls, Discover())
    assert [[each.draft for each in await exposing.exposed()] for _ in range(3)] == [[DRAFT]] * 3
    assert stub.count("GetWorkflow") == 1
    stub.workflows[name].revision_id = "2"
    whole.source_contents = READS.replace("args.amount", "args.price")
    (shown,) = await exposing.exposed()
    assert shown.draft == {"type": "object", "properties": {"order_id": {}, "price": {}}}
    assert stub.count("GetWorkflow") == 2


async def test_a_source_that_cannot_be_had_leaves_the_tool_without_a_suggestion(stub: Injecting, calls: Client) -> None:
    name = deployed(stub, "bare")
    stub.tell("GetWorkflow", Fault(code="PERMISSION_DENIED"))
    (shown,) = await LabelledWorkflows(calls, Discover()).exposed()
    assert (shown.workflow, shown.draft) == (name, None)
    (found,) = await verify(calls, settings(stub), name, {})
    assert (found.ok, found.text) == (None, "its steps could not be verified: its source cannot be read")


def execution(stub: Injecting, **more: Any) -> ExecutionName:
    name = f"{PLACE}/workflows/orders/executions/one"
    stub.executions[name] = ev.Execution(name=name, **more)
    return ExecutionName.parse(name)


async def test_an_execution_whose_key_is_lost_is_explained(stub: Injecting, calls: Client) -> None:
    lost = {"details": "the key is disabled", "type_": ev.Execution.StateError.Type.KMS_ERROR}
    told = await explain(calls, execution(stub, state=State.UNAVAILABLE, state_error=lost), RUNNING)
    assert told.reason == "Google cannot show it now: the key is disabled"
    assert "service agent" in str(told.advice)


async def test_a_state_of_the_future_is_explained(stub: Injecting, calls: Client) -> None:
    told = await explain(calls, execution(stub, state=42), RUNNING)
    assert told.reason == "its state is one that is not known yet (42)"


async def test_who_may_not_list_callbacks_hears_the_rest(stub: Injecting, calls: Client) -> None:
    steps = {"current_steps": [{"routine": "main", "step": "wait"}, {"routine": "side", "step": "nap"}]}
    name = execution(stub, state=State.ACTIVE, status=steps)
    stub.reply(f"GET /v1/{name.name}/callbacks", Reply(status=403, body={"error": {"status": "PERMISSION_DENIED"}}))
    told = await explain(calls, name, RUNNING)
    assert told.reason == "it is at step main/wait, side/nap"
    assert (told.facts["step 1"], told.facts["step 2"]) == ("main/wait", "side/nap")
    assert "workflows.callbacks.list" in told.facts["callbacks"]
