"""Upstream servers that are killed, that hang, flood or do not start: nothing is started twice, and nothing is lost."""

from __future__ import annotations

import json
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import psutil
import pytest
from mcp_workflows_mcp import McpAdapter
from mcp_workflows_mcp.handle import Handle, HandleKind

from adapters.mcp.tests.programs import (
    FIND,
    SPLIT,
    Program,
    has_ended,
    order,
    seen_when,
    started,
    started_when_up,
    until,
)
from adapters.mcp.tests.scripted_server import MODERN, ScriptedServer, structured
from adapters.mcp.tests.support import DEFINITION, http
from mcp_workflows.adapter import Ref, StartGuarantee, Status
from mcp_workflows.errors import EngineUnavailable
from mcp_workflows.testing import MemoryNotes
from tests.support.child_processes import free_port
from tests.support.configured import called, operating, written
from tests.support.served import Peer, peer
from tests.support.sidecars import sidecar

pytestmark = [pytest.mark.anyio, pytest.mark.process]

KEYED = {**SPLIT, "starts": "keyed"}
FINDABLE = {**SPLIT, "starts": "findable", "find": FIND}


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(folder=tmp_path)


# --- killed


async def test_a_program_that_is_killed_between_start_and_look_is_started_again_by_the_next_look(
    program: Program,
) -> None:
    async with program.adapter(**SPLIT, starts="once") as adapter:
        ref = await started(adapter)
        for _ in range(3):
            program.signal(signal.SIGKILL)
            seen = await seen_when(adapter, ref, lambda _: True, within=5)
            assert seen.status is Status.RUNNING
        assert len(program.pids) == 4
        program.touch("key-1.done")
        assert (await adapter.describe(ref)).status is Status.SUCCEEDED
        assert program.count("started") == 1
    assert not any(_is_alive(pid) for pid in program.pids)


async def test_a_program_that_was_killed_while_nobody_called_loses_no_start(program: Program) -> None:
    """The end of the program is noticed before the call is sent, so its outcome is not unknown."""
    async with program.adapter("forgetful", **SPLIT, starts="once") as adapter:
        await started(adapter)
        program.signal(signal.SIGKILL)
        await until(lambda: is_over(adapter))
        ref = await started(adapter, key="key-2")
        assert (await adapter.describe(ref)).status is Status.RUNNING
        assert program.count("started key-2") == 1


def is_over(adapter: McpAdapter) -> bool:
    """True if the adapter has noticed the end of its connection."""
    attempt = adapter._upstream._attempt  # pyright: ignore[reportPrivateUsage]  # nothing public tells
    return attempt is not None and attempt.connection is not None and attempt.connection.over.is_set()


@pytest.mark.parametrize("definition", [KEYED, FINDABLE])
async def test_a_program_that_is_killed_in_a_start_started_one_execution(program: Program, definition: Any) -> None:
    flags = ["slow-reply"] if definition is KEYED else ["slow-reply", "forgetful"]
    async with program.adapter(*flags, **{**definition, "timeout": "8s"}) as adapter:
        async with anyio.create_task_group() as group:
            group.start_soon(_kill_once_started, program)
            with pytest.raises(EngineUnavailable) as raised:
                await started(adapter)
            assert raised.value.sent
        program.touch("reply.go")
        if adapter.starts is StartGuarantee.FINDABLE:
            found = await adapter.find(order("job"))
            assert found is not None
            ref = Ref(workflow="job", handle=found)
        else:
            ref = await started(adapter)
        assert (await adapter.describe(ref)).status is Status.RUNNING
        assert program.count("started") == 1


async def _kill_once_started(program: Program) -> None:
    await until(lambda: program.count("started") > 0)
    program.signal(signal.SIGKILL)


async def test_a_program_that_is_killed_in_a_start_which_cannot_be_repeated_leaves_it_unknown(
    program: Program,
) -> None:
    async with program.adapter("slow-reply", "forgetful", notes=MemoryNotes(), **SPLIT, starts="once") as adapter:
        ref = await started(adapter)  # the handle of a call that has not ended
        assert (await adapter.describe(ref)).status is Status.RUNNING
        program.signal(signal.SIGKILL)
        seen = await seen_when(adapter, ref, has_ended)
        assert seen.failure is not None
        assert (seen.status, seen.failure.kind) == (Status.FAILED, "OutcomeUnknown")
        assert program.count("started") == 1


async def test_a_sidecar_that_is_killed_while_its_program_boots_starts_the_job_later(
    program: Program, tmp_path: Path
) -> None:
    settings = program.settings("slow-boot", "forgetful", **SPLIT, starts="once")
    config = written(tmp_path, "jobs", {"adapter": "mcp", **settings}, {"it": {"workflow": "job"}})
    with sidecar(config) as booting:
        async with peer(booting.url) as client, anyio.create_task_group() as group:
            group.start_soon(_call_in_vain, client)
            await until(lambda: bool(program.pids))
            booting.process.send_signal(signal.SIGKILL)
    program.touch("boot.go")
    with sidecar(config) as fresh:
        async with peer(fresh.url) as client:
            await until(lambda: program.count("started") > 0)
            [task] = json.loads(await operating(tmp_path, "list", "--json"))
            assert task["status"] == "working", task
    assert program.count("started") == 1


async def _call_in_vain(client: Peer) -> None:
    with suppress(httpx2.TransportError):
        await called(client)


@pytest.mark.parametrize("revision", ["2025-11-25", MODERN])
async def test_a_server_over_http_that_cannot_be_reached_has_started_nothing(revision: str) -> None:
    server = ScriptedServer(revision=revision)
    server.replies["start_job"] = structured({"id": "job-1"})
    server.replies["get_job"] = structured({"id": "job-1", "state": "busy"})
    definition = {"starts": "once", "start": {**DEFINITION["start"], "same": None}, "timeout": "2s"}
    port = free_port()
    async with http(f"http://127.0.0.1:{port}/mcp", **definition) as adapter:
        async with server.served(port):
            ref = await started(adapter)
        with pytest.raises(EngineUnavailable) as raised:
            await started(adapter, key="key-2")
        assert not raised.value.sent
        with pytest.raises(EngineUnavailable):
            await adapter.describe(ref)
        async with server.served(port):
            assert (await seen_when(adapter, ref, lambda _: True)).status is Status.RUNNING
            await started(adapter, key="key-2")
        assert len(server.calls("start_job")) == 2


# --- hanging


async def test_a_frozen_program_is_replaced_after_some_calls(program: Program) -> None:
    async with program.adapter(**{**KEYED, "timeout": "500ms"}) as adapter:
        ref = await started(adapter)
        program.signal(signal.SIGSTOP)
        for _ in range(3):
            with pytest.raises(EngineUnavailable, match=r"no answer within 0.5 s"):
                await adapter.describe(ref)
        seen = await seen_when(adapter, ref, lambda _: True)
        assert seen.status is Status.RUNNING
        first, second = program.pids
        await until(lambda: not _is_alive(first))
        assert _is_alive(second)


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_a_tool_that_hangs_does_not_hold_up_other_executions(program: Program) -> None:
    ended: list[str] = []

    async def start(key: str) -> None:
        await started(adapter, key=key)
        ended.append(key)

    async with (
        program.adapter("slow-reply", notes=MemoryNotes(), **{**KEYED, "timeout": "9s"}) as adapter,
        anyio.create_task_group() as group,
    ):
        (program.folder / "jobs").mkdir()
        program.touch("jobs/job-1")
        program.touch("jobs/job-2")
        for number in range(5):
            group.start_soon(start, f"slow-{number}")
        await until(lambda: program.count("started") == 5)
        for name in ("job-1", "job-2"):
            ref = Ref(workflow="job", handle=_handle(name))
            assert (await adapter.describe(ref)).status is Status.RUNNING
        assert not ended
        program.touch("reply.go")


def _handle(name: str) -> str:
    return Handle.of(HandleKind.SPLIT, name, order("job"), "of now").text()


async def test_an_open_call_is_not_lost_when_looks_get_no_answer(program: Program) -> None:
    """A program that is busy may be slow to answer others: it is not replaced while a call would be lost with it."""
    definition = {**SPLIT, "starts": "once", "timeout": "300ms"}
    async with program.adapter("slow-reply", "frozen-looks", notes=MemoryNotes(), **definition) as adapter:
        call = await started(adapter)
        await until(lambda: program.count("started") == 1)
        program.touch("jobs/other")
        ref = Ref(workflow="job", handle=_handle("other"))
        for _ in range(6):
            with pytest.raises(EngineUnavailable):
                await adapter.describe(ref)
        assert len(program.pids) == 1
        program.touch("describe.go")
        program.touch("reply.go")
        assert (await seen_when(adapter, call, lambda seen: seen.execution_id is not None)).status is Status.RUNNING
        assert program.count("started key-1") == 1


async def test_a_call_that_never_ends_is_a_task_that_can_be_cancelled(program: Program) -> None:
    async with program.adapter(notes=MemoryNotes(), start={"tool": "never"}, starts="once", timeout="300ms") as adapter:
        ref = await started(adapter, "never")
        await until(lambda: program.count("never") == 1)  # it may be long in coming up
        assert (await adapter.describe(ref)).status is Status.RUNNING
        await adapter.cancel(ref)
        assert (await seen_when(adapter, ref, has_ended)).status is Status.CANCELLED
        await until(lambda: program.count("told notifications/cancelled") == 1)


# --- programs that do not start, or talk too much


async def test_a_program_that_ends_at_once_is_told_with_its_last_words_but_our_secrets(program: Program) -> None:
    async with program.adapter("exit", **KEYED, env={"TOKEN": "s3cret-token"}) as adapter:
        for _ in range(3):
            with pytest.raises(EngineUnavailable, match=r"its program said last: fatal: \*\*\* is no good") as raised:
                await started(adapter)
            assert not raised.value.sent
        assert len(program.pids) == 1  # it is not started anew for each call


async def test_a_program_that_comes_up_slowly_is_waited_for_by_more_than_one_start(program: Program) -> None:
    async with program.adapter("slow-start", **{**KEYED, "timeout": "300ms"}) as adapter:
        for _ in range(4):
            with pytest.raises(EngineUnavailable, match="no answer within"):
                await started(adapter)
        program.touch("initialize.go")
        await started_when_up(adapter)  # the SDK asks for the newer revision first
        assert len(program.pids) == 1
        assert program.count("started") == 1


async def test_a_start_that_cannot_be_repeated_waits_for_a_program_that_comes_up_slowly(program: Program) -> None:
    async with program.adapter(
        "slow-start", "forgetful", notes=MemoryNotes(), **{**SPLIT, "starts": "once", "timeout": "300ms"}
    ) as adapter:
        ref = await started(adapter)
        program.touch("initialize.go")
        seen = await seen_when(adapter, ref, lambda seen: seen.execution_id is not None)
        assert seen.status is Status.RUNNING
        assert program.count("started") == 1


async def test_a_program_of_no_revision_is_said_to_be_none(program: Program) -> None:
    async with program.adapter("neither", **KEYED, timeout="9s") as adapter:  # it may be long in coming up
        with pytest.raises(EngineUnavailable, match="protocol") as raised:
            await started(adapter)
        assert not raised.value.sent


async def test_lines_that_are_no_messages_are_passed_over(program: Program) -> None:
    async with program.adapter("noise", **KEYED) as adapter:
        ref = await started(adapter)
        assert (await adapter.describe(ref)).status is Status.RUNNING


async def test_a_flood_on_standard_error_holds_up_neither_side(program: Program) -> None:
    async with program.adapter("stderr", **KEYED) as adapter:
        ref = await started_when_up(adapter)
        assert (await seen_when(adapter, ref, lambda _: True)).status is Status.RUNNING
        await until(lambda: program.count("stderr is written") == 1)


async def test_a_line_without_an_end_ends_the_connection_and_the_next_call_gets_another(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_workflows_mcp.client.MAX_LINE", 2**21)
    async with program.adapter(starts="once", timeout="9s") as adapter:
        with pytest.raises(EngineUnavailable, match="it may have started"):
            await started(adapter, "endless", key="a")
        await until(lambda: not psutil.pid_exists(program.pids[0]))
        program.touch("never.go")
        other = await started(adapter, "never", key="b")
        assert (await seen_when(adapter, other, has_ended)).status is Status.SUCCEEDED
        assert len(program.pids) == 2


async def test_a_flood_of_changes_lists_the_tools_every_five_seconds_at_most(program: Program) -> None:
    began = time.monotonic()
    async with program.adapter("changes", timeout="9s", **KEYED) as adapter:
        ref = await started_when_up(adapter)
        for _ in range(5):
            assert (await seen_when(adapter, ref, lambda _: True)).status is Status.RUNNING
        assert program.count("tools/list") <= 2 + (time.monotonic() - began) / 5
