"""What others do who may do something: who may start workflows elsewhere, and put any label on what they start."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from google.cloud.workflows import executions_v1
from mcp_workflows_google import GoogleAdapter
from mcp_workflows_google.client import ApiCaller
from mcp_workflows_google.connections import GrpcClients
from mcp_workflows_google.credentials import Credentials
from mcp_workflows_google.outcome import ended_execution, read_failure, running_execution
from mcp_workflows_google.questions import MOST_OPEN
from mcp_workflows_google.resources import ExecutionResource, Step
from mcp_workflows_google.settings import Inbound
from mcp_workflows_google.tooling.definition import parse_definition
from pydantic import ValidationError

from adapters.google.tests.cloud import INBOUND
from adapters.google.tests.injecting import Injecting, Reply
from adapters.google.tests.stubbed import PLACE, settings, start, told
from mcp_workflows.adapter import Ref
from mcp_workflows.errors import EngineRefused, ExecutionNotFound
from mcp_workflows.kit.token_bucket import Buckets

pytestmark = pytest.mark.anyio


State = executions_v1.Execution.State
THEIR_PROJECT: Final = "projects/strangers/locations/europe-west1/workflows/orders/executions/e-9"
THEIR_WORKFLOW: Final = "projects/acme-shop/locations/europe-west1/workflows/theirs/executions/e-9"


def place_of(name: str) -> dict[str, Any]:
    """As an execution of this name calls itself."""
    _, project, _, location, _, workflow, _, execution = name.split("/")
    return {"project": project, "location": location, "workflow": workflow, "execution": execution}


@pytest.mark.parametrize("theirs", [THEIR_PROJECT, THEIR_WORKFLOW])
async def test_a_label_is_no_claim_on_the_key_of_another_project_or_workflow(
    stub: Injecting, adapter: GoogleAdapter, theirs: str
) -> None:
    """Or a task would be shown as theirs, and be answered there, with our token."""
    ours = await adapter.start(start())
    labels = dict(stub.executions[ours].labels)
    stub.executions[theirs] = executions_v1.Execution(name=theirs, state=State.ACTIVE, labels=labels)
    assert await told(adapter, "claim", place_of(theirs)) == {"claimed": True}
    assert await told(adapter, "claim", {**PLACE, "execution": ours.rpartition("/")[2]}) == {"claimed": True}
    for state in (State.ACTIVE, State.SUCCEEDED):
        stub.executions[ours].state = state
        assert (await adapter.describe(Ref(workflow="orders", handle=ours))).execution_id == ours


async def test_a_claim_of_another_project_is_no_start_of_ours(stub: Injecting, adapter: GoogleAdapter) -> None:
    labels = {"mcp-workflows-key": "one"}
    stub.executions[THEIR_PROJECT] = executions_v1.Execution(name=THEIR_PROJECT, state=State.ACTIVE, labels=labels)
    stub.unlisted.add(THEIR_PROJECT)  # Google lists it in their project alone
    assert await told(adapter, "claim", place_of(THEIR_PROJECT)) == {"claimed": True}
    assert await adapter.find(start()) is None


async def test_the_fence_of_a_workflow_in_another_project_holds_there(stub: Injecting, adapter: GoogleAdapter) -> None:
    workflow = THEIR_PROJECT.partition("/executions/")[0]
    first, second = [(await adapter.start(start_of(workflow))) for _ in range(2)]
    claims = [await told(adapter, "claim", place_of(name)) for name in (second, first, second)]
    assert claims == [{"claimed": True}, {"claimed": False}, {"claimed": True}]
    assert await adapter.find(start_of(workflow)) == second


def start_of(workflow: str) -> Any:
    ours = start()
    return type(ours)(workflow=workflow, arguments=ours.arguments, key=ours.key, created=ours.created)


async def test_an_execution_of_another_project_cannot_be_watched(stub: Injecting, adapter: GoogleAdapter) -> None:
    """Its workflow may be called as one of ours, and whoever owns that project sees what answers bring."""
    stub.executions[THEIR_PROJECT] = executions_v1.Execution(name=THEIR_PROJECT, state=State.ACTIVE)
    with pytest.raises(ExecutionNotFound):
        await adapter.adopt(THEIR_PROJECT)


def asking(stub: Injecting, execution: str, callback: str, **more: Any) -> dict[str, Any]:
    url = f"http://{stub.address}/v1/{execution}/callbacks/{callback}"
    return {**place_of(execution), "callback_url": url, "message": "Ship it?", **more}


async def test_a_question_whose_answer_would_go_elsewhere_keeps_no_other_from_being_answered(
    stub: Injecting, adapter: GoogleAdapter
) -> None:
    ours = await adapter.start(start())
    elsewhere = asking(stub, ours.replace("acme-shop", "strangers"), "a")["callback_url"]
    await told(adapter, "input", {**asking(stub, ours, "a"), "callback_url": elsewhere})
    await told(adapter, "input", asking(stub, ours, "b"))
    stub.reply(f"POST /v1/{ours}/callbacks/b", Reply(status=200, body={}))
    ref, yes = Ref(workflow="orders", handle=ours), {"action": "decline"}
    with pytest.raises(EngineRefused, match="another project"):
        await adapter.answer(ref, {"a": yes, "b": yes})
    assert [asked.what for asked in stub.asked if asked.what.startswith("POST")] == [f"POST /v1/{ours}/callbacks/b"]
    assert list((await adapter.describe(ref)).requests) == ["a"]


async def test_an_execution_has_no_more_than_so_many_open_questions(stub: Injecting, adapter: GoogleAdapter) -> None:
    ours = await adapter.start(start())
    for number in range(MOST_OPEN):
        await told(adapter, "input", asking(stub, ours, f"cb-{number}"))
    with pytest.raises(EngineRefused, match="100 open questions"):
        await told(adapter, "input", asking(stub, ours, "one-more"))
    assert await told(adapter, "input", asking(stub, ours, "cb-0")) == {"kept": True}  # which it has


def test_calls_for_places_that_others_name_share_one_bucket(stub: Injecting) -> None:
    """Or whoever names a new one each time has no limit, and fills our memory."""
    here = settings(stub)
    edge = ApiCaller(here, GrpcClients(here), Credentials(here), Buckets())
    assert edge.bucket("get_execution", "a-1") is edge.bucket("get_execution", "b-1")
    assert edge.bucket("get_execution", "europe-west1") is edge.bucket("get_execution")


def test_an_error_that_is_nested_beyond_reading_ends_the_task_all_the_same() -> None:
    deep = '{"mcp_error": {"code": -32602, "message": "no", "data": %s}}' % ("[" * 900 + "]" * 900)
    failed = ended_execution(ExecutionResource(name=THEIR_PROJECT, state=State.FAILED, payload=deep)).failure
    assert failed is not None
    assert (failed.code, failed.text, failed.data) == (-32602, "no", None)


def test_names_that_others_chose_are_cut_short_and_say_no_secret() -> None:
    steps = [Step(routine="main", step="s" * 10_000)]
    assert (
        len(running_execution(ExecutionResource(name=THEIR_PROJECT, state=State.ACTIVE, steps=steps)).message or "")
        < 1_000
    )
    payload = json.dumps({"tags": ["T" * 10_000], "message": "no"})
    assert len(read_failure(payload, None).kind or "") < 1_000
    assert read_failure(json.dumps({"code": "Bearer s3cret", "message": "no"}), None).kind == "Bearer ***"


def test_a_source_that_doubles_with_each_line_is_not_read() -> None:
    lines = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 60))]
    assert parse_definition("\n".join([*lines, "main: {steps: [{a: {return: 1}}]}"])) is None


def test_keys_that_whoever_is_on_the_way_could_exchange_are_not_taken() -> None:
    with pytest.raises(ValidationError, match="https://"):
        Inbound.model_validate({**INBOUND, "keys_url": "http://keys.example/certs"})
    for url in ("http://127.0.0.1:8790/certs", "http://[::1]/certs", "https://keys.example/certs"):
        assert Inbound.model_validate({**INBOUND, "keys_url": url}).keys_url == url


async def test_an_execution_is_watched_by_the_number_of_our_project_too(
    stub: Injecting, adapter: GoogleAdapter
) -> None:
    ours = await adapter.start(start())
    found = await adapter.adopt(ours.replace("acme-shop", "123456789012"))
    assert (found.workflow, found.handle) == (ours.partition("/executions/")[0], ours)
    assert stub.count("GetExecution") == 1
