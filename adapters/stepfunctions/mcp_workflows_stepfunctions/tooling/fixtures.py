"""State machines of known behaviour, for `mcp-workflows verify`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
from botocore.exceptions import BotoCoreError, ClientError

from mcp_workflows.adapter import Fixtures, Observation, Question, Role
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows_stepfunctions.settings import StepFunctionsSettings
from mcp_workflows_stepfunctions.tooling.deployment import Definition, Deployment, FixtureSettings, code
from mcp_workflows_stepfunctions.tooling.engine_questions import ECHO, QUESTIONS

NOTICE: Final = (
    "Some 30 small state machines named mcp-workflows-verify-... are deployed, run once or twice each, and removed. "
    "That takes about two minutes and costs less than a cent. The credentials must allow states:* on machines of that "
    "name, and iam:PassRole for the role."
)
_FAILURE: Final = "the card was declined"
_FORM: Final = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
_OTHER_MACHINE: Final = (
    "names of executions are unique in one state machine only; keys are made of the tool, so no two machines get one"
)
T = TypeVar("T")


def _asking(message: str) -> Definition:
    """Return a machine that asks a person."""
    question = {"message": message, "requestedSchema": _FORM}
    detail = {"taskToken.$": "$$.Task.Token", "executionArn.$": "$$.Execution.Id", "mcpInput": question}
    entry = {"Source": "mcp.workflows", "DetailType": "MCP Input Request", "Detail": detail}
    state = {
        "Type": "Task",
        "Resource": "arn:aws:states:::events:putEvents.waitForTaskToken",
        "Parameters": {"Entries": [entry]},
        "TimeoutSeconds": 300,
        "End": True,
    }
    return {"StartAt": "Ask", "States": {"Ask": state}}


_MACHINES: Final[Mapping[str, Definition]] = {
    "finishes": ECHO,
    "fails": {
        "StartAt": "Charge",
        "States": {"Charge": {"Type": "Fail", "Error": "CardDeclined", "Cause": _FAILURE}},
    },
    "endless": {"StartAt": "Sleep", "States": {"Sleep": {"Type": "Wait", "Seconds": 3600, "End": True}}},
    "asks": _asking("Ship it?"),
    "asks_two": {
        "StartAt": "Both",
        "States": {"Both": {"Type": "Parallel", "Branches": [_asking("Ship it?"), _asking("Really?")], "End": True}},
    },
}


@asynccontextmanager
async def fixtures(engine: StepFunctionsSettings, settings: FixtureSettings) -> AsyncGenerator[Fixtures]:
    """Deploy the machines, and remove them in the end.

    Raises:
        ConfigError, EngineRefused, EngineUnavailable: they cannot be deployed, or not be removed.
    """
    at = await anyio.to_thread.run_sync(Deployment.open, engine, settings)
    try:
        arns = await _called(partial(_deploy, at))
        yield _of(at, arns)
    finally:
        with anyio.CancelScope(shield=True):
            await _called(at.remove)


def _deploy(at: Deployment) -> Mapping[str, str]:
    return {part: at.machine(definition) for part, definition in _MACHINES.items()}


def _of(at: Deployment, arns: Mapping[str, str]) -> Fixtures:
    roles = {part: Role(workflow=arn, arguments=[{}]) for part, arn in arns.items()}
    echo = arns["finishes"]
    return Fixtures(
        finishes=Role(workflow=echo, arguments=[{"text": "hi"}]),
        output={"text": "hi"},
        other_arguments=[{"text": "ho"}],
        fails=roles["fails"],
        failure=_FAILURE,
        endless=roles["endless"],
        asks=roles["asks"],
        asks_two=roles["asks_two"],
        content={"answer": "yes"},
        refused=Role(workflow=f"{echo}-nobody-created", arguments=[{}]),
        unknown_handle=f"{echo.replace(':stateMachine:', ':execution:')}:nobody-started-this",
        gaps={"another_workflow_under_the_same_key_is_refused": _OTHER_MACHINE},
        questions={(each.__doc__ or "").strip(): _question(at, each) for each in QUESTIONS},
    )


def _question(at: Deployment, ask: Callable[[Deployment], Any]) -> Question:  # Any: an iterator of observations
    async def asked() -> Sequence[Observation]:
        return await _called(lambda: list[Observation](ask(at)))

    return asked


async def _called(function: Callable[[], T]) -> T:
    """Run a function in a thread.

    Raises:
        EngineRefused, EngineUnavailable: AWS says no, or nothing.
    """
    try:
        return await anyio.to_thread.run_sync(function)
    except ClientError as error:
        raise EngineRefused(f"AWS says {code(error)} to {error.operation_name}") from None
    except BotoCoreError as error:
        raise EngineUnavailable(f"AWS cannot be asked ({type(error).__name__})") from None
