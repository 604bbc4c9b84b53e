"""State machines of known behaviour for `mcp-workflows check --live`, and questions that only AWS can answer."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
# Reason: botocore has no types.

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, TypeAlias

from botocore.exceptions import BotoCoreError, ClientError

from mcp_workflows.adapter import Fixtures, Observation, Role
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows.testing.engine_questions import deployed, expect, expect_one_of, note, seconds
from mcp_workflows.testing.laws import NotTried, until_found
from mcp_workflows_stepfunctions.settings import StepFunctionsSettings
from mcp_workflows_stepfunctions.tooling.deployment import (
    ASK,
    ASKS_TWO,
    BRANCHES,
    ECHO,
    FAIL,
    LARGEST,
    SLEEP,
    Definition,
    Deployment,
    FixtureSettings,
    answer,
    code,
    machine_of,
)

NOTICE: Final = (
    "Some 30 small state machines named mcp-workflows-verify-... are deployed, run once or twice each, and removed. "
    "That takes about two minutes and costs less than a cent. The credentials must allow states:* on machines of that "
    "name, and iam:PassRole for the role."
)
_OTHER_MACHINE: Final = (
    "names of executions are unique in one state machine only; keys are made of the tool, so no two machines get one"
)
_MACHINES: Final[Mapping[str, Definition]] = {
    "finishes": ECHO,
    "fails": FAIL,
    "endless": SLEEP,
    "asks": ASK,
    "asks_two": ASKS_TWO,
}
Answers: TypeAlias = Iterator[Observation]


@asynccontextmanager
async def fixtures(engine: StepFunctionsSettings, settings: FixtureSettings) -> AsyncGenerator[Fixtures]:
    """Deploy the machines, and remove them in the end.

    Raises:
        ConfigError, EngineRefused, EngineUnavailable: they cannot be deployed or removed.
    """
    async with deployed(partial(Deployment.open, engine, settings), _deploy, _translated) as found:
        roles = {part: Role(workflow=arn, arguments=[{}]) for part, arn in found.parts.items()}
        echo = found.parts["finishes"]
        yield Fixtures(
            finishes=Role(workflow=echo, arguments=[{"text": "hi"}]),
            output={"text": "hi"},
            other_arguments=[{"text": "ho"}],
            fails=roles["fails"],
            failure="the card was declined",
            endless=roles["endless"],
            asks=roles["asks"],
            asks_two=roles["asks_two"],
            content={"answer": "yes"},
            refused=Role(workflow=f"{echo}-nobody-created", arguments=[{}]),
            unknown_handle=f"{echo.replace(':stateMachine:', ':execution:')}:nobody-started-this",
            gaps={"another_workflow_under_the_same_key_is_refused": _OTHER_MACHINE},
            questions=found.questions(QUESTIONS),
        )


def _deploy(at: Deployment) -> Mapping[str, str]:
    return {part: at.machine(definition) for part, definition in _MACHINES.items()}


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except ClientError as error:
        raise EngineRefused(f"AWS says {code(error)} to {error.operation_name}") from None
    except BotoCoreError as error:
        raise EngineUnavailable(f"AWS cannot be asked ({type(error).__name__})") from None


# --- the questions: each contains the adapter's expectations


def starts_again(at: Deployment) -> Answers:
    """The same name while it runs, with the same input (also with other blanks), and with another."""
    machine = at.machine(SLEEP)
    first = at.start(machine, "one", '{"a": 1}')
    same = at.client.start_execution(stateMachineArn=machine, name="one", input='{"a": 1}')["executionArn"]
    yield expect("same ARN", "same ARN" if same == first else same)
    blanks = answer(lambda: at.client.start_execution(stateMachineArn=machine, name="one", input='{"a":1}'))
    yield note(f"the same JSON, written differently: {blanks}")  # ours is canonical
    other = answer(lambda: at.client.start_execution(stateMachineArn=machine, name="one", input="{}"))
    yield expect("ExecutionAlreadyExists", other)


def starts_after_the_end(at: Deployment) -> Answers:
    """The same name and input after it has ended."""
    machine = at.machine(ECHO)
    at.until(at.start(machine, "one"), "SUCCEEDED")
    again = answer(lambda: at.client.start_execution(stateMachineArn=machine, name="one", input="{}"))
    yield expect("ExecutionAlreadyExists", again)


def refuses_large_inputs(at: Deployment) -> Answers:
    """An input of 262,145 bytes."""
    machine, large = at.machine(ECHO), json.dumps("x" * (LARGEST - 1))
    said = answer(lambda: at.client.start_execution(stateMachineArn=machine, name="large", input=large))
    yield note(said, ok=said != "accepted")


def qualified_arns(at: Deployment) -> Answers:
    """The ARN of an execution that was started by version, and by alias; the list of the whole machine has both."""
    machine = at.machine(ECHO)
    version = at.client.publish_state_machine_version(stateMachineArn=machine)["stateMachineVersionArn"]
    routing = [{"stateMachineVersionArn": version, "weight": 100}]
    alias = at.client.create_state_machine_alias(name="VERIFY", routingConfiguration=routing)["stateMachineAliasArn"]
    try:
        plain = machine.replace(":stateMachine:", ":execution:")
        for qualified, name in ((version, "v"), (alias, "a")):
            yield expect(f":{name}", at.start(qualified, name).removeprefix(plain))
        said = answer(lambda: at.client.start_execution(stateMachineArn=machine, name="a", input='{"b":1}'))
        yield expect_one_of(["ExecutionAlreadyExists"], said, "unqualified, with the alias's name")
        listed = partial(until_found, lambda: _listed(at, machine, {"v", "a"}), "the list of executions")
        yield note(f"listed after {seconds(listed):.1f} s", ok=True)
    finally:
        at.client.delete_state_machine_alias(stateMachineAliasArn=alias)


def _listed(at: Deployment, machine: str, names: Collection[str]) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] = at.client.list_executions(stateMachineArn=machine)
    return found if {row["name"] for row in found["executions"]} >= {*names} else None


def tokens_in_the_history(at: Deployment) -> Answers:
    """The task token is in the resolved parameters of TaskScheduled, and good for an answer."""
    arn = at.start(at.machine(ASK))
    token = at.token(arn)
    yield expect("accepted", answer(lambda: at.client.send_task_success(taskToken=token, output='{"a":1}')))
    yield expect('{"a":1}', at.until(arn, "SUCCEEDED")["output"].replace(" ", ""))


def late_answers(at: Deployment) -> Answers:
    """Answers that come twice, that are no JSON, to a stopped execution, with a token that is none."""
    machine = at.machine(ASK)
    arn = at.start(machine)
    token = at.token(arn)
    send = at.client.send_task_success
    yield expect("InvalidOutput", answer(partial(send, taskToken=token, output="{")))
    send(taskToken=token, output="{}")
    at.until(arn, "SUCCEEDED")
    closed = ("TaskTimedOut", "TaskDoesNotExist", "InvalidToken")
    yield expect_one_of(closed, answer(partial(send, taskToken=token, output="{}")), "twice")
    arn = at.start(machine)
    token = at.token(arn)
    at.client.stop_execution(executionArn=arn)
    at.until(arn, "ABORTED")
    yield expect_one_of(closed, answer(partial(send, taskToken=token, output="{}")), "stopped")
    yield expect_one_of(closed, answer(partial(send, taskToken="x" * 40, output="{}")), "no token")


def branches(at: Deployment) -> Answers:
    """A question in a branch, when another branch fails: the events that close it."""
    arn = at.start(at.machine(BRANCHES))
    scheduled = at.waiting(arn)["id"]
    at.until(arn, "FAILED")
    events = at.client.get_execution_history(executionArn=arn)["events"]
    after = [event["type"] for event in events if event["id"] > scheduled]
    yield note(", ".join(after), ok=bool({"ParallelStateFailed", "ExecutionFailed"} & set(after)))


def stops(at: Deployment) -> Answers:
    """A stop, with error and cause; and a stop after the end."""
    machine = at.machine(SLEEP)
    arn = at.start(machine)
    at.until(arn, "RUNNING")
    at.client.stop_execution(executionArn=arn, error="Mcp.Cancelled", cause="verify")
    found = at.until(arn, "ABORTED")
    yield expect("Mcp.Cancelled: verify", f"{found.get('error')}: {found.get('cause')}")
    yield expect("accepted", answer(lambda: at.client.stop_execution(executionArn=arn)))
    ended = at.start(at.machine(ECHO))
    at.until(ended, "SUCCEEDED")
    yield expect("accepted", answer(lambda: at.client.stop_execution(executionArn=ended)))
    yield expect("SUCCEEDED", str(at.client.describe_execution(executionArn=ended)["status"]))


def redrives(at: Deployment) -> Answers:
    """A redriven execution runs again under its ARN, and event ids go on."""
    arn = at.start(at.machine(FAIL))
    at.until(arn, "FAILED")
    before = max(event["id"] for event in at.client.get_execution_history(executionArn=arn)["events"])
    at.client.redrive_execution(executionArn=arn)
    again = until_found(
        lambda: next((e for e in _history(at, arn) if e["type"] == "ExecutionRedriven"), None), "ExecutionRedriven"
    )
    yield note(f"ExecutionRedriven is event {again['id']} after {before}", ok=again["id"] > before)
    yield expect("1", str(at.client.describe_execution(executionArn=arn).get("redriveCount")))


def _history(at: Deployment, arn: str) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = at.client.get_execution_history(executionArn=arn)["events"]
    return found


def describes_machines(at: Deployment) -> Answers:
    """`DescribeStateMachine` with `includedData=METADATA_ONLY` tells the type."""
    found = at.client.describe_state_machine(stateMachineArn=at.machine(ECHO), includedData="METADATA_ONLY")
    yield expect("STANDARD", str(found["type"]))


def express(at: Deployment) -> Answers:
    """Express: describing an execution is refused; a Standard machine can run it (aws-sdk:sfn:startSyncExecution)."""
    machine = at.machine(ECHO, type="EXPRESS")
    reply = at.clients.sync.start_sync_execution(stateMachineArn=machine, input='{"a":1}')
    yield expect('{"a":1}', str(reply["output"]).replace(" ", ""))
    refused = answer(lambda: at.client.describe_execution(executionArn=reply["executionArn"]))
    yield note(f"describe: {refused}", ok=refused != "accepted")
    parent = {
        "Type": "Task",
        "Resource": "arn:aws:states:::aws-sdk:sfn:startSyncExecution",
        "Parameters": {"StateMachineArn": machine, "Input.$": "States.JsonToString($)"},
        "OutputPath": "$.Output",
    }
    arn = at.start(at.machine(machine_of("Run", parent)), given='{"b":2}')
    yield note(f"from a Standard machine: {at.until(arn, 'SUCCEEDED').get('output')}", ok=True)


def send_task_permissions(at: Deployment) -> Answers:
    """`SendTaskSuccess` can be allowed for one state machine alone."""
    if at.settings.assume is None:
        raise NotTried("name a role that you may assume and that may states:SendTaskSuccess: --set assume=ARN")
    machine, other = at.machine(ASK), at.machine(ASK)
    tokens = [at.token(at.start(each)) for each in (machine, other)]
    client = at.restricted(at.settings.assume, machine)
    codes = [answer(partial(client.send_task_success, taskToken=token, output="{}")) for token in tokens]
    yield expect("its own accepted, another's AccessDeniedException", f"its own {codes[0]}, another's {codes[1]}")


QUESTIONS: Final[Sequence[Callable[[Deployment], Answers]]] = (
    *(starts_again, starts_after_the_end, refuses_large_inputs, qualified_arns, describes_machines),
    *(tokens_in_the_history, late_answers, branches, stops, redrives, express, send_task_permissions),
)
