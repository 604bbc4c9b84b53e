"""Faults of Google, through the whole product: what a client of the sidecar sees, and how often Google is called."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from google.cloud.workflows import executions_v1

from adapters.google.tests.configured import KEY, called, client_of, configured
from adapters.google.tests.injecting import CUT, LOST, Fault, Injecting
from adapters.google.tests.stubbed import running_stub, stub
from tests.support.served import Peer

pytestmark = pytest.mark.anyio
__all__ = ["running_stub", "stub"]

State = executions_v1.Execution.State
AMBIGUOUS: Final = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN", "ABORTED", "CANCELLED", "DATA_LOSS")
DEFINITE: Final = (
    *("INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "UNAUTHENTICATED"),
    *("FAILED_PRECONDITION", "OUT_OF_RANGE", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED"),
)


@pytest.fixture
async def client(stub: Injecting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Peer]:
    monkeypatch.setattr("mcp_workflows.tasks.start.FIND_EVERY", 0.2)
    stub.now = True
    async with client_of(orders_at(stub, tmp_path, settle="3s")) as client:
        yield client


def orders_at(stub: Injecting, folder: Path, settle: str) -> Path:
    return configured(folder, stub.address, {"it": {"workflow": "orders"}}, settle=settle, timeout_seconds=1)


def finish(stub: Injecting) -> None:
    """All executions there are end well."""
    for each in stub.executions.values():
        each.state, each.result = State.SUCCEEDED, '{"done": true}'


async def completed(client: Peer, stub: Injecting, task_id: str) -> Any:
    """The end of a task whose execution is found at last."""
    with anyio.fail_after(15):
        while "starting" in (await client.get(task_id)).get("statusMessage", ""):
            await anyio.sleep(0.05)
    finish(stub)
    return (await client.until(task_id))["status"]


@pytest.mark.parametrize("fault", [LOST, CUT, Fault(code="DEADLINE_EXCEEDED", work=True)], ids=["lost", "cut", "late"])
async def test_a_create_whose_reply_is_lost_is_adopted(stub: Injecting, client: Peer, fault: Fault) -> None:
    stub.tell("CreateExecution", fault)
    ids = {await called(client, meta=KEY) for _ in range(3)}
    assert len(ids) == 1
    assert await completed(client, stub, ids.pop()) == "completed"
    assert stub.count("CreateExecution") == 1


async def test_a_list_that_lags_starts_nothing_again(stub: Injecting, client: Peer) -> None:
    stub.lag = True
    stub.tell("CreateExecution", LOST)
    task_id = await called(client)
    with anyio.fail_after(10):
        while stub.count("ListExecutions") < 4:
            await client.get(task_id)
            await anyio.sleep(0.1)
    stub.settle()
    assert await completed(client, stub, task_id) == "completed"
    assert stub.count("CreateExecution") == 1


async def test_a_create_that_may_have_been_made_is_a_task_that_is_starting(stub: Injecting, tmp_path: Path) -> None:
    async with client_of(orders_at(stub, tmp_path, settle="10m")) as client:
        for number, code in enumerate(AMBIGUOUS, 1):
            stub.tell("CreateExecution", Fault(code=code))
            task = (await client.call("it", {"order_id": "A1"})).result
            assert (task["status"], task["statusMessage"]) == ("working", "starting"), code
            assert stub.count("CreateExecution") == number, code


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
