"""Who we are for Google and where it is: found out when it is needed, off the event loop, and told when it is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from mcp_workflows_google.client import Client, open_client
from mcp_workflows_google.connections import workflows_host
from mcp_workflows_google.credentials import Credentials
from mcp_workflows_google.resources import Place, WorkflowName
from mcp_workflows_google.settings import GoogleSettings

from adapters.google.tests.injecting import Injecting, Reply, injecting
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from tests.support.child_processes import free_port
from tests.support.stopwatch import stopwatch

pytestmark = pytest.mark.anyio

ORDERS = WorkflowName(place=Place(project="shop-1", location="europe-west1"), workflow="orders")
TOKEN = "ya29.secret"
GIVEN = Reply(body={"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"})


@pytest.fixture(scope="module")
def engine() -> Iterator[Injecting]:
    with injecting() as server:
        yield server


@pytest.fixture
def server(engine: Injecting) -> Injecting:
    engine.clear()
    engine.reply("POST /token", GIVEN)
    return engine


@pytest.fixture(scope="module")
def private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*pem).decode()


@pytest.fixture
def account(server: Injecting, private_key: str, tmp_path: Path) -> Path:
    """A file of a service account whose tokens come from the server."""
    path = tmp_path / "account.json"
    account = {
        "type": "service_account",
        "project_id": "shop-1",
        "client_email": "tasks@shop-1.iam.gserviceaccount.com",
        "private_key": private_key,
        "token_uri": f"http://{server.address}/token",
    }
    path.write_text(json.dumps(account))
    return path


@pytest.fixture
def elsewhere(account: Path) -> Path:
    """The same, where nobody gives out tokens."""
    told = json.loads(account.read_text()) | {"token_uri": f"http://127.0.0.1:{free_port()}/token"}
    account.write_text(json.dumps(told))
    return account


def settings(**more: Any) -> GoogleSettings:
    return GoogleSettings.model_validate({"location": "europe-west1", "timeout_seconds": 8, **more})


async def refused(**more: Any) -> EngineRefused:
    async with open_client(settings(**more)) as calls:
        with pytest.raises(EngineRefused) as caught:
            await calls.create(ORDERS, "{}", {})
    return caught.value


async def test_without_credentials_it_is_told_how_to_get_some_and_soon() -> None:
    async with open_client(settings()) as calls:
        for _ in range(2):
            with pytest.raises(EngineRefused, match=r"gcloud auth application-default login.*credentials_file"):
                await calls.create(ORDERS, "{}", {})
        with stopwatch() as seconds:
            with pytest.raises(EngineRefused):
                await calls.create(ORDERS, "{}", {})
            assert seconds() < 0.5


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "No such file"),
        ("not json", "is no file of credentials"),
        ("[]", "its type must be one of service_account"),
        ('{"type": "service_account"}', "is no file of credentials"),
        ('{"type": "service_account", "private_key": "hunter2", "client_email": "a", "token_uri": "b"}', "is no file"),
    ],
)
async def test_a_file_of_credentials_that_is_none_is_told(tmp_path: Path, content: str | None, expected: str) -> None:
    path = tmp_path / "credentials.json"
    if content is not None:
        path.write_text(content)
    error = await refused(credentials_file=str(path))
    assert expected in str(error)
    assert "hunter2" not in str(error)


async def test_a_service_account_gets_one_token_for_all_who_ask_at_once(server: Injecting, account: Path) -> None:
    credentials = Credentials(settings(credentials_file=str(account)))
    found: list[str] = []

    async def ask() -> None:
        found.append((await credentials.headers())["authorization"])

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(ask)
    await ask()
    assert found == [f"Bearer {TOKEN}"] * 11
    assert server.count("POST /token") == 1
    assert await credentials.project() == "shop-1"


async def test_the_project_is_that_of_the_settings_the_environment_the_credentials(
    account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await Client(settings(credentials_file=str(account))).place()).project == "shop-1"
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "shop-2")
    assert (await Client(settings(credentials_file=str(account))).place()).project == "shop-2"
    assert (await Client(settings(project="shop-3")).place()).project == "shop-3"
    assert (await Client(settings(emulator="127.0.0.1:1")).place()).project == "demo"
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
    credentials = Credentials(settings())
    assert (await credentials.headers())["authorization"] == f"Bearer {TOKEN}"
    assert await credentials.project() == "shop-1"


async def test_credentials_that_were_revoked_are_told_without_what_the_token_server_says(
    server: Injecting, account: Path
) -> None:
    server.reply("POST /token", Reply(status=400, body={"error": "invalid_grant", "error_description": "hunter2"}))
    error = await refused(credentials_file=str(account))
    assert "of no use any more (invalid_grant)" in str(error)
    assert "hunter2" not in str(error)
    assert server.count("POST /token") == 1


async def test_a_token_server_that_is_not_there_is_an_outage_and_nothing_was_sent(
    elsewhere: Path,
) -> None:
    async with open_client(settings(credentials_file=str(elsewhere))) as calls:
        with pytest.raises(EngineUnavailable, match="access token") as caught:
            await calls.create(ORDERS, "{}", {})
    assert not caught.value.sent


async def test_a_token_server_that_hangs_keeps_nobody_longer_than_the_time_there_is(
    server: Injecting, account: Path
) -> None:
    server.reply("POST /token", Reply(hang=True))
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            ticks.append(seconds())
            await anyio.sleep(0.01)

    given = settings(credentials_file=str(account), timeout_seconds=1)
    with stopwatch() as seconds:
        async with open_client(given) as calls, anyio.create_task_group() as group:
            group.start_soon(tick)
            assert not (await unsent(calls)).sent
            ticks.append(seconds())
            group.cancel_scope.cancel()
        assert seconds() < 2
    assert max(late - early for early, late in pairwise(ticks)) < 0.5  # the event loop went on


async def unsent(calls: Client) -> EngineUnavailable:
    with pytest.raises(EngineUnavailable, match="within 1 s") as caught:
        await calls.create(ORDERS, "{}", {})
    return caught.value


async def test_a_token_that_google_does_not_take_is_renewed(server: Injecting, account: Path) -> None:
    server.reply("POST /token", Reply(body={**GIVEN.body, "access_token": "old"}), GIVEN)
    credentials = Credentials(settings(credentials_file=str(account)))
    assert (await credentials.headers())["authorization"] == "Bearer old"
    credentials.forget()
    assert (await credentials.headers())["authorization"] == f"Bearer {TOKEN}"


async def test_who_may_not_act_as_the_service_account_is_told(
    server: Injecting, account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = f"http://{server.address}/impersonate"
    monkeypatch.setattr("google.auth.iam._IAM_ENDPOINT", endpoint)
    monkeypatch.setattr("google.auth.impersonated_credentials.iam._IAM_ENDPOINT", endpoint)
    server.reply("POST /impersonate", Reply(status=403, body={"error": {"status": "PERMISSION_DENIED"}}))
    acting = "workflows@shop-1.iam.gserviceaccount.com"
    error = await refused(credentials_file=str(account), impersonate=acting)
    assert f"act as {acting}: grant roles/iam.serviceAccountTokenCreator" in str(error)


async def test_an_endpoint_without_tls_is_a_wrong_address_and_no_outage(server: Injecting, account: Path) -> None:
    error = await refused(credentials_file=str(account), endpoint=server.address)
    assert "does not speak TLS" in str(error)
    assert TOKEN not in str(error)
    assert server.count("CreateExecution") == 0


@pytest.mark.parametrize(
    ("executions", "workflows"),
    [
        ("workflowexecutions.googleapis.com", "workflows.googleapis.com"),
        ("workflowexecutions.europe-west1.rep.googleapis.com", "workflows.europe-west1.rep.googleapis.com"),
        ("workflowexecutions-shop.p.googleapis.com:443", "workflows-shop.p.googleapis.com:443"),
        ("proxy.example.com", "proxy.example.com"),
    ],
)
def test_the_workflows_api_is_beside_the_executions_api(executions: str, workflows: str) -> None:
    assert workflows_host(executions) == workflows


METADATA = """
import sys, anyio
from mcp_workflows_google.credentials import Credentials
from mcp_workflows_google.settings import GoogleSettings

async def ask():
    credentials = Credentials(GoogleSettings(location="us-central1"))
    print((await credentials.headers())["authorization"], await credentials.project())

anyio.run(ask)
"""


@pytest.mark.usefixtures("processes")
def test_a_machine_of_google_is_its_service_account(server: Injecting) -> None:
    flavour = {"Metadata-Flavor": "Google"}
    service_account = "/computeMetadata/v1/instance/service-accounts/default"
    known = {"email": "vm@shop-1.iam.gserviceaccount.com", "scopes": ["x"], "aliases": ["default"]}
    server.reply("GET /", Reply(headers=flavour))
    server.reply(
        "GET /computeMetadata/v1/project/project-id",
        Reply(body=b"shop-9", headers=flavour | {"Content-Type": "text/plain"}),
    )
    server.reply(f"GET {service_account}/", Reply(body=known, headers=flavour))
    token = Reply(body=GIVEN.body, headers=flavour)
    for name in ("default", known["email"]):
        server.reply(f"GET /computeMetadata/v1/instance/service-accounts/{name}/token", token)
    told = {"GCE_METADATA_HOST": server.address, "GCE_METADATA_IP": server.address}
    environment = {name: value for name, value in os.environ.items() if name != "NO_GCE_CHECK"} | told
    command = [sys.executable, "-c", METADATA]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.stdout.strip() == f"Bearer {TOKEN} shop-9", done.stderr
