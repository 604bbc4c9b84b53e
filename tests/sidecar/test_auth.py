"""Who is let in over HTTP, in both eras, and what who is not let in hears."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.request_state import authenticated_principal

from mcp_workflows.access import owner_id
from mcp_workflows.access.authn.settings import AuthSettings, Owner
from mcp_workflows.access.authn.verifier import make_token, sha256_of
from mcp_workflows.receiver.context import principal_of
from mcp_workflows.sidecar.auth import Authenticator
from tests.access.authn.test_identity import ALICE, HERE, Desk
from tests.access.authn.test_identity import desk as desk
from tests.support.here import OLD, Elder, hello
from tests.support.identified import challenge, house, jwks
from tests.support.tokens import ISSUER, KeyServer, signer

pytestmark = pytest.mark.anyio

PEER = {"proxy": {"peers": ["127.0.0.1"], "scopes_header": "x-scopes"}}


async def test_a_good_token_is_let_in_and_none_is_told_where_to_get_one(tmp_path: Path, key_server: KeyServer) -> None:
    auth = {"issuers": [jwks(key_server, "http")], "required_scopes": ["tasks", "orders:read"]}
    async with house(tmp_path, auth) as here:
        assert (await here.ping(here.token(scope="orders:read tasks more"))).status_code == 200
        refused = await here.ping()
        assert refused.status_code == 401
        where = here.url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp")
        assert {f'resource_metadata="{where}"', 'scope="tasks orders:read"'} <= set(challenge(refused))
        assert here.denied == [], "everybody begins without one"
        metadata = (await here.http.get(where)).json()
        assert metadata["resource"] == here.url
        assert metadata["authorization_servers"] == [ISSUER]
        assert metadata["scopes_supported"] == ["tasks", "orders:read"]
        lacking = await here.ping(here.token(scope="tasks"))
        assert lacking.status_code == 403
        assert {'error="insufficient_scope"', 'scope="tasks orders:read"'} <= set(challenge(lacking))
        assert [(record.subject, record.reason) for record in here.denied] == [("alice", "a required scope is missing")]


async def test_who_is_not_let_in_learns_nothing_and_the_record_says_why(
    tmp_path: Path, key_server: KeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with house(tmp_path, {"issuers": [jwks(key_server, "why")]}) as here:
        tokens = {
            "signature": here.token(by=signer("stranger"), header={"kid": "good"}),
            "expired": here.token(exp=1.0),
            "audience": here.token(aud="https://other.example"),
            "not trusted here": here.token(iss="https://evil.example"),
        }
        answers = {(await here.ping(token)).text for token in tokens.values()}
        assert len(answers) == 1
        enginez = await here.http.get(here.url.replace("/mcp", "/enginez"))
        assert enginez.status_code == 404, "engines are named to operators alone"
        assert [reason in str(record.reason) for reason, record in zip(tokens, here.denied, strict=True)] == [True] * 4
        assert {record.peer for record in here.denied} == {"127.0.0.1"}, (
            "where it came from is all that is known of them"
        )
        told = f"{caplog.text} {here.denied}"
        assert not any(token.rpartition(".")[2] in told for token in tokens.values())
        lines = [record for record in caplog.records if "a caller was refused" in record.getMessage()]
        assert 1 <= len(lines) <= 5, "whoever likes can be refused, and cannot fill the log"


async def test_while_an_issuer_cannot_be_asked_nobody_is_let_in_and_told_to_come_again(
    tmp_path: Path, key_server: KeyServer
) -> None:
    auth = {"issuers": [{"issuer": ISSUER, "jwks_url": f"{key_server.address}/nothing-here"}]}
    async with house(tmp_path, auth) as here:
        answer = await here.ping(here.token())
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert "nothing-here" not in answer.text
        assert [record.outcome for record in here.denied] == ["refused"]


ELSEWHERE = [
    "/healthz",
    "/readyz",
    "/enginez",
    "/.well-known/oauth-protected-resource",
    "/.well-known/oauth-protected-resource/mcp",
    "/engines/memory/callback",
    "/engines/memory",
    "/engines",
    "/mcp/",
    "/mcp/more",
    "//mcp",
    "/",
    "/nothing-here",
]


@pytest.mark.parametrize("works", [True, False], ids=["it answers", "it is down"])
async def test_a_token_is_asked_about_on_the_path_of_mcp_alone(
    tmp_path: Path, desk: Desk, caplog: pytest.LogCaptureFixture, works: bool
) -> None:
    async with house(tmp_path, {"introspection": [desk.settings(cache="0s", audience=HERE)]}) as here:
        desk.answers["opaque"] = ALICE if works else None
        sent = {"authorization": "Bearer opaque"}
        for path in ELSEWHERE:
            for method in ("GET", "POST"):
                url = here.url.replace("/mcp", path)
                response = await here.http.request(method, url, headers=sent, json={})
                assert response.status_code in {200, 401, 404, 405}, (path, response.text)
        assert desk.forms == []
        assert here.denied == []
        assert (await here.ping("opaque")).status_code == (200 if works else 503)
        assert [form["token"] for form in desk.forms] == ["opaque"]
    assert [record for record in caplog.records if record.exc_info] == []


async def test_behind_a_proxy_everything_goes_by_the_public_url(tmp_path: Path, key_server: KeyServer) -> None:
    auth = {"issuers": [{**jwks(key_server, "public"), "issuer": "https://login.example.com/"}]}
    async with house(tmp_path, auth, public_url="https://workflows.example.com/flows/") as here:
        public = "https://workflows.example.com/flows/mcp"
        good = here.token(aud=public, iss="https://login.example.com/")
        host = {"host": "workflows.example.com", "origin": "https://workflows.example.com"}
        assert (await here.ping(good, host)).status_code == 200
        assert (await here.ping(good, {"host": "evil.example"})).status_code == 421
        assert (await here.ping(here.token(iss="https://login.example.com/"), host)).status_code == 401
        place = "https://workflows.example.com/.well-known/oauth-protected-resource/flows/mcp"
        assert f'resource_metadata="{place}"' in challenge(await here.ping(None, host))
        for path in ("/flows/mcp", "/mcp", ""):
            url = here.url.replace("/mcp", f"/.well-known/oauth-protected-resource{path}")
            metadata = (await here.http.get(url)).json()
            assert metadata["resource"] == public
            assert metadata["authorization_servers"] == ["https://login.example.com/"], "to the letter"


async def test_tokens_by_hand_need_no_metadata(tmp_path: Path) -> None:
    token = make_token()
    async with house(tmp_path, {"tokens": [{"name": "ci", "sha256": sha256_of(token)}]}) as here:
        assert (await here.ping(token)).status_code == 200
        refused = await here.ping(f"{token}x")
        assert refused.status_code == 401
        assert "resource_metadata" not in refused.headers["www-authenticate"]
        assert (
            await here.http.get(here.url.replace("/mcp", "/.well-known/oauth-protected-resource"))
        ).status_code == 404
        assert (await here.http.get(here.url.replace("/mcp", "/healthz"))).status_code == 200


@asynccontextmanager
async def elder_with(url: str, token: str) -> AsyncGenerator[Elder]:
    """A caller of 2025-11-25 with a session and a token."""
    async with httpx2.AsyncClient() as http:
        found = Elder(http, url, {"accept": "application/json, text/event-stream", "authorization": f"Bearer {token}"})
        async with found.stream("initialize", hello({"tasks": {}})) as response:
            found.headers |= {"mcp-session-id": response.headers["mcp-session-id"], "mcp-protocol-version": OLD}
            await response.aread()
        await found.notify("notifications/initialized")
        yield found


async def created(elder: Elder) -> str:
    answer = await elder.send("tools/call", {"name": "forever", "arguments": {}, "task": {}})
    return str(answer["result"]["task"]["taskId"])


async def test_a_task_is_its_owners_in_both_eras_and_nobody_elses(tmp_path: Path, key_server: KeyServer) -> None:
    async with house(tmp_path, {"issuers": [jwks(key_server, "eras")]}) as here:
        alice, bob = here.peer(here.token("alice")), here.peer(here.token("bob"))
        other_client = here.peer(here.token("alice", client_id="other"))
        new = str((await alice.call("forever")).result["taskId"])
        async with (
            elder_with(here.url, here.token("alice")) as old,
            elder_with(here.url, here.token("bob")) as bobs,
        ):
            ancient = await created(old)
            for task in (new, ancient):
                assert (await alice.get(task))["taskId"] == task
                assert (await old.send("tasks/get", {"taskId": task}))["result"]["taskId"] == task
                assert (await other_client.get(task))["taskId"] == task
                assert (await bob.send("tasks/get", {"taskId": task})).error["message"] == "Task not found"
                assert (await bobs.send("tasks/get", {"taskId": task}))["error"]["code"] == -32602
            listed = (await old.send("tasks/list"))["result"]["tasks"]
            assert {task["taskId"] for task in listed} == {new, ancient}
            assert (await bobs.send("tasks/list"))["result"]["tasks"] == []


async def test_a_session_is_only_for_whom_it_was_opened_by(tmp_path: Path, key_server: KeyServer) -> None:
    async with (
        house(tmp_path, {"issuers": [jwks(key_server, "session")]}) as here,
        elder_with(here.url, here.token("alice")) as old,
    ):
        task = await created(old)
        fresh = {**old.headers, "authorization": f"Bearer {here.token('alice', nonce='another')}"}
        again = replace(old, headers=fresh)
        assert (await again.send("tasks/get", {"taskId": task}))["result"]["taskId"] == task
        for thief in (here.token("bob"), here.token("alice", client_id="other")):
            stolen = replace(old, headers={**old.headers, "authorization": f"Bearer {thief}"})
            async with stolen.stream("tasks/get", {"taskId": task}) as response:
                assert response.status_code == 404
        ended = replace(old, headers={**old.headers, "authorization": f"Bearer {here.token('alice', exp=1.0)}"})
        async with ended.stream("tasks/get", {"taskId": task}) as response:
            assert response.status_code == 401


async def test_a_proxy_names_people_and_nobody_else_can(tmp_path: Path) -> None:
    async with house(tmp_path, {**PEER, "required_scopes": ["tasks"]}) as here:
        alice = {"x-forwarded-user": "alice", "x-scopes": "tasks"}
        async with here.peer().response("tools/call", {"name": "forever", "arguments": {}}, headers=alice) as response:
            assert response.status_code == 200
        assert (await here.ping(headers={"x-forwarded-user": "alice"})).status_code == 403
        assert (await here.ping()).status_code == 401
        assert (await here.ping("made-up", alice)).status_code == 401, "who comes with a token is taken at that"
        lines = [record.reason for record in here.denied]
        assert lines == ["a required scope is missing", "it is not known here"]


@pytest.mark.parametrize(
    ("raw", "name"), [("Älice".encode(), "Älice"), ("Jörg".encode("latin-1"), "Jörg"), ("Δ".encode(), "Δ")]
)
def test_a_proxy_may_write_names_as_everybody_does(raw: bytes, name: str) -> None:
    authenticator = Authenticator(AuthSettings.model_validate(PEER))
    found = authenticator.proxied({"headers": [(b"X-Forwarded-User", raw)], "client": ("127.0.0.1", 5)})
    assert found is not None
    assert found.subject == name


@pytest.mark.parametrize("more", [{}, {"x-forwarded-for": "10.0.0.7"}, {"forwarded": "for=10.0.0.7"}])
async def test_headers_that_say_who_it_is_are_ignored_from_anybody_else(
    tmp_path: Path, more: Mapping[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async with house(tmp_path, {"proxy": {"peers": ["10.0.0.7"]}}) as here:
        assert (await here.ping(headers={"x-forwarded-user": "alice", **more})).status_code == 401
        assert "identity headers were ignored: 127.0.0.1 is not one of" in caplog.text
        assert here.sidecar.authenticator is not None


@pytest.mark.parametrize("subject", [None, "alice", 'ä"\\ \u2028'])
@pytest.mark.parametrize("claims", [None, {}, {"iss": ISSUER}])
def test_owners_of_servers_that_verify_by_themselves_stay_owners(
    subject: str | None, claims: Mapping[str, Any] | None
) -> None:
    token = AccessToken(
        token="t",
        client_id="app",
        scopes=["a"],
        subject=subject,
        claims=None if claims is None else dict(claims),
        expires_at=10**10,
    )
    context = auth_context_var.set(AuthenticatedUser(token))
    try:
        known: Any = authenticated_principal(None)  # type: ignore[arg-type]  # it looks at the token only
    finally:
        auth_context_var.reset(context)
    found = principal_of(token, Owner.CLIENT)
    issuer = (claims or {}).get("iss")
    assert found.id == known == owner_id(client="app", issuer=issuer, subject=subject)
    assert (found.issuer, found.subject, found.client, found.scopes) == (issuer, subject, "app", frozenset({"a"}))
    assert found.expires == datetime.fromtimestamp(10**10, UTC)
    assert found.recheck is None
