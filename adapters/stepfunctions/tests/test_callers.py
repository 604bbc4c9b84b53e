"""On whose behalf: StartExecution and StopExecution with a session of the role for each caller, looks without."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import anyio
import pytest
from botocore.credentials import Credentials
from mcp_workflows_stepfunctions import StepFunctionsAdapter, StepFunctionsSettings
from mcp_workflows_stepfunctions.credentials import MAX_SESSIONS, CallerCredentials, acting_as
from mcp_workflows_stepfunctions.settings import StepFunctionsOptions
from pydantic import ValidationError

from adapters.stepfunctions.tests.injecting import Answer, Injecting, injecting, session, sts_error
from adapters.stepfunctions.tests.refused import EXECUTION
from mcp_workflows import Tool
from mcp_workflows.adapter import Ref, Start
from mcp_workflows.errors import EngineRefused
from mcp_workflows.kit.threads import begin_call

pytestmark = pytest.mark.anyio

ROLE: Final = "arn:aws:iam::210987654321:role/workflows"
MACHINE: Final = "arn:aws:states:eu-west-1:210987654321:stateMachine:fulfil"
STANDARD: Final = {"type": "STANDARD", "stateMachineArn": MACHINE, "name": "fulfil", "definition": "{}"}


class Account:
    """An AWS that gives each session a key named like its source identity, and notes by whose key it is called."""

    def __init__(self, server: Injecting) -> None:
        self.server = server
        self.called: list[tuple[str, str]] = []
        server.tell("AssumeRole", self._assume)
        bodies: Mapping[str, Mapping[str, Any]] = {
            "StartExecution": {"executionArn": EXECUTION, "startDate": 0},
            "StopExecution": {"stopDate": 0},
            "DescribeExecution": {"executionArn": EXECUTION, "status": "SUCCEEDED", "output": "{}"},
            "DescribeStateMachine": STANDARD,
        }
        for operation, body in bodies.items():
            server.tell(operation, self._noting(operation, body))

    def _assume(self, request: Mapping[str, Any]) -> Answer:
        who = request.get("SourceIdentity", "nobody")
        assert request["RoleSessionName"] == ("mcp-workflows" if who == "nobody" else who)
        return session(f"ASIA{who.upper()}")

    def _noting(self, operation: str, body: Mapping[str, Any]) -> Any:  # a function of the request
        def answer(_: Mapping[str, Any]) -> Answer:
            key = self.server.authorized.partition("Credential=")[2].partition("/")[0]
            self.called.append((operation, key))
            return Answer(body=body)

        return answer


@pytest.fixture
def account() -> Iterator[Account]:
    with injecting() as server:
        yield Account(server)


def adapter(account: Account, **more: Any) -> StepFunctionsAdapter:
    given = {"region": "eu-west-1", "endpoint_url": account.server.url, "assume_role": {"arn": ROLE}, **more}
    return StepFunctionsAdapter(StepFunctionsSettings.model_validate(given))


def order(who: str | None, workflow: str = MACHINE) -> Start:
    options = {} if who is None else {"source_identity": who}
    return Start(workflow=workflow, arguments=[], key=uuid.uuid4().hex, created=datetime.now(UTC), options=options)


async def test_each_caller_has_a_session_and_looks_have_none(account: Account) -> None:
    async with adapter(account) as opened:
        for who in ("ada", "ben", "ada"):
            start = order(who)
            ref = Ref(workflow=MACHINE, handle=await opened.start(start), options=start.options)
            await opened.describe(ref)
            await opened.cancel(ref)
            await opened.terminate(ref, "no more")
        await opened.start(order(None))
    made = [each for each in account.called if each[0] != "DescribeStateMachine"]
    assert made == [
        *(each for who in ("ADA", "BEN", "ADA") for each in _life(f"ASIA{who}")),
        ("StartExecution", "ASIANOBODY"),
    ]
    assert account.server.counts["AssumeRole"] == 3  # ada, ben, and who looks


def _life(key: str) -> list[tuple[str, str]]:
    return [
        *(("StartExecution", key), ("DescribeExecution", "ASIANOBODY")),
        *(("StopExecution", key), ("StopExecution", key)),
    ]


async def test_a_role_that_may_not_carry_the_identity_starts_nothing(account: Account) -> None:
    account.server.tell("AssumeRole", sts_error("AccessDenied"))
    async with adapter(account) as opened:
        with pytest.raises(EngineRefused, match=f"sts:AssumeRole on {ROLE}"):
            await opened.start(order("ada"))
    assert account.called == []


@pytest.mark.parametrize("who", ["x" * 65, "auth0|123", "\u00e4da", ""])
async def test_an_identity_that_aws_does_not_take_starts_nothing(account: Account, who: str) -> None:
    async with adapter(account) as opened:
        with pytest.raises(EngineRefused, match="2 to 64") as caught:
            await opened.start(order(who))
    assert who not in str(caught.value) or len(who) < 2
    assert account.called == []


async def test_without_a_role_nothing_starts_and_check_says_why(account: Account) -> None:
    async with adapter(account, assume_role=None) as opened:
        with pytest.raises(EngineRefused, match="needs assume_role"):
            await opened.start(order("ada"))
        found = await opened.tooling.check(MACHINE, {"source_identity": "{{principal.subject}}"})
        assert (found.ok, "assume_role" in found.text) == (False, True)
    async with adapter(account) as opened:
        assert (await opened.tooling.check(MACHINE, {"source_identity": "{{principal.subject}}"})).ok


def _session(who: str) -> Credentials:
    return Credentials(who, "s")


async def test_calls_at_once_never_have_each_others_session() -> None:
    credentials, seen = CallerCredentials(Credentials("usual", "s"), _session), list[tuple[str, str]]()

    async def call(who: str | None) -> None:
        with acting_as(who):
            for _ in range(5):
                found = await begin_call(lambda: credentials.get_frozen_credentials().access_key, limiter)
                seen.append((who or "usual", await found.outcome()))

    limiter = anyio.CapacityLimiter(8)
    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(call, f"caller-{number % 7}" if number % 8 else None)
    assert len(seen) == 200
    assert all(who == found for who, found in seen)


def test_so_many_sessions_are_kept_and_no_more() -> None:
    made: list[str] = []

    def made_session(who: str) -> Credentials:
        made.append(who)
        return _session(who)

    credentials = CallerCredentials(Credentials("usual", "s"), made_session)
    for who in [str(number) for number in range(MAX_SESSIONS + 1)] + [str(MAX_SESSIONS), "1", "0"]:
        with acting_as(who):
            assert credentials.get_frozen_credentials().access_key == who
    assert made[-2:] == [str(MAX_SESSIONS), "0"]  # the one that was used longest ago is made again


def test_the_claim_of_who_calls_is_the_identity() -> None:
    tool = Tool(name="t", engine="e", workflow="w", options={"source_identity": "{{principal.claims.email}}"})
    scope = {"args": {}, "principal": {"claims": {"email": "ada@example.com"}}}
    assert StepFunctionsOptions.read(tool.frozen_options(scope)).caller == "ada@example.com"
    with pytest.raises(ValidationError):
        StepFunctionsOptions.model_validate({"source_identity": 7})
