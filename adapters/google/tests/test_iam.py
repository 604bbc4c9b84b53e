"""The custom role has what the tools use, and nothing else; links and previews need no call either."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from google.cloud import workflows_v1 as wf
from mcp_workflows_google import GoogleAdapter
from mcp_workflows_google.describe import console_page
from mcp_workflows_google.resources import ExecutionName
from mcp_workflows_google.settings import GoogleSettings
from mcp_workflows_google.start import preview
from mcp_workflows_google.tooling.check import permissions

from adapters.google.tests import stubbed
from adapters.google.tests.injecting import Injecting, Reply
from adapters.google.tests.stubbed import PLACE, told
from mcp_workflows.adapter import Ref, Start
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows.kit.tooling import Use

pytestmark = pytest.mark.anyio

READS = {"workflows.executions.get", "workflows.executions.list", "workflows.workflows.get"}
STARTS = {"workflows.executions.cancel", "workflows.executions.create"}
ANSWERS = {"workflows.callbacks.list", "workflows.callbacks.send"}
EXECUTION = "projects/123456/locations/europe-west1/workflows/fulfil_order/executions/0a1b-2c"


def settings(**more: Any) -> GoogleSettings:
    return GoogleSettings.model_validate({"project": "shop-prod", "location": "europe-west1", **more})


def of(*uses: Use, **more: Any) -> set[str]:
    return set(permissions(settings(**more), uses)["includedPermissions"])


def test_a_tool_needs_to_start_look_answer_and_cancel() -> None:
    assert of(Use(tool="a", workflow="a")) == READS | STARTS | ANSWERS
    assert of(Use(tool="a", workflow="a", answers=False)) == READS | STARTS
    assert of() == set()


def test_a_tool_that_watches_starts_nothing() -> None:
    watches = Use(tool="a", workflow="a", watches=True, answers=False, cancels=False)
    assert of(watches) == READS
    assert of(watches, Use(tool="b", workflow="b", watches=True, answers=True, cancels=True)) == (
        READS | ANSWERS | {"workflows.executions.cancel"}
    )


def test_looking_for_labelled_workflows_needs_the_list_and_whatever_they_may_need() -> None:
    assert of(discover={}) == READS | STARTS | ANSWERS | {"workflows.workflows.list"}


def test_who_impersonates_is_told_what_its_caller_needs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        of(impersonate="tasks@shop-prod.iam.gserviceaccount.com")
    assert "roles/iam.serviceAccountTokenCreator" in caplog.text


@pytest.mark.parametrize(
    ("more", "root"),
    [
        ({}, "https://console.cloud.google.com"),
        ({"console_url": "https://console.example.com/"}, "https://console.example.com"),
        ({"emulator": "127.0.0.1:8790", "console_url": "http://127.0.0.1:9000"}, "http://127.0.0.1:9000"),
    ],
)
def test_the_page_of_an_execution_is_in_the_console(more: dict[str, Any], root: str) -> None:
    page = console_page(settings(**more), ExecutionName.parse(EXECUTION))
    path = "workflows/workflow/europe-west1/fulfil_order/execution/0a1b-2c/summary?project=123456"
    assert page == f"{root}/{path}"


def test_a_local_engine_has_no_console() -> None:
    assert console_page(settings(emulator="127.0.0.1:8790"), ExecutionName.parse(EXECUTION)) is None


def start(arguments: Any, workflow: str = "fulfil_order") -> Start:
    return Start(workflow=workflow, arguments=arguments, key="k-1", created=datetime.now(UTC), context={"tool": "It"})


def test_a_preview_is_the_request_that_would_be_sent() -> None:
    found = preview(start([{"order": "A1"}]), settings())
    assert found == {
        "operation": "CreateExecution",
        "parent": "projects/shop-prod/locations/europe-west1/workflows/fulfil_order",
        "execution": {
            "labels": {"mcp-workflows-key": "k-1", "mcp-workflows-tool": "it"},
            "argument": {"order": "A1"},
        },
    }


def test_a_preview_leaves_the_project_open_that_only_the_credentials_tell() -> None:
    found = preview(start([]), GoogleSettings(location="europe-west1"))
    assert found["parent"] == "projects/PROJECT/locations/europe-west1/workflows/fulfil_order"
    assert found["execution"]["argument"] == {}
    with pytest.raises(EngineRefused, match="32,768"):
        preview(start(["x" * 40_000]), settings())


# --- what is called, and nothing else


PERMISSIONS: Final[Mapping[str, str]] = {
    "CreateExecution": "workflows.executions.create",
    "GetExecution": "workflows.executions.get",
    "ListExecutions": "workflows.executions.list",
    "CancelExecution": "workflows.executions.cancel",
    "GetWorkflow": "workflows.workflows.get",
    "ListWorkflows": "workflows.workflows.list",
}
CALLBACKS: Final[Mapping[str, str]] = {"GET": "workflows.callbacks.list", "POST": "workflows.callbacks.send"}
WORKFLOW: Final = "projects/acme-shop/locations/europe-west1/workflows/orders"


def used(stub: Injecting) -> set[str]:
    """The permissions that Google looked for."""
    calls = [each.what for each in stub.asked]
    return {PERMISSIONS.get(call) or CALLBACKS[call.partition(" ")[0]] for call in calls}


async def everything(adapter: GoogleAdapter, stub: Injecting) -> None:
    """All that a client, an operator or the core may want of a tool."""
    stub.workflows[WORKFLOW] = wf.Workflow(name=WORKFLOW, state=1, source_contents="main: {steps: []}")
    ref = Ref(workflow="orders", handle=await adapter.start(stubbed.start()))
    assert await adapter.find(stubbed.start()) == ref.handle
    callbacks = f"/v1/{ref.handle}/callbacks"
    url = f"http://{stub.address}{callbacks}/one"
    await told(adapter, "input", {**PLACE, "execution": "e-1", "callback_url": url, "message": "Ship it?"})
    (key,) = (await adapter.describe(ref)).requests
    stub.reply(f"POST {callbacks}/one", Reply(status=500, body={}))
    waiting = {"name": f"{ref.handle}/callback/one", "method": "POST", "waiters": "1"}
    stub.reply(f"GET {callbacks}", Reply(body={"callbacks": [waiting]}))
    with pytest.raises(EngineUnavailable):
        await adapter.answer(ref, {key: {"action": "accept", "content": {}}})
    assert await told(adapter, "claim", {**PLACE, "execution": "e-1"}) == {"claimed": True}
    await adapter.describe_many([ref])
    await adapter.tooling.explain(ref)
    await adapter.adopt(ref.handle)
    await adapter.tooling.check("orders", {})
    await adapter.tooling.verify("orders", {}, {})
    await adapter.cancel(ref)


async def test_the_role_of_a_tool_is_what_it_uses(adapter: GoogleAdapter, stub: Injecting) -> None:
    await everything(adapter, stub)
    role = await adapter.tooling.permissions([Use(tool="it", workflow="orders")])
    assert set(role["includedPermissions"]) == used(stub)


async def test_looking_for_labelled_workflows_uses_one_more(stub: Injecting) -> None:
    async with GoogleAdapter(stubbed.settings(stub, discover={})) as adapter:
        await adapter.tooling.exposed()
        role = await adapter.tooling.permissions([])
    assert used(stub) == {"workflows.workflows.list"}
    assert used(stub) <= set(role["includedPermissions"])
