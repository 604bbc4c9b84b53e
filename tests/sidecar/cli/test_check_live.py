"""`mcp-workflows check --live` on the engine in memory: verdicts, and what is left behind."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import Field

from mcp_workflows.adapter import JSON, Ref, Start
from mcp_workflows.adapter.memory import MemoryAdapter, MemorySettings
from mcp_workflows.errors import EngineRefused, StartConflict
from mcp_workflows.sidecar.config.models import Engine
from mcp_workflows.sidecar.live_checks import LiveCheck, Promise, Verdict
from tests.sidecar.cli.terminal import Ended, Terminal

TEXT: Mapping[str, Any] = {"type": "object", "properties": {"text": {}}}


def live(terminal: Terminal, *words: str) -> Ended:
    workflows = {"echo": "echo", "decline": "fail", "ask": "ask"}
    tools = {name: {"engine": "memory", "workflow": workflow, "input": TEXT} for name, workflow in workflows.items()}
    engines = {"memory": {"adapter": "memory", "name": uuid.uuid4().hex}}
    (terminal.folder / "workflows.yaml").write_text(json.dumps({"engines": engines, "tools": tools}))
    return terminal.run("check", "--live", "memory", "--yes", *words)


def test_every_promise_of_the_engine_is_tried(terminal: Terminal) -> None:
    ended = live(terminal)
    assert ended.code == 0
    assert "held       One key starts one execution, even when the reply was lost.\n" in ended.out
    assert "29 checks: 26 held, 0 broken, 3 not tried, 0 noted\n" in ended.out
    assert "They run in memory, and nothing is created." in ended.err


def test_tools_of_the_user_play_the_parts_that_they_can(terminal: Terminal) -> None:
    parts = ["--finishes", "echo text='hi there'", "--other", "echo text=ho", "--fails", "decline", "--asks", "ask"]
    ended = live(terminal, *parts)
    assert ended.code == 0
    assert "held       Another input under the same key is refused." in ended.out
    assert "held       An answer arrives once" in ended.out
    assert "- no tool was named: --endless 'TOOL [KEY=VALUE ...]'" in ended.out


def test_a_promise_that_is_broken_is_an_exit_code_of_1(terminal: Terminal) -> None:
    ended = live(terminal, "--finishes", "decline")
    assert ended.code == 1
    told = "broken     The output comes across when the execution has succeeded.\n           - it must succeed"
    assert told in ended.out


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


class HiddenSettings(MemorySettings):
    api_key: str = Field(repr=False)


class Talkative(MemoryAdapter):
    """Has a secret that is a plain text, and raises errors with it."""

    Settings = HiddenSettings

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        raise EngineRefused("the engine takes no sup3r-s3cret")


async def checked(kind: type[MemoryAdapter], settings: MemorySettings, within: float = 1) -> LiveCheck:
    told = list[Promise]()
    engine = Engine(name="memory", adapter="memory", kind=kind, settings=settings)
    found = LiveCheck(engine=engine, roles=None, settings=None, timeout=within, report=told.append)
    assert await found.run_until_interrupted()
    assert told == found.promises
    return found


def verdicts(found: LiveCheck, verdict: Verdict) -> Mapping[str, str]:
    return {each.promise: each.seen for each in found.promises if each.verdict is verdict}


@pytest.mark.anyio
async def test_an_adapter_that_breaks_a_law_is_caught() -> None:
    found = await checked(Careless, MemorySettings(name=uuid.uuid4().hex))
    broken = verdicts(found, Verdict.BROKEN)
    assert {
        "Another input under the same key is refused.",
        "Another workflow under the same key is refused.",
    } <= broken.keys()
    assert all("must raise StartConflict" in said for said in broken.values())


@pytest.mark.anyio
async def test_whatever_else_an_adapter_raises_is_a_broken_law() -> None:
    found = await checked(Leaking, MemorySettings(name=uuid.uuid4().hex))
    broken = verdicts(found, Verdict.BROKEN)
    assert broken["An answer to an unknown question is ignored."] == "ZeroDivisionError: no answer"
    assert (
        "a stack trace crossed the boundary"
        in broken["A start that the engine refuses is a definite no, with a reason."]
    )
    assert "1 with a stack trace" in broken["No secret and no stack trace crosses with an error."]


@pytest.mark.anyio
async def test_an_execution_that_does_not_end_is_told() -> None:
    found = await checked(Deaf, MemorySettings(name=uuid.uuid4().hex), within=0.3)
    assert "not seen within 0.3 s" in verdicts(found, Verdict.BROKEN)["One key starts one execution."]
    assert {each.partition("-")[0] for each in found.left} == {"memory"}
    assert {each.rpartition(": ")[2] for each in found.left} == {"it runs"}


@pytest.mark.anyio
async def test_a_setting_that_repr_leaves_out_is_masked() -> None:
    found = await checked(Talkative, HiddenSettings(name=uuid.uuid4().hex, api_key="sup3r-s3cret"))
    broken = verdicts(found, Verdict.BROKEN)
    assert broken["An answer to an unknown question is ignored."].endswith("the engine takes no ***")
    assert " with a secret of the settings" in broken["No secret and no stack trace crosses with an error."]


@pytest.mark.anyio
async def test_an_engine_that_does_not_answer_is_an_error_and_nothing_is_tried() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(EngineRefused, match="does not answer")):
        await checked(MemoryAdapter, MemorySettings(name=uuid.uuid4().hex, unreachable=True))
