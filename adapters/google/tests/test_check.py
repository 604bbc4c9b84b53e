"""What `check` and `tasks why` say of a workflow and its executions."""

# pyright: reportUnknownMemberType=false
# Reason: the messages of Google's client have no types.

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
import pytest
from google.cloud.workflows import executions_v1 as ev
from google.cloud.workflows_v1.types import Workflow
from mcp_workflows_google import GoogleAdapter
from mcp_workflows_google.client import Client, open_client
from mcp_workflows_google.resources import ExecutionName
from mcp_workflows_google.settings import GoogleSettings
from mcp_workflows_google.tooling.check import check_engine, check_workflow, service_account_email, verify
from mcp_workflows_google.tooling.explain import explain
from mcp_workflows_google.tooling.subworkflows import add_subworkflows

from adapters.google.tests.injecting import Fault, Injecting, Reply
from adapters.google.tests.stubbed import settings as settings_of
from adapters.google.tests.test_expose import HERE, READS, deployed, settings, unavailable
from mcp_workflows.adapter import Execution, Finding, Status
from tests.support.child_processes import free_port
from tests.support.google_engine import ACCOUNT, LOCATION, PROJECT, GoogleEngine
from tests.support.google_local_engine import local_engine

pytestmark = pytest.mark.anyio

URL = "https://tasks.example.com/engines/shop"
INBOUND = {"audience": URL, "accounts": [ACCOUNT]}
GATED = """
main:
  steps:
    - open: {call: events.create_callback_endpoint, args: {http_callback_method: POST}, result: callback}
    - inner: {call: approve, args: {callback: "${callback}"}}
approve:
  params: [callback]
  steps:
    - wait: {call: events.await_callback, args: {callback: "${callback}", timeout: 60}}
"""
ASKS = """
main: {steps: [{ask: {call: mcp_elicit, args: {message: 'Ship?'}}}]}
mcp_elicit: {params: [message], steps: [{a: {return: null}}]}
"""
NAPS = "main: {steps: [{inside: {call: nap}}]}\nnap: {steps: [{napping: {call: sys.sleep, args: {seconds: 60}}}]}"


@pytest.fixture
async def calls(google_engine: GoogleEngine) -> AsyncIterator[Client]:
    async with open_client(settings(google_engine.address)) as calls:
        yield calls


async def test_the_engine_is_there_or_what_to_check_is_said(calls: Client, google_engine: GoogleEngine) -> None:
    answers = f"Google Cloud Workflows answers in projects/{PROJECT}/locations/{LOCATION}"
    without = await check_engine(calls, settings(google_engine.address))
    assert without == Finding(ok=True, text=f"{answers}; without inbound no workflow can ask by mcp_elicit")
    found = await check_engine(calls, settings(google_engine.address, inbound=INBOUND))
    assert found.text == f"{answers}; questions are accepted from {ACCOUNT}"
    nowhere = settings(f"127.0.0.1:{free_port()}", timeout_seconds=1)
    async with open_client(nowhere) as lost:
        missing = await check_engine(lost, nowhere)
    assert not missing.ok
    assert "is the local engine running there? Start it: python -m mcp_workflows_google_local" in missing.text
    assert missing.hint == "if it is, check emulator"


async def test_another_project_or_location_than_the_local_engine_plays_is_said(google_engine: GoogleEngine) -> None:
    other = settings(google_engine.address, project="shop-prod")
    async with open_client(other) as calls:
        found = await check_engine(calls, other)
    assert (found.ok, "shop-prod" in found.text) == (False, True)
    assert found.hint == "a local engine serves one project: correct project here"
    elsewhere = settings(google_engine.address, location="moon-east1")
    async with open_client(elsewhere) as calls:
        assert "moon-east1" in (await check_engine(calls, elsewhere)).text
        assert "moon-east1" in (await check_workflow(calls, "any")).text


async def test_a_workflow_is_looked_for(calls: Client, google_engine: GoogleEngine) -> None:
    name = google_engine.deploy("there", READS)
    for written in (name, name.rpartition("/")[2]):
        found = await check_workflow(calls, written)
        assert found.ok
        assert found.text.startswith(f"workflow {name.rpartition('/')[2]} is there, revision ")
    missing = await check_workflow(calls, "nobody")
    assert (missing.ok, "nobody" in missing.text) == (False, True)
    assert "execution" not in missing.text
    assert "is no workflow" in (await check_workflow(calls, "no such/name")).text


@pytest.mark.parametrize(
    ("when", "said", "hint"),
    [
        ("wait", None, None),
        ("wiat", "there is no step 'wiat'", "did you mean 'wait'?"),
        ({"step": "wait", "routine": "main"}, "there is no step 'wait' in main", "there are: inner, open"),
        ({"step": "wait", "method": "POST"}, None, None),
        ({"step": "wait", "method": "PUT"}, "the workflow opens no callback of method PUT", "it opens: POST"),
        ({"step": "wait", "routine": "aprove"}, "there is no routine 'aprove'", "did you mean 'approve'?"),
    ],
)
async def test_the_steps_of_gates_are_looked_for(
    calls: Client, google_engine: GoogleEngine, when: Any, said: str | None, hint: str | None
) -> None:
    workflow = google_engine.deploy("gated", GATED)
    gates: Mapping[str, Any] = {"approval": {"when": when, "send": {"body": {}}}}
    found = await verify(calls, settings(google_engine.address), workflow, gates)
    wrong = [(finding.text, finding.hint) for finding in found if finding.ok is False]
    setting = "questions.approval.when.method" if "method" in str(said) else "questions.approval.when"
    assert wrong == ([] if said is None else [(f"{setting}: {said}", hint)])


async def test_the_steps_of_the_subworkflows_that_we_ship_are_not_suggested(
    calls: Client, google_engine: GoogleEngine
) -> None:
    asks = add_subworkflows("main: {steps: [{ask: {call: mcp_elicit, args: {message: 'Ship?'}}}]}")
    given = settings(google_engine.address, inbound={"audience": URL, "accounts": [ACCOUNT]})
    name = google_engine.deploy("asks", asks, env={"MCP_WORKFLOWS_URL": URL})
    found = await verify(calls, given, name, {"a": {"when": "nothing"}})
    assert [each.hint for each in found if "no step" in each.text] == ["there are: ask"]


async def test_a_step_that_does_not_wait_and_one_of_two_gates_are_mentioned(
    calls: Client, google_engine: GoogleEngine
) -> None:
    given, workflow = settings(google_engine.address), google_engine.deploy("gated", GATED)
    text = "step 'inner' does not call events.await_callback itself: it may never be asked about (steps that do: wait)"
    found = [await verify(calls, given, workflow, {"approval": {"when": step}}) for step in ("wait", "inner")]
    assert found == [[], [Finding(ok=True, text=f"questions.approval.when: {text}")]]
    gate: Mapping[str, Any] = {"when": {"step": "wait"}, "send": {"body": {}}}
    twice = await verify(calls, given, workflow, {"first": gate, "second": {**gate, "when": "wait"}})
    said = "questions.second.when: step 'wait' already belongs to gate first"
    assert [finding.text for finding in twice] == [said]


async def told(calls: Client, given: GoogleSettings, workflow: str) -> list[str]:
    return [finding.text for finding in await verify(calls, given, workflow, {}) if finding.ok is False]


async def test_what_a_workflow_needs_to_ask_people_is_told(calls: Client, google_engine: GoogleEngine) -> None:
    engine, address = google_engine, google_engine.address
    bare = engine.deploy("asks", ASKS)
    ready = engine.deploy("asks", ASKS, env={"MCP_WORKFLOWS_URL": URL}, service_account=ACCOUNT)
    open_to_us = settings(address, inbound=INBOUND)
    assert await told(calls, settings(address), ready) == ["it calls mcp_elicit, and the engine has no inbound"]
    assert await told(calls, open_to_us, bare) == ["it calls mcp_elicit, and is deployed without MCP_WORKFLOWS_URL"]
    assert await told(calls, open_to_us, ready) == []
    other = settings(address, inbound={"audience": "https://other.example.com", "accounts": ["a@b.iam.example.com"]})
    audience, account = await told(calls, other, ready)
    assert audience.startswith(f"its tokens are for {URL} ")
    assert account == f"it runs as {ACCOUNT}, which is not among inbound.accounts: its requests are refused"


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("tasks.example.com/engines/shop", "which is not a URL"),
        ("https://tasks.example.com/engines/shop/", "which must not end in a slash"),
        ("https://tasks.example.com/mcp", "which is not the URL of an engine"),
        ("https://tasks.example.com/behind/engines/shop", None),
    ],
)
async def test_an_address_where_we_cannot_be_is_told(
    calls: Client, google_engine: GoogleEngine, url: str, wrong: str | None
) -> None:
    env = {"MCP_WORKFLOWS_URL": url, "MCP_WORKFLOWS_AUDIENCE": URL}
    workflow = google_engine.deploy("asks", ASKS, env=env, service_account=ACCOUNT)
    found = await told(calls, settings(google_engine.address, inbound=INBOUND), workflow)
    expected = f"it calls mcp_elicit, and is deployed with MCP_WORKFLOWS_URL={url}, {wrong}"
    assert found == ([] if wrong is None else [expected])


async def test_what_a_workflow_reads_is_suggested_and_what_cannot_be_looked_at_is_no_problem(
    calls: Client, google_engine: GoogleEngine
) -> None:
    given = settings(google_engine.address)
    (found,) = await verify(calls, given, google_engine.deploy("reads", READS), {})
    assert (found.ok, found.text) == (True, "it reads amount, order_id")
    assert found.hint == "its input may be (please correct it): {type: object, properties: {amount: {}, order_id: {}}}"
    (unknown,) = await verify(calls, given, "nobody", {"a": {"when": "b", "send": {"body": {}}}})
    assert unknown.ok is None
    assert "could not be verified" in unknown.text


@pytest.mark.parametrize(
    ("written", "account"),
    [
        (f"projects/shop/serviceAccounts/{ACCOUNT}", ACCOUNT),
        (ACCOUNT, ACCOUNT),
        ("projects/shop/serviceAccounts/1234567", None),
        ("", None),
    ],
)
def test_the_account_of_a_workflow_is_read_as_google_writes_it(written: str, account: str | None) -> None:
    assert service_account_email(written) == account


RUNNING = Execution(status=Status.RUNNING)


async def test_why_it_waits_is_told(calls: Client, google_engine: GoogleEngine) -> None:
    workflow = google_engine.deploy("gated", GATED)
    name = google_engine.execute(workflow)
    execution = ExecutionName.parse(name)
    google_engine.at(name, "wait")
    with anyio.fail_after(60):
        while not any(callback.waiters for callback in await calls.callbacks(execution)):
            await anyio.sleep(0.01)
    gate = await explain(calls, execution, RUNNING)
    assert gate.reason == "it waits for a call of one of its callbacks at step approve/wait"
    assert gate.facts["step"] == "approve/wait"
    assert gate.facts["started"].endswith(" s ago")
    assert gate.facts["callback"] == "POST, somebody waits for it"
    assert "the step a gate" in str(gate.advice)
    asked = await explain(calls, execution, Execution(status=Status.INPUT_REQUIRED))
    assert asked.reason == "it waits for an answer at step approve/wait"
    google_engine.executions().cancel_execution(name=name)


async def test_one_that_cannot_reach_us_is_told(calls: Client, google_engine: GoogleEngine) -> None:
    nowhere = {"MCP_WORKFLOWS_URL": f"http://127.0.0.1:{free_port()}/engines/shop"}
    asks = add_subworkflows("main: {steps: [{ask: {call: mcp_elicit, args: {message: 'Ship?'}}}]}")
    name = google_engine.execute(google_engine.deploy("asks", asks, env=nowhere))
    google_engine.at(name, "of_the_connection")
    told = await explain(calls, ExecutionName.parse(name), RUNNING)
    assert told.reason.startswith("it calls the MCP server (mcp_elicit, mcp_claim), and retries")
    assert "MCP_WORKFLOWS_URL" in str(told.advice)
    google_engine.executions().cancel_execution(name=name)


async def test_an_execution_that_is_queued_is_told() -> None:
    async with local_engine(most=1) as small:
        workflow = await small.deploy("naps", NAPS)
        _, queued = await small.execute(workflow), await small.execute(workflow)
        async with open_client(settings(small.url.removeprefix("http://"))) as calls:
            told = await explain(calls, ExecutionName.parse(queued), RUNNING)
    assert told.reason.startswith("it is queued: ")
    assert "quota" in str(told.advice)


# --- seldom answered by Google, and never by the local engine


DENIED = Fault(code="PERMISSION_DENIED", text="Permission 'workflows.workflows.list' denied on resource")
ORDERS_NAME = f"{HERE}/workflows/orders"
State = ev.Execution.State


@pytest.fixture
async def stubbed(stub: Injecting) -> AsyncIterator[Client]:
    async with open_client(settings_of(stub)) as calls:
        yield calls


async def test_who_may_not_list_workflows_is_answered_all_the_same(stub: Injecting, stubbed: Client) -> None:
    stub.tell("ListWorkflows", DENIED)
    googles = settings_of(stub).model_copy(update={"emulator": None})  # a local engine has no permissions
    found = await check_engine(stubbed, googles)
    assert (found.ok, found.text.partition(";")[0]) == (True, f"Google Cloud Workflows answers in {HERE}")
    stub.tell("ListWorkflows", *[Fault(code="UNAUTHENTICATED")] * 3)
    refused = await check_engine(stubbed, settings_of(stub))
    assert not refused.ok
    assert "does not accept our credentials" in refused.text


async def test_a_workflow_whose_key_is_lost_is_told_with_why(stub: Injecting, stubbed: Client) -> None:
    found = await check_workflow(stubbed, unavailable(stub))
    assert not found.ok
    assert found.text.startswith("workflow lost is UNAVAILABLE: ")
    assert found.text.endswith(": the key is disabled")
    future = await check_workflow(stubbed, deployed(stub, "future", state=9))
    assert future.text == "workflow future has a state that is not known yet (9)"


def execution(stub: Injecting, **more: Any) -> ExecutionName:
    name = f"{HERE}/workflows/orders/executions/one"
    stub.executions[name] = ev.Execution(name=name, **more)
    return ExecutionName.parse(name)


async def test_an_execution_whose_key_is_lost_or_in_a_state_of_the_future_is_explained(
    stub: Injecting, stubbed: Client
) -> None:
    lost = {"details": "the key is disabled", "type_": ev.Execution.StateError.Type.KMS_ERROR}
    told = await explain(stubbed, execution(stub, state=State.UNAVAILABLE, state_error=lost), RUNNING)
    assert told.reason == "Google cannot show it now: the key is disabled"
    assert "service agent" in str(told.advice)
    told = await explain(stubbed, execution(stub, state=42), RUNNING)
    assert told.reason == "its state is unknown here (42)"


async def test_who_may_not_list_callbacks_hears_the_rest(stub: Injecting, stubbed: Client) -> None:
    steps = {"current_steps": [{"routine": "main", "step": "wait"}, {"routine": "side", "step": "nap"}]}
    name = execution(stub, state=State.ACTIVE, status=steps)
    stub.reply(f"GET /v1/{name.name}/callbacks", Reply(status=403, body={"error": {"status": "PERMISSION_DENIED"}}))
    told = await explain(stubbed, name, RUNNING)
    assert told.reason == "it is at step main/wait, side/nap"
    assert (told.facts["step 1"], told.facts["step 2"]) == ("main/wait", "side/nap")
    assert "workflows.callbacks.list" in told.facts["callbacks"]


async def test_a_start_that_could_not_be_found_again_is_a_problem_before_it_is_lost(
    stub: Injecting, adapter: GoogleAdapter
) -> None:
    stub.workflows[ORDERS_NAME] = Workflow(name=ORDERS_NAME, state=Workflow.State.ACTIVE, revision_id="000001-abc")
    assert (await adapter.tooling.check("orders", {})).ok
    stub.tell("ListExecutions", Fault(code="PERMISSION_DENIED"))
    found = await adapter.tooling.check("orders", {})
    assert not found.ok
    assert f"workflows.executions.list on {ORDERS_NAME}" in found.text
