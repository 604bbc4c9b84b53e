"""What can be set of a Google Workflows engine, and what is told of what cannot."""

from __future__ import annotations

from typing import Any

import pytest
from mcp_workflows_google.settings import GoogleSettings
from pydantic import ValidationError

AUDIENCE = "https://tasks.example.com"
ACCOUNT = "orders@shop-1.iam.gserviceaccount.com"


def made(**more: Any) -> GoogleSettings:
    return GoogleSettings.model_validate({"location": "europe-west1", **more})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"location": "Europe"}, "write a location"),
        ({"project": "Shop 1"}, "write a project's id or number"),
        ({"impersonate": "me"}, "write the email of a service account"),
        ({"endpoint": "http://localhost:8790"}, "for a local engine write emulator: HOST:PORT"),
        ({"endpoint": "https://workflowexecutions.googleapis.com"}, "write a host, or HOST:PORT"),
        ({"endpoint": "host:99999"}, "write a host, or HOST:PORT"),
        ({"endpoint": "host/path"}, "write a host, or HOST:PORT"),
        ({"emulator": "http://localhost:8790"}, "write a host, or HOST:PORT"),
        ({"emulator": "localhost"}, "write HOST:PORT: 127.0.0.1:8790"),
        ({"emulator": "localhost:1", "credentials_file": "x"}, "credentials_file for Google: leave one out"),
        ({"settle": "8s"}, "settle must be at least 3 times timeout_seconds"),
        ({"private_key": "hunter2"}, "no credentials here; name a file with credentials_file"),
        ({"credentials": {"token": "hunter2"}}, "no credentials here"),
        ({"inbound": {"audience": "tasks", "accounts": [ACCOUNT]}}, "write a URL"),
        ({"inbound": {"audience": AUDIENCE, "accounts": []}}, "at least 1 item"),
        ({"inbound": {"audience": AUDIENCE, "accounts": ["*"]}}, "write the email of a service account"),
        ({"discover": {"label": "MCP"}}, "write KEY=VALUE"),
        ({"discover": {"schemas": {"a b": {"type": "object"}}}}, "is no name of a workflow"),
        ({"discover": {"schemas": {"orders": {"type": "string"}}}}, "type: object"),
        ({"quota": {"share": 2}}, "less than or equal to 1"),
        ({"region": "x"}, "Extra inputs are not permitted"),
    ],
)
def test_what_is_wrong_is_told_without_repeating_it(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError) as caught:
        made(**given)
    assert expected in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_project_number_may_be_written_as_a_number() -> None:
    assert made(project=123456789012).project == "123456789012"


def test_an_emulator_that_is_empty_is_none() -> None:
    assert made(emulator="").emulator is None
    assert made(emulator="[::1]:8790").emulator == "[::1]:8790"


def test_google_s_tokens_are_trusted_of_the_accounts_that_are_named() -> None:
    inbound = {"audience": AUDIENCE, "accounts": [ACCOUNT]}
    assert made().trusted is None
    trusted = made(inbound=inbound).trusted
    assert trusted is not None
    assert (trusted.issuer, trusted.audience) == ("https://accounts.google.com", AUDIENCE)
    assert trusted.keys_url == "https://www.googleapis.com/oauth2/v3/certs"
    assert trusted.accounts == {ACCOUNT}


def test_a_local_engine_s_tokens_are_its_own() -> None:
    for host in ("127.0.0.1", "localhost"):
        trusted = made(emulator=f"{host}:8790", inbound={"audience": AUDIENCE, "accounts": [ACCOUNT]}).trusted
        assert trusted is not None
        assert (trusted.issuer, trusted.keys_url) == ("http://127.0.0.1:8790", f"http://{host}:8790/oauth2/v3/certs")
