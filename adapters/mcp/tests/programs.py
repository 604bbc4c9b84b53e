"""The program of `scripted_program.py` as an upstream: its settings, its journal, and signals to it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio
import psutil
from mcp_workflows_mcp import McpAdapter, McpSettings

from adapters.mcp.tests.support import ROOT
from mcp_workflows.adapter import Execution, Ref, Start, Status
from mcp_workflows.errors import EngineUnavailable

SPLIT: Final[Mapping[str, Any]] = {
    "start": {"tool": "start_job", "args": {"key": "{{key}}"}, "handle": "{{reply.id}}"},
    "describe": {
        "tool": "get_job",
        "args": {"job_id": "{{handle}}"},
        "status": "{{reply.state}}",
        "gone_if": "{{contains(not_null(error, ''), '404')}}",
        "map": {"running": "busy", "succeeded": "done"},
        "output": "{{reply}}",
    },
}
FIND: Final[Mapping[str, Any]] = {
    "tool": "list_jobs",
    "each": "{{reply.jobs}}",
    "where": "{{item.key == key}}",
    "handle": "{{item.id}}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program, with its files in `folder`."""

    folder: Path

    def settings(self, *flags: str, **more: Any) -> Mapping[str, Any]:
        """Return the settings of an engine that starts it."""
        command = [sys.executable, "-m", "adapters.mcp.tests.scripted_program", str(self.folder), *flags]
        return {"command": command, "cwd": str(ROOT), "timeout": "2s", **more}

    def adapter(self, *flags: str, notes: Any = None, **more: Any) -> McpAdapter:  # Any: `more` has all types
        """Return an adapter that starts it."""
        adapter = McpAdapter(McpSettings.model_validate(self.settings(*flags, **more)))
        if notes is not None:
            adapter.remember(notes)
        return adapter

    @property
    def journal(self) -> list[str]:
        """What it has noted."""
        written = self.folder / "journal"
        return written.read_text().splitlines() if written.exists() else []

    def count(self, beginning: str) -> int:
        """Return the number of notes with this beginning."""
        return sum(line.startswith(beginning) for line in self.journal)

    def touch(self, name: str) -> None:
        """Tell it to go on."""
        (self.folder / name).touch()

    @property
    def pids(self) -> list[int]:
        """The processes that were started, the last one last."""
        return [int(line.removeprefix("pid ")) for line in self.journal if line.startswith("pid ")]

    def signal(self, wish: signal.Signals) -> None:
        """Send a signal to the last process, and wait until it has had its effect."""
        process = psutil.Process(self.pids[-1])
        os.kill(process.pid, wish)
        if wish is signal.SIGKILL:
            process.wait(10)


async def until(holds: Callable[[], bool], *, within: float = 60) -> None:
    """Wait until this holds."""
    with anyio.fail_after(within):
        while not holds():
            await anyio.sleep(0.02)


def order(workflow: str, arguments: Any = None, key: str = "key-1") -> Start:
    return Start(workflow=workflow, arguments=[arguments or {}], key=key, created=datetime.now(UTC))


async def started(adapter: McpAdapter, workflow: str = "job", arguments: Any = None, key: str = "key-1") -> Ref:
    """Start, and return the reference."""
    return Ref(workflow=workflow, handle=await adapter.start(order(workflow, arguments, key)))


async def started_when_up(adapter: McpAdapter, *, within: float = 60) -> Ref:
    """Start, and return the reference; a start without an answer is made again, under the same key."""
    with anyio.fail_after(within):
        while True:
            try:
                return await started(adapter)
            except EngineUnavailable:
                await anyio.sleep(0.05)


async def seen_when(
    adapter: McpAdapter, ref: Ref, holds: Callable[[Execution], bool], *, within: float = 60
) -> Execution:
    """Poll until this holds; polls without an answer are made again."""
    with anyio.fail_after(within):
        while True:
            try:
                seen = await adapter.describe(ref)
            except EngineUnavailable:
                await anyio.sleep(0.05)
                continue
            if holds(seen):
                return seen
            await anyio.sleep(0.05)


def asks(seen: Execution) -> bool:
    return seen.status is Status.INPUT_REQUIRED


def has_ended(seen: Execution) -> bool:
    return seen.terminal


@asynccontextmanager
async def entered(*adapters: McpAdapter) -> AsyncGenerator[None]:
    """Enter all of these."""
    async with AsyncExitStack() as stack:
        for adapter in adapters:
            await stack.enter_async_context(adapter)
        yield
