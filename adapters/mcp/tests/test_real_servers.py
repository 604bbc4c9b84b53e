"""The adapter with MCP servers that nobody here wrote: each start to its end, a failure, a cancellation."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp_workflows_mcp import McpAdapter, McpSettings
from starlette.responses import JSONResponse

from adapters.mcp.tests.programs import asks, has_ended, order, seen_when, started
from adapters.mcp.tests.upstreams import (
    airflow_upstream,
    bash_upstream,
    everything_upstream,
    fastmcp_upstream,
    firecrawl_upstream,
    gitlab_upstream,
    jenkins_upstream,
)
from mcp_workflows.adapter import Finds, Ref, Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable, ExecutionNotFound
from mcp_workflows.testing import MemoryNotes

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@asynccontextmanager
async def adapter_of(engine: Mapping[str, Any], notes: MemoryNotes | None = None) -> AsyncGenerator[McpAdapter]:
    """Return the adapter of an engine as workflows.yaml would have it."""
    settings = {name: value for name, value in engine.items() if name != "adapter"}
    adapter = McpAdapter(McpSettings.model_validate(settings))
    adapter.remember(notes or MemoryNotes())
    async with adapter:
        assert (found := await adapter.tooling.check_engine()).ok, found
        yield adapter


async def test_an_agent_of_firecrawl_is_one_task() -> None:
    async with (
        firecrawl_upstream.firecrawl() as api,
        adapter_of(api.server().engine(firecrawl_upstream.CONFIG)) as adapter,
    ):
        ref = await started(adapter, "firecrawl_agent", {"prompt": "Find the founders"})
        assert (await adapter.describe(ref)).status is Status.RUNNING
        [agent] = api.prompts
        api.finish(agent, {"founders": ["Eric"]})
        seen = await adapter.describe(ref)
        assert (seen.status, seen.output) == (Status.SUCCEEDED, {"founders": ["Eric"]})

        failed = await started(adapter, "firecrawl_agent", {"prompt": "x"}, "key-2")
        api.fail(list(api.prompts)[-1], "the page needs a login")
        seen = await adapter.describe(failed)
        assert seen.failure is not None
        assert (seen.status, seen.failure.text) == (Status.FAILED, "the page needs a login")

        api.cut("start")
        with pytest.raises(EngineUnavailable):  # not refused: an agent runs now that nobody knows
            await started(adapter, "firecrawl_agent", {"prompt": "y"}, "key-3")
        assert api.starts == 3


async def test_a_shell_command_is_one_task_though_all_replies_are_prose(tmp_path: Path) -> None:
    commands = bash_upstream.Commands(folder=tmp_path)
    async with adapter_of(commands.server().engine(bash_upstream.CONFIG)) as adapter:
        ref = await started(adapter, "run_background", {"command": commands.waiting("one", "echo built")})
        assert (await adapter.describe(ref)).status is Status.RUNNING
        commands.finish("one")
        seen = await seen_when(adapter, ref, has_ended)
        assert (seen.status, seen.output) == (Status.SUCCEEDED, {"text": "built"})
        assert commands.starts("one") == 1

        broken = await started(adapter, "run_background", {"command": "echo no luck >&2; exit 3"}, "key-2")
        seen = await seen_when(adapter, broken, has_ended)
        assert seen.failure is not None
        assert (seen.status, seen.failure.text) == (Status.FAILED, "exit code: 3: no luck")

        endless = await started(adapter, "run_background", {"command": commands.waiting("never")}, "key-3")
        await adapter.cancel(endless)
        assert (await seen_when(adapter, endless, has_ended)).status is Status.CANCELLED


async def test_a_build_of_jenkins_is_one_task_and_its_input_step_a_question(tmp_path: Path) -> None:
    async with (
        jenkins_upstream.jenkins(tmp_path) as api,
        adapter_of(api.server().engine(jenkins_upstream.CONFIG)) as adapter,
    ):
        ref = await started(adapter, jenkins_upstream.JOB, {"VERSION": "1.2"})
        assert (await adapter.describe(ref)).status is Status.RUNNING
        number = max(api.builds)
        api.ask(number, "Approve", "Release 1.2?")
        seen = await adapter.describe(ref)
        [(key, request)] = seen.requests.items()
        assert (key, request.params["message"]) == ("input.Approve", "Release 1.2?")
        for _ in range(2):  # a late answer is ignored
            await adapter.answer(ref, {key: {"action": "accept", "content": {}}})
        api.finish(number)
        seen = await adapter.describe(ref)
        assert (seen.status, seen.output["number"]) == (Status.SUCCEEDED, number)


async def test_a_run_of_airflow_is_one_task_and_found_again_when_its_reply_is_lost(tmp_path: Path) -> None:
    async with (
        airflow_upstream.airflow(tmp_path) as api,
        adapter_of(api.server().engine(airflow_upstream.CONFIG)) as adapter,
    ):
        ref = await started(adapter, airflow_upstream.DAG, {"version": "1.2"})
        assert (await adapter.describe(ref)).status is Status.RUNNING
        [run] = api.runs
        api.finish(run)
        seen = await adapter.describe(ref)
        assert (seen.status, seen.output["run"]) == (Status.SUCCEEDED, run)

        with pytest.raises(EngineRefused, match=r"[Nn]ot found"):
            await started(adapter, "no-such-dag", {}, "key-2")

        api.cut("start")
        lost = order(airflow_upstream.DAG, key="key-3")
        with pytest.raises(EngineUnavailable):
            await adapter.start(lost)
        assert isinstance(adapter, Finds)
        found = await adapter.find(lost)
        assert found is not None
        assert (await adapter.describe(Ref(workflow=airflow_upstream.DAG, handle=found))).status is Status.RUNNING


async def test_a_pipeline_of_gitlab_is_one_task_and_its_manual_job_a_question() -> None:
    async with gitlab_upstream.gitlab() as api, adapter_of(api.server().engine(gitlab_upstream.CONFIG)) as adapter:
        ref = await started(adapter, gitlab_upstream.PROJECT, {"version": "1.2"})
        assert (await adapter.describe(ref)).status is Status.RUNNING
        [pipeline] = api.pipelines
        api.ask(pipeline, "deploy")
        [(key, request)] = (await adapter.describe(ref)).requests.items()
        assert request.params["message"] == "Run the manual job deploy?"
        for _ in range(2):  # a late answer is ignored
            await adapter.answer(ref, {key: {"action": "accept", "content": {}}})
        api.finish(pipeline)
        assert (await adapter.describe(ref)).status is Status.SUCCEEDED

        other = await started(adapter, gitlab_upstream.PROJECT, {}, "key-2")
        await adapter.cancel(other)
        assert (await adapter.describe(other)).status is Status.CANCELLED

        api.answer("start", JSONResponse({"message": {"base": ["Reference not found"]}}, status_code=400))
        with pytest.raises(EngineRefused, match="Reference not found"):
            await started(adapter, gitlab_upstream.PROJECT, {}, "key-3")
        nobodys = json.dumps({**json.loads(other.handle), "run": "999", "at": 0})
        with pytest.raises(ExecutionNotFound):
            await adapter.describe(Ref(workflow=gitlab_upstream.PROJECT, handle=nobodys))


async def test_a_task_of_the_reference_server_is_passed_through() -> None:
    async with adapter_of(everything_upstream.everything().engine(everything_upstream.CONFIG)) as adapter:
        ref = await started(adapter, everything_upstream.TOOL, {"topic": "tasks", "ambiguous": True})
        seen = await seen_when(adapter, ref, asks)
        [(key, request)] = seen.requests.items()
        field = next(iter(request.params["requestedSchema"]["properties"]))
        answers = request.params["requestedSchema"]["properties"][field]
        choice = (answers.get("enum") or [each["const"] for each in answers.get("oneOf", [])] or ["technical"])[0]
        await adapter.answer(ref, {key: {"action": "accept", "content": {field: choice}}})
        seen = await seen_when(adapter, ref, has_ended)
        assert seen.status is Status.SUCCEEDED
        assert "tasks" in str(seen.output)


async def test_tasks_of_fastmcp_are_passed_through(tmp_path: Path) -> None:
    server = fastmcp_upstream.TaskServer(folder=tmp_path)
    async with adapter_of(server.server().engine(fastmcp_upstream.CONFIG)) as adapter:
        ref = await started(adapter, "build", {"name": "one"})
        assert (await adapter.describe(ref)).status is Status.RUNNING
        server.finish("one")
        seen = await seen_when(adapter, ref, has_ended)
        assert (seen.status, seen.output["structuredContent"]) == (Status.SUCCEEDED, {"built": "one"})

        failed = await seen_when(adapter, await started(adapter, "fail", {}, "key-2"), has_ended)
        assert failed.status is Status.FAILED

        release = await started(adapter, "release", {"version": "1.2"}, "key-3")
        [key] = (await seen_when(adapter, release, asks)).requests
        await adapter.answer(release, {key: {"action": "accept", "content": {"approved": True}}})
        seen = await seen_when(adapter, release, has_ended)
        assert "released 1.2" in str(seen.output)

        endless = await started(adapter, "build", {"name": "never"}, "key-4")
        await adapter.cancel(endless)
        assert (await seen_when(adapter, endless, has_ended)).status is Status.CANCELLED

        plain = await started(adapter, "plain", {}, "key-5")
        assert "done" in str((await adapter.describe(plain)).output)
