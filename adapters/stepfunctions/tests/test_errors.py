"""The table of what AWS says no with, each error through boto3 as it is: from a server that answers as it is told."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# Reason: botocore has no types.

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest
from botocore import exceptions as boto
from mcp_workflows_stepfunctions.client import Client, open_client
from mcp_workflows_stepfunctions.errors import ApiCall, is_foreign, translate
from mcp_workflows_stepfunctions.settings import StepFunctionsSettings

from adapters.stepfunctions.tests.injecting import HANG, LOST, Answer, Injecting, error, injecting, sts_error, wait_for
from adapters.stepfunctions.tests.refused import (
    ACCOUNT,
    ANSWER,
    DESCRIBE,
    EXECUTION,
    MACHINE,
    REGION,
    START,
    STOP,
    TABLE,
    TOKEN,
    Asking,
    no,
)
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable
from tests.support.child_processes import free_port
from tests.support.stopwatch import stopwatch

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server() -> Iterator[Injecting]:
    with injecting() as server:
        yield server


def opened(url: str, **more: Any) -> AbstractAsyncContextManager[Client]:
    settings = {"region": REGION, "account": ACCOUNT, "endpoint_url": url, **more}
    return open_client(StepFunctionsSettings.model_validate(settings))


@pytest.fixture
async def calls(server: Injecting) -> AsyncIterator[Client]:
    async with opened(server.url) as calls:
        yield calls


def told(found: EngineError) -> bool | None:
    """What the error says about the outcome."""
    if isinstance(found, EngineRefused):
        return found.final
    return found.sent if isinstance(found, EngineUnavailable) else None


@pytest.mark.parametrize(
    ("call", "answer", "kind", "outcome", "words"), TABLE, ids=[f"{n}-{row[0][0]}" for n, row in enumerate(TABLE)]
)
async def test_every_error_of_aws_is_one_of_ours_that_says_what_to_do(
    calls: Client,
    server: Injecting,
    call: Asking,
    answer: Answer,
    kind: type[EngineError],
    outcome: bool | None,
    words: str,
) -> None:
    operation, params = call
    server.tell("".join(word.capitalize() for word in operation.split("_")), answer)
    with pytest.raises(kind, match=words) as caught:
        await calls.call(operation, **params)
    assert told(caught.value) is outcome
    assert "hush" not in str(caught.value)
    assert "secret-role" not in str(caught.value)
    assert str(caught.value).startswith("Step Functions at http://127.0.0.1")


async def test_throttling_is_no_answer_and_makes_us_ask_less(server: Injecting) -> None:
    rate = {"bucket": 100, "refill": 40}
    quota = {"share": 1, "describe_execution": rate, "get_execution_history": rate}
    async with opened(server.url, timeout_seconds=1, quota=quota) as calls:  # no time for more attempts
        server.tell("DescribeExecution", error("ThrottlingException", "Rate exceeded"))
        before = calls.allowance.polls_per_second
        said = "AWS throttles states:DescribeExecution: the quota of the account"
        with pytest.raises(EngineUnavailable, match=said) as caught:
            await calls.call(*DESCRIBE[:1], **DESCRIBE[1])
        assert caught.value.throttled
        assert calls.allowance.polls_per_second == pytest.approx(before / 2, rel=0.1)


async def test_a_bucket_that_is_empty_holds_reads_back_here_and_nothing_was_sent(server: Injecting) -> None:
    quota = {"share": 1, "describe_execution": {"bucket": 2, "refill": 0.01}}
    async with opened(server.url, quota=quota, account="111111111111") as calls:
        server.tell("DescribeExecution", Answer(body={"executionArn": EXECUTION}))
        server.counts.clear()
        for _ in range(2):
            await calls.call("describe_execution", executionArn=EXECUTION)
        with stopwatch() as seconds:
            with pytest.raises(EngineUnavailable, match="held back here") as caught:
                await calls.call("describe_execution", executionArn=EXECUTION)
            assert seconds() < 1
        assert caught.value.throttled
        assert caught.value.sent is False
        assert server.counts["DescribeExecution"] == 2


async def test_nobody_there_is_certainly_not_sent() -> None:
    port = free_port()
    start = f"Start it: python -m mcp_workflows_stepfunctions_local --port {port}"
    async with opened(f"http://127.0.0.1:{port}") as calls:
        with pytest.raises(EngineUnavailable, match="cannot connect to") as caught:
            await calls.call(*START[:1], **START[1])
        assert str(caught.value).endswith(f"connection refused; is the engine running there? {start}")
        assert caught.value.sent is False


async def test_a_lost_answer_and_then_nobody_there_may_have_been_accepted() -> None:
    with injecting() as server:
        listening = server
        async with opened(server.url) as calls:
            server.tell("StartExecution", LOST, error("AccessDeniedException", "no"))
            with pytest.raises(EngineUnavailable, match="no permission") as caught:
                await calls.call(*START[:1], **START[1])
            assert caught.value.sent is True
            assert listening.counts["StartExecution"] == 2


@pytest.mark.parametrize("call", [DESCRIBE, START])
async def test_an_engine_that_hangs_is_given_up_in_time(call: Asking) -> None:
    with injecting() as server:
        async with opened(server.url, timeout_seconds=1) as calls:
            for operation in ("DescribeExecution", "StartExecution"):
                server.tell(operation, HANG)
            with stopwatch() as seconds:
                with pytest.raises(EngineUnavailable, match="no answer") as caught:
                    await calls.call(call[0], **call[1])
                assert seconds() < 2
            assert caught.value.sent is True


async def test_a_write_that_is_under_way_is_waited_for_when_its_caller_gives_up(server: Injecting) -> None:
    async with opened(server.url) as calls:
        server.tell("StopExecution", Answer(delay=0.2, body={"stopDate": 1.0}))
        server.counts.clear()
        done = False
        with anyio.move_on_after(0.05):
            await calls.call(*STOP[:1], **STOP[1])
            done = True
        assert done


async def test_a_read_that_is_under_way_is_left_alone_when_its_caller_gives_up(server: Injecting) -> None:
    async with opened(server.url) as calls:
        server.tell("DescribeExecution", Answer(delay=0.5))
        with stopwatch() as seconds:
            with anyio.move_on_after(0.05):
                await calls.call(*DESCRIBE[:1], **DESCRIBE[1])
            assert seconds() < 0.4


async def test_a_server_without_tls_says_to_write_http(server: Injecting) -> None:
    async with opened(server.url.replace("http:", "https:")) as calls:
        with pytest.raises(EngineUnavailable, match="does not speak TLS; write http://") as caught:
            await calls.call(*START[:1], **START[1])
        assert caught.value.sent is False


async def test_no_task_token_is_ever_logged(calls: Client, server: Injecting, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server.tell("SendTaskSuccess", error("TaskTimedOut", TOKEN))
    server.tell("GetExecutionHistory", Answer(body={"events": [], "nextToken": TOKEN}))
    with pytest.raises(EngineRefused):
        await calls.call(*ANSWER[:1], **ANSWER[1])
    await calls.call("get_execution_history", executionArn=EXECUTION)
    assert TOKEN not in caplog.text
    assert "AWS4-HMAC" not in caplog.text


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("AccessDenied", f"sts:AssumeRole on arn:aws:iam::{ACCOUNT}:role/workflows is not allowed"),
        ("ExpiredToken", "credentials have expired"),
        ("RegionDisabledException", "STS is not active in eu-west-1"),
        ("InvalidClientTokenId", "does not know our access key"),
    ],
)
async def test_a_role_that_cannot_be_assumed_is_named_and_nothing_was_sent(
    server: Injecting, code: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    role = f"arn:aws:iam::{ACCOUNT}:role/workflows"
    server.tell("AssumeRole", sts_error(code, no("sts:AssumeRole", role)))
    server.counts.clear()
    async with opened(server.url, account=None, assume_role={"arn": role}) as calls:
        with pytest.raises(EngineRefused, match=words) as caught:
            await calls.call(*DESCRIBE[:1], **DESCRIBE[1])
    assert "secret-role" not in str(caught.value)
    assert server.counts["DescribeExecution"] == 0
    assert "Traceback" not in caplog.text


async def test_an_account_that_cannot_be_told_is_an_error_and_asked_for_again(server: Injecting) -> None:
    identity = f"<GetCallerIdentityResult><Account>{ACCOUNT}</Account></GetCallerIdentityResult>"
    reply = Answer(body=f"<GetCallerIdentityResponse>{identity}</GetCallerIdentityResponse>")
    server.tell("GetCallerIdentity", sts_error("InvalidClientTokenId"), reply)
    async with opened(server.url, account=None) as calls:
        with pytest.raises(EngineRefused, match="does not know our access key"):
            await calls.place()
        assert [(await calls.place()).account for _ in range(2)] == [ACCOUNT, ACCOUNT]
    assert server.counts["GetCallerIdentity"] == 2


async def test_pages_are_read_to_the_end_or_as_far_as_wanted(calls: Client, server: Injecting) -> None:
    pages = [
        Answer(body={"executions": [{"name": "a"}], "nextToken": "t"}),
        Answer(body={"executions": [{"name": "b"}]}),
    ]
    server.tell("ListExecutions", *pages)
    assert [row["name"] for row in await calls.pages("list_executions", "executions", stateMachineArn=MACHINE)] == [
        "a",
        "b",
    ]
    server.tell("ListExecutions", *pages)
    assert len(await calls.pages("list_executions", "executions", limit=1, stateMachineArn=MACHINE)) == 1


async def test_an_express_execution_is_never_tried_again(calls: Client, server: Injecting) -> None:
    server.counts.clear()
    server.tell("StartSyncExecution", error("ServiceUnavailable", status=503))
    with pytest.raises(EngineUnavailable):
        await calls.run_sync(stateMachineArn=MACHINE, input="{}")
    assert server.counts["StartSyncExecution"] == 1


async def test_who_gives_up_on_an_express_execution_is_not_held_up() -> None:
    with injecting() as server:
        server.tell("StartSyncExecution", HANG)
        async with opened(server.url) as calls:
            with stopwatch() as seconds:
                with anyio.move_on_after(0.2) as patience:
                    await calls.run_sync(stateMachineArn=MACHINE, input="{}")
                assert seconds() < 5
            assert patience.cancelled_caught
            wait_for(server, "StartSyncExecution")


REAL = ApiCall(
    service="states", operation="start_execution", resource=MACHINE, region=REGION, account=ACCOUNT, endpoint="e"
)
HTTPS = "https://states.eu-west-1.amazonaws.com"


@pytest.mark.parametrize(
    ("raised", "kind", "words"),
    [
        (boto.LoginRefreshRequired(), EngineRefused, "`aws login`"),
        (boto.CredentialRetrievalError(provider="process", error_msg="hush"), EngineRefused, r"be got \(process\)"),
        (boto.MetadataRetrievalError(error_msg="hush"), EngineRefused, "metadata service of this machine"),
        (boto.ProxyConnectionError(proxy_url="http://me:hush@proxy"), EngineUnavailable, "check HTTPS_PROXY"),
        (boto.ConnectTimeoutError(endpoint_url=HTTPS), EngineUnavailable, f"no connection to {HTTPS} in time"),
        (boto.SSLError(endpoint_url=HTTPS, error="CERTIFICATE_VERIFY_FAILED"), EngineUnavailable, "set AWS_CA_BUNDLE"),
        (boto.SSLError(endpoint_url=HTTPS, error="hush"), EngineUnavailable, f"TLS to {HTTPS} failed$"),
        (boto.EndpointResolutionError(msg="hush"), EngineRefused, "knows no endpoint for this in eu-west-1"),
        (boto.IncompleteReadError(actual_bytes=1, expected_bytes=2), EngineUnavailable, "was lost"),
        (
            boto.MissingDependencyException(msg="hush"),
            EngineUnavailable,
            r"boto3 failed \(MissingDependencyException\)",
        ),
        (RuntimeError("Credentials were refreshed, but are still expired."), EngineRefused, "have expired"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_boto3_raises_is_told_without_its_own_words(
    raised: Exception, kind: type[EngineError], words: str
) -> None:
    assert is_foreign(raised)
    found = translate(raised, REAL, reached=True)
    assert isinstance(found, kind)
    assert re.search(words, str(found))
    assert "hush" not in str(found)
    assert str(found).startswith("Step Functions in eu-west-1: ")


def test_a_defect_is_not_taken_for_an_error_of_boto3() -> None:
    assert not is_foreign(RuntimeError("cannot schedule new futures"))
