"""What is wrong with a call, a machine or our rights, an AWS that throttles, and questions that it does not know."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from mcp_workflows_stepfunctions import StepFunctionsAdapter
from mcp_workflows_stepfunctions.settings import StepFunctionsSettings
from typer.testing import CliRunner

from adapters.stepfunctions.tests.cloud import configured
from adapters.stepfunctions.tests.events import Telling
from adapters.stepfunctions.tests.injecting import (
    EXECUTION,
    MACHINE,
    Answer,
    Injecting,
    error,
    execution,
    injecting,
    play,
    question,
)
from adapters.stepfunctions.tests.refused import POLICY, TOKEN, WHO_WE_ARE, no
from mcp_workflows.adapter import Ref
from mcp_workflows.errors import EngineRefused
from mcp_workflows.sidecar.cli.app import app
from tests.support.commands import COMMAND, run
from tests.support.configured import asked, called, client_of
from tests.support.served import Peer
from tests.support.stepfunctions_engine import REGION
from tests.support.stopwatch import stopwatch

pytestmark = pytest.mark.anyio


@pytest.fixture
def server() -> Iterator[Injecting]:
    with injecting() as server:
        play(server)
        yield server


async def refusal(client: Peer, tool: str = "it", arguments: Mapping[str, Any] | None = None) -> str:
    """Why a call did not become a task."""
    result = (await client.call(tool, arguments or {"order_id": "A1"})).result
    assert result["isError"], result
    return str(result["content"][0]["text"])


def checked(config: Path) -> Mapping[str, str]:
    """What `mcp-workflows check` finds wrong, by tool."""
    done = CliRunner().invoke(app, ["check", str(config), "--json"])
    return {row["name"]: row["text"] for row in json.loads(done.stdout)["tools"] if row["ok"] is False}


MACHINE_ACTIONS: Final = ("DescribeStateMachine", "StartExecution")
EXECUTION_ACTIONS: Final = ("DescribeExecution", "GetExecutionHistory")


async def test_a_missing_permission_is_named_with_its_resource_and_ends_no_task(
    server: Injecting, tmp_path: Path
) -> None:
    config = configured(tmp_path, server.url, {"it": {"workflow": MACHINE}})
    seen: list[str] = []
    async with client_of(config) as client:
        for action in MACHINE_ACTIONS:
            play(server)
            server.tell(action, error("AccessDeniedException", no(f"states:{action}", MACHINE, POLICY)))
            seen.append(await refusal(client))
            assert f"no permission: states:{action} on {MACHINE} is not allowed; grant it" in seen[-1]
        play(server)
        task_id = await called(client)
        for action in EXECUTION_ACTIONS:
            play(server)
            server.tell(action, error("AccessDeniedException", no(f"states:{action}", EXECUTION, POLICY)))
            with anyio.fail_after(60):
                while action not in (task := await client.get(task_id)).get("statusMessage", ""):
                    await anyio.sleep(0.05)
            assert task["status"] == "working"
            assert f"no permission: states:{action} on {EXECUTION} is not allowed" in task["statusMessage"]
            seen.append(str(task))
        play(server)
        server.tell("DescribeExecution", execution("SUCCEEDED", output="{}"))
        assert (await client.until(task_id))["status"] == "completed"
    assert not any(WHO_WE_ARE in text for text in seen)
    server.tell("DescribeStateMachine", error("AccessDeniedException", no("states:DescribeStateMachine", MACHINE)))
    found = await anyio.to_thread.run_sync(checked, config)
    assert f"states:DescribeStateMachine on {MACHINE}" in found["it"]


AWS_SAYS: Final = {
    "AccessDeniedException": (
        no("states:SendTaskSuccess", MACHINE, POLICY),
        f"no permission: states:SendTaskSuccess on {MACHINE} is not allowed",
    ),
    "InvalidToken": (f"Invalid Token: '{TOKEN}'", "does not know the task token that was found in state Ask"),
    "ValidationException": (
        f"1 validation error detected: Value '{TOKEN}' at 'taskToken' failed to satisfy constraint: Member too long",
        r"taskToken: Member too long",
    ),
}


async def test_an_answer_that_aws_refuses_says_why_without_the_token_and_the_question_stands(
    server: Injecting, tmp_path: Path
) -> None:
    server.tell("GetExecutionHistory", question(TOKEN))
    async with client_of(configured(tmp_path, server.url, {"it": {"workflow": MACHINE}})) as client:
        task_id = await called(client)
        key, _ = await asked(client, task_id)
        for code, (text, said) in AWS_SAYS.items():
            server.tell("SendTaskSuccess", error(code, text))
            refused = (await client.answer(task_id, **{key: {"action": "accept", "content": {}}})).error
            assert (refused["code"], said in refused["message"]) == (-32602, True), refused
            assert TOKEN not in str(refused)
            assert WHO_WE_ARE not in str(refused)
            assert list((await client.get(task_id))["inputRequests"]) == [key]


async def test_an_engine_that_cannot_look_a_machine_up_has_started_nothing(server: Injecting, tmp_path: Path) -> None:
    server.tell("DescribeStateMachine", error("ServiceUnavailable", status=503))
    for kind, more in (("STANDARD", {}), ("EXPRESS", {"express": True, "tasks": "forbidden"})):
        config = configured(tmp_path, server.url, {"it": {"workflow": MACHINE, **more}})
        async with client_of(config) as client:
            assert "nothing was started. Try again later" in await refusal(client), kind


@pytest.mark.usefixtures("processes")
def test_an_engine_that_cannot_be_set_up_is_a_message_and_no_stack_trace(tmp_path: Path) -> None:
    config = configured(tmp_path, "http://127.0.0.1:9", {"it": {"workflow": MACHINE}}, region=None)
    done = run([COMMAND, "serve", str(config)])
    assert (done.returncode, done.stdout) == (1, "")
    assert "engine aws: no Region: set region of this engine" in done.stderr
    assert "Traceback" not in done.stderr


# --- AWS throttles us


THROTTLED: Final = error("ThrottlingException", "Rate exceeded")
PACKING: Final = {
    "id": 2,
    "previousEventId": 1,
    "type": "PassStateEntered",
    "timestamp": 1.0,
    "stateEnteredEventDetails": {"name": "Packing"},
}
PLAIN: Final[Any] = {}  # the capabilities of a client without tasks


async def until(client: Peer, task_id: str, text: str) -> str:
    """The message once it has this text; each answer on the way comes in time, and is no end."""
    with anyio.fail_after(60):
        while True:
            with stopwatch() as seconds:
                seen = await client.get(task_id)
                assert seconds() < 6, "an engine in trouble must not make its clients wait"
            assert seen["status"] == "working"
            if text in (said := str(seen.get("statusMessage", ""))):
                return said
            await anyio.sleep(0.05)


async def test_a_task_shows_its_last_known_state_and_a_plain_call_goes_on_waiting(
    server: Injecting, tmp_path: Path
) -> None:
    server.tell("GetExecutionHistory", Answer(body={"events": [PACKING]}))
    config = configured(tmp_path, server.url, {"it": {"workflow": MACHINE, "tasks": "wait"}}, timeout_seconds=1)
    results: list[Any] = []

    async def plain(client: Peer) -> None:
        results.append((await client.call("it", capabilities=PLAIN)).result)

    async with client_of(config) as client, anyio.create_task_group() as group:
        group.start_soon(plain, client)
        task_id = await called(client)
        assert await until(client, task_id, "Packing") == "Packing"
        server.tell("DescribeExecution", THROTTLED)
        said = await until(client, task_id, "AWS throttles")
        assert "AWS throttles states:DescribeExecution: the quota of the account in us-east-1 is used up" in said
        assert said.endswith("last known: Packing")
        assert results == []
        play(server)
        server.tell("DescribeExecution", execution("SUCCEEDED", output='{"packed":true}'))
        assert (await client.until(task_id))["result"]["structuredContent"] == {"packed": True}
    assert [result["structuredContent"] for result in results] == [{"packed": True}]


async def test_a_start_that_is_throttled_is_a_task_that_starts_later(server: Injecting, tmp_path: Path) -> None:
    config = configured(tmp_path, server.url, {"it": {"workflow": MACHINE}}, timeout_seconds=1)
    started = Answer(
        body={"executionArn": "arn:aws:states:us-east-1:123456789012:execution:orders:o-1", "startDate": 1}
    )
    async with client_of(config) as client:
        server.tell("StartExecution", THROTTLED)
        task_id = await called(client)
        assert (await client.get(task_id))["status"] == "working"
        server.tell("StartExecution", started)
        server.tell("DescribeExecution", execution("SUCCEEDED", output="{}"))
        assert (await client.until(task_id))["status"] == "completed"
    names = {request["name"] for operation, request in server.requests if operation == "StartExecution"}
    assert len(names) == 1


# --- questions that AWS does not know


async def test_an_answer_that_is_too_late_is_ignored_and_a_token_that_aws_does_not_know_is_told(
    server: Injecting,
) -> None:
    told, ref = Telling(), Ref(workflow=MACHINE, handle=EXECUTION)
    told.ask(1)
    events = [{**told.events[number - 1], "timestamp": 1.0} for number in (5, 4, 2, 3, 1)]  # of one moment: any order
    server.tell("GetExecutionHistory", Answer(body={"events": events}))
    yes = {"action": "accept", "content": {"ok": True}}
    async with StepFunctionsAdapter(StepFunctionsSettings(region=REGION, endpoint_url=server.url)) as adapter:
        seen = await adapter.describe(ref)
        assert (seen.message, list(seen.requests)) == ("Ask", ["3"])
        for code in ("InvalidToken", "TaskDoesNotExist"):
            server.tell("SendTaskSuccess", error(code))
            with pytest.raises(EngineRefused, match="does not know the task token that was found in state Ask"):
                await adapter.answer(ref, {"3": yes})
        server.tell("SendTaskSuccess", error("TaskTimedOut"))  # as after an answer whose reply was lost
        await adapter.answer(ref, {"3": yes})
