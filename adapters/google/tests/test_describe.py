"""Looks: which view is asked for, and what the states of an execution mean."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from google.cloud.workflows import executions_v1
from mcp_workflows_google import GoogleAdapter
from mcp_workflows_google.resources import ExecutionName, note_prefix_of

from adapters.google.tests.cloud import configured
from adapters.google.tests.injecting import CUT, LOST, Fault, Injecting, Reply
from adapters.google.tests.stubbed import settings, start
from mcp_workflows.adapter import Execution, Gate, InputRequest, Ref, Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows.testing import MemoryNotes
from tests.support.configured import KEY, called, client_of
from tests.support.served import Peer

pytestmark = pytest.mark.anyio

State = executions_v1.Execution.State
View = executions_v1.ExecutionView
REVOKED: Final = {"details": "the key is revoked", "type_": 1}


async def seen(adapter: GoogleAdapter, stub: Injecting, state: int, **fields: Any) -> Execution:
    """One look at an execution that is as said."""
    handle = await adapter.start(start())
    found = stub.executions[handle]
    stub.executions[handle] = executions_v1.Execution(found, state=state, **fields)
    return await adapter.describe(Ref(workflow="orders", handle=handle))


def views(stub: Injecting) -> list[int]:
    return [asked.request.view for asked in stub.asked if asked.what == "GetExecution"]


async def test_a_running_one_tells_its_step(stub: Injecting, adapter: GoogleAdapter) -> None:
    steps = {"current_steps": [{"routine": "main", "step": "packing"}]}
    found = await seen(adapter, stub, State.ACTIVE, status=steps)
    assert found.status is Status.RUNNING
    assert "packing" in str(found.message)
    assert "packing" in [step.name for step in found.steps]
    assert views(stub) == [View.FULL]


async def test_a_tool_without_progress_asks_for_little_until_it_has_ended(
    stub: Injecting, adapter: GoogleAdapter
) -> None:
    handle = await adapter.start(start())
    ref = Ref(workflow="orders", handle=handle, options={"progress": False})
    assert (await adapter.describe(ref)).status is Status.RUNNING
    stub.executions[handle].state = State.SUCCEEDED
    stub.executions[handle].result = '{"done": true}'
    assert (await adapter.describe(ref)).output == {"done": True}
    assert views(stub) == [View.BASIC, View.BASIC, View.FULL]


async def test_callbacks_are_listed_in_the_step_of_a_gate_only(stub: Injecting, adapter: GoogleAdapter) -> None:
    handle = await adapter.start(start())
    listing = f"GET /v1/{handle}/callbacks"
    stub.reply(listing, Reply(body={}))
    question = InputRequest(method="elicitation/create", params={"mode": "form", "message": "Approve?"})
    gate = Gate(when="approve", request=question, send={"body": {}}, decline={"body": {}})
    ref = Ref(workflow="orders", handle=handle, gates={"ok": gate})
    for step, lists in (("packing", 0), ("approve", 1), ("shipping", 1)):
        steps = {"current_steps": [{"routine": "main", "step": step}]}
        stub.executions[handle] = executions_v1.Execution(name=handle, state=State.ACTIVE, status=steps)
        await adapter.describe(ref)
        assert stub.count(listing) == lists


@pytest.mark.parametrize("state", [State.QUEUED, State.STATE_UNSPECIFIED, 42], ids=["queued", "none", "new"])
async def test_one_that_waits_or_is_in_a_state_to_come_has_not_ended(
    stub: Injecting, adapter: GoogleAdapter, state: int
) -> None:
    found = await seen(adapter, stub, state)
    assert found.status is Status.RUNNING
    assert ("42" in str(found.message)) == (state == 42)


async def test_one_that_cannot_be_shown_is_as_it_was_known_last(stub: Injecting, adapter: GoogleAdapter) -> None:
    with pytest.raises(EngineUnavailable, match="the key is revoked") as untold:
        await seen(adapter, stub, State.UNAVAILABLE, state_error=REVOKED)
    assert not untold.value.silent, "Google answers for all others"


async def test_one_that_cannot_be_shown_for_long_has_failed(stub: Injecting, notes: MemoryNotes) -> None:
    impatient = GoogleAdapter(settings(stub, grace=timedelta(microseconds=1)))
    impatient.remember(notes)
    async with impatient as adapter:
        found = await seen(adapter, stub, State.UNAVAILABLE, state_error=REVOKED)
    assert found.status is Status.FAILED
    assert found.failure is not None
    assert "not known" in found.failure.text


async def test_the_grace_begins_anew_once_it_could_be_shown(
    stub: Injecting, adapter: GoogleAdapter, notes: MemoryNotes
) -> None:
    handle = await adapter.start(start())
    ref = Ref(workflow="orders", handle=handle)
    kept: list[object] = []
    for state in (State.UNAVAILABLE, State.ACTIVE, State.UNAVAILABLE):
        stub.executions[handle].state = state
        with suppress(EngineUnavailable):
            await adapter.describe(ref)
        kept.extend(value for key, value in (await notes.under("")).items() if key.endswith("/unavailable"))
    first, between, again = kept
    assert between is None
    assert str(again) > str(first)
    (key,) = [key for key in await notes.under("") if key.endswith("/unavailable")]
    ahead = datetime.now(UTC) + timedelta(days=91)  # the clock was set back since
    await notes.put(key, ahead.isoformat(), until=ahead)
    with pytest.raises(EngineUnavailable):
        await adapter.describe(ref)
    assert datetime.fromisoformat(str(await notes.get(key))) <= datetime.now(UTC)


async def test_what_is_no_handle_of_ours_is_refused_and_what_is_gone_is_not_found(adapter: GoogleAdapter) -> None:
    with pytest.raises(EngineRefused):
        await adapter.describe(Ref(workflow="orders", handle="orders/e-1"))
    numbered = "projects/example.com:shop/locations/us-central1/workflows/a/executions/e-2"
    assert note_prefix_of(numbered) == ExecutionName.parse(numbered).note_prefix
    with pytest.raises(EngineRefused):
        note_prefix_of("orders")
    gone = "projects/acme-shop/locations/europe-west1/workflows/orders/executions/e-99"
    with pytest.raises(ExecutionNotFound):
        await adapter.describe(Ref(workflow="orders", handle=gone))


# --- faults, through the whole product


DEFINITE: Final = (
    *("INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "UNAUTHENTICATED"),
    *("FAILED_PRECONDITION", "OUT_OF_RANGE", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED"),
)


@pytest.fixture
async def client(stub: Injecting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Peer]:
    monkeypatch.setattr("mcp_workflows.tasks.start.FIND_EVERY", 0.2)
    stub.now = True
    tools = {"it": {"workflow": "orders"}}
    async with client_of(configured(tmp_path, stub.address, tools, settle="3s", timeout_seconds=1)) as client:
        yield client


def finish(stub: Injecting) -> None:
    """All executions there are end well."""
    for each in stub.executions.values():
        each.state, each.result = State.SUCCEEDED, '{"done": true}'


async def completed(client: Peer, stub: Injecting, task_id: str) -> Any:
    """The end of a task whose execution is found at last."""
    with anyio.fail_after(60):
        while "starting" in (await client.get(task_id)).get("statusMessage", ""):
            await anyio.sleep(0.05)
    finish(stub)
    return (await client.until(task_id))["status"]


async def test_a_create_whose_reply_is_lost_is_adopted(stub: Injecting, client: Peer) -> None:
    stub.tell("CreateExecution", CUT)
    ids = {await called(client, meta=KEY) for _ in range(3)}
    assert len(ids) == 1
    assert await completed(client, stub, ids.pop()) == "completed"
    assert stub.count("CreateExecution") == 1


async def test_a_list_that_lags_starts_nothing_again(stub: Injecting, client: Peer) -> None:
    stub.lag = True
    stub.tell("CreateExecution", LOST)
    task_id = await called(client)
    with anyio.fail_after(60):
        while stub.count("ListExecutions") < 4:
            await client.get(task_id)
            await anyio.sleep(0.1)
    stub.settle()
    assert await completed(client, stub, task_id) == "completed"
    assert stub.count("CreateExecution") == 1


async def test_a_create_that_was_never_made_is_made_once_that_is_certain(stub: Injecting, client: Peer) -> None:
    stub.tell("CreateExecution", Fault(code="UNAVAILABLE"))
    assert await completed(client, stub, await called(client)) == "completed"
    assert (stub.count("CreateExecution"), len(stub.executions)) == (2, 1)


async def test_a_create_that_is_refused_is_told_and_leaves_nothing(stub: Injecting, client: Peer) -> None:
    for number, code in enumerate(DEFINITE, 1):
        stub.tell("CreateExecution", Fault(code=code, text="because of secret-1234"))
        result = (await client.call("it", {"order_id": "A1"})).result
        assert result["isError"], code
        assert (await client.call("it", {"order_id": "A1"})).result["resultType"] == "task", code
        assert stub.count("CreateExecution") == 2 * number, code
