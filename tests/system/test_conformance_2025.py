"""The suite for receivers of 2025-11-25: what it finds on a good server, on bad ones, and how it says so."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from starlette.applications import Starlette
from starlette.routing import Mount

from mcp_workflows import Tool
from mcp_workflows.conformance_2025.check import Check, Level, Outcome, Role, State
from mcp_workflows.conformance_2025.command import main
from mcp_workflows.conformance_2025.fixtures import Fixture, official
from mcp_workflows.conformance_2025.run import CHECKS, chosen, failed, run
from mcp_workflows.conformance_2025.site import Settings
from mcp_workflows.tools.tool import TaskSupport
from scripts.processes import free_port
from scripts.stack import Plan, Stack
from tests.faults_2025 import FAULTS, Fault
from tests.receiver_2025 import Receiver
from tests.support.served import serving, site

pytestmark = pytest.mark.anyio

DOCUMENT = Path(__file__).parents[2] / "docs" / "conformance-2025.md"
SECONDS = 0.4  # of the slow tool
CALM: dict[str, Any] = {
    "fixtures": official(1.0),
    "seconds": 1.0,
    "patience": 10,
}  # where a loaded machine must not matter
AT_ONCE = 16
CREDENTIALS = {"headers": {"authorization": "Bearer ada"}, "other": {"authorization": "Bearer bob"}}


def settings(url: str, *, anonymous: bool = False, **more: Any) -> Settings:
    """Quick ones."""
    given: dict[str, Any] = {**({} if anonymous else CREDENTIALS), **more}
    return replace(Settings(url=url, fixtures=official(SECONDS), patience=3, poll=0.03, seconds=SECONDS), **given)


def by_state(outcomes: Sequence[Outcome], state: State) -> dict[str, str]:
    """What ended so, and why."""
    return {one.check.id: one.detail for one in outcomes if one.state is state}


@asynccontextmanager
async def sites(*receivers: Receiver) -> AsyncGenerator[Sequence[str]]:
    """These servers, in one process; their URLs."""
    app = Starlette(routes=[Mount(f"/{n}", routes=[receiver.route]) for n, receiver in enumerate(receivers)])
    async with serving(app) as url:
        try:
            yield [url.replace("/mcp", f"/{n}/mcp") for n in range(len(receivers))]
        finally:
            for receiver in receivers:
                receiver.close()


def receiver_of(fault: Fault) -> Receiver:
    """A server that is wrong like this."""
    return Receiver(*fault.flags, mutate=fault.mutate() if fault.mutate else None)


async def of_fault(fault: Fault, checks: Sequence[Check], **more: Any) -> Sequence[Outcome]:
    """What the suite finds on a server that is wrong like this."""
    async with sites(receiver_of(fault)) as (url,):
        return await run(settings(url, anonymous=fault.anonymous, **more), checks)


async def test_a_good_server_fails_nothing() -> None:
    outcomes = await of_fault(Fault(check=""), CHECKS, **CALM)
    assert by_state(outcomes, State.FAILED) | by_state(outcomes, State.BLOCKED) == {}
    assert by_state(outcomes, State.SKIPPED).keys() == {
        "negotiation.cancel-undeclared",
        "negotiation.list-undeclared",
        "negotiation.list-needs-an-identity",
        "creation.ids-cannot-be-guessed",
        "creation.immediate-response",
    }


async def test_every_check_fails_on_the_server_that_is_wrong_that_way() -> None:
    found: dict[str, State] = {}
    limiter = anyio.CapacityLimiter(AT_ONCE)

    async def judge(fault: Fault, url: str) -> None:
        mine = settings(url, anonymous=fault.anonymous)
        for _ in range(3):  # a stall of the machine may hide what comes too late or too soon
            async with limiter:
                outcomes = await run(mine, chosen([fault.check]))
            found[fault.check] = outcomes[0].state
            if found[fault.check] is State.FAILED:
                return

    async with sites(*map(receiver_of, FAULTS)) as urls, anyio.create_task_group() as group:
        for fault, url in zip(FAULTS, urls, strict=True):
            group.start_soon(judge, fault, url)
    assert {check: state for check, state in found.items() if state is not State.FAILED} == {}
    assert found.keys() == {check.id for check in CHECKS}


@pytest.mark.slow
async def test_a_server_that_is_wrong_in_one_way_fails_that_check_and_no_other() -> None:
    found: dict[str, Mapping[str, str]] = {}
    limiter = anyio.CapacityLimiter(AT_ONCE // 4)

    async def judge(fault: Fault, url: str) -> None:
        async with limiter:
            outcomes = await run(settings(url, anonymous=fault.anonymous, **{**CALM, "patience": 6}), CHECKS)
        expected = {*fault.also, fault.check, *(["negotiation.list-needs-an-identity"] if fault.anonymous else [])}
        failed = by_state(outcomes, State.FAILED)
        found[fault.check] = {name: why for name, why in failed.items() if name not in expected or not failed}
        if fault.check not in failed:
            found[fault.check] = {fault.check: "not noticed"}

    async with sites(*map(receiver_of, FAULTS)) as urls, anyio.create_task_group() as group:
        for fault, url in zip(FAULTS, urls, strict=True):
            group.start_soon(judge, fault, url)
    assert {check: others for check, others in found.items() if others} == {}


async def test_a_server_that_closes_its_streams_and_takes_them_up_again_is_fine() -> None:
    outcomes = await of_fault(Fault(check="", flags=["closes-streams"]), chosen(["results.blocks", "results.again"]))
    assert [one.state for one in outcomes] == [State.PASSED, State.PASSED]


OURS = {
    "plain": ("echo", "forbidden"),
    "sleep": ("sleep", "optional"),
    "forever": ("forever", "optional"),
    "fail": ("fail", "required"),
    "broken": ("protocol_error", "optional"),
    "ask": ("ask", "optional"),
    "ask_two": ("ask_two", "optional"),
}
"""Our own tools: their workflows in memory, and whether they are tasks."""

ROLES = {
    Role.PLAIN: Fixture(tool="plain"),
    Role.QUICK: Fixture(tool="sleep", arguments={"seconds": 0}),
    Role.SLOW: Fixture(tool="sleep", arguments={"seconds": 0.8}),
    Role.LONG: Fixture(tool="forever"),
    Role.FAILS: Fixture(tool="fail"),
    Role.BREAKS: Fixture(tool="broken"),
    Role.ASKS: Fixture(tool="ask"),
    Role.ASKS_TWO: Fixture(tool="ask_two"),
    Role.COUNTS: Fixture(tool="sleep", arguments={"seconds": 1.5}),
}


async def test_our_own_server_conforms(tmp_path: Path) -> None:
    tools = [
        Tool(name=name, engine="memory", workflow=workflow, tasks=TaskSupport(tasks))
        for name, (workflow, tasks) in OURS.items()
    ]
    async with site(store=f"sqlite:///{tmp_path}/tasks.db", tools=tools, authenticated=True) as ours:
        outcomes = await run(replace(settings(ours.url, **CALM), fixtures=ROLES), CHECKS)
    wrong = by_state(outcomes, State.FAILED) | by_state(outcomes, State.BLOCKED)
    assert wrong.keys() <= {"shape.get-is-no-stream"}, wrong  # the MCP SDK answers every request by a stream
    assert len(by_state(outcomes, State.PASSED)) >= len(CHECKS) - 8, by_state(outcomes, State.SKIPPED)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["temporal", "stepfunctions", "google"])
def test_the_conformance_fixtures_on_real_engines_conform(engine: str, tmp_path: Path) -> None:
    plan = Plan(engine=engine, sample="conformance", port=free_port(), state=tmp_path / "state")
    with Stack(plan) as stack:
        argv = [sys.executable, "-m", "mcp_workflows.conformance_2025", stack.url, "-o", str(tmp_path / "found.json")]
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["passed"]
    assert {one["id"] for one in found["checks"] if one["state"] == "failed"} <= {"shape.get-is-no-stream"}


async def test_the_command_says_what_is_wrong_and_ends_with_1_only_for_a_must(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with sites(Receiver("cancels-cancelled", "forbidden-anyway")) as (url,):
        quick = [url, "--poll", "0.03", "--seconds", "0.3", "--timeout", "5", "--only"]
        must = await to_thread.run_sync(main, [*quick, "cancelling.not-twice,creation.id-is-a-string", "-o", "-"])
        out, err = capsys.readouterr()
        should = await to_thread.run_sync(main, [*quick, "negotiation.forbidden-with-task,creation.id-is-a-string"])
    assert (must, should) == (1, 0)
    found = {one["id"]: one for one in json.loads(out)["checks"]}
    assert found["creation.id-is-a-string"]["state"] == "passed"
    assert found["cancelling.not-twice"]["state"] == "failed"
    assert found["cancelling.not-twice"]["section"] == "Task Cancellation 1"
    assert '"status": "cancelled"' in found["cancelling.not-twice"]["detail"]
    assert "A cancelled task cannot be cancelled again: -32602." in err
    told = capsys.readouterr().out
    assert "warning" in told
    assert "[Tool-Level Negotiation 2.1]" in told


def test_only_a_must_fails_a_run_that_is_not_strict() -> None:
    must, should = (next(check for check in CHECKS if check.level is level) for level in (Level.MUST, Level.SHOULD))
    passed = Outcome(check=must, state=State.PASSED)
    assert not failed([passed, Outcome(check=should, state=State.FAILED)], strict=False)
    assert failed([passed, Outcome(check=should, state=State.FAILED)], strict=True)
    assert failed([passed, Outcome(check=must, state=State.BLOCKED)], strict=False)
    assert failed([Outcome(check=must, state=State.SKIPPED)], strict=False)


async def test_what_a_server_lacks_is_skipped_with_the_reason_and_never_passed() -> None:
    roles = {**official(SECONDS), Role.ASKS: Fixture(tool="no_such_tool")}
    async with sites(Receiver()) as (url,):
        outcomes = await run(settings(url, fixtures=roles, anonymous=True), chosen(["asking.status", "isolation.get"]))
    assert [one.state for one in outcomes] == [State.SKIPPED, State.SKIPPED]
    assert outcomes[0].detail == "no tool 'no_such_tool': --tool asks=..."
    assert "--header-other" in outcomes[1].detail
    assert failed(outcomes, strict=False)  # nothing was seen


async def test_what_a_run_leaves_at_work_is_cancelled() -> None:
    receiver = Receiver()
    async with sites(receiver) as (url,):
        await run(settings(url), chosen(["isolation.cancel", "results.others-are-served-meanwhile"]))
        assert {work.status for work in receiver.works.values()} == {"cancelled"}


def test_a_server_that_is_not_there_is_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"http://127.0.0.1:{free_port()}/mcp"]) == 2
    assert "initialize: the connection broke" in capsys.readouterr().err


async def test_a_server_that_wants_credentials_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with site(store=f"sqlite:///{tmp_path}/tasks.db", authenticated=True) as ours:
        assert await to_thread.run_sync(main, [ours.url]) == 2
    assert "--header 'Authorization: Bearer ...'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "give the URL"),
        (["localhost:1/mcp"], "is no http:// or https:// URL"),
        (["http://h/mcp", "--only", "nonsense"], "no such check"),
        (["http://h/mcp", "--tool", "slowly=x"], "roles are plain, quick, slow"),
        (["http://h/mcp", "--tool", "slow=x {"], "no JSON"),
        (["http://h/mcp", "--tool", "slow=x 7"], "must be a JSON object"),
        (["http://h/mcp", "--timeout", "0"], "greater than 0"),
        (["http://h/mcp", "--header", "s3cret"], "take 'Name: value'"),
    ],
)
def test_wrong_usage_is_said(argv: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "s3cret" not in told


def test_every_check_cites_a_section_and_says_what_it_wants() -> None:
    assert [check.id for check in CHECKS if not check.section or not check.text.endswith(".")] == []
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    assert {check.level for check in CHECKS} == set(Level)


def test_the_list_in_the_document_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "markdown"]) == 0
    document = DOCUMENT.read_text()
    assert (
        capsys.readouterr().out.strip()
        == document.split("<!-- begin checks -->")[1].split("<!-- end checks -->")[0].strip()
    )


def test_the_document_names_every_role_and_its_fixture() -> None:
    document = DOCUMENT.read_text()
    assert [role for role, fixture in official(2).items() if f"| `{role}` | `{fixture}` |" not in document] == []


def test_every_option_is_in_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert {option for option in options if option not in DOCUMENT.read_text()} == set()
