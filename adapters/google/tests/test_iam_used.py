"""The role has what the adapter calls, and nothing else: everything it can do is done once, and watched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest
from google.cloud import workflows_v1 as wf
from mcp_workflows_google import GoogleAdapter

from adapters.google.tests.injecting import Injecting, Reply
from adapters.google.tests.stubbed import PLACE, adapter, notes, running_stub, settings, start, stub, told
from mcp_workflows.adapter import Ref
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows.kit.tooling import Use

__all__ = ["adapter", "notes", "running_stub", "stub"]
pytestmark = pytest.mark.anyio

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
    ref = Ref(workflow="orders", handle=await adapter.start(start()))
    assert await adapter.find(start()) == ref.handle
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
    async with GoogleAdapter(settings(stub, discover={})) as adapter:
        await adapter.tooling.exposed()
        role = await adapter.tooling.permissions([])
    assert used(stub) == {"workflows.workflows.list"}
    assert used(stub) <= set(role["includedPermissions"])
