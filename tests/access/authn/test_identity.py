"""The other ways to show who one is: introspection, tokens handed out, a proxy; and their settings."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_workflows.access.authn.introspection import IntrospectionVerifier
from mcp_workflows.access.authn.settings import AuthSettings, ProxySettings
from mcp_workflows.access.authn.verifier import StaticTokens, TrustedProxy, Verifier, make_token, sha256_of, verifier
from mcp_workflows.errors import IssuerUnavailable, TokenRefused
from mcp_workflows.sidecar.config.load import load_config
from tests.access.authn.test_issuers import Clock, moved
from tests.support.configured import written
from tests.support.identified import MEMORY, TOOLS
from tests.support.tokens import ISSUER, KeyServer, signer

pytestmark = pytest.mark.anyio

HERE = "https://workflows.example.com/mcp"
SECRET = "s3cret:/&"
ALICE: Mapping[str, Any] = {"active": True, "aud": HERE, "sub": "alice", "client_id": "app", "scope": "a b"}


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class Desk:
    """An introspection endpoint, and who asks it."""

    server: KeyServer
    path: str
    answers: dict[str, Any] = field(default_factory=dict[str, Any])  # by token
    forms: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])
    known: list[str] = field(default_factory=list[str])

    def answer(self, form: Mapping[str, str], known: str) -> Any:
        self.forms.append(form)
        self.known.append(known)
        return self.answers.get(form["token"], {"active": False})

    def settings(self, **more: Any) -> dict[str, Any]:
        endpoint = f"{self.server.address}/{self.path}"
        return {"issuer": ISSUER, "endpoint": endpoint, "client_id": "us", "client_secret": SECRET, **more}

    def verifier(self, **more: Any) -> Verifier:
        return verifier(AuthSettings.model_validate({"introspection": [self.settings(**more)]}), HERE)

    def timed(self, clock: Clock, *, now: Callable[[], datetime] = _now, **more: Any) -> IntrospectionVerifier:
        """With clocks of the test's own."""
        asked = self.verifier(**more)
        [settings], [found] = asked.settings.introspection, asked.introspected
        return IntrospectionVerifier(settings, found.reading, clock=clock, now=now)


@pytest.fixture
def desk(key_server: KeyServer, request: pytest.FixtureRequest) -> Desk:
    found = Desk(key_server, f"introspect-{abs(hash(request.node.nodeid))}")
    key_server.asked[found.path] = found.answer
    return found


async def test_a_token_nobody_can_read_is_asked_about(desk: Desk) -> None:
    desk.answers["opaque"] = {**ALICE, "exp": moved(60), "iss": ISSUER}
    found = await desk.verifier().verify("opaque")
    assert (found.issuer, found.subject, found.client, found.scopes) == (ISSUER, "alice", "app", frozenset({"a", "b"}))
    assert desk.forms == [{"token": "opaque", "token_type_hint": "access_token"}]
    kind, _, known = desk.known[0].partition(" ")
    assert (kind, base64.b64decode(known)) == ("Basic", b"us:s3cret%3A%2F%26")


async def test_the_secret_can_go_with_the_form(desk: Desk) -> None:
    desk.answers["opaque"] = ALICE
    await desk.verifier(client_auth="post").verify("opaque")
    assert (desk.forms[0]["client_id"], desk.forms[0]["client_secret"], desk.known) == ("us", SECRET, [""])


REFUSED: Mapping[str, tuple[Any, str]] = {
    "not active": ({"active": False}, "not active"),
    "for another": ({**ALICE, "aud": "https://other.example"}, "its audience is"),
    "for nobody": ({**ALICE, "aud": None}, "no audience"),
    "expired": ({**ALICE, "exp": moved(-31)}, "expired"),
    "exp a text": ({**ALICE, "exp": "later"}, "not a time"),
    "of another issuer": ({**ALICE, "iss": "https://evil.example"}, "its issuer is"),
    "names nobody": ({"active": True, "aud": HERE}, "names nobody"),
}
NOT_TOLD: Mapping[str, tuple[Any, str]] = {
    "does not say": ({"sub": "alice", "aud": HERE}, "whether the token is active"),
    "active a text": ({**ALICE, "active": "true"}, "whether the token is active"),
    "a list": ([ALICE], "not an object"),
    "no JSON": (b"<html>", "not JSON"),
    "nested": (b"[" * 100_000, "not JSON"),
    "too much": (b" " * 300_000, "more than"),
    "an error": (None, "answers 500"),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_what_is_not_good_here_is_refused_whatever_the_issuer_says(desk: Desk, kind: str) -> None:
    desk.answers["opaque"], reason = REFUSED[kind]
    with pytest.raises(TokenRefused, match=reason):
        await desk.verifier().verify("opaque")


@pytest.mark.parametrize("kind", NOT_TOLD)
async def test_nobody_is_let_in_by_an_endpoint_that_does_not_work(desk: Desk, kind: str) -> None:
    desk.answers["opaque"], reason = NOT_TOLD[kind]
    with pytest.raises(IssuerUnavailable, match=reason) as refused:
        await desk.verifier().verify("opaque")
    assert "opaque" not in str(refused.value)
    assert SECRET not in str(refused.value)


async def test_an_answer_counts_for_a_moment_and_a_revoked_token_no_longer(desk: Desk) -> None:
    clock, desk.answers["opaque"] = Clock(), ALICE
    asked = desk.timed(clock, cache="10s")
    for _ in range(3):
        assert (await asked.verify("opaque")).subject == "alice"
    assert len(desk.forms) == 1
    desk.answers["opaque"] = {"active": False}
    clock.now += 10
    for _ in range(3):
        with pytest.raises(TokenRefused, match="not active"):
            await asked.verify("opaque")
    assert len(desk.forms) == 2


async def test_an_answer_never_counts_for_longer_than_its_token(desk: Desk) -> None:
    desk.answers["opaque"] = {**ALICE, "exp": moved(60)}
    times = iter((datetime.now(UTC), datetime.now(UTC) + timedelta(seconds=91)))
    asked = desk.timed(Clock(), now=lambda: next(times), cache="5m")
    await asked.verify("opaque")
    with pytest.raises(TokenRefused, match="expired"):
        await asked.verify("opaque")
    assert len(desk.forms) == 1


async def test_all_who_come_with_one_token_share_one_question(desk: Desk) -> None:
    desk.answers["opaque"] = ALICE
    asked, hangs = desk.verifier(cache="0s"), threading.Event()
    desk.server.hanging[desk.path] = hangs
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(asked.verify, "opaque")
        with anyio.fail_after(60):
            while not desk.server.fetches[desk.path]:
                await anyio.sleep(0.005)
        hangs.set()
    assert len(desk.forms) == 1


async def test_who_leaves_while_it_is_asked_takes_nobody_along(desk: Desk) -> None:
    desk.answers["opaque"] = ALICE
    asked, hangs, found = desk.verifier(), threading.Event(), list[Any]()
    desk.server.hanging[desk.path] = hangs

    async def wait() -> None:
        found.append(await asked.verify("opaque"))

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as leaving:
            async with anyio.create_task_group() as first:
                first.start_soon(asked.verify, "opaque")
                with anyio.fail_after(60):
                    while not desk.server.fetches[desk.path]:
                        await anyio.sleep(0.005)
                group.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                leaving.cancel()
        hangs.set()
    assert [each.subject for each in found] == ["alice"]


async def test_what_is_remembered_is_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_workflows.access.authn.introspection.MOST_ANSWERS", 3)
    asked = desk.timed(Clock())
    for token in ("a", "b", "c", "d", "d", "b"):
        with pytest.raises(TokenRefused):
            await asked.verify(token)
    assert len(desk.forms) == 4
    with pytest.raises(TokenRefused):
        await asked.verify("a")
    assert len(desk.forms) == 5


async def test_no_issuer_is_shown_the_token_of_another(desk: Desk, key_server: KeyServer) -> None:
    theirs = Desk(key_server, f"{desk.path}-other")
    key_server.asked[theirs.path] = theirs.answer
    good = signer("good")
    asked = verifier(
        AuthSettings.model_validate(
            {
                "issuers": [{"issuer": "https://jwt.example", "jwks_url": key_server.publish("unshown", good)}],
                "introspection": [
                    desk.settings(prefix="one_"),
                    theirs.settings(prefix="two_", issuer="https://two.example"),
                ],
            }
        ),
        HERE,
    )
    desk.answers["one_x"], theirs.answers["two_x"] = ALICE, ALICE
    assert (await asked.verify("one_x")).issuer == ISSUER
    assert (await asked.verify("two_x")).issuer == "https://two.example"
    tokens = ["three_x", "", good.token(iss="https://jwt.example", aud="https://other.example")]
    for token in tokens:
        with pytest.raises(TokenRefused):
            await asked.verify(token)
    assert [form["token"] for form in (*desk.forms, *theirs.forms)] == ["one_x", "two_x"]


async def test_a_token_handed_out_is_known_by_its_hash() -> None:
    token = make_token()
    entry = {"name": "ci", "sha256": sha256_of(token).upper(), "scopes": ["a"]}
    asked = verifier(AuthSettings.model_validate({"tokens": [entry]}), HERE)
    found = await asked.verify(token)
    assert (found.issuer, found.subject, found.client, found.scopes) == ("token", None, "ci", frozenset({"a"}))
    for wrong in (f"{token}x", token[:-1], sha256_of(token), ""):
        with pytest.raises(TokenRefused):
            await asked.verify(wrong)
    assert token not in repr(asked)
    assert len({make_token() for _ in range(100)}) == 100
    assert StaticTokens([]).find("") is None


PROXY: Mapping[str, Any] = {
    "peers": ["10.0.0.7", "10.1.0.0/16", "fd00::/8"],
    "groups_header": "X-Groups",
    "scopes_header": "X-Scopes",
    "client_header": "X-Client",
    "scopes": ["tasks"],
}


@pytest.mark.parametrize(
    ("peer", "trusted"),
    [
        ("10.0.0.7", True),
        ("10.1.255.1", True),
        ("::ffff:10.0.0.7", True),
        ("fd00::1", True),
        ("10.0.0.8", False),
        ("127.0.0.1", False),
        ("::1", False),
        ("10.0.0.7.evil.example", False),
        ("", False),
        (None, False),
    ],
)
def test_a_proxy_is_known_by_its_address(peer: str | None, trusted: bool) -> None:
    assert TrustedProxy(ProxySettings.model_validate(PROXY)).trusts(peer) is trusted


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"x-forwarded-user": ["admin", "alice"]}, "2 times"),
        ({"x-forwarded-user": [""]}, "empty"),
        ({"x-forwarded-user": ["  "]}, "empty"),
        ({"x-forwarded-user": ["a\x00b"]}, "not a name"),
        ({"x-forwarded-user": ["x" * 600]}, "not a name"),
        ({"x-forwarded-user": ["alice"], "x-scopes": ["admin", "tasks"]}, "2 times"),
        ({"x-forwarded-user": ["alice"], "x-groups": ["admins", "staff"]}, "2 times"),
    ],
)
def test_what_a_proxy_cannot_have_meant_is_refused(headers: Mapping[str, Sequence[str]], reason: str) -> None:
    with pytest.raises(TokenRefused, match=reason):
        TrustedProxy(ProxySettings.model_validate(PROXY)).identity(headers)


TOKEN = {"name": "ci", "sha256": "ab" * 32}
ASKED = {"issuer": ISSUER, "endpoint": "https://a.example/i", "client_id": "us", "client_secret": "${SECRET}"}


def test_settings_never_show_their_secrets(tmp_path: Path) -> None:
    auth = {"introspection": [ASKED], "tokens": [TOKEN], "clock_skew": "1m"}
    config = load_config(written(tmp_path, "memory", MEMORY, TOOLS, {"auth": auth}), {"SECRET": SECRET})
    assert config.server.auth is not None
    assert config.server.auth.clock_skew == timedelta(minutes=1)
    shown = f"{config.server} {config.server.auth.model_dump_json()}"
    assert SECRET not in shown
