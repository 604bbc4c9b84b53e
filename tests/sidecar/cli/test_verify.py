"""`mcp-workflows verify` on the engine in memory: verdicts, and what is left behind."""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from mcp_workflows.adapter import JSON, Fixtures, Ref, Start
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings, MemoryTooling
from mcp_workflows.errors import EngineRefused, StartConflict
from mcp_workflows.sidecar.cli.main import main
from mcp_workflows.sidecar.config.models import Engine
from mcp_workflows.sidecar.verify.run import Plan, Promise, Verdict, Verification, run_until_interrupted
from mcp_workflows.testing import FindableMemoryAdapter, FindableMemorySettings


def configured(folder: Path) -> Path:
    schema: Mapping[str, Any] = {"type": "object", "properties": {"text": {}}}
    workflows = {"echo": "echo", "decline": "fail", "ask": "ask"}
    tools = {name: {"engine": "memory", "workflow": workflow, "input": schema} for name, workflow in workflows.items()}
    engines = {
        "memory": {"adapter": "memory", "name": uuid.uuid4().hex},
        "jobs": {"adapter": "http", "preset": "wes", "url": "http://127.0.0.1:1"},
        "aws": {"adapter": "stepfunctions", "region": "eu-west-1"},
    }
    file = folder / "workflows.yaml"
    file.write_text(json.dumps({"engines": engines, "tools": tools}))
    return file


def called(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of the command."""
    monkeypatch.setattr(sys, "argv", ["mcp-workflows", "verify", *words, "-c", str(configured(folder))])
    with pytest.raises(SystemExit) as left:
        main()
    assert isinstance(left.value.code, int)
    return left.value.code


def test_every_promise_of_the_engine_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(tmp_path, monkeypatch, "memory", "--yes") == 0
    said = capsys.readouterr()
    assert "held       One key starts one execution, even when the reply was lost.\n" in said.out
    assert "27 checks: 24 held, 0 broken, 3 not tried, 0 noted\n" in said.out
    assert re.search(r"executions started: [23]\d\b", said.out)
    assert "Nobody has run this command in a cloud yet" in said.out
    assert "They run in memory, and nothing is created." in said.err


def test_programs_get_the_findings_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(tmp_path, monkeypatch, "memory", "-y", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["adapter"] == "memory"
    assert {each["verdict"] for each in found["promises"]} == {"held", "not tried"}
    assert found["measured"]["executions started"] > 20


def test_tools_of_the_user_play_the_parts_that_they_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = ["--finishes", "echo text='hi there'", "--other", "echo text=ho", "--fails", "decline", "--asks", "ask"]
    assert called(tmp_path, monkeypatch, "memory", "-y", *parts) == 0
    said = capsys.readouterr().out
    assert "held       Another input under the same key is refused." in said
    assert "held       An answer arrives once" in said
    assert "- no tool was named: --endless 'TOOL [KEY=VALUE ...]'" in said


def test_a_promise_that_is_broken_is_an_exit_code_of_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(tmp_path, monkeypatch, "memory", "-y", "--finishes", "decline") == 1
    said = capsys.readouterr().out
    assert "broken     The output comes across when the execution has succeeded.\n           - it must succeed" in said


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["memory"], 2, "nobody can be asked here: mcp-workflows verify --yes"),
        (["memry", "-y"], 1, "no engine named 'memry'; did you mean 'memory'?"),
        (["jobs", "-y"], 1, "brings no workflows to verify with: name tools of yours, at least --finishes"),
        (["memory", "-y", "--finishes", "ecko"], 1, "engine memory has no tool 'ecko'; did you mean 'echo'?"),
        (["memory", "-y", "--finishes", "echo txt=1"], 2, "there is no argument 'txt'"),
        (["memory", "-y", "--finishes", "echo 'x"], 2, "No closing quotation"),
        (["memory", "-y", "--record", "x.json"], 2, "No such option: --record"),
        (["aws", "-y"], 2, "--set role: Field required\nthere are:\n--set role=...: The ARN of the IAM role"),
        (["aws", "-y", "--set", "rule=x"], 2, "--set rule: Extra inputs are not permitted"),
    ],
)
def test_wrong_usage_starts_nothing_and_says_what_to_type(
    words: list[str],
    code: int,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert called(tmp_path, monkeypatch, *words) == code
    said = capsys.readouterr()
    assert told in said.err
    assert said.out == ""


class Careless(MemoryAdapter):
    """Takes whatever its key was first used for."""

    async def start(self, start: Start) -> str:
        try:
            return await super().start(start)
        except StartConflict:
            return f"memory-{start.key}"


class Leaking(MemoryAdapter):
    """Lets what is not of the boundary through, and a stack trace."""

    async def start(self, start: Start) -> str:
        if start.workflow == "nobody-wrote-this":
            raise EngineRefused('Traceback (most recent call last):\n  File "x.py", line 1')
        return await super().start(start)

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        raise ZeroDivisionError("no answer")


class Deaf(MemoryAdapter):
    """Cancels nothing."""

    async def cancel(self, ref: Ref) -> None:
        await self.describe(ref)


class StickyTooling(MemoryTooling):
    @asynccontextmanager
    async def fixtures(self, settings: BaseModel) -> AsyncGenerator[Fixtures]:
        async with super().fixtures(settings) as fixtures:
            yield fixtures
        raise EngineRefused("could not be removed: echo")


class Sticky(MemoryAdapter):
    """Cannot remove what it has created."""

    tooling: Any = StickyTooling


class Broken(MemoryAdapter):
    """Cancels nothing, with an error of its own."""

    async def cancel(self, ref: Ref) -> None:
        raise ZeroDivisionError


class HiddenSettings(MemorySettings):
    api_key: str = Field(repr=False)


class Talkative(MemoryAdapter):
    """Has a secret that is a plain text, and raises errors with it."""

    Settings = HiddenSettings

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        raise EngineRefused("the engine takes no sup3r-s3cret")


async def verified(kind: type[MemoryAdapter], settings: MemorySettings, patience: float = 1) -> Verification:
    found, told = Verification(), list[Promise]()
    engine = Engine(name="memory", adapter="memory", kind=kind, settings=settings)
    plan = Plan(engine=engine, roles=None, settings=None, patience=patience)
    assert await run_until_interrupted(plan, found, told.append)
    assert told == found.promises
    return found


def verdicts(found: Verification, verdict: Verdict) -> Mapping[str, str]:
    return {each.promise: each.seen for each in found.promises if each.verdict is verdict}


@pytest.mark.anyio
async def test_an_adapter_that_breaks_a_law_is_caught() -> None:
    found = await verified(Careless, MemorySettings(name=uuid.uuid4().hex))
    broken = verdicts(found, Verdict.BROKEN)
    assert {
        "Another input under the same key is refused.",
        "Another workflow under the same key is refused.",
    } <= broken.keys()
    assert all("must raise StartConflict" in said for said in broken.values())


@pytest.mark.anyio
async def test_whatever_else_an_adapter_raises_is_a_broken_law() -> None:
    found = await verified(Leaking, MemorySettings(name=uuid.uuid4().hex))
    broken = verdicts(found, Verdict.BROKEN)
    assert broken["An answer to an unknown question is ignored."] == "ZeroDivisionError: no answer"
    assert (
        "a stack trace crossed the boundary"
        in broken["A start that the engine refuses is a definite no, with a reason."]
    )
    assert "1 with a stack trace" in broken["No secret and no stack trace crosses with an error."]


@pytest.mark.anyio
async def test_an_execution_that_does_not_end_is_told() -> None:
    found = await verified(Deaf, MemorySettings(name=uuid.uuid4().hex), patience=0.3)
    assert "not seen within 0.3 s" in verdicts(found, Verdict.BROKEN)["One key starts one execution."]
    assert {each.partition("-")[0] for each in found.left} == {"memory"}
    assert {each.rpartition(": ")[2] for each in found.left} == {"it runs"}


@pytest.mark.anyio
async def test_the_findings_are_kept_when_an_execution_cannot_be_cancelled_for_a_defect() -> None:
    found = await verified(Broken, MemorySettings(name=uuid.uuid4().hex), patience=0.3)
    assert found.is_complete
    assert {each.rpartition(": ")[2] for each in found.left} == {"ZeroDivisionError"}


@pytest.mark.anyio
async def test_a_setting_that_repr_leaves_out_is_masked() -> None:
    found = await verified(Talkative, HiddenSettings(name=uuid.uuid4().hex, api_key="sup3r-s3cret"))
    broken = verdicts(found, Verdict.BROKEN)
    assert broken["An answer to an unknown question is ignored."].endswith("the engine takes no ***")
    assert " with a secret of the settings" in broken["No secret and no stack trace crosses with an error."]


@pytest.mark.anyio
async def test_what_cannot_be_removed_is_told_and_the_findings_are_kept() -> None:
    found = await verified(Sticky, MemorySettings(name=uuid.uuid4().hex))
    assert found.left == ["could not be removed: echo"]
    assert found.count(Verdict.HELD) == 24


@pytest.mark.anyio
async def test_an_engine_that_is_searched_is_measured() -> None:
    found = await verified(FindableMemoryAdapter, FindableMemorySettings(name=uuid.uuid4().hex, settling_seconds=11))
    assert not verdicts(found, Verdict.BROKEN)
    assert "found after (s, longest)" in found.measured
    assert not found.left


@pytest.mark.anyio
async def test_an_engine_that_does_not_answer_is_an_error_and_nothing_is_tried() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(EngineRefused, match="does not answer")):
        await verified(MemoryAdapter, MemorySettings(name=uuid.uuid4().hex, unreachable=True))
