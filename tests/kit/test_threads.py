"""Blocking calls: their outcome, their places, and the end of the process."""

from __future__ import annotations

import threading

import anyio
import anyio.lowlevel
import pytest

from mcp_workflows.kit.threads import BlockingCall, begin_call

pytestmark = pytest.mark.anyio

PATIENCE = 60.0


async def test_all_who_wait_for_a_call_get_its_outcome() -> None:
    go = threading.Event()
    calls = 0

    def work() -> int:
        nonlocal calls
        calls += 1
        go.wait(PATIENCE)
        return calls

    call, found = BlockingCall(work), list[int]()
    assert not call.ended

    async def wait() -> None:
        found.append(await call.outcome())

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        group.start_soon(wait)
        await anyio.lowlevel.checkpoint()
        go.set()
    assert (found, call.ended) == ([1, 1], True)


async def test_an_error_is_handed_on_and_a_defect_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[object] = []

    def hook(args: threading.ExceptHookArgs) -> None:
        reported.append(args.exc_value)

    monkeypatch.setattr(threading, "excepthook", hook)

    def fails(error: Exception) -> None:
        raise error

    with pytest.raises(OSError, match="no network"):
        await (await begin_call(lambda: fails(OSError("no network")), errors=(OSError,))).outcome()
    with pytest.raises(RuntimeError, match="the thread of a blocking call broke"):
        await (await begin_call(lambda: fails(KeyError("bug")), errors=(OSError,))).outcome()
    with anyio.fail_after(PATIENCE):
        while not reported:
            await anyio.sleep(0.01)
    assert isinstance(reported[0], KeyError)


async def test_a_call_keeps_its_places_until_it_has_ended_even_if_nobody_waits() -> None:
    go, one, two = threading.Event(), anyio.CapacityLimiter(1), anyio.CapacityLimiter(2)
    call = await begin_call(lambda: go.wait(PATIENCE), one, two)
    with anyio.move_on_after(0.01):
        await call.outcome()
    assert (one.borrowed_tokens, two.borrowed_tokens) == (1, 1)
    with anyio.move_on_after(0.01) as waiting:
        await begin_call(lambda: None, two, one)
    assert waiting.cancelled_caught
    assert two.borrowed_tokens == 1  # what waited in vain gave back what it had
    go.set()
    assert await call.outcome()
    assert (one.borrowed_tokens, two.borrowed_tokens) == (0, 0)
