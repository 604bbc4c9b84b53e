"""Our credentials at a server: had when they are needed, renewed when they are not accepted, shown to nobody."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import anyio
import jwt
import pytest
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from mcp_workflows_mcp import McpAdapter, McpSettings
from pydantic import AnyHttpUrl, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from adapters.mcp.tests.programs import SPLIT, seen_when, started
from adapters.mcp.tests.scripted_server import MODERN, ScriptedServer, structured
from mcp_workflows.adapter import Status
from mcp_workflows.errors import EngineError, EngineRefused, EngineUnavailable
from tests.support.child_processes import free_port
from tests.support.oidc import SECRET, Provider, Providers
from tests.support.oidc import providers as providers
from tests.support.served import serving

pytestmark = pytest.mark.anyio

REVISIONS: Final = ("2025-11-25", MODERN)


def sent(server: ScriptedServer, name: str) -> list[str]:
    """Return the credentials of the calls of a tool."""
    return [each.headers.get("authorization", "") for each in server.calls(name)]


@asynccontextmanager
async def scene(
    auth: Mapping[str, Any], revision: str = MODERN, **settings: Any
) -> AsyncGenerator[tuple[ScriptedServer, McpAdapter]]:
    server = ScriptedServer(revision=revision)
    server.replies["start_job"] = structured({"id": "job-1"})
    server.replies["get_job"] = structured({"id": "job-1", "state": "busy"})
    async with server.served() as url:
        how = {**SPLIT, "starts": "keyed", "url": url, "auth": auth, "timeout": "8s", **settings}
        async with McpAdapter(McpSettings.model_validate(how)) as adapter:
            yield server, adapter


# --- bearer


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_token_in_a_file_is_read_again_for_each_request(tmp_path: Path, revision: str) -> None:
    file = tmp_path / "token"
    file.write_text("token-one\n")
    async with scene({"bearer_file": str(file)}, revision) as (server, adapter):
        ref = await started(adapter)
        await adapter.describe(ref)
        file.write_text("token-two")
        await adapter.describe(ref)
        assert sent(server, "start_job") == ["Bearer token-one"]
        assert sent(server, "get_job") == ["Bearer token-one", "Bearer token-two"]


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_file_without_a_token_refuses_starts_and_loses_no_look(tmp_path: Path, revision: str) -> None:
    file = tmp_path / "token"
    file.write_text("token-one")
    async with scene({"bearer_file": str(file)}, revision) as (server, adapter):
        ref = await started(adapter)
        for content in (None, b"", b"\xff\xfe", b"two\nlines", "tökén".encode()):
            file.unlink()
            if content is not None:
                file.write_bytes(content)
            with pytest.raises(EngineRefused, match=r"auth\.bearer_file"):
                await started(adapter, key="key-2")
            with pytest.raises(EngineUnavailable, match=r"auth\.bearer_file"):
                await adapter.describe(ref)
            file.touch()
        file.write_text("token-two")
        assert (await seen_when(adapter, ref, lambda _: True)).status is Status.RUNNING
        assert len(server.calls("start_job")) == 1


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_token_that_is_not_let_in_is_a_refusal_that_says_so(revision: str) -> None:
    async with scene({"bearer": "s3cret-token"}, revision) as (server, adapter):
        ref = await started(adapter)
        server.let_in = lambda _: False
        with pytest.raises(EngineRefused, match=r"^not let in: .*\(auth\)$") as raised:
            await started(adapter, key="key-2")
        with pytest.raises(EngineUnavailable, match="not let in"):
            await adapter.describe(ref)
        assert "s3cret" not in str(raised.value)
        server.let_in = lambda _: True
        assert (await seen_when(adapter, ref, lambda _: True)).status is Status.RUNNING


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_server_that_repeats_a_token_from_a_file_does_not_make_us_show_it(
    tmp_path: Path, revision: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="mcp_workflows_mcp")
    file = tmp_path / "token"
    file.write_text("s3cret-of-a-file")
    said = {"content": [{"type": "text", "text": "400: Bearer s3cret-of-a-file is no good"}], "isError": True}
    async with scene({"bearer_file": str(file)}, revision) as (server, adapter):
        ref = await started(adapter)
        server.replies |= {"start_job": said, "get_job": said}
        for action in (started(adapter, key="key-2"), adapter.describe(ref)):
            with pytest.raises(EngineError) as raised:
                await action
            assert "s3cret" not in str(raised.value)
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"bearer": "a", "bearer_file": "b"},
        {"bearer": "two\nlines"},
        {"exchange": {"token_url": "ftp://x", "subject_token_file": "y"}},
        {"oauth": {"issuer": "none", "client_id": "a", "client_secret": "b"}},
    ],
)
def test_credentials_that_cannot_work_are_refused_at_once(wrong: Mapping[str, Any]) -> None:
    with pytest.raises(ValidationError):
        McpSettings.model_validate({"url": "https://x.example.com/mcp", "auth": wrong})


# --- client credentials, at a provider of OpenID Connect


@dataclass(slots=True, kw_only=True)
class Protected:
    """An MCP server that takes the tokens of a provider; `revoked` are those that it does not take any more."""

    provider: Provider
    audience: str | None = None
    revoked: set[str] = field(default_factory=set[str])
    used: list[str] = field(default_factory=list[str])
    released: anyio.Event = field(default_factory=anyio.Event)

    async def verify_token(self, token: str) -> AccessToken | None:
        """As the SDK's `TokenVerifier`."""
        self.used.append(token)
        keys = jwt.PyJWKClient((await self.provider.discover())["jwks_uri"])
        try:
            key = await anyio.to_thread.run_sync(keys.get_signing_key_from_jwt, token)
            claims = jwt.decode(token, key, algorithms=["RS256"], options={"verify_aud": False})
        except jwt.PyJWTError:
            return None
        if token in self.revoked:
            return None
        return AccessToken(token=token, client_id=claims["client_id"], scopes=claims["scope"].split())

    @asynccontextmanager
    async def served(self) -> AsyncGenerator[str]:
        """Serve, and yield the URL."""
        port = free_port()
        url = f"http://127.0.0.1:{port}/mcp"
        settings = AuthSettings(
            issuer_url=AnyHttpUrl(self.provider.issuer),
            resource_server_url=AnyHttpUrl(url),
            validate_token_resource=False,
        )
        server = MCPServer("protected", auth=settings, token_verifier=self)

        @server.tool()
        def start_job(key: str) -> dict[str, Any]:
            return {"id": key}

        @server.tool()
        async def get_job(job_id: str) -> dict[str, Any]:
            if job_id == "slow":
                await self.released.wait()
            return {"id": job_id, "state": "busy"}

        async def about(_: Request) -> JSONResponse:  # the SDK's own has the issuer with a slash, which it is not
            return JSONResponse({"resource": url, "authorization_servers": [self.provider.issuer]})

        app = server.streamable_http_app()
        app.router.routes.insert(0, Route("/.well-known/oauth-protected-resource/mcp", about))
        async with serving(app, port=port) as served:
            assert served == url
            yield url


@asynccontextmanager
async def protected(provider: Provider, **oauth: Any) -> AsyncGenerator[tuple[Protected, McpAdapter]]:
    server = Protected(provider=provider)
    async with server.served() as url:
        how = {"issuer": provider.issuer, "client_id": "assistant", "client_secret": SECRET, "scope": "tasks", **oauth}
        settings = {**SPLIT, "starts": "keyed", "url": url, "auth": {"oauth": how}, "timeout": "8s"}
        async with McpAdapter(McpSettings.model_validate(settings)) as adapter:
            yield server, adapter


async def test_client_credentials_give_one_token_until_it_is_revoked(providers: Providers) -> None:
    async with protected(providers.first) as (server, adapter):
        ref = await started(adapter)
        for _ in range(3):
            await adapter.describe(ref)
        assert len(set(server.used)) == 1
        server.revoked |= set(server.used)
        await anyio.sleep(1.1)  # the provider makes the same token twice in a second
        assert (await seen_when(adapter, ref, lambda _: True)).status is Status.RUNNING
        assert len(set(server.used)) == 2


async def test_a_call_that_takes_long_holds_up_no_other_request(providers: Providers) -> None:
    async with protected(providers.first) as (server, adapter), anyio.create_task_group() as group:
        slow, ref = await started(adapter, key="slow"), await started(adapter)
        group.start_soon(adapter.describe, slow)
        await anyio.sleep(0.2)
        for _ in range(5):
            began = time.monotonic()
            await adapter.describe(ref)
            assert time.monotonic() - began < 1
        server.released.set()


async def test_a_wrong_secret_is_a_refusal_that_does_not_show_it(
    providers: Providers, caplog: pytest.LogCaptureFixture
) -> None:
    async with protected(providers.first, client_secret="s3cret-that-is-wrong") as (_, adapter):
        with pytest.raises(EngineRefused, match=r"^not let in: auth\.oauth: no token can be had .*\(auth\)$") as raised:
            await started(adapter)
        assert "s3cret" not in str(raised.value)
    assert "s3cret" not in caplog.text


async def test_a_server_that_names_another_authorization_server_does_not_get_the_secret(providers: Providers) -> None:
    async with protected(providers.first, issuer=providers.second.issuer) as (server, adapter):
        with pytest.raises(EngineRefused, match=r"auth\.oauth"):
            await started(adapter)
        assert server.used == []


# --- token exchange


@dataclass(slots=True, kw_only=True)
class TokenEndpoint:
    """A token endpoint of RFC 8693, with tokens for whom it is asked for, and errors of RFC 6749, section 5.2."""

    subjects: frozenset[str] = frozenset({"workload-token"})
    lifetime: int | None = 3600
    forms: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])
    basic: list[str] = field(default_factory=list[str])
    instead: Callable[[], Response] | None = None
    issued: list[str] = field(default_factory=list[str])

    @asynccontextmanager
    async def served(self) -> AsyncGenerator[str]:
        """Serve, and yield the URL."""
        async with serving(Starlette(routes=[Route("/mcp", self._serve, methods=["POST"])])) as url:
            yield url

    async def _serve(self, request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        self.forms.append(form)
        self.basic.append(request.headers.get("authorization", ""))
        if self.instead is not None:
            return self.instead()
        if form.get("grant_type") != "urn:ietf:params:oauth:grant-type:token-exchange":
            return JSONResponse({"error": "unsupported_grant_type"}, status_code=400)
        if not form.get("subject_token") or not form.get("subject_token_type"):
            return JSONResponse({"error": "invalid_request"}, status_code=400)
        if form["subject_token"] not in self.subjects:
            said = f"the subject token {form['subject_token']} is not valid"
            return JSONResponse({"error": "invalid_grant", "error_description": said}, status_code=400)
        self.issued.append(f"exchanged-token-{len(self.issued) + 1}")
        answer = {
            "access_token": self.issued[-1],
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "token_type": "Bearer",
            **({} if self.lifetime is None else {"expires_in": self.lifetime}),
        }
        return JSONResponse(answer, headers={"cache-control": "no-store"})


@asynccontextmanager
async def exchanging(
    folder: Path, endpoint: TokenEndpoint, revision: str = MODERN, **more: Any
) -> AsyncGenerator[tuple[ScriptedServer, McpAdapter]]:
    file = folder / "subject"
    file.write_text("workload-token\n")
    async with endpoint.served() as url:
        exchange = {"token_url": url, "subject_token_file": str(file), **more}
        async with scene({"exchange": exchange}, revision) as (server, adapter):
            server.let_in = lambda request: (
                request.headers.get("authorization", "").removeprefix("Bearer ") in endpoint.issued[-1:]
            )
            yield server, adapter


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_token_is_exchanged_once_for_many_requests_and_connections(tmp_path: Path, revision: str) -> None:
    endpoint = TokenEndpoint()
    more = {"audience": "jobs", "resource": "https://jobs.example.com", "scope": "a b", "client_id": "us"}
    async with exchanging(tmp_path, endpoint, revision, **more) as (server, adapter):
        for key in ("key-1", "key-2"):
            await adapter.describe(await started(adapter, key=key))
        assert set(sent(server, "start_job") + sent(server, "get_job")) == {"Bearer exchanged-token-1"}
        [form] = endpoint.forms
        assert form == {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token": "workload-token",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
            **more,
        }


async def test_a_client_with_a_secret_proves_itself_by_basic_authentication(tmp_path: Path) -> None:
    endpoint = TokenEndpoint()
    async with exchanging(tmp_path, endpoint, client_id="us", client_secret="s3cret") as (_, adapter):
        await started(adapter)
        assert endpoint.basic == ["Basic dXM6czNjcmV0"]
        assert "client_id" not in endpoint.forms[0]


async def test_requests_at_once_share_one_exchange(tmp_path: Path) -> None:
    endpoint = TokenEndpoint()
    async with exchanging(tmp_path, endpoint) as (_, adapter), anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(started, adapter, "job", None, f"key-{number}")
    assert len(endpoint.forms) == 1


async def test_an_exchanged_token_is_renewed_before_it_ends_and_when_it_is_not_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = TokenEndpoint()
    async with exchanging(tmp_path, endpoint) as (server, adapter):
        ref = await started(adapter)
        endpoint.issued.append("made elsewhere")  # the first one is not accepted any more
        await adapter.describe(ref)
        assert len(endpoint.forms) == 2
        now = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: now() + 3600 - 60)
        await adapter.describe(ref)
        assert len(endpoint.forms) == 3
        assert sent(server, "get_job")[-1] == f"Bearer {endpoint.issued[-1]}"


async def test_a_server_that_takes_no_token_is_asked_twice_and_not_for_ever(tmp_path: Path) -> None:
    endpoint = TokenEndpoint()
    async with exchanging(tmp_path, endpoint) as (server, adapter):
        ref = await started(adapter)
        server.let_in = lambda _: False
        with pytest.raises(EngineUnavailable, match="not let in"):
            await adapter.describe(ref)
        assert len(endpoint.forms) == 2


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_refused_exchange_is_a_refusal_that_shows_no_token(
    tmp_path: Path, revision: str, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = TokenEndpoint(subjects=frozenset())
    async with exchanging(tmp_path, endpoint, revision) as (server, adapter):
        with pytest.raises(EngineRefused, match=r"auth\.exchange: it answered 400, without a token") as raised:
            await started(adapter)
        assert "workload-token" not in str(raised.value)
        assert server.calls("start_job") == []
        found = await adapter.tooling.check_engine()
        assert (found.ok, found.hint) == (False, "check auth")
    assert "workload-token" not in caplog.text


async def test_an_authorization_server_in_trouble_refuses_nothing_and_nothing_was_sent(tmp_path: Path) -> None:
    endpoint = TokenEndpoint()
    async with exchanging(tmp_path, endpoint) as (server, adapter):
        ref = await started(adapter)
        endpoint.issued.append("made elsewhere")
        for status in (503, 429, 500):
            endpoint.instead = partial(JSONResponse, {"error": "temporarily_unavailable"}, status)
            with pytest.raises(EngineUnavailable) as raised:
                await started(adapter, key="key-2")
            assert not raised.value.sent
        endpoint.instead = None
        assert (await seen_when(adapter, ref, lambda _: True)).status is Status.RUNNING
        assert len(server.calls("start_job")) == 1


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"access_token": 7}'])
async def test_an_answer_without_a_token_is_a_refusal(tmp_path: Path, answer: bytes) -> None:
    endpoint = TokenEndpoint(instead=lambda: Response(answer, media_type="application/json"))
    async with exchanging(tmp_path, endpoint) as (_, adapter):
        with pytest.raises(EngineRefused, match="without a token"):
            await started(adapter)


async def test_a_subject_token_that_cannot_be_read_is_a_refusal(tmp_path: Path) -> None:
    endpoint = TokenEndpoint()
    async with exchanging(tmp_path, endpoint) as (_, adapter):
        (tmp_path / "subject").unlink()
        with pytest.raises(
            EngineRefused, match=r"auth\.exchange\.subject_token_file cannot be read: FileNotFoundError"
        ):
            await started(adapter)
        assert endpoint.forms == []
