"""`check` of who may start executions, and not list them."""

from __future__ import annotations

import pytest
from google.cloud.workflows_v1.types import Workflow
from mcp_workflows_google import GoogleAdapter

from adapters.google.tests.injecting import Fault, Injecting
from adapters.google.tests.stubbed import adapter, notes, running_stub, stub

pytestmark = pytest.mark.anyio
__all__ = ["adapter", "notes", "running_stub", "stub"]

NAME = "projects/acme-shop/locations/europe-west1/workflows/orders"


async def test_a_start_that_could_not_be_found_again_is_a_problem_before_it_is_lost(
    stub: Injecting, adapter: GoogleAdapter
) -> None:
    stub.workflows[NAME] = Workflow(name=NAME, state=Workflow.State.ACTIVE, revision_id="000001-abc")
    assert (await adapter.tooling.check("orders", {})).ok
    stub.tell("ListExecutions", Fault(code="PERMISSION_DENIED"))
    found = await adapter.tooling.check("orders", {})
    assert not found.ok
    assert f"workflows.executions.list on {NAME}" in found.text
