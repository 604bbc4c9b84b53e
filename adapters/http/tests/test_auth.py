"""Tokens that are given out: had once, renewed in time and when one is not accepted, shown to nobody."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from mcp_workflows_http import HttpSettings
from pydantic import ValidationError
from starlette.responses import JSONResponse

from adapters.http.tests.scripted import Scene, Vendor, scene
from mcp_workflows.adapter import Start, Status
from mcp_workflows.errors import EngineRefused, EngineUnavailable

pytestmark = pytest.mark.anyio

KEY = generate_private_key(public_exponent=65537, key_size=2048)
PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def order() -> Start:
    return Start(workflow="reports", arguments={}, key="k", created=datetime.now(UTC))


def headers_of(vendor: Vendor, path: str) -> list[str]:
    return [each.headers.get("authorization", "") for each in vendor.asked if each.path == path]


async def started(found: Scene) -> None:
    found.vendor.replies["POST /reports"] = {"result": 1}
    await found.start(order())


async def test_client_credentials_give_one_token_for_many_requests() -> None:
    auth: dict[str, Any] = {"client_id": "me", "client_secret": "s3cret", "scope": "jobs"}
    async with scene("respond-async", "reports", auth={"bearer": "x"}) as there:
        there.vendor.replies["POST /token"] = {"access_token": "token-1", "expires_in": 3600}
        oauth = {"oauth": {**auth, "token_url": f"{there.vendor.url}/token"}}
        async with scene("respond-async", "reports", auth=oauth) as found:
            await started(found)
            await started(found)
            assert headers_of(found.vendor, "/reports") == ["Bearer token-1"] * 2
            assert [each.body for each in there.vendor.asked] == ["grant_type=client_credentials&scope=jobs"]
            found.vendor.replies["POST /reports"] = JSONResponse({}, status_code=401)
            there.vendor.replies["POST /token"] = {"access_token": "token-2"}
            with pytest.raises(EngineRefused, match="credentials"):
                await found.start(order())
            assert headers_of(found.vendor, "/reports")[-2:] == ["Bearer token-1", "Bearer token-2"]
            there.vendor.replies["POST /token"] = JSONResponse({"error": "invalid_client s3cret"}, status_code=400)
            with pytest.raises(EngineRefused, match=r"^auth\.oauth: it answered 400, without a token$"):
                await found.start(order())


async def test_a_github_app_proves_who_it_is() -> None:
    app = {"app_id": "12", "installation_id": "34", "private_key": PEM}
    async with scene("respond-async", "reports", auth={"github_app": app}) as found:
        found.vendor.replies["POST /app/installations/34/access_tokens"] = JSONResponse(
            {"token": "ghs-1"}, status_code=201
        )
        await started(found)
        [proof] = headers_of(found.vendor, "/app/installations/34/access_tokens")
        claims = jwt.decode(proof.removeprefix("Bearer "), KEY.public_key(), algorithms=["RS256"])
        assert claims["iss"] == "12"
        assert claims["exp"] - claims["iat"] <= 600
        assert headers_of(found.vendor, "/reports") == ["Bearer ghs-1"]
    async with scene("respond-async", "reports", auth={"github_app": {**app, "private_key": "s3cret"}}) as found:
        with pytest.raises(EngineRefused, match="is no private key in PEM"):
            await found.start(order())


async def test_a_token_that_expires_between_two_requests_of_a_look_is_renewed_once() -> None:
    auth = {"client_id": "me", "client_secret": "s3cret"}
    async with scene("respond-async", "reports") as there:
        there.vendor.replies["POST /token"] = {"access_token": "token-1", "expires_in": 3600}
        more = {"parts": {"request": "/parts/{{handle}}"}}
        describe = {
            "request": "/jobs/{{handle}}",
            "more": more,
            "output": "{{more.parts.body}}",
            "codes": {200: "succeeded"},
        }
        start = {"request": "POST /reports", "handle": "{{reply.body.id}}", "finished": None}
        oauth = {"oauth": {**auth, "token_url": f"{there.vendor.url}/token"}}
        async with scene("respond-async", "reports", auth=oauth, start=start, describe=describe) as found:
            vendor = found.vendor
            vendor.replies |= {"POST /reports": {"id": "7"}, "GET /jobs/7": {}, "GET /parts/7": {"done": 3}}
            handle = await found.start(order())
            vendor.needed["/parts/7"] = "Bearer token-2"
            there.vendor.replies["POST /token"] = {"access_token": "token-2", "expires_in": 3600}
            assert (await found.describe(handle)).output == {"done": 3}
            assert headers_of(vendor, "/jobs/7") == ["Bearer token-1"]
            assert headers_of(vendor, "/parts/7") == ["Bearer token-1", "Bearer token-2"]
            vendor.needed["/parts/7"] = "Bearer token-3"
            seen = await found.describe(handle)
            assert (seen.status, "it does not accept our credentials" in str(seen.message)) == (Status.RUNNING, True)
            assert len(there.vendor.asked) == 3


async def test_a_login_gives_a_token() -> None:
    async with scene("airflow", "release", auth={"login": {"user": "mcp", "password": "pw-1234"}}) as found:
        found.vendor.replies["POST /auth/token"] = JSONResponse({"access_token": "jwt-1"}, status_code=201)
        assert not (await found.adapter.tooling.check_engine()).ok
        assert found.vendor.last("POST").body == {"username": "mcp", "password": "pw-1234"}
        assert headers_of(found.vendor, "/api/v2/version") == ["Bearer jwt-1"]


async def test_google_gives_a_workload_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene("respond-async", "reports") as there:
        federated = tmp_path / "federation.json"
        (tmp_path / "workload.jwt").write_text("token-of-the-cluster")
        federation = {
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/k",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"{there.vendor.url}/v1/token",
            "credential_source": {"file": str(tmp_path / "workload.jwt")},
        }
        federated.write_text(json.dumps(federation))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(federated))
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "acme")
        given = {"access_token": "ya29-1", "expires_in": 3600, "token_type": "Bearer", "issued_token_type": "x"}
        there.vendor.replies["POST /v1/token"] = given
        identity = {"google": {"scope": "https://www.googleapis.com/auth/cloud-platform"}}
        async with scene("respond-async", "reports", auth=identity) as found:
            await started(found)
            await started(found)
            assert headers_of(found.vendor, "/reports") == ["Bearer ya29-1"] * 2
        [asked] = there.vendor.asked
        assert "token-of-the-cluster" in asked.body


@pytest.mark.usefixtures("processes")  # its library asks `uname` for the processor
async def test_azure_gives_a_workload_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = int(datetime.now(UTC).timestamp()) + 3600
    async with scene("respond-async", "reports") as there:
        there.vendor.replies["GET /msi/token"] = {
            "access_token": "eyJ-1",
            "expires_on": str(ends),
            "token_type": "Bearer",
        }
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{there.vendor.url}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", "of this machine")
        async with scene("respond-async", "reports", auth={"azure": {"scope": "api://jobs/.default"}}) as found:
            await started(found)
            assert headers_of(found.vendor, "/reports") == ["Bearer eyJ-1"]
        assert there.vendor.asked[0].query["resource"] == "api://jobs"


async def test_without_an_identity_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/at-all.json")
    async with scene("respond-async", "reports", auth={"google": {"scope": "jobs"}}) as found:
        with pytest.raises(EngineUnavailable, match=r"^auth\.google: no token can be had \(\w+\)$") as raised:
            await started(found)
        assert raised.value.sent is False
        assert headers_of(found.vendor, "/reports") == []


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(library: str) -> None:
        raise ModuleNotFoundError(library)

    monkeypatch.setattr("mcp_workflows_http.settings.find_spec", find_spec)
    with pytest.raises(ValidationError, match=r"azure needs a library: pip install 'mcp-workflows-http\[azure\]'"):
        HttpSettings.model_validate(
            {"preset": "buildbot", "url": "https://jobs", "auth": {"azure": {"scope": "api://jobs/.default"}}}
        )
