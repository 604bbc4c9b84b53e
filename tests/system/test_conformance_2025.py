"""Our own server under the conformance suite for tasks of 2025-11-25 and for Events."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from anyio import to_thread
from mcp_tasks_conformance.__main__ import main
from mcp_tasks_conformance.check import ToolRole, Verdict
from mcp_tasks_conformance.fixtures import Fixture
from mcp_tasks_conformance.runner import CHECKS, run_checks, select_checks
from mcp_tasks_conformance.server_under_test import RunSettings

from mcp_workflows import Tool
from mcp_workflows.events.endpoints import EventSettings
from mcp_workflows.tools.tool import TaskSupport
from tests.support.child_processes import free_port
from tests.support.served import site
from tests.support.stack import Plan, Stack
from tests.support.waiting import TIMEOUT

pytestmark = pytest.mark.anyio

TOOLS = {
    "plain": ("echo", "forbidden"),
    "sleep": ("sleep", "optional"),
    "forever": ("forever", "optional"),
    "fail": ("fail", "required"),
    "broken": ("protocol_error", "optional"),
    "ask": ("ask", "optional"),
    "ask_two": ("ask_two", "optional"),
}
"""The workflow of each tool, and its task support."""

HEARTBEAT = 30.0  # seconds in which a quiet stream must show that it lives
SLOW_SECONDS = 4.0  # within which a machine under load makes and cancels a task

ROLES = {
    ToolRole.PLAIN: Fixture(tool="plain"),
    ToolRole.QUICK: Fixture(tool="sleep", arguments={"seconds": 0}),
    ToolRole.SLOW: Fixture(tool="sleep", arguments={"seconds": SLOW_SECONDS}),
    ToolRole.LONG: Fixture(tool="forever"),
    ToolRole.FAILS: Fixture(tool="fail"),
    ToolRole.BREAKS: Fixture(tool="broken"),
    ToolRole.ASKS: Fixture(tool="ask"),
    ToolRole.ASKS_TWO: Fixture(tool="ask_two"),
    ToolRole.COUNTS: Fixture(tool="sleep", arguments={"seconds": SLOW_SECONDS}),
    ToolRole.FIRES: Fixture(tool="sleep", arguments={"seconds": 0}),
}
LOCALLY = EventSettings(allow_private=True)


def tools() -> Sequence[Tool]:
    """Return the tools that play the roles."""
    return [
        Tool(name=name, engine="memory", workflow=workflow, tasks=TaskSupport(tasks))
        for name, (workflow, tasks) in TOOLS.items()
    ]


async def test_our_own_server_conforms(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tasks.db"
    async with site(store=store, tools=tools(), authenticated=True, events=LOCALLY) as ours:
        settings = RunSettings(
            url=ours.url,
            fixtures=ROLES,
            headers={"authorization": "Bearer ada"},
            other_headers={"authorization": "Bearer bob"},
            timeout=TIMEOUT,
            poll_interval=0.05,
            slow_seconds=SLOW_SECONDS,
            callback="http://127.0.0.1:0",
            heartbeat=HEARTBEAT,
        )
        results = await run_checks(settings, CHECKS)
    missed = {one.check.id: one.detail for one in results if one.is_missed}
    assert missed.keys() <= {"shape.get-is-no-stream"}, missed  # the MCP SDK answers every request by a stream
    skipped = {one.check.id: one.detail for one in results if one.verdict is Verdict.SKIPPED}
    assert len(missed) + len(skipped) <= 9, skipped


async def test_a_caller_who_is_not_known_may_not_subscribe_a_webhook(tmp_path: Path) -> None:
    async with site(store=f"sqlite:///{tmp_path}/tasks.db", tools=tools()) as ours:
        checks = select_checks(["subscribing.anonymous", "polling.event-arrives"])
        results = await run_checks(RunSettings(url=ours.url, fixtures=ROLES), checks)
    assert [one.verdict for one in results] == [Verdict.SKIPPED, Verdict.PASSED]
    assert "wants taskId" in results[0].detail  # all callers without credentials are one


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["temporal", "stepfunctions", "google"])
def test_the_conformance_fixtures_on_real_engines_conform(engine: str, tmp_path: Path) -> None:
    plan = Plan(engine=engine, sample="conformance", port=free_port(), state=tmp_path / "state")
    with Stack(plan) as stack:
        argv = [sys.executable, "-m", "mcp_tasks_conformance", stack.url, "-o", str(tmp_path / "found.json")]
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["passed"]
    assert {one["id"] for one in found["checks"] if one["state"] == "failed"} <= {"shape.get-is-no-stream"}


async def test_a_server_that_wants_credentials_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with site(store=f"sqlite:///{tmp_path}/tasks.db", authenticated=True) as ours:
        assert await to_thread.run_sync(main, [ours.url]) == 2
    assert "--header 'Authorization: Bearer ...'" in capsys.readouterr().err
