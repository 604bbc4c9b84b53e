"""Settings: what may be written, what is told when it may not, and that no secrets are in them."""

from __future__ import annotations

from typing import Any

import pytest
from mcp_workflows_stepfunctions.client import DEFAULTS, limits
from mcp_workflows_stepfunctions.settings import Quota, StepFunctionsOptions, StepFunctionsSettings
from pydantic import ValidationError

from mcp_workflows.errors import EngineRefused
from mcp_workflows.kit.token_bucket import UNLIMITED, BucketLimits

ROLE = "arn:aws:iam::123456789012:role/workflows"


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"regoin": "eu-west-1"}, "Extra inputs"),
        ({"region": "Ireland"}, "write a Region: eu-west-1"),
        ({"endpoint_url": "localhost:4566"}, "write a URL"),
        ({"endpoint_url": "http://me:hush@localhost:4566"}, "no credentials in a URL"),
        ({"endpoint_url": "http://localhost:99999"}, "Port out of range"),
        ({"account": "1234"}, "write an AWS account"),
        ({"account": "1234-5678-9012"}, "without dashes"),
        ({"assume_role": {"arn": "workflows"}}, "write the ARN of a role"),
        ({"assume_role": {"arn": ROLE, "external_id": "ä"}}, "2 to 1224"),
        ({"assume_role": {"arn": ROLE, "source_identity": "a b"}}, "2 to 64"),
        ({"assume_role": {"arn": ROLE, "duration": "5m"}}, "15m to 12h"),
        ({"assume_role": {"arn": ROLE}, "account": "210987654321"}, "another account"),
        ({"quota": {"share": 1.5}}, "less than or equal to 1"),
        ({"quota": {"describe_execution": {"bucket": 5}}}, "Field required"),
        ({"events": {"queue_url": "https://sqs.eu-west-1.amazonaws.com/orders"}}, "write the URL of an SQS queue"),
        ({"discover": {"tag": "expose"}}, "write KEY=VALUE"),
        ({"timeout_seconds": 0}, "greater than or equal to 1"),
        ({"aws_secret_access_key": "hush"}, "no credentials here; name a profile"),
    ],
)
def test_wrong_settings_are_refused_and_not_repeated(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint) as caught:
        StepFunctionsSettings.model_validate(wrong)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(("written", "account"), [("012345678901", "012345678901"), (12345678901, "012345678901")])
def test_an_account_that_yaml_took_for_a_number_gets_its_zeros_back(written: object, account: str) -> None:
    assert StepFunctionsSettings.model_validate({"account": written}).known_account == account


def test_the_account_is_that_of_the_role() -> None:
    settings = StepFunctionsSettings.model_validate({"assume_role": {"arn": ROLE}})
    assert settings.known_account == "123456789012"
    assert StepFunctionsSettings().known_account is None


@pytest.mark.parametrize(
    "url",
    ["http://localhost:4566", "https://vpce-1.states.eu-west-1.vpce.amazonaws.com/", "http://[::1]:4566"],
)
def test_an_endpoint_is_a_url(url: str) -> None:
    assert StepFunctionsSettings(endpoint_url=url).endpoint_url == url.rstrip("/")


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"timeout": "30s"}, "only with express"),
        ({"express": True, "timeout": "6m"}, "within 5m"),
        ({"express": True, "history": False}, "leave it out"),
    ],
)
def test_options_that_do_not_count_are_refused(options: dict[str, object], wrong: str) -> None:
    with pytest.raises(ValidationError, match=wrong):
        StepFunctionsOptions.model_validate(options)
    with pytest.raises(EngineRefused, match=wrong):
        StepFunctionsOptions.read(options)


@pytest.mark.parametrize(
    ("operation", "region", "expected"),
    [
        ("describe_execution", "us-east-1", (150, 7.5)),
        ("describe_execution", "eu-central-1", (125, 5)),
        ("describe_state_machine_alias", "us-east-1", (100, 0.5)),
    ],
)
def test_half_of_aws_default_quotas_is_ours(operation: str, region: str, expected: tuple[float, float]) -> None:
    assert limits(operation, region, Quota()) == BucketLimits(bucket=expected[0], refill=expected[1])


def test_replicas_divide_the_share_and_one_call_at_once_is_always_left() -> None:
    quota = Quota(share=0.75, replicas=3)
    assert limits("describe_execution", "us-east-1", quota) == BucketLimits(bucket=75, refill=3.75)
    assert limits("describe_state_machine_alias", "us-east-1", Quota(share=0.001)).bucket == 1


def test_an_account_with_other_quotas_says_so_per_api() -> None:
    quota = Quota.model_validate(
        {"describe_execution": {"bucket": 1000, "refill": 100}, "send_task": {"bucket": 8, "refill": 4}}
    )
    assert limits("describe_execution", "us-east-1", quota) == BucketLimits(bucket=500, refill=50)
    for operation in ("send_task_success", "send_task_failure"):
        assert limits(operation, "us-east-1", quota) == BucketLimits(bucket=4, refill=2)


def test_every_quota_of_the_settings_is_of_an_api_that_has_one() -> None:
    names = set(Quota.model_fields) - {"share", "replicas", "send_task"}
    assert names <= DEFAULTS.keys()


def test_without_a_quota_and_for_apis_that_have_none_nothing_is_held_back() -> None:
    assert limits("describe_execution", "us-east-1", None) == UNLIMITED
    assert limits("receive_message", "us-east-1", Quota()) == UNLIMITED
