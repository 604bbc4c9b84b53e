"""How a sidecar ends: SIGTERM or SIGHUP makes it unready and drains, and whoever waits gets something to go on with."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.types import Message, Receive, Scope, Send

from mcp_workflows.adapter import Status
from mcp_workflows.sidecar.shutdown import OpenRequests, ShutdownState
from mcp_workflows.store.protocol import TaskFilter, open_store
from tests.support.commands import COMMAND, piped
from tests.support.here import MODERN, Elder, elder, over_http, scene
from tests.support.served import Peer, peer
from tests.support.sidecars import Process, sidecar

pytestmark = pytest.mark.anyio

CONFIG = """
server: {{drain: {drain}}}
store: sqlite:///tasks.db
engines: {{here: {{adapter: memory}}}}
tools:
  forever: {{engine: here, workflow: forever}}
  patient: {{engine: here, workflow: forever, tasks: wait}}
  needy: {{engine: here, workflow: forever, tasks: wait, cancel_on_disconnect: true}}
  asking: {{engine: here, workflow: ask}}
"""


@contextmanager
def served(folder: Path, drain: str) -> Generator[Process]:
    config = folder / "workflows.yaml"
    config.write_text(CONFIG.format(drain=drain))
    with sidecar(config) as process:
        yield process


class Crowd:
    """Clients of both eras that wait in every way there is, and what they were told at last."""

    def __init__(self, process: Process, modern: Peer, old: Elder) -> None:
        self.process = process
        self.modern = modern
        self.old = old
        self.told: dict[str, Any] = {}

    async def wait(self) -> None:
        """Until all have got an end."""
        task_id = (await self.modern.call("forever")).result["taskId"]
        of_old: dict[str, Any] = {"name": "forever", "arguments": {}, "task": {}}
        old_id = (await self.old.send("tools/call", of_old))["result"]["task"]["taskId"]
        ways: Mapping[str, Callable[[], Awaitable[object]]] = {
            "call": lambda: self._plain("forever"),
            "patient": lambda: self._plain("patient"),
            "needy": lambda: self._plain("needy"),
            "listen": lambda: self._listen(task_id),
            "old call": lambda: self.old.call("patient"),
            "old question": lambda: self.old.call("asking"),
            "old result": lambda: self.old.send("tasks/result", {"taskId": old_id}),
            "old stream": self._standalone,
        }
        async with anyio.create_task_group() as group:
            for name, way in ways.items():
                group.start_soon(self._note, name, way)

    async def _note(self, name: str, way: Callable[[], Awaitable[object]]) -> None:
        self.told[name] = await way()

    async def _plain(self, tool: str) -> Mapping[str, Any]:
        return (await self.modern.call(tool, capabilities={})).body

    async def _listen(self, task_id: str) -> Sequence[object]:
        wanted = {"notifications": {"taskIds": [task_id]}}
        async with self.modern.stream("subscriptions/listen", wanted) as (_, frames):
            return [frame async for frame in frames]

    async def _standalone(self) -> int:
        async with self.old.http.stream("GET", self.old.url, headers=self.old.headers, timeout=60) as response:
            await response.aread()
            return response.status_code


async def all_there(process: Process, count: int) -> None:
    """Until so many tasks have been started and looked at."""
    with anyio.fail_after(60):
        while True:
            async with open_store(f"sqlite:///{process.log.parent}/tasks.db") as store:
                rows = await store.list_all(limit=100)
            if len(rows) == count and all(row.execution.message for row in rows):
                return
            await anyio.sleep(0.05)


async def ended(process: Process) -> int:
    with anyio.fail_after(60):
        while (code := process.process.poll()) is None:
            await anyio.sleep(0.02)
    return code


async def test_sigterm_is_unready_at_once_goes_on_serving_and_ends_with_something_for_everybody(tmp_path: Path) -> None:
    with served(tmp_path, "6s") as process:
        async with peer(process.url) as modern, elder(process.url, {"elicitation": {}}) as old:
            crowd = Crowd(process, modern, old)
            async with anyio.create_task_group() as group:
                group.start_soon(crowd.wait)
                await all_there(process, 7)
                process.process.send_signal(signal.SIGTERM)
                await unready(modern, process)
                created = (await modern.call("forever")).result  # a load balancer has not noticed yet
                assert (await modern.get(created["taskId"]))["status"] == "working"
                assert not crowd.told
                assert await ended(process) == 0
            await nothing_was_cancelled(tmp_path)
    told = crowd.told
    for handed in ("call", "old question"):
        assert told[handed]["result"]["structuredContent"]["taskId"], told[handed]
    for unbounded in ("patient", "needy", "old call"):
        assert "do not call" in told[unbounded]["result"]["content"][0]["text"]
    assert "the server is stopping; the workflow goes on" in told["old result"]["error"]["message"]
    assert told["listen"][-1]["result"]["resultType"] == "complete"
    assert told["old stream"] == 200
    log = process.log.read_text()
    assert "Traceback" not in log
    assert "ERROR" not in log


async def unready(client: Peer, process: Process) -> None:
    with anyio.fail_after(60):
        while (reply := await client.http.get(process.url.replace("/mcp", "/readyz"))).status_code == 200:
            await anyio.sleep(0.02)
    assert (reply.status_code, reply.json()) == (503, {"ok": False, "server": "stopping"})
    assert (await client.http.get(process.url.replace("/mcp", "/healthz"))).status_code == 200


async def nothing_was_cancelled(folder: Path) -> None:
    async with open_store(f"sqlite:///{folder}/tasks.db") as store:
        rows = await store.list_all(TaskFilter(live_only=False))
    assert {row.execution.status for row in rows} == {Status.RUNNING, Status.INPUT_REQUIRED}
    assert not any(row.cancel_requested for row in rows)


@pytest.mark.parametrize(
    "signals",
    [[signal.SIGINT], [signal.SIGHUP, signal.SIGTERM]],
    ids=["Ctrl-C", "twice"],
)
async def test_ctrl_c_and_a_second_sigterm_do_not_drain(tmp_path: Path, signals: Sequence[signal.Signals]) -> None:
    with served(tmp_path, "1h") as process:
        async with peer(process.url) as client, anyio.create_task_group() as group:
            group.start_soon(partial(client.call, "patient", capabilities={}))
            await all_there(process, 1)
            for number in signals[:-1]:
                process.process.send_signal(number)
                await unready(client, process)
            process.process.send_signal(signals[-1])
            assert await ended(process) == 0
    assert "Traceback" not in process.log.read_text()


async def test_a_sidecar_started_with_nohup_does_not_end_when_its_terminal_does(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does, and processes inherit it
    try:
        with served(tmp_path, "1h") as process:
            process.process.send_signal(signal.SIGHUP)
            async with peer(process.url) as client:
                assert (await client.call("forever")).result["taskId"]
                assert (await client.http.get(process.url.replace("/mcp", "/readyz"))).status_code == 200
            assert process.stop() == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("mode", "number"), [("serve", signal.SIGTERM), ("dev", signal.SIGINT)])
def test_on_stdio_a_signal_answers_what_waits_and_ends_it_well(
    tmp_path: Path, mode: str, number: signal.Signals
) -> None:
    config = tmp_path / "workflows.yaml"
    config.write_text(CONFIG.format(drain="1h"))
    command = [COMMAND, mode, str(config), "--log-level", "warning", *(["--stdio"] if mode == "dev" else [])]
    with piped(command) as sidecar:
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        params = {"name": "forever", "arguments": {}, "_meta": {**MODERN, "progressToken": "t"}}
        sidecar.stdin.write(json.dumps({**asked, "params": params}).encode() + b"\n")
        assert json.loads(sidecar.stdout.readline())["method"] == "notifications/progress"  # it waits
        sidecar.process.send_signal(number)
        answer = json.loads(sidecar.stdout.readline())
        assert answer["result"]["structuredContent"]["status"] == "working"
        assert sidecar.process.wait(60) == 0
        assert sidecar.finish() == (b"", "")


@pytest.mark.parametrize("begun", [False, True])
async def test_what_is_cut_at_the_end_is_whole_http_all_the_same(begun: bool) -> None:
    sent: list[Message] = []
    stuck = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        stuck.set()
        await anyio.sleep_forever()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    serving = asyncio.create_task(
        OpenRequests(app, ShutdownState(stopping=True))({"type": "http", "method": "POST"}, receive, send)
    )
    await stuck.wait()
    serving.cancel()  # as uvicorn does, by asyncio's own means
    await serving
    assert [message.get("status") for message in sent] == [200 if begun else 503, None]
    assert not sent[-1].get("more_body")


async def test_a_session_lives_in_one_replica_and_its_tasks_in_all(tmp_path: Path) -> None:
    """What docs/operate/kubernetes.md says of load balancers."""
    tools = "  ask: {engine: here, workflow: ask}"
    one, two = scene(tmp_path, tools), scene(tmp_path, tools)
    async with over_http(one) as here, over_http(two) as there, elder(here) as client, elder(there) as later:
        wanted: dict[str, Any] = {"name": "ask", "arguments": {}, "task": {}}
        task_id = (await client.send("tools/call", wanted))["result"]["task"]["taskId"]
        async with replace(client, url=there).stream("tools/list") as response:
            assert response.status_code == 404
        assert (await later.send("tasks/get", {"taskId": task_id}))["result"]["status"] in {"working", "input_required"}
        async with peer(there) as modern:
            await modern.until(task_id, "input_required")
            await modern.answer(task_id, question={"action": "accept", "content": {"answer": "yes"}})
        result = await client.send("tasks/result", {"taskId": task_id})
        assert result["result"]["structuredContent"] == {"answer": "yes"}
