"""What is pushed: a stream outlives its request, and its token may not outlive the stream."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from anyio.abc import TaskGroup

from tests.support.here import Elder, data_of
from tests.support.oidc import Providers
from tests.support.ownership import MARK, Caller, Town, town
from tests.support.served import Peer
from tests.support.waiting import TIMEOUT

pytestmark = pytest.mark.anyio

SHORT: Final = 8  # seconds: whole ones are all that a token can say
Frame = Mapping[str, Any]
ANSWER: Final = {"answer": MARK}


class Stream:
    """The frames of one stream, as they come."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.over = anyio.Event()
        self._more = anyio.Event()

    async def read(self, frames: AsyncIterator[Frame]) -> None:
        """Until it ends."""
        async for frame in frames:
            self.frames.append(frame)
            self._more.set()
        self.over.set()

    async def ends(self) -> None:
        """Until the server has ended it."""
        with anyio.fail_after(TIMEOUT):
            await self.over.wait()

    async def until(self, text: str) -> Frame:
        """The first frame with this text in it."""
        with anyio.fail_after(TIMEOUT):
            while not (found := [frame for frame in self.frames if text in str(frame)]):
                self._more = anyio.Event()
                await self._more.wait()
        return found[0]


async def listening(group: TaskGroup, client: Peer, task_id: str) -> Stream:
    """`subscriptions/listen` to a task, and its first state."""
    stream = await listening_to(group, client, {"taskIds": [task_id]})
    await stream.until("input_required")
    return stream


async def listening_to(group: TaskGroup, client: Peer, wanted: Mapping[str, Any]) -> Stream:
    """`subscriptions/listen`, acknowledged."""
    stream = Stream()

    async def run() -> None:
        async with client.stream("subscriptions/listen", {"notifications": wanted}) as (_, frames):
            await stream.read(frames)

    group.start_soon(run)
    await stream.until("notifications/subscriptions/acknowledged")
    return stream


async def standing(group: TaskGroup, client: Elder) -> Stream:
    """The stream of a session of 2025-11-25 that belongs to no request."""
    stream, opened = Stream(), anyio.Event()

    async def run() -> None:
        async with client.http.stream("GET", client.url, headers=client.headers, timeout=60) as response:
            opened.set()
            await stream.read(data_of(response))

    group.start_soon(run)
    await opened.wait()
    return stream


@asynccontextmanager
async def streams() -> AsyncGenerator[TaskGroup]:
    """Where they are read; all are closed at the end."""
    async with anyio.create_task_group() as group:
        yield group
        group.cancel_scope.cancel()


@asynccontextmanager
async def two_tokens(
    folder: Path, providers: Providers, ending: str
) -> AsyncGenerator[tuple[Town, Caller, Caller, Callable[[], Awaitable[None]]]]:
    """The same user at the same client with a good token, and with one that is no good any more after the last."""
    issuer = providers.first if ending == "revoked" else providers.second
    async with town(folder, providers) as place:
        good = await issuer.log_in("alice")
        async with place.caller("owner", good) as owner:
            place.callers["owner"] = owner
            short = await issuer.log_in("alice", lifetime=3600 if ending == "revoked" else SHORT)
            async with place.caller("other", short) as other:

                async def end() -> None:
                    if ending == "revoked":
                        await issuer.revoke(short)
                    with anyio.fail_after(TIMEOUT):
                        while (await other.modern.send("tasks/get", {"taskId": "x"})).status != 401:
                            await anyio.sleep(0.05)

                yield place, owner, other, end


@pytest.mark.parametrize("ending", ["revoked", pytest.param("expired", marks=pytest.mark.slow)])
async def test_a_stream_gets_nothing_more_when_its_token_is_no_good(
    tmp_path: Path, providers: Providers, caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    caplog.set_level(logging.INFO, "mcp_workflows.receiver.streams")
    async with two_tokens(tmp_path, providers, ending) as (place, owner, other, end), streams() as group:
        task = await place.task("ask")
        good, bad = await listening(group, owner.modern, task), await listening(group, other.modern, task)
        await end()
        before = len(bad.frames)
        await owner.modern.answer(task, question={"action": "accept", "content": ANSWER})
        assert MARK in str(await good.until("completed"))
        if ending == "expired":
            await bad.ends()
        else:
            await said(caplog, "a subscription to a task ended: Task not found")
        assert MARK not in str(bad.frames[before:])
        assert [frame for frame in bad.frames[before:] if "method" in frame] == []


@pytest.mark.parametrize("ending", ["revoked", pytest.param("expired", marks=pytest.mark.slow)])
async def test_a_session_of_2025_11_25_gets_nothing_more_when_its_token_is_no_good(
    tmp_path: Path, providers: Providers, caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    caplog.set_level(logging.INFO, "mcp_workflows.receiver.v2025_11_25.session")
    async with two_tokens(tmp_path, providers, ending) as (_, owner, other, end), streams() as group:
        stream = await standing(group, other.elder)
        made = await other.elder.send("tools/call", {"name": "ask", "arguments": {"secret": MARK}, "task": {}})
        task = made["result"]["task"]["taskId"]
        blocked, waiting = Stream(), "tasks/result"
        group.start_soon(result_of, other.elder, waiting, task, blocked)
        await owner.modern.until(task, "input_required")
        await blocked.until("elicitation/create")
        await end()
        before = len(stream.frames)
        await owner.modern.answer(task, question={"action": "accept", "content": ANSWER})
        await owner.modern.until(task, "completed")
        await said(caplog, "background work of a client's session ended: Task not found")
        assert "Task not found" in str(await blocked.until("error"))
        assert MARK not in str([*stream.frames[before:], *blocked.frames])
        assert task not in str(stream.frames[before:])


@pytest.mark.parametrize("ending", ["revoked", "expired"])
async def test_a_stream_on_which_nothing_happens_ends_with_its_token(
    tmp_path: Path, providers: Providers, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr("mcp_workflows.receiver.streams.RECHECK_SECONDS", 0.05 if ending == "revoked" else 3600.0)
    async with two_tokens(tmp_path, providers, ending) as (place, owner, other, end), streams() as group:
        task = await place.task("ask")
        kinds: list[Mapping[str, Any]] = [{"toolsListChanged": True}, {}, {"taskIds": [task]}]
        listens = [await listening_to(group, other.modern, kind) for kind in kinds]  # while its token is good
        get = await standing(group, other.elder)
        good = [await listening_to(group, owner.modern, kind) for kind in kinds]
        good.append(await standing(group, owner.elder))
        await end()
        for stream in (*listens, get):
            await stream.ends()
        for stream in listens:
            closed = stream.frames[-1]
            assert closed["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == closed["id"]
        assert [stream.over.is_set() for stream in good] == [False] * 4


async def test_a_session_hears_nothing_of_the_tasks_of_others(tmp_path: Path, providers: Providers) -> None:
    first = providers.first
    async with (
        town(tmp_path, providers) as place,
        place.caller("owner", await first.log_in("alice")) as owner,
        place.caller("person", await first.log_in("bob")) as bob,
        streams() as group,
    ):
        hers, his = await standing(group, owner.elder), await standing(group, bob.elder)
        made = await owner.elder.send("tools/call", {"name": "ask", "arguments": {"secret": MARK}, "task": {}})
        task = made["result"]["task"]["taskId"]
        await owner.elder.send("tasks/cancel", {"taskId": task})
        await hers.until("notifications/tasks/status")
        mine = (await bob.elder.send("tools/call", {"name": "ask", "arguments": {}, "task": {}}))["result"]["task"]
        await bob.elder.send("tasks/cancel", {"taskId": mine["taskId"]})
        await his.until(mine["taskId"])
        assert task not in str(his.frames)


async def result_of(client: Elder, method: str, task: str, stream: Stream) -> None:
    """The frames of a request that blocks."""
    async with client.stream(method, {"taskId": task}) as response:
        await stream.read(data_of(response))


async def said(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Until the log has it."""
    with anyio.fail_after(TIMEOUT):
        while text not in caplog.text:
            await anyio.sleep(0.01)
