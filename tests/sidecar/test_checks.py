"""`check --store`: live tasks whose tool or engine was removed; and the table where nobody's screen is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mcp_workflows.adapter import Execution, Finding, Status
from mcp_workflows.adapter.memory import MemoryAdapter, MemoryTooling
from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.checks import ItemState, check
from mcp_workflows.sidecar.config.load import load_config
from mcp_workflows.store.protocol import open_store
from mcp_workflows.task import observe
from mcp_workflows.testing import make_task

pytestmark = pytest.mark.anyio

CONFIG = (
    "store: sqlite:///tasks.db\nengines:\n  here: {adapter: memory}\ntools:\n"
    "  echo: {engine: here, workflow: echo, input: {type: object, properties: {}}}\n"
)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "workflows.yaml"
    path.write_text(CONFIG)
    return path


async def fill(folder: Path, *rows: tuple[str, str]) -> None:
    """Live tasks of these tools on these engines, and an ended one of each."""
    now = datetime.now(UTC)
    times: dict[str, Any] = {"created": now, "updated": now, "expires": now + timedelta(days=1)}
    over = Execution(status=Status.SUCCEEDED)
    async with open_store(f"sqlite:///{folder}/tasks.db") as store:
        for tool, engine in rows:
            await store.create(make_task(tool=tool, engine=engine, **times))
            ended = await store.create(make_task(tool=tool, engine=engine, **times))
            await store.change(ended.id, ended.owner, lambda row: observe(row, over, now))


APPROVAL = "approval: {before_start: true, message: Sure?, approvers: {principals: [{subject: local}]}%s}, "


@pytest.mark.parametrize(
    ("more", "server", "ok", "hint"),
    [
        ("", "", False, "requester_may_approve: true, over HTTP with server.single_user: true"),
        ("", "server: {single_user: true}\n", False, "requester_may_approve: true"),
        (", requester_may_approve: true", "", True, "over HTTP with server.auth or server.single_user"),
        (", requester_may_approve: true", "server: {single_user: true}\n", True, ""),
    ],
)
async def test_the_hint_for_an_approval_without_logins_leads_to_one_that_works(
    tmp_path: Path, more: str, server: str, ok: bool, hint: str
) -> None:
    path = tmp_path / "workflows.yaml"
    path.write_text(server + CONFIG.replace("here, ", f"here, {APPROVAL % more}"))
    (row,) = [row for row in (await check(load_config(path, {}))).rows if row.kind == "tool"]
    assert row.finding is not None
    assert (row.finding.ok, (row.finding.hint or "").endswith(hint)) == (ok, True), row.finding
    assert (row.finding.hint is None) == (not hint)


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ("", None),
        ("wait: auto, ", None),
        ("wait: 4s, adaptive: 2s, ", None),
        (
            "wait: 5s, adaptive: 2h, ",
            "wait and adaptive: a host that times out sooner may call again; some do after 5s",
        ),
        ("tasks: wait, ", None),  # that is what it says
    ],
)
async def test_a_wait_too_long_for_some_hosts_is_pointed_out(tmp_path: Path, settings: str, hint: str | None) -> None:
    path = tmp_path / "workflows.yaml"
    path.write_text(CONFIG.replace("here, ", f"here, {settings}"))
    (row,) = [row for row in (await check(load_config(path, {}))).rows if row.kind == "tool"]
    assert row.finding is not None
    assert (row.finding.ok, row.finding.hint) == (True, hint)


async def test_live_tasks_on_removed_engines_are_a_problem_with_what_to_do(config_file: Path) -> None:
    await fill(config_file.parent, ("echo", "gone"), ("old", "gone"))
    report = await check(load_config(config_file, {}), tasks=True)
    found = report.as_json()
    assert (found["ok"], found["tasks"]) == (
        False,
        {"live": 2, "removed_tools": {"old": 1}, "removed_engines": {"gone": 2}},
    )
    [finding] = [row.finding for row in report.rows if row.name == "engine gone" and row.finding]
    assert finding.text.startswith("2 live tasks on an engine that is no longer in the configuration")
    assert finding.hint == "put engine gone back until they have ended"


async def test_a_store_that_cannot_be_read_is_one_problem(config_file: Path) -> None:
    (config_file.parent / "tasks.db").write_text("no database" * 200)
    report = await check(load_config(config_file, {}), tasks=True)
    assert [row.state for row in report.rows] == [ItemState.PROBLEM, ItemState.OK, ItemState.OK]
    assert "tasks" not in report.as_json()


SUMMARIES = {
    ItemState.OK: "everything is fine",
    ItemState.UNKNOWN: "no problem found, 1 unknown",
    ItemState.PROBLEM: "1 problem",
}


def verifying(findings: Sequence[Finding]) -> type[MemoryAdapter]:
    """An adapter that knows what its workflows lack."""

    class Tooling(MemoryTooling):
        async def verify(self, workflow: str, options: Any, gates: Any) -> Sequence[Finding]:
            return findings

    class Verifying(MemoryAdapter):
        tooling: Any = Tooling

    return Verifying


@pytest.mark.parametrize(
    ("findings", "state", "text"),
    [
        ((), ItemState.OK, "engine in memory 'memory'"),
        ((Finding(ok=True, text="by the way"),), ItemState.OK, "engine in memory 'memory'; by the way"),
        (
            (Finding(ok=True, text="by the way"), Finding(ok=None, text="unsure")),
            ItemState.UNKNOWN,
            "engine in memory 'memory'; by the way; unsure",
        ),
        (
            (Finding(ok=None, text="unsure"), Finding(ok=False, text="lacks x", hint="do")),
            ItemState.PROBLEM,
            "lacks x; unsure",
        ),
    ],
)
async def test_what_could_not_be_verified_is_unknown_and_what_is_missing_a_problem(
    config_file: Path, findings: tuple[Finding, ...], state: ItemState, text: str
) -> None:
    config = load_config(config_file, {})
    kind = verifying(findings)
    engine = replace(config.engines["here"], kind=kind)
    report = await check(replace(config, engines={"here": engine}))
    row = report.rows[-1]
    assert row.finding
    problem = state is ItemState.PROBLEM
    assert (row.state, row.finding.text, row.finding.hint) == (state, text, "do" if problem else None)
    assert report.summary == SUMMARIES[state]
    ok = {ItemState.OK: True, ItemState.PROBLEM: False, ItemState.UNKNOWN: None}[state]
    assert (row.as_json()["ok"], report.as_json()["ok"]) == (ok, not problem)


class Plain(MemoryAdapter):
    tooling: Any = staticmethod(lambda *_: None)  # nothing can be checked


class Unopened(MemoryAdapter):
    async def __aenter__(self) -> Any:
        raise ConfigError("the address is no address")


@pytest.mark.parametrize(
    ("kind", "state", "text"),
    [(Plain, ItemState.NOT_CHECKED, None), (Unopened, ItemState.PROBLEM, "not without engine here")],
)
async def test_a_tool_is_blocked_by_an_engine_that_cannot_be_opened_and_not_by_one_without_checks(
    config_file: Path, kind: type[MemoryAdapter], state: ItemState, text: str | None
) -> None:
    config = load_config(config_file, {})
    report = await check(replace(config, engines={"here": replace(config.engines["here"], kind=kind)}))
    row = report.rows[-1]
    assert (row.state, row.finding and row.finding.text) == (state, text)


async def test_live_tasks_of_another_engine_of_the_same_name_are_told_with_what_to_do(config_file: Path) -> None:
    now = datetime.now(UTC)
    async with open_store(f"sqlite:///{config_file.parent}/tasks.db") as store:
        await store.create(
            make_task(tool="echo", engine="here", identity="memory:old", created=now, expires=now + timedelta(days=1))
        )
    report = await check(load_config(config_file, {}), tasks=True)
    assert report.as_json()["tasks"]["other_engines"] == {"memory:old": 1}
    [finding] = [row.finding for row in report.rows if row.name == "engine here (memory:old)" and row.finding]
    assert finding.ok is None
    assert "memory:old" in str(finding.hint)
