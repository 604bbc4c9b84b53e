"""What is wrong with a configuration, a call, a machine or our rights: told to the client and by `check`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from typer.testing import CliRunner

from adapters.stepfunctions.tests import machines
from adapters.stepfunctions.tests.configured import asked, called, client_of, configured
from adapters.stepfunctions.tests.injecting import Injecting, error, injecting
from adapters.stepfunctions.tests.refused import POLICY, TOKEN, WHO_WE_ARE, no
from adapters.stepfunctions.tests.stubbed import EXECUTION, MACHINE, execution, play, question
from mcp_workflows.errors import ConfigError
from mcp_workflows.sidecar.cli.app import app
from mcp_workflows.sidecar.config.load import load_config
from tests.support.child_processes import free_port
from tests.support.commands import COMMAND, run
from tests.support.served import Peer
from tests.support.stepfunctions_engine import ACCOUNT, REGION, StepFunctions

pytestmark = pytest.mark.anyio

ELSEWHERE: Final = MACHINE.replace(REGION, "eu-west-1")
FOREIGN: Final = MACHINE.replace(ACCOUNT, "210987654321")


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


WRONG: Final = {
    "malformed": (f"arn:aws:states:{REGION}:123:stateMachine:x", "is no state machine ARN; write arn:aws:states:"),
    "an_execution": (EXECUTION, "is no state machine ARN"),
    "no_name": ("two words", "cannot be the name of a state machine"),
    "region": (ELSEWHERE, "is in eu-west-1, this engine is set up for us-east-1: give the other Region an engine"),
    "account": (FOREIGN, f"is in account 210987654321, this engine is set up for {ACCOUNT}"),
}


async def test_what_is_no_machine_of_this_engine_is_refused_before_anything_is_called(
    server: Injecting, tmp_path: Path
) -> None:
    tools = {name: {"workflow": workflow} for name, (workflow, _) in WRONG.items()}
    config = configured(tmp_path, server.url, tools, account=ACCOUNT)
    async with client_of(config) as client:
        for name, (_, said) in WRONG.items():
            assert said in await refusal(client, name)
        assert not server.counts
    found = await anyio.to_thread.run_sync(checked, config)
    assert found.keys() == WRONG.keys()
    assert all(said in found[name] for name, (_, said) in WRONG.items())


async def test_the_account_of_a_role_is_the_account_of_the_engine(server: Injecting, tmp_path: Path) -> None:
    role = {"arn": "arn:aws:iam::210987654321:role/workflows"}
    config = configured(tmp_path, server.url, {"it": {"workflow": MACHINE}}, assume_role=role)
    async with client_of(config) as client:
        assert f"is in account {ACCOUNT}, this engine is set up for 210987654321" in await refusal(client)
    assert not server.counts


async def test_a_machine_that_is_not_there_is_told_with_its_name(stepfunctions: StepFunctions, tmp_path: Path) -> None:
    version = f"{stepfunctions.machine(machines.ECHO)}:7"
    tools = {"it": {"workflow": "nobody-made-this"}, "version": {"workflow": version}}
    config = configured(tmp_path, stepfunctions.url, tools)
    async with client_of(config) as client:
        assert "there is no state machine" in await refusal(client)
        assert version in await refusal(client, "version")
    found = await anyio.to_thread.run_sync(checked, config)
    assert "nobody-made-this" in found["it"]
    assert "has no version 7" in found["version"]


@pytest.mark.parametrize("workflow", [MACHINE, "orders"])
async def test_an_input_over_the_limit_is_counted_in_bytes_before_anything_is_called(
    server: Injecting, tmp_path: Path, workflow: str
) -> None:
    config = configured(tmp_path, server.url, {"it": {"workflow": workflow}})
    async with client_of(config) as client:
        said = await refusal(client, arguments={"text": "ü" * 131_072})  # 128 Ki characters
    assert "the input is 262155 bytes of JSON, Step Functions takes 262144: pass a reference to it" in said
    assert not server.counts


async def test_an_output_that_is_no_json_is_a_failure_that_says_so(server: Injecting, tmp_path: Path) -> None:
    config = configured(tmp_path, server.url, {"it": {"workflow": MACHINE}})
    async with client_of(config) as client:
        task_id = await called(client)
        server.tell("DescribeExecution", execution("SUCCEEDED", output="Hello"))
        result = (await client.until(task_id))["result"]
    assert result["isError"]
    assert "the execution succeeded, but its output is no JSON" in result["content"][0]["text"]


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
            with anyio.fail_after(20):
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


async def test_an_express_machine_can_be_no_task_and_a_standard_one_is_not_run_as_express(
    server: Injecting, tmp_path: Path
) -> None:
    required = {"workflow": MACHINE, "express": True, "tasks": "required"}
    with pytest.raises(ConfigError, match=r"workflows\.yaml:\d+: tools\.it\.tasks: .*: leave `tasks` out"):
        load_config(configured(tmp_path, server.url, {"it": required}), {})
    for kind, tool, said in (
        ("EXPRESS", {"workflow": MACHINE}, "orders is an Express state machine, whose executions can be no tasks"),
        ("STANDARD", {"workflow": MACHINE, "express": True}, "leave out express: true"),
    ):
        play(server, kind)
        config = configured(tmp_path, server.url, {"it": tool})
        async with client_of(config) as client:
            assert said in await refusal(client)
        assert said in (await anyio.to_thread.run_sync(checked, config))["it"]
    assert server.counts["StartExecution"] + server.counts["StartSyncExecution"] == 0


async def test_an_engine_that_cannot_look_a_machine_up_has_started_nothing(server: Injecting, tmp_path: Path) -> None:
    server.tell("DescribeStateMachine", error("ServiceUnavailable", status=503))
    for kind, more in (("STANDARD", {}), ("EXPRESS", {"express": True, "tasks": "forbidden"})):
        config = configured(tmp_path, server.url, {"it": {"workflow": MACHINE, **more}})
        async with client_of(config) as client:
            assert "nothing was started; try again later" in await refusal(client), kind


@pytest.mark.parametrize("transport", [["--http", f"127.0.0.1:{free_port()}"], []], ids=["http", "stdio"])
@pytest.mark.usefixtures("processes")
def test_an_engine_that_cannot_be_set_up_is_a_message_and_no_stack_trace(tmp_path: Path, transport: list[str]) -> None:
    config = configured(tmp_path, "http://127.0.0.1:9", {"it": {"workflow": MACHINE}}, region=None)
    command = [COMMAND, "serve", str(config), *transport]
    done = run(command)
    assert (done.returncode, done.stdout) == (1, "")
    assert "engine aws: no Region: set region of this engine" in done.stderr
    assert "Traceback" not in done.stderr
