"""The queue keeps the laws of the boundary, with a real consumer: all of them, no gaps."""

import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest
from payments import runs as table
from payments import tasks
from payments.adapter import PaymentsAdapter

from mcp_workflows.adapter import Adapter, Execution, Nothing, Ref, Start, Status
from mcp_workflows.testing import AdapterContract, Role, Subject

CONSUMER = "-m huey.bin.huey_consumer payments.tasks.huey --workers=40 --delay=0.05 --max-delay=0.05 --no-periodic"
SAMPLE = Path(__file__).parents[1]


@contextmanager
def running(*command: str) -> Generator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, cwd=SAMPLE) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def workers() -> Iterator[None]:
    """The workers, as their users start them."""
    with running(sys.executable, *CONSUMER.split()):
        yield


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Adapter:
    """The adapter, its table of runs in a folder that is not there."""
    monkeypatch.setattr(tasks.runs, "path", "/nowhere/runs.db")
    return PaymentsAdapter(Nothing())


@asynccontextmanager
async def losing_replies(adapter: Adapter) -> AsyncGenerator[None]:
    """A queue that takes no message: the run is in the table, and nobody knows whether it will begin."""
    with closing(sqlite3.connect(tasks.huey.storage.filename, isolation_level=None)) as queue:
        queue.execute("begin exclusive")
        yield


@pytest.mark.usefixtures("workers")
class TestPayments(AdapterContract):
    @pytest.fixture
    def subject(self, monkeypatch: pytest.MonkeyPatch) -> Subject:
        return Subject(
            new_adapter=lambda: PaymentsAdapter(Nothing()),
            finishes=Role(workflow="pay", arguments=[{"invoice": "A-1", "amount": 10}]),
            output={"invoice": "A-1", "paid": 10},
            other_arguments=[{"invoice": "A-1", "amount": 20}],
            fails=Role(workflow="refund", arguments=[{"invoice": "A-1"}]),
            failure="nobody approved a refund of A-1",
            endless=Role(workflow="watch", arguments=[{"invoice": "A-1"}]),
            asks=Role(workflow="pay", arguments=[{"invoice": "A-1", "amount": 5000}]),
            asks_two=Role(workflow="refund", arguments=[{"invoice": "A-1", "approvers": ["Ada", "Eve"]}]),
            content={"approved": True},
            refused=Role(workflow="nobody-wrote-this"),
            unreachable=lambda: elsewhere(monkeypatch),
            losing_replies=losing_replies,
        )


PATIENCE = 30  # seconds


def order(key: str, workflow: str, **arguments: object) -> Start:
    return Start(workflow=workflow, arguments=[arguments], key=key, created=datetime.now(UTC))


async def seen(adapter: Adapter, key: str, wanted: Callable[[Execution], bool]) -> Execution:
    with anyio.fail_after(PATIENCE):
        while True:
            look = await adapter.describe(Ref(workflow="pay", handle=key))
            if wanted(look):
                return look
            await anyio.sleep(0.05)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.usefixtures("workers")
async def test_a_declined_question_is_an_answer() -> None:
    async with PaymentsAdapter(Nothing()) as adapter:
        await adapter.start(order("declined", "pay", invoice="A-1", amount=5000))
        asked = await seen(adapter, "declined", lambda look: bool(look.requests))
        assert asked.requests["approve"].params["message"] == "Pay 5000 for invoice A-1?"
        await adapter.answer(Ref(workflow="pay", handle="declined"), {"approve": {"action": "decline"}})
        ended = await seen(adapter, "declined", lambda look: look.terminal)
    assert ended.failure is not None
    assert ended.failure.text == "the payment was not approved"


@pytest.mark.anyio
@pytest.mark.usefixtures("workers")
async def test_a_second_message_of_a_run_does_nothing() -> None:
    async with PaymentsAdapter(Nothing()) as adapter:
        await adapter.start(order("twice", "pay", invoice="A-1", amount=10))
        ended = await seen(adapter, "twice", lambda look: look.terminal)
        tasks.pay.call_local("twice")
        assert await adapter.describe(Ref(workflow="pay", handle="twice")) == ended


@pytest.mark.anyio
async def test_a_run_whose_worker_is_killed_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks.runs.add("killed", "pay", {"invoice": "A-1", "amount": 5000}, "digest")
    async with PaymentsAdapter(Nothing()) as adapter:
        with running(sys.executable, "-c", "from payments.tasks import pay; pay.call_local('killed')"):
            await seen(adapter, "killed", lambda look: look.status is Status.INPUT_REQUIRED)
        monkeypatch.setattr(table, "LOST_AFTER", 0.1)
        ended = await seen(adapter, "killed", lambda look: look.terminal)
    assert ended.failure is not None
    assert ended.failure.text == "its worker is gone"
