"""kill -9 of the sidecar and of the upstream: each call starts at most one execution, and no task ends wrongly."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import httpx2
import psutil
import pytest

from adapters.mcp.tests.programs import FIND, SPLIT, Program, started, until
from adapters.mcp.tests.support import DEFINITION, ROOT, http
from adapters.mcp.tests.upstreams.upstream import Upstream, UpstreamOverHttp
from mcp_workflows.adapter import Status
from mcp_workflows.errors import EngineUnavailable
from tests.support.configured import KEY, called, killed_while_creating, written
from tests.support.served import ENDED, Peer, peer
from tests.support.sidecars import sidecar

pytestmark = [pytest.mark.anyio, pytest.mark.process, pytest.mark.slow]

STEPS: Final = ("row", "start", "bind", "reply")
GUARANTEES: Final[Mapping[str, tuple[tuple[str, ...], Mapping[str, Any]]]] = {
    "keyed": ((), {"starts": "keyed"}),
    "findable": (("forgetful",), {"starts": "findable", "find": FIND, "settling": "1s"}),
    "once": (("forgetful",), {"starts": "once"}),
}
TOOL: Final[Mapping[str, Any]] = {"workflow": "job", "input": {"type": "object"}, "args": [], "tasks": "required"}


def config_of(program: Program, guarantee: str, *flags: str) -> Path:
    """Return the workflows.yaml of a sidecar whose engine is this program."""
    own, definition = GUARANTEES[guarantee]
    settings = {"adapter": "mcp", **program.settings(*own, *flags, **SPLIT, **definition)}
    return written(program.folder, "jobs", settings, {"it": TOOL})


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(folder=tmp_path)


async def finished(client: Peer, program: Program) -> Mapping[str, Any]:
    """Call again with the key, let all jobs end, and return the one task."""
    ids = {await called(client, meta=KEY) for _ in range(3)}
    assert len(ids) == 1
    [task_id] = ids
    with anyio.fail_after(90):
        while (seen := await client.get(task_id))["status"] not in ENDED:
            for job in (program.folder / "jobs").glob("*"):
                program.touch(f"{job.name}.done")
            await anyio.sleep(0.1)
    return seen


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("guarantee", ["keyed", "findable"])
async def test_a_call_starts_one_execution_whenever_the_sidecar_is_killed(
    program: Program, guarantee: str, step: str
) -> None:
    config = config_of(program, guarantee)
    await killed_while_creating(config, step, meta=KEY)
    with sidecar(config) as fresh:
        async with peer(fresh.url) as client:
            assert (await finished(client, program))["status"] == "completed"
    assert program.count("started") == 1


@pytest.mark.parametrize("step", STEPS)
async def test_a_call_that_cannot_be_repeated_never_starts_two_executions(program: Program, step: str) -> None:
    config = config_of(program, "once")
    await killed_while_creating(config, step, meta=KEY)
    with sidecar(config) as fresh:
        async with peer(fresh.url) as client:
            seen = await finished(client, program)
            if step == "start":  # the execution runs, and its handle is lost
                assert "outcome unknown" in json.dumps(seen)
    assert program.count("started") <= 1


@pytest.mark.parametrize("guarantee", GUARANTEES)
async def test_a_sidecar_that_is_killed_in_the_middle_of_a_start_starts_nothing_twice(
    program: Program, guarantee: str
) -> None:
    """The program has started the job, and its reply is on the way: at moments that are spread over the start."""
    config = config_of(program, guarantee, "slow-reply")
    with sidecar(config) as first:
        async with peer(first.url) as client, anyio.create_task_group() as group:

            async def call() -> None:
                with suppress(httpx2.TransportError):
                    await called(client, meta=KEY)

            group.start_soon(call)
            await until(lambda: program.count("started") == 1)
            first.process.send_signal(signal.SIGKILL)
            assert await anyio.to_thread.run_sync(first.process.wait, 60) == -9
    program.touch("reply.go")
    with sidecar(config) as fresh:
        async with peer(fresh.url) as client:
            seen = await finished(client, program)
            expected = "outcome unknown" if guarantee == "once" else '"completed"'
            assert expected in json.dumps(seen)
    assert program.count("started") == 1


async def test_programs_end_with_a_sidecar_that_is_killed(program: Program) -> None:
    """Their standard input ends; one that takes no notice of that goes on, beside the one of the next sidecar."""
    for flags, outlives in (((), False), (("stays",), True)):
        folder = program.folder / "-".join(["flags", *flags])
        folder.mkdir()
        each = Program(folder=folder)
        config = config_of(each, "keyed", *flags)
        with sidecar(config) as first:
            async with peer(first.url) as client:
                await called(client, meta=KEY)
                first.process.send_signal(signal.SIGKILL)
                await anyio.to_thread.run_sync(first.process.wait, 60)
        [pid] = each.pids
        if outlives:
            await until(lambda found=each: found.count("stays") == 1)
        else:
            await until(lambda found=pid: not psutil.pid_exists(found))
        with sidecar(config) as fresh:
            async with peer(fresh.url) as client:
                assert (await finished(client, each))["status"] == "completed"
        assert psutil.pid_exists(pid) is outlives
        each.touch("end.go")
        await until(lambda found=pid: not psutil.pid_exists(found))


# --- the upstream, over HTTP


def jobs_over_http(folder: Path) -> UpstreamOverHttp:
    def listening(port: int) -> Upstream:
        state = str(folder / "jobs.json")
        words = ["-m", "adapters.mcp.tests.jobs_server", "--state", state, "--port", str(port)]
        return Upstream(command=[sys.executable, *words], env={"PYTHONPATH": str(ROOT)})

    return UpstreamOverHttp(folder, listening)


async def test_a_server_over_http_that_is_killed_in_a_start_started_one_execution(tmp_path: Path) -> None:
    assert DEFINITION["starts"] == "keyed"
    with jobs_over_http(tmp_path) as server:
        async with http(server.url, timeout="500ms") as adapter:
            await adapter.tooling.check_engine()
            server.freeze()
            with pytest.raises(EngineUnavailable):
                await started(adapter, "forever")
            server.kill()
            await anyio.to_thread.run_sync(server.start)
            with anyio.fail_after(60):
                while True:
                    try:
                        ref = await started(adapter, "forever")
                    except EngineUnavailable:
                        await anyio.sleep(0.1)
                        continue
                    break
            assert (await adapter.describe(ref)).status is Status.RUNNING
            assert len(json.loads((tmp_path / "jobs.json").read_text())) == 1
