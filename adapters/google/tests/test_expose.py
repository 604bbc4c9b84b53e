"""Workflows that are labelled are tools: found, described, and nothing else."""

# pyright: reportUnknownMemberType=false
# Reason: the messages of Google's client have no types.

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from google.cloud import workflows_v1 as wf
from mcp_workflows_google.client import Client, open_client
from mcp_workflows_google.settings import Discover, GoogleSettings
from mcp_workflows_google.tooling.check import verify
from mcp_workflows_google.tooling.discover import LabelledWorkflows

from adapters.google.tests.injecting import Fault, Injecting
from adapters.google.tests.stubbed import settings as settings_of
from tests.support.google_engine import LOCATION, PROJECT, GoogleEngine

pytestmark = pytest.mark.anyio

READS = "main: {params: [args], steps: [{answer: {return: '${args.order_id + args.amount}'}}]}"
SCHEMA = {"type": "object", "properties": {"order_id": {"type": "string"}}}
DRAFT: Mapping[str, Any] = {"type": "object", "properties": {"amount": {}, "order_id": {}}}


def settings(address: str, **more: Any) -> GoogleSettings:
    return GoogleSettings.model_validate({"location": LOCATION, "emulator": address, **more})


HERE = "projects/acme-shop/locations/europe-west1"


class Owner:
    """Somebody who labels workflows, with a value that nobody else uses."""

    def __init__(self, engine: GoogleEngine) -> None:
        self.engine = engine
        self.value = uuid.uuid4().hex

    def labelled(self, name: str, *, value: str | None = None, **more: Any) -> str:
        return self.engine.deploy(name, READS, labels={"mcp-tool": value or self.value}, **more).rpartition("/")[2]

    def settings(self, **more: Any) -> GoogleSettings:
        return settings(self.engine.address, discover={"label": f"mcp-tool={self.value}", **more})


@pytest.fixture
def owner(google_engine: GoogleEngine) -> Owner:
    return Owner(google_engine)


@pytest.fixture
async def calls(google_engine: GoogleEngine) -> AsyncIterator[Client]:
    async with open_client(settings(google_engine.address)) as calls:
        yield calls


async def test_only_what_has_the_label_with_its_value_is_shown(owner: Owner, calls: Client) -> None:
    first = owner.labelled("fulfil_order", description="Fulfils an order.")
    second = owner.labelled("another")
    owner.labelled("not_this", value="false")
    found = {each.name: each for each in await LabelledWorkflows(calls, owner.settings().discover).exposed()}
    assert found.keys() == {first, second}
    shown = found[first]
    assert shown.workflow == shown.source == f"projects/{PROJECT}/locations/{LOCATION}/workflows/{first}"
    assert (shown.description, shown.input, shown.draft) == ("Fulfils an order.", {"type": "object"}, DRAFT)
    assert found[second].description is None


async def test_a_schema_of_the_settings_counts_and_then_nothing_is_suggested(owner: Owner, calls: Client) -> None:
    name = owner.labelled("fulfil_order")
    (shown,) = await LabelledWorkflows(calls, owner.settings(schemas={name: SCHEMA}).discover).exposed()
    assert (shown.input, shown.draft) == (SCHEMA, None)


async def test_a_label_that_is_gone_and_a_source_that_is_another_are_seen(owner: Owner, calls: Client) -> None:
    name, exposing = owner.labelled("fulfil_order"), LabelledWorkflows(calls, owner.settings().discover)
    assert [each.draft for each in await exposing.exposed()] == [DRAFT]
    client, place = owner.engine.workflows(), f"{owner.engine.place}/workflows/{name}"
    workflow = client.get_workflow(name=place)
    workflow.source_contents = READS.replace("args.amount", "args.price")
    client.update_workflow(workflow=workflow, update_mask={"paths": ["source_contents"]}).result(timeout=60)
    (shown,) = await exposing.exposed()
    assert shown.draft == {"type": "object", "properties": {"order_id": {}, "price": {}}}
    workflow.labels.clear()
    client.update_workflow(workflow=workflow, update_mask={"paths": ["labels"]}).result(timeout=60)
    assert await exposing.exposed() == []


async def test_nobody_looks_unless_the_settings_say_so(calls: Client, owner: Owner) -> None:
    owner.labelled("fulfil_order")
    assert await LabelledWorkflows(calls, None).exposed() == []


# --- seldom answered by Google, and never by the local engine


@pytest.fixture
async def stubbed(stub: Injecting) -> AsyncIterator[Client]:
    async with open_client(settings_of(stub)) as calls:
        yield calls


def deployed(stub: Injecting, name: str, **more: Any) -> str:
    written: dict[str, Any] = {
        "state": wf.Workflow.State.ACTIVE,
        "labels": {"mcp-tool": "true"},
        "revision_id": "1",
        **more,
    }
    stub.workflows[f"{HERE}/workflows/{name}"] = wf.Workflow(name=f"{HERE}/workflows/{name}", **written)
    return f"{HERE}/workflows/{name}"


def unavailable(stub: Injecting) -> str:
    lost = {"details": "the key is disabled", "type_": wf.Workflow.StateError.Type.KMS_ERROR}
    return deployed(stub, "lost", state=wf.Workflow.State.UNAVAILABLE, state_error=lost)


async def test_what_is_not_active_or_no_workflow_is_not_offered_and_the_log_says_so_once(
    stub: Injecting, stubbed: Client, caplog: pytest.LogCaptureFixture
) -> None:
    lost, _, _ = unavailable(stub), deployed(stub, "fine"), deployed(stub, "a/../b")
    exposing = LabelledWorkflows(stubbed, Discover())
    with caplog.at_level(logging.WARNING, "mcp_workflows_google.tooling.discover"):
        assert [[each.name for each in await exposing.exposed()] for _ in range(2)] == [["fine"], ["fine"]]
    assert caplog.text.count(f"{lost} is not offered: it is not ACTIVE") == 1
    assert "that is no name of a workflow" in caplog.text


async def test_a_source_that_the_list_leaves_out_is_asked_for_once_a_revision(
    stub: Injecting, stubbed: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, whole = deployed(stub, "bare"), wf.Workflow(name="any", source_contents=READS)

    def get(request: wf.GetWorkflowRequest) -> wf.Workflow:
        return whole

    monkeypatch.setattr(stub, "get_workflow", get)  # the stub's own list has what it has
    exposing = LabelledWorkflows(stubbed, Discover())
    assert [[each.draft for each in await exposing.exposed()] for _ in range(3)] == [[DRAFT]] * 3
    assert stub.count("GetWorkflow") == 1
    stub.workflows[name].revision_id = "2"
    whole.source_contents = READS.replace("args.amount", "args.price")
    (shown,) = await exposing.exposed()
    assert shown.draft == {"type": "object", "properties": {"order_id": {}, "price": {}}}
    assert stub.count("GetWorkflow") == 2


async def test_a_source_that_cannot_be_had_leaves_the_tool_without_a_suggestion(
    stub: Injecting, stubbed: Client
) -> None:
    name = deployed(stub, "bare")
    stub.tell("GetWorkflow", Fault(code="PERMISSION_DENIED"))
    (shown,) = await LabelledWorkflows(stubbed, Discover()).exposed()
    assert (shown.workflow, shown.draft) == (name, None)
    (found,) = await verify(stubbed, settings_of(stub), name, {})
    assert (found.ok, found.text) == (None, "its steps could not be verified: its source cannot be read")
