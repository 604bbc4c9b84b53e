"""Who we are for AWS, in which Region, at which endpoint: as boto3 does it, and found out only when it is needed."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, closing
from importlib import resources
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_workflows_stepfunctions.arns import parse_machine
from mcp_workflows_stepfunctions.boto3_clients import Boto3Clients, open_boto3_clients
from mcp_workflows_stepfunctions.client import Client, open_client
from mcp_workflows_stepfunctions.settings import StepFunctionsSettings

from adapters.stepfunctions.tests.injecting import Answer, Injecting, injecting, session
from adapters.stepfunctions.tests.refused import EXECUTION
from mcp_workflows.errors import ConfigError, EngineError, EngineRefused, EngineUnavailable
from mcp_workflows.kit.token_bucket import BucketLimits, Buckets, QuotaKey
from tests.support.child_processes import free_port
from tests.support.stopwatch import stopwatch

pytestmark = pytest.mark.anyio

ROLE = "arn:aws:iam::210987654321:role/workflows"
FOUND = Answer(body={"executionArn": EXECUTION, "status": "RUNNING"})


@pytest.fixture(scope="module")
def server() -> Iterator[Injecting]:
    with injecting() as server:
        server.tell("DescribeExecution", FOUND)
        yield server


def opened(**settings: Any) -> AbstractAsyncContextManager[Client]:
    return open_client(StepFunctionsSettings.model_validate(settings))


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The credentials are in a file, and not in the environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    (tmp_path / "config").write_text("[profile other]\nregion = eu-central-1\n")
    path.write_text("[other]\naws_access_key_id = AKIAOTHER\naws_secret_access_key = hush\n")
    return path


def rewrite(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


async def described_by(server: Injecting, calls: Client) -> str:
    """The access key that the server sees."""
    await calls.call("describe_execution", executionArn=EXECUTION)
    return server.authorized.partition("Credential=")[2].partition("/")[0]


async def test_no_region_says_where_to_set_one_and_that_aws_region_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    with pytest.raises(
        ConfigError, match=r"no Region: set region .* AWS_DEFAULT_REGION.* AWS_REGION is set, but boto3"
    ):
        await opened().__aenter__()


async def test_the_region_is_that_of_the_settings_then_the_environment_then_the_profile(
    monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    async with opened(profile="other") as calls:
        assert (calls.region, calls.endpoint) == ("eu-central-1", "https://states.eu-central-1.amazonaws.com")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    async with opened(profile="other") as calls:
        assert calls.region == "us-west-2"
    async with opened(profile="other", region="cn-north-1") as calls:
        assert (calls.region, calls.partition, calls.endpoint_is_custom) == ("cn-north-1", "aws-cn", False)


@pytest.mark.parametrize("by", ["settings", "environment"])
async def test_a_profile_that_is_not_there_is_told_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch, files: Path, by: str
) -> None:
    if by == "environment":
        monkeypatch.setenv("AWS_PROFILE", "orders")
    with pytest.raises(ConfigError, match=r"orders.*could not be found; there are: other"):
        await opened(region="eu-west-1", **({"profile": "orders"} if by == "settings" else {})).__aenter__()


async def test_what_boto3_reads_is_checked_on_opening(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for wrong, words in (("http://me:hush@local host", "Invalid endpoint"), ("http://localhost:99999", "Port out of")):
        monkeypatch.setenv("AWS_ENDPOINT_URL_SFN", wrong)
        with pytest.raises(ConfigError, match=words) as caught:
            await opened(region="eu-west-1").__aenter__()
        assert "hush" not in str(caught.value)
    (tmp_path / "broken").write_text("[profile")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "broken"))
    with pytest.raises(ConfigError, match="boto3's own configuration: Unable to parse"):
        await opened(region="eu-west-1").__aenter__()


async def test_an_endpoint_of_the_environment_counts_and_its_credentials_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, server: Injecting
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SFN", f"http://me:hush@127.0.0.1:{free_port()}")
    async with opened(region="eu-west-1") as calls:
        assert calls.endpoint_is_custom
        with pytest.raises(EngineUnavailable, match="cannot connect") as caught:
            await calls.call("describe_execution", executionArn=EXECUTION)
    assert "hush" not in str(caught.value)


def clients(**settings: Any) -> AbstractContextManager[Boto3Clients]:
    return closing(open_boto3_clients(StepFunctionsSettings.model_validate(settings)))


def test_all_endpoints_of_aws_have_one_quota() -> None:
    buckets, vpc = Buckets(), "https://vpce-1.states.eu-west-1.vpce.amazonaws.com"
    key = QuotaKey(endpoint="aws", owner="123456789012", place="eu-west-1", operation="describe_execution")
    buckets.bucket(key, BucketLimits(bucket=150, refill=7.5)).throttled()
    for url in (None, vpc):
        given = StepFunctionsSettings(region="eu-west-1", account="123456789012", endpoint_url=url)
        with closing(open_boto3_clients(given)) as made:
            assert Client(made, given, buckets).refill("describe_execution") < 7


def test_a_quota_that_aws_has_raised_is_used_as_far_as_our_share_goes() -> None:
    rate = {"bucket": 4000, "refill": 400}
    raised = {"describe_execution": rate, "get_execution_history": rate}
    given = StepFunctionsSettings.model_validate({"region": "eu-west-1", "account": "123456789012", "quota": raised})
    with closing(open_boto3_clients(given)) as made:
        allowed = Client(made, given, Buckets()).allowance
    assert (allowed.polls_per_second, allowed.burst) == (200, 1000)


@pytest.mark.parametrize("by", ["settings", "environment"])
def test_a_vpc_endpoint_of_step_functions_is_not_asked_to_run_express_machines(
    monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """AWS has another one for that: sync-states, which is found by its name."""
    url = "https://vpce-1.states.eu-west-1.vpce.amazonaws.com"
    if by == "environment":
        monkeypatch.setenv("AWS_ENDPOINT_URL_SFN", url)
    with clients(region="eu-west-1", **({"endpoint_url": url} if by == "settings" else {})) as made:
        assert (made.endpoint, made.states.meta.endpoint_url, made.endpoint_is_custom) == (url, url, False)
        assert made.sts.meta.endpoint_url == "https://sts.eu-west-1.amazonaws.com"
        assert made.sync.meta.endpoint_url == "https://states.eu-west-1.amazonaws.com"
        assert made.sync.meta.config.inject_host_prefix is True
    own = "https://vpce-2.sync-states.eu-west-1.vpce.amazonaws.com"
    with clients(region="eu-west-1", endpoint_url=own) as made:
        assert made.sync.meta.endpoint_url == own
        assert made.sync.meta.config.inject_host_prefix is False
    with clients(region="eu-west-1", endpoint_url="http://localhost:4566") as made:
        assert (made.endpoint_is_custom, made.sync.meta.config.inject_host_prefix) == (True, False)


def test_an_endpoint_of_any_partition_is_awss() -> None:
    data = json.loads((resources.files("botocore") / "data" / "partitions.json").read_text())
    for partition in data["partitions"]:
        region = next(name for name in partition["regions"] if "global" not in name)
        dual = f"https://states.{region}.{partition['outputs']['dualStackDnsSuffix']}"
        with clients(region=region, endpoint_url=dual) as made:
            assert (made.region, made.partition, made.endpoint_is_custom) == (region, partition["id"], False)
        machine = parse_machine(f"arn:{partition['id']}:states:{region}:123456789012:stateMachine:orders")
        assert machine.place.region == region


def test_a_queue_may_be_in_another_region_or_not_awss() -> None:
    url = "https://sqs.us-east-1.amazonaws.com/123456789012/hints"
    with clients(region="eu-west-1", events={"queue_url": url}) as made:
        assert made.queue is not None
        assert made.queue.meta.region_name == "us-east-1"
    with clients(region="eu-west-1", events={"queue_url": "http://localhost:4566/123456789012/hints"}) as made:
        assert made.queue is not None
        assert made.queue.meta.endpoint_url == "http://localhost:4566"


async def test_opening_needs_neither_credentials_nor_anybody_who_answers(
    monkeypatch: pytest.MonkeyPatch, server: Injecting, files: Path
) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as metadata:  # it takes connections, and never answers
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://{}:{}".format(*metadata.getsockname()))
        async with opened(region="eu-west-1", endpoint_url=server.url, timeout_seconds=1) as calls:
            metadata.settimeout(0)
            with pytest.raises(BlockingIOError):  # nobody has asked it, so nobody has waited for it
                metadata.accept()
            with stopwatch() as seconds:
                with pytest.raises(EngineError, match=r"no AWS credentials|no answer within 1 s") as caught:
                    await calls.call("describe_execution", executionArn=EXECUTION)
                assert seconds() < 3
            assert isinstance(caught.value, EngineRefused | EngineUnavailable)


async def test_no_credentials_is_an_error_that_says_what_to_do_and_ends_when_there_are_some(
    monkeypatch: pytest.MonkeyPatch, server: Injecting, files: Path
) -> None:
    monkeypatch.setattr("mcp_workflows_stepfunctions.credentials._RETRY_AFTER", 0.0)
    async with opened(region="eu-west-1", endpoint_url=server.url) as calls:
        with pytest.raises(EngineRefused, match=r"found no AWS credentials: name a profile"):
            await calls.call("describe_execution", executionArn=EXECUTION)
        rewrite(files, "other", "default")
        assert await described_by(server, calls) == "AKIAOTHER"


SSO = "sso_start_url = https://acme.awsapps.com/start\nsso_region = eu-west-1\nsso_account_id = 123456789012"


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (f"{SSO}\nsso_role_name = orders", "`aws sso login`"),
        (f"role_arn = {ROLE}\nweb_identity_token_file = /no/token", "cannot be read: /no/token: No such file"),
        ("credential_process = echo nonsense", r"cannot be got \(not readable\)"),
        ("credential_process = false", r"cannot be got \(custom-process\)"),
        (f"role_arn = {ROLE}\nsource_profile = none", r'\(The source_profile "none" referenced in .* not exist\)'),
    ],
    ids=str,
)
@pytest.mark.usefixtures("processes")
async def test_a_profile_without_credentials_of_use_is_told_by_the_first_call(
    monkeypatch: pytest.MonkeyPatch,
    server: Injecting,
    files: Path,
    caplog: pytest.LogCaptureFixture,
    profile: str,
    words: str,
) -> None:
    monkeypatch.setenv("HOME", str(files.parent))
    files.with_name("config").write_text(f"[profile broken]\n{profile}\n")
    async with opened(region="eu-west-1", profile="broken", endpoint_url=server.url) as calls:
        with pytest.raises(EngineRefused, match=words):
            await calls.call("describe_execution", executionArn=EXECUTION)
    assert "Traceback" not in caplog.text


async def test_the_credentials_of_a_profile_are_read_again_when_aws_does_not_take_them(
    server: Injecting, files: Path
) -> None:
    async with opened(profile="other", endpoint_url=server.url) as calls:
        assert await described_by(server, calls) == "AKIAOTHER"
        rewrite(files, "AKIAOTHER", "AKIANEW")
        assert await described_by(server, calls) == "AKIAOTHER"
        server.tell("DescribeExecution", Answer(status=400, body={"__type": "ExpiredTokenException"}), FOUND)
        with pytest.raises(EngineRefused, match="expired"):
            await calls.call("describe_execution", executionArn=EXECUTION)
        assert await described_by(server, calls) == "AKIANEW"


async def test_a_role_is_assumed_once_with_its_external_id_and_source_identity(server: Injecting) -> None:
    server.tell("AssumeRole", session("ASIAROLE"))
    role = {"arn": ROLE, "external_id": "x-1", "source_identity": "alice", "duration": "30m"}
    server.counts.clear()
    async with opened(region="eu-west-1", endpoint_url=server.url, assume_role=role) as calls:
        assert server.counts["AssumeRole"] == 0
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(described_by, server, calls)
        assert await described_by(server, calls) == "ASIAROLE"
        assert server.counts["AssumeRole"] == 1
        assert (await calls.place()).account == "210987654321"
        assert server.counts["GetCallerIdentity"] == 0
    asked = next(request for name, request in reversed(server.requests) if name == "AssumeRole")
    expected = {"RoleArn": ROLE, "ExternalId": "x-1", "SourceIdentity": "alice", "DurationSeconds": "1800"}
    assert {name: asked[name] for name in expected} == expected
    assert asked["RoleSessionName"] == "mcp-workflows"


async def test_a_session_that_is_about_to_end_is_renewed(server: Injecting) -> None:
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 60))
    server.tell("AssumeRole", session("ASIAOLD", soon), session("ASIANEW"))
    async with opened(region="eu-west-1", endpoint_url=server.url, assume_role={"arn": ROLE}) as calls:
        assert await described_by(server, calls) == "ASIAOLD"
        assert await described_by(server, calls) == "ASIANEW"
