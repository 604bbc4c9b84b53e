"""Workflows too short-lived to be looked up later: no tasks of them, and never a second start."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mcp_workflows import Tool
from mcp_workflows.adapter import JSON, StartGuarantee
from mcp_workflows.adapter.memory import MemoryAdapter, MemoryOptions, MemorySettings
from mcp_workflows.tools.compatibility import find_incompatibilities
from mcp_workflows.tools.tool import TaskSupport
from tests.support.config_files import problems
from tests.support.served import Peer, peer, site
from tests.support.strangers import installed

pytestmark = pytest.mark.anyio


class BriefOptions(MemoryOptions):
    """Whether it is one of them."""

    brief: bool = False


class BriefAdapter(MemoryAdapter):
    """Some of its workflows are fleeting."""

    Options = BriefOptions

    @staticmethod
    def fleeting(options: Mapping[str, JSON]) -> bool:
        return bool(options.get("brief"))


BRIEF = Tool(name="brief", engine="here", workflow="echo", tasks=TaskSupport.FORBIDDEN, options={"brief": True})
NOT_A_TASK = (
    "tasks",
    "this workflow is too short-lived to be a task: remove `tasks`, which is `forbidden` here",
)


@asynccontextmanager
async def client_of(engine: MemoryAdapter, folder: Path, tool: Tool = BRIEF) -> AsyncGenerator[Peer]:
    store = f"sqlite:///{folder}/tasks.db"
    async with site(store=store, tools=[tool], adapters={"here": engine}) as served, peer(served.url) as client:
        yield client


@pytest.mark.parametrize("tasks", [TaskSupport.OPTIONAL, TaskSupport.REQUIRED])
def test_a_fleeting_workflow_can_be_no_task(tasks: TaskSupport) -> None:
    engine = BriefAdapter(MemorySettings())
    for adapter in (engine, BriefAdapter):
        assert list(find_incompatibilities(BRIEF.model_copy(update={"tasks": tasks}), adapter)) == [NOT_A_TASK]
        assert list(find_incompatibilities(BRIEF, adapter)) == []
        assert list(find_incompatibilities(BRIEF.model_copy(update={"tasks": tasks, "options": {}}), adapter)) == []
    assert list(find_incompatibilities(BRIEF.model_copy(update={"tasks": tasks}), MemoryAdapter)) == []


@pytest.mark.parametrize(
    "tool",
    [BRIEF, Tool(name="brief", engine="here", workflow="echo", options={"brief": True})],
    ids=["said", "implied"],
)
async def test_a_call_of_a_fleeting_workflow_gets_its_result(tmp_path: Path, tool: Tool) -> None:
    engine = BriefAdapter(MemorySettings(name=tmp_path.name))
    async with client_of(engine, tmp_path, tool) as client:
        assert (await client.call("brief", {"a": 1})).result["structuredContent"] == {"a": 1}


@pytest.mark.parametrize("guarantee", [StartGuarantee.KEYED, StartGuarantee.ONCE])
async def test_what_may_have_been_started_is_never_started_again_and_its_key_stays(
    tmp_path: Path, guarantee: StartGuarantee, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BriefAdapter, "starts", guarantee)
    engine = BriefAdapter(MemorySettings(name=f"{tmp_path.name}-{guarantee}"))
    tool = BRIEF if guarantee is StartGuarantee.KEYED else BRIEF.model_copy(update={"options": {}})
    engine.faults.lost_start_replies = 1
    async with client_of(engine, tmp_path, tool) as client:
        for _ in range(2):
            result = (await client.call("brief", {"a": 1}, meta={"mcp-workflows/idempotencyKey": "one-" * 8})).result
            assert result["isError"]
            assert "outcome unknown: it may have started, and will not be started again" in str(result["content"])
        assert engine.calls["start"] == 1


def test_a_fleeting_task_in_a_configuration_is_a_problem_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch, {"brief": BriefAdapter})
    head = "engines:\n  here: {adapter: brief}\ntools:\n"
    wrong = (
        "  a: {engine: here, workflow: echo, brief: true, tasks: optional}\n"
        "  b:\n    engine: here\n    workflow: echo\n    tasks: required\n    brief: true\n"
        "  c: {engine: here, workflow: echo, brief: true, tasks: forbidden}\n"
        "  d: {engine: here, workflow: echo, brief: true, kind: watch}\n"
    )
    text = "this workflow is too short-lived to be"
    assert problems(tmp_path, head + wrong) == [
        f"4: tools.a.tasks: {text} a task: remove `tasks`, which is `forbidden` here",
        f"8: tools.b.tasks: {text} a task: remove `tasks`, which is `forbidden` here",
        f"11: tools.d.kind: {text} watched: the engine stores nothing to look up",
    ]
