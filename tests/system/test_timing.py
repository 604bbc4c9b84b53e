"""How long "not found" takes does not tell whether a task is there: not yours against not there, in one run."""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

import pytest

from mcp_workflows.access.limit_settings import Limits
from mcp_workflows.store.encryption import Cipher
from mcp_workflows.store.sqlite.store import SQLiteStore
from mcp_workflows.testing.tasks import make_task
from tests.support.served import peer, site

pytestmark = pytest.mark.anyio

LARGE: Final = "x" * 990_000  # in the task that is somebody else's
NOWHERE: Final = "f" * 40
BOUND: Final = 1.25  # of the medians; generous: machines are busy
UNMETERED: Final = Limits(polls_per_minute=None, failed_lookups_per_minute=None)


@contextmanager
def undisturbed() -> Generator[None]:
    """No collection of garbage meanwhile."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def compared(ask: Callable[[str], Awaitable[object]], foreign: str, samples: int) -> tuple[float, float]:
    """The medians, in microseconds, of asking for either, in turns; which comes first changes each time."""
    took: dict[str, list[float]] = {foreign: [], NOWHERE: []}
    with undisturbed():
        for number in range(samples):
            for task_id in (foreign, NOWHERE) if number % 2 else (NOWHERE, foreign):
                began = time.perf_counter()
                await ask(task_id)
                took[task_id].append((time.perf_counter() - began) * 1e6)
    return median(took[foreign]), median(took[NOWHERE])


async def judge(
    request: pytest.FixtureRequest, what: str, measure: Callable[[], Awaitable[tuple[float, float]]]
) -> None:
    """Into the summary of the run; and within bounds, at one of three times: noise passes, and what tells stays."""
    line = ""
    for _ in range(3):
        foreign, nowhere = await measure()
        ratio = foreign / nowhere
        line = f"timing, {what}: not yours {foreign:.0f} us, not there {nowhere:.0f} us, ratio {ratio:.3f}"
        request.node.user_properties.append(("said", line))
        if 1 / BOUND < ratio < BOUND:
            return
    raise AssertionError(line)


@pytest.mark.parametrize("sealed", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "encrypted"])
async def test_the_store_takes_as_long_for_a_row_of_another_as_for_none(
    tmp_path: Path, request: pytest.FixtureRequest, *, sealed: bool
) -> None:
    cipher = Cipher(["A" * 43 + "="]) if sealed else None
    async with SQLiteStore(f"sqlite:///{tmp_path}/tasks.db", cipher=cipher) as store:
        await store.create(made := make_task(id="a" * 40, input=[LARGE]))

        async def ask(task_id: str) -> None:
            assert await store.get(task_id, "bob") is None

        await compared(ask, made.id, 50)
        what = f"store, {'encrypted' if sealed else 'plain'}"
        await judge(request, what, lambda: compared(ask, made.id, 1000))


async def test_a_request_takes_as_long_for_a_task_of_another_as_for_none(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with (
        site(store=store, authenticated=True, limits=UNMETERED) as here,
        peer(here.url, token="alice") as alice,
        peer(here.url, token="bob") as bob,
    ):
        foreign = str((await alice.call("echo", {"text": LARGE})).result["taskId"])
        await alice.until(foreign)

        async def ask(task_id: str) -> None:
            reply = await bob.send("tasks/get", {"taskId": task_id})
            assert reply.error["message"] == "Task not found"

        await compared(ask, foreign, 20)
        await judge(request, "tasks/get over HTTP", lambda: compared(ask, foreign, 250))
