"""Settings: what may be written, what is told when it may not, and that no secrets are in them."""

from __future__ import annotations

from typing import Any

import pytest
from mcp_workflows_stepfunctions.settings import StepFunctionsOptions, StepFunctionsSettings
from pydantic import ValidationError

from mcp_workflows.errors import EngineRefused

ROLE = "arn:aws:iam::123456789012:role/workflows"


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"regoin": "eu-west-1"}, "Extra inputs"),
        ({"region": "Ireland"}, "write a Region: eu-west-1"),
        ({"region": ""}, "write a Region"),
        ({"profile": ""}, "at least 1 character"),
        ({"endpoint_url": "localhost:4566"}, "write a URL"),
        ({"endpoint_url": "http://me:hush@localhost:4566"}, "no credentials in a URL"),
        ({"endpoint_url": "http://localhost:99999"}, "Port out of range"),
        ({"account": "1234"}, "write an AWS account"),
        ({"account": "1234-5678-9012"}, "without dashes"),
        ({"account": True}, "valid string"),
        ({"assume_role": {}}, "Field required"),
        ({"assume_role": {"arn": "workflows"}}, "write the ARN of a role"),
        ({"assume_role": {"arn": ROLE, "external_id": "ä"}}, "2 to 1224"),
        ({"assume_role": {"arn": ROLE, "source_identity": "a b"}}, "2 to 64"),
        ({"assume_role": {"arn": ROLE, "duration": "5m"}}, "15m to 12h"),
        ({"assume_role": {"arn": ROLE}, "account": "210987654321"}, "another account"),
        ({"quota": {"share": 1.5}}, "less than or equal to 1"),
        ({"quota": {"replicas": 0}}, "greater than 0"),
        ({"quota": {"describe_execution": {"bucket": 5}}}, "Field required"),
        ({"events": {"queue_url": "orders"}}, "write the URL of an SQS queue"),
        ({"events": {"queue_url": "https://sqs.eu-west-1.amazonaws.com/orders"}}, "write the URL of an SQS queue"),
        ({"discover": {"tag": "expose"}}, "write KEY=VALUE"),
        ({"timeout_seconds": 0}, "greater than or equal to 1"),
        ({"max_connections": 0}, "greater than or equal to 1"),
        ({"aws_secret_access_key": "hush"}, "no credentials here; name a profile"),
        ({"aws_secret": "hush"}, "Extra inputs"),
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
        ({"expres": True}, "Extra inputs"),
    ],
)
def test_options_that_do_not_count_are_refused(options: dict[str, object], wrong: str) -> None:
    with pytest.raises(ValidationError, match=wrong):
        StepFunctionsOptions.model_validate(options)
    with pytest.raises(EngineRefused, match=wrong):
        StepFunctionsOptions.read(options)
