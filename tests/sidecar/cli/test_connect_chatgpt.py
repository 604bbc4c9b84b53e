"""`mcp-workflows connect chatgpt`: what ChatGPT needs is tried, as far as that goes on one machine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.sidecar.cli.terminal import Ended, Terminal
from tests.support.child_processes import free_port
from tests.support.identified import GOOD, House, house
from tests.support.served import serving, site
from tests.support.tokens import KeyServer

pytestmark = pytest.mark.anyio

PLACES = ["/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"]


async def connect(terminal: Terminal, *words: str) -> Ended:
    """`mcp-workflows connect chatgpt WORDS`."""
    return await anyio.to_thread.run_sync(lambda: terminal.run("connect", "chatgpt", *words))


@asynccontextmanager
async def logging_in(terminal: Terminal, keys: KeyServer, place: str, **metadata: Any) -> AsyncGenerator[House]:
    """A sidecar whose callers log in at a server that publishes this metadata."""
    whole = {"token_endpoint": "https://login.example/token", **metadata}

    def publish(_: Request) -> Response:
        return JSONResponse(whole)

    app = Starlette(routes=[Route(place, publish)])
    async with serving(app) as url:
        issuer = url.removesuffix("/mcp")
        settings = {"issuer": issuer, "jwks_url": keys.publish("chatgpt", GOOD)}
        async with house(terminal.folder, {"issuers": [settings]}) as here:
            terminal.monkeypatch.setenv("ACME_TOKEN", here.token(iss=issuer))
            yield here


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", ["registration_endpoint", "client_id_metadata_document_supported"])
async def test_what_chatgpt_needs_is_found(terminal: Terminal, key_server: KeyServer, place: str, way: str) -> None:
    supported: dict[str, Any] = {way: True, "code_challenge_methods_supported": ["S256"]}
    async with logging_in(terminal, key_server, place, **supported) as here:
        ended = await connect(terminal, "--url", here.url, "--name", "acme")
    fails = [line for line in ended.err.splitlines() if line.startswith(("FAILS", "?"))]
    assert [line.partition(":")[0] for line in fails] == ["FAILS  public address"], "this machine is not public"
    assert "is at 127.0.0.1: serve it over https at a public address" in fails[0]
    for found in ("RFC 9728", "RFC 8414", "PKCE (S256)", "registration of clients", "events: declared", "webhooks"):
        assert any(line.startswith("ok ") and found in line for line in ended.err.splitlines()), found
    assert ended.out == f"Name: acme\nServer URL: {here.url}\nAuthentication: OAuth\n"
    assert ended.code == 1
    for limit in (
        "by webhook only",
        "Refresh tools",
        "no tasks",
        "my_tasks",
        "none of this was tested against ChatGPT",
    ):
        assert limit in ended.err


async def test_what_chatgpt_misses_is_said_with_what_to_do(terminal: Terminal, key_server: KeyServer) -> None:
    async with logging_in(terminal, key_server, PLACES[0]) as here:
        terminal.monkeypatch.delenv("ACME_TOKEN")
        (terminal.folder / "other.yaml").write_text(
            f"server: {{name: acme, public_url: {here.url.removesuffix('/mcp')}, events: {{allow: []}}}}\n"
            "engines: {here: {adapter: memory}}\ntools: {echo: {engine: here, workflow: echo}}\n"
        )
        ended = await connect(terminal, "-c", "other.yaml")
    said = {line[7:].partition(": ")[0] + line[:7].strip() for line in ended.err.splitlines()}
    assert {"public addressFAILS", "loginFAILS", "events?", "eventsFAILS"} <= said
    assert "FAILS  login: PKCE (S256): enable it at the identity service" in ended.err
    assert "FAILS  login: registration of clients: enable DCR or CIMD" in ended.err
    assert "?      events: declared: to check this, put a valid token in the variable ACME_TOKEN" in ended.err
    assert "FAILS  events: webhooks: server.events.allow allows no host" in ended.err
    assert ended.out.startswith("Name: acme\n")


async def test_a_server_without_a_login_cannot_send_chatgpt_webhooks(terminal: Terminal) -> None:
    async with site(store=f"sqlite:///{terminal.folder}/tasks.db") as served:
        ended = await connect(terminal, "--url", served.url)
    assert "FAILS  login: callers need a token: set server.auth.issuers" in ended.err
    assert "ok     events: declared" in ended.err


async def test_a_login_without_metadata_is_said(terminal: Terminal) -> None:
    token = [{"name": "ci", "sha256": "9f" * 32}]
    async with house(terminal.folder, {"tokens": token}) as here:
        ended = await connect(terminal, "--url", here.url)
    assert "FAILS  login: protected resource metadata (RFC 9728): set server.auth.issuers" in ended.err


async def test_a_server_that_is_not_there_is_said(terminal: Terminal) -> None:
    ended = await connect(terminal, "--url", f"http://127.0.0.1:{free_port()}/mcp")
    assert "FAILS  reachable: " in ended.err
    assert "check that the server and its proxy run" in ended.err
    assert ended.code == 1
    for wrong in ("http://[::1", "https://a.invalid:99999/mcp"):
        assert (await connect(terminal, "--url", wrong)).code == 1


async def test_of_a_wrong_path_nothing_else_is_said(terminal: Terminal) -> None:
    async with site(store=f"sqlite:///{terminal.folder}/tasks.db") as served:
        ended = await connect(terminal, "--url", served.url.replace("/mcp", "/nothing"))
    assert "FAILS  reachable: HTTP 404: the URL must be that of the server, with /mcp" in ended.err
    assert "login" not in ended.err
    assert "events:" not in ended.err


async def test_chatgpt_starts_no_server_itself(terminal: Terminal) -> None:
    (terminal.folder / "workflows.yaml").write_text(
        "engines: {here: {adapter: memory}}\ntools: {echo: {engine: here, workflow: echo}}\n"
    )
    ended = await connect(terminal)
    assert (ended.code, ended.err.startswith("ChatGPT cannot start a server: set server.public_url")) == (1, True)
