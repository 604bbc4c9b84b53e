"""Logins of people on the pages, and their sessions: with a provider that lies, is slow or is away, and thieves."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import anyio
import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from mcp_workflows.access.authn import fetch
from mcp_workflows.sidecar.web import login
from mcp_workflows.units import utc_now
from tests.support.approval_pages import (
    LOGIN,
    MANAGERS,
    SESSION,
    Browser,
    Office,
    Shown,
    ToldProvider,
    office,
    told_provider,
)
from tests.support.oidc import PAGES, SECRET
from tests.support.postgres_server import Postgres, new_schema
from tests.support.postgres_server import postgres_server as postgres_server
from tests.support.tokens import by_hand, signer

pytestmark = pytest.mark.anyio

HOME: Final = "https://x.example"


@pytest.fixture
async def provider() -> AsyncGenerator[ToldProvider]:
    """An identity provider."""
    async with told_provider() as found:
        yield found


@pytest.fixture
async def place(tmp_path: Path, provider: ToldProvider) -> AsyncGenerator[Office]:
    """A server with a tool that somebody must approve."""
    async with office(tmp_path, provider) as found:
        yield found


class Clock:
    """The clock of logins and sessions."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ahead = timedelta()
        patch.setattr(login, "utc_now", lambda: utc_now() + self.ahead)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """It can be moved."""
    return Clock(monkeypatch)


async def is_in(browser: Browser) -> bool:
    """Whether it has a session."""
    return (await browser.send("GET", "/approvals")).status == 200


# --- the way in


async def test_a_login_asks_for_a_code_with_pkce_state_and_nonce_and_no_token_reaches_the_browser(
    tmp_path: Path, provider: ToldProvider
) -> None:
    async with office(tmp_path, provider, web={"scopes": ["profile", "groups"]}) as place:
        bob = place.browser()
        begun = await bob.get("/approvals")
        asked = {name: value for name, [value] in parse_qs(urlsplit(begun.location).query).items()}
        assert asked | {"state": "", "nonce": "", "code_challenge": ""} == {
            "response_type": "code",
            "client_id": PAGES,
            "redirect_uri": f"{place.home}/login/callback",
            "scope": "openid profile groups",
            "state": "",
            "nonce": "",
            "code_challenge": "",
            "code_challenge_method": "S256",
        }
        assert min(len(asked[name]) for name in ("state", "nonce", "code_challenge")) >= 32
        await bob.get(await bob.callback(begun, lambda nonce: provider.id_token("bob", nonce)))
        [form] = provider.forms
        assert form["authorization"].startswith("Basic ")
        assert len(form["code_verifier"]) >= 43
        assert bob.cookies.keys() == {SESSION}
        assert len(bob.cookies[SESSION]) == 43


@pytest.mark.parametrize(
    ("web", "sent"), [({"client_secret": None}, None), ({"client_auth": "client_secret_post"}, SECRET)]
)
async def test_a_public_client_sends_no_secret_and_another_sends_it_as_it_is_told(
    tmp_path: Path, provider: ToldProvider, web: Mapping[str, Any], sent: str | None
) -> None:
    async with office(tmp_path, provider, web=web) as place:
        await place.browser().log_in("bob")
        [form] = provider.forms
        assert (form["client_id"], form.get("client_secret"), form["authorization"]) == (PAGES, sent, "")


async def test_the_login_leads_back_to_the_question(place: Office) -> None:
    link = place.link(await place.requested())
    bob = place.browser()
    shown = await bob.log_in("bob", link, groups=[MANAGERS])
    assert (shown.url, shown.status) == (f"{place.home}{link}", 200)
    assert shown.buttons == ["accept", "decline"]


AWAY: Final = (
    *("//evil.example", "/\\evil.example", "\\\\evil.example", "https://evil.example", "https:evil.example", "//["),
    *("javascript:alert(1)", "data:text/html,x", "/approvals/../x", "/approvals/..", "/approvals/%2e%2e/x", "/login"),
    *("/approvals/x/../../y", "/approvals//evil.example", "/approvals/x?y=1", "/approvals/x#y", "/approvals\\@evil"),
    *("/approvals/\r\nset-cookie: a=b", "/approvals/x\n", "/approvals/\x00", "/approvals/é", "/approvals/\u2028"),
    *(f"/approvals/{'a' * 5000}", "", " ", "approvals/x", "/approvals.evil.example", "@evil.example", "http://["),
)


async def test_a_login_leads_nowhere_else(place: Office) -> None:
    for to in AWAY:
        bob = place.browser()
        begun = await bob.send("GET", f"/login?{urlencode({'to': to})}")
        assert begun.status == 303, to
        ended = await bob.send("GET", await bob.callback(begun, lambda nonce: place.provider.id_token("bob", nonce)))
        assert (ended.status, ended.response.headers["location"]) == (303, "/approvals"), to


async def test_a_path_that_is_no_question_leads_to_the_list(place: Office) -> None:
    for path in (
        "/approvals/%2e%2e",
        "/approvals/%0d%0aset-cookie:%20a=b",
        "/approvals/%5cevil",
        f"/approvals/{'a' * 900}",
    ):
        begun = await place.browser().send("GET", path)
        assert begun.response.headers["location"] == "/login?to=/approvals"


# --- tokens that lie


def without_a_signature(provider: ToldProvider, nonce: str) -> str:
    """An ID token that says it needs none."""
    return by_hand({"alg": "none", "kid": "pages"}, good(provider, nonce))


def signed_with_the_public_key(provider: ToldProvider, nonce: str) -> str:
    """An ID token that takes a public key for a secret."""
    return by_hand({"alg": "HS256", "kid": "pages"}, good(provider, nonce), provider.signer.pem)


def good(provider: ToldProvider, nonce: str) -> Mapping[str, Any]:
    """Claims that would do."""
    now = utc_now().timestamp()
    return {"iss": provider.issuer, "aud": PAGES, "sub": "bob", "nonce": nonce, "iat": now, "exp": now + 60}


def saying(**claims: Any) -> Callable[[ToldProvider, str], object]:
    """An ID token that is good but for these claims."""
    return lambda provider, nonce: provider.id_token("bob", nonce, **claims)


def instead(token: object) -> Callable[[ToldProvider, str], object]:
    """Something else in the place of an ID token."""
    return lambda provider, nonce: token


LIES: Final[Mapping[str, Callable[[ToldProvider, str], object]]] = {
    "another nonce": saying(nonce="another"),
    "no nonce": saying(nonce=None),
    "a nonce that is no text": lambda provider, nonce: provider.id_token("bob", nonce, nonce=[nonce]),
    "another audience": saying(aud="another"),
    "no audience": saying(aud=None),
    "the audience of access tokens": saying(aud="https://workflows.example.com/mcp"),
    "another party": saying(azp="another"),
    "several audiences and no party": saying(aud=[PAGES, "another"]),
    "another issuer": saying(iss="https://evil.example"),
    "no issuer": saying(iss=None),
    "another key": saying(by=signer("evil")),
    "another key under the name of the right one": lambda provider, nonce: signer("evil").token(
        kid="pages", **good(provider, nonce)
    ),
    "expired": saying(exp=1_700_000_000),
    "no expiry": saying(exp=None),
    "of the future": saying(iat=utc_now().timestamp() + 3600),
    "no time": saying(iat=None),
    "nobody": saying(sub=None),
    "an empty subject": saying(sub=""),
    "a subject that is no text": saying(sub=["bob"]),
    "a subject that cannot be shown": saying(sub="b\u202eob"),
    "alg none": without_a_signature,
    "HS256 with the public key": signed_with_the_public_key,
    "no token": instead(None),
    "a number": instead(7),
    "an object": instead({"alg": "none"}),
    "text": instead("a.b.c"),
    "half a character": instead("\ud800"),
}


async def test_a_token_that_does_not_prove_the_login_lets_nobody_in(place: Office) -> None:
    for name, lie in LIES.items():
        bob = place.browser()
        begun = await bob.get("/approvals")
        ended = await bob.get(await bob.callback(begun, partial(lie, place.provider)))
        assert ended.status == 400, name
        assert ended.text.startswith("The login did not work. Log in again, and tell your administrator")
        assert SESSION not in bob.cookies, name
        assert not await is_in(bob)
        refused = place.audit[-1]
        assert (refused.event, refused.outcome) == ("login", "refused")
        assert refused.reason
        assert refused.reason not in ended.text, "the reason is for the record alone"
    assert await is_in(await place.manager()), "the same without a lie"


ANSWERS: Final[Mapping[str, Callable[[], Response]]] = {
    "an error": lambda: JSONResponse({"error": "invalid_grant", "error_description": "secret-7c1f"}, 400),
    "500": lambda: PlainTextResponse("secret-7c1f", 500),
    "no JSON": lambda: PlainTextResponse("<html>secret-7c1f"),
    "nothing": lambda: Response(status_code=200),
    "a list": lambda: JSONResponse([]),
    "null": lambda: JSONResponse(None),
    "a number": lambda: JSONResponse(7),
    "text": lambda: JSONResponse("id_token"),
    "an empty object": lambda: JSONResponse({}),
    "deep JSON": lambda: Response("[" * 100_000, media_type="application/json"),
    "an odd expiry": lambda: JSONResponse({"access_token": "x", "expires_in": [], "expires_at": "x", "id_token": "x"}),
    "a redirect": lambda: Response(status_code=307, headers={"location": "http://127.0.0.1:9/"}),
}


async def test_an_answer_that_is_no_token_lets_nobody_in_and_is_not_shown(place: Office) -> None:
    for name, answer in ANSWERS.items():
        bob = place.browser()
        back = await bob.callback(await bob.get("/approvals"), str)
        place.provider.tokens = dict.fromkeys(place.provider.tokens, answer)
        ended = await bob.get(back)
        assert ended.status == 400, name
        assert ended.text.startswith("The login did not work.")
        assert "secret-7c1f" not in ended.text
        assert not await is_in(bob)


@pytest.mark.parametrize(
    ("userinfo", "sees_it"),
    [
        ({"sub": "bob", "groups": [MANAGERS]}, True),
        ({"sub": "carol", "groups": [MANAGERS]}, False),
        ({"groups": [MANAGERS]}, False),
        ([], False),
        ("bob", False),
    ],
)
async def test_groups_of_another_subject_are_not_believed(place: Office, userinfo: Any, sees_it: bool) -> None:
    place.provider.userinfo = userinfo
    link = place.link(await place.requested())
    bob = place.browser()
    shown = await bob.log_in("bob", link)
    assert (shown.status == 200) is sees_it


async def test_the_userinfo_endpoint_replaces_no_claim_of_the_token(place: Office) -> None:
    place.provider.userinfo = {"sub": "bob", "iss": "https://evil.example", "groups": [MANAGERS]}
    link = place.link(await place.requested())
    assert (await place.browser().log_in("bob", link, groups=["others"])).status == 404


async def test_an_answer_in_the_name_of_another_issuer_is_refused(place: Office) -> None:
    bob = place.browser()
    back = await bob.callback(await bob.get("/approvals"), lambda nonce: place.provider.id_token("bob", nonce))
    ended = await bob.get(f"{back}&iss={quote('https://evil.example')}")
    assert ended.status == 400
    assert place.provider.forms == [], "its code goes to nobody"


async def test_metadata_of_another_issuer_is_not_followed(place: Office) -> None:
    place.provider.metadata = {"issuer": "https://evil.example", "token_endpoint": "https://evil.example/token"}
    assert "Your identity provider cannot be reached." in (await place.browser().get("/approvals")).text


@pytest.mark.parametrize(
    "endpoint", [None, "http://evil.example/authorize", "javascript:alert(1)", "https://u:p@x/", 7]
)
async def test_an_endpoint_that_is_not_safe_is_not_used(place: Office, endpoint: object) -> None:
    place.provider.metadata = {"authorization_endpoint": endpoint}
    shown = await place.browser().get("/approvals")
    assert shown.status == 400
    assert "The login is not set up rightly." in shown.text


async def test_a_person_who_declines_at_the_provider_reads_that_and_can_try_again(place: Office) -> None:
    link = place.link(await place.requested())
    bob = place.browser()
    begun = await bob.get(link)
    state = parse_qs(urlsplit(begun.location).query)["state"][0]
    query = {"error": "access_denied", "error_description": "<b>evil</b>", "state": state}
    ended = await bob.get(f"/login/callback?{urlencode(query)}")
    assert ended.status == 400
    assert ended.text.startswith("Your identity provider did not log you in.")
    assert "evil" not in ended.response.text
    assert ended.links == [f"/login?to={link}"]
    assert not await is_in(bob)


# --- a provider that is away


async def test_while_the_provider_is_away_it_is_said_and_those_who_are_in_work_on(
    place: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "METADATA_KEPT", 0.0)
    link = place.link(await place.requested())
    place.provider.is_down = True
    place.provider.asked.clear()
    late = place.browser()
    for _ in range(20):
        shown = await late.get(link)
        assert shown.status == 400
        assert shown.text.startswith("Your identity provider cannot be reached. Try again in a minute.")
        assert shown.links == [f"/login?to={link}"]
    assert place.provider.asked.total() == 1, "anybody can begin a login, and it is not asked each time"
    place.provider.is_down = False
    monkeypatch.setattr(login, "PAUSE", 0.0)
    bob = await place.manager()
    begun = await late.get(link)
    back = await late.callback(begun, lambda nonce: place.provider.id_token("carol", nonce, groups=[MANAGERS]))
    place.provider.is_down = True
    assert (await bob.get(link)).status == 200
    ended = await late.get(back)
    assert ended.status == 400
    assert ended.text.startswith("The login did not work.")
    assert ended.links == [f"/login?to={link}"]
    assert (await place.browser().get(link)).location.startswith(place.provider.issuer), "what is known still serves"


async def test_a_slow_provider_keeps_nobody_else_waiting_and_is_given_up(
    place: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob, late, later = await place.manager(), place.browser(), place.browser()
    back = await late.callback(await late.get("/approvals"), lambda nonce: place.provider.id_token("carol", nonce))
    place.provider.answering, ended = anyio.Event(), anyio.Event()

    async def log_in() -> None:
        assert (await late.get(back)).status == 200
        ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(log_in)
        with anyio.fail_after(30):
            while "/token" not in place.provider.asked:
                await is_in(bob)
            for _ in range(5):
                assert await is_in(bob)
        assert not ended.is_set()
        place.provider.answering.set()
    place.provider.answering = anyio.Event()
    monkeypatch.setattr(fetch, "ANSWER_WITHIN", 0.05)
    monkeypatch.setattr(login, "ANSWER_WITHIN", 0.05)
    begun = await later.get("/approvals")
    assert (await later.get(await later.callback(begun, str))).status == 400
    monkeypatch.setattr(login, "METADATA_KEPT", 0.0)
    monkeypatch.setattr(login, "PAUSE", 0.0)
    assert (await later.get("/login")).status == 303, "metadata that is old is better than none"
    place.provider.answering.set()


# --- callbacks of others


async def test_a_callback_in_another_browser_leads_to_a_login_of_ones_own(place: Office) -> None:
    link = place.link(await place.requested())
    eve, victim = place.browser(), place.browser()
    begun = await eve.get(link)
    back = await eve.callback(begun, lambda nonce: place.provider.id_token("eve", nonce))
    others = [victim, await place.manager(), place.browser()]
    place.provider.forms.clear()
    led = await others[0].send("GET", back)
    for own in others:
        if own is not victim and SESSION not in own.cookies:
            await own.get("/approvals")  # a login that has begun
        before = own.cookies.get(SESSION)
        led = await own.send("GET", back)
        assert (led.status, led.location) == (303, f"{place.home}/login?to={link}&again=1")
        assert own.cookies.get(SESSION) == before, "nobody is logged in as somebody else"
    assert place.provider.forms == []
    again = await victim.get(led.location)
    shown = await victim.get(await victim.callback(again, lambda nonce: place.provider.id_token("vic", nonce)))
    assert shown.url == f"{place.home}{link}"


async def test_a_browser_that_keeps_no_cookie_is_told_so_and_not_sent_in_circles(place: Office) -> None:
    bob = place.browser()

    async def log_in(path: str) -> Shown:
        begun = await bob.get(path)
        bob.cookies.clear()
        return await bob.send("GET", await bob.callback(begun, lambda nonce: place.provider.id_token("bob", nonce)))

    first = await log_in("/login")
    assert first.location == f"{place.home}/login?to=/approvals&again=1"
    second = await log_in(first.location)
    assert second.status == 400
    assert "This browser does not keep our cookie." in second.text


async def test_a_callback_that_is_sent_again_logs_nobody_in(place: Office) -> None:
    bob = place.browser()
    back = await bob.callback(await bob.get("/approvals"), lambda nonce: place.provider.id_token("bob", nonce))
    cookies = dict(bob.cookies)
    assert (await bob.get(back)).status == 200
    session = bob.cookies[SESSION]
    assert (await bob.send("GET", back)).location.startswith(f"{place.home}/login?")
    assert bob.cookies[SESSION] == session
    thief = place.browser()
    thief.cookies = cookies
    assert (await thief.get(back)).status == 400, "a code counts once"
    assert SESSION not in thief.cookies


async def test_a_state_is_good_for_one_login_and_a_quarter_of_an_hour(place: Office, clock: Clock) -> None:
    bob = place.browser()
    back = await bob.callback(await bob.get("/approvals"), lambda nonce: place.provider.id_token("bob", nonce))
    for ahead in (timedelta(minutes=16), timedelta(minutes=-1)):
        clock.ahead = ahead
        ended = await bob.get(back)
        assert (ended.status, ended.text) == (400, "This login took too long. Log in again. " * 2 + "Log in")
    clock.ahead = timedelta()
    for state in ("", "x", "A" * 5000, "\u00e9", back.partition("state=")[2][:-2] + "AA"):
        assert (await bob.get(f"/login/callback?{urlencode({'code': 'x', 'state': state})}")).status == 400
    assert place.provider.forms == []


async def test_a_flood_of_false_callbacks_keeps_nobody_from_logging_in(place: Office) -> None:
    flood = place.browser()
    statuses = {(await flood.send("GET", "/login/callback?state=x")).status for _ in range(200)}
    assert statuses == {400}
    assert await is_in(await place.manager())
    assert place.provider.asked["/token"] == 1


ODD_COOKIES: Final = ("", "x", "a" * 7000, '"\\001\\015\\012"', '"; Path=/x"', "=;=", f"{LOGIN}", "%00")


async def test_a_cookie_that_is_not_ours_is_none(place: Office) -> None:
    for value in ODD_COOKIES:
        bob = place.browser()
        headers = {"cookie": f"{SESSION}={value}; {LOGIN}={value}"}
        assert (await bob.send("GET", "/approvals", headers=headers)).status == 303
        begun = await bob.send("GET", "/login", headers=headers)
        assert begun.status == 303
        assert len(bob.cookies[LOGIN]) == 43
        assert (await bob.send("GET", "/login/callback?state=x", headers=headers)).status == 400
        assert (await bob.post("/logout", {}, headers=headers)).status == 200


# --- sessions


async def test_a_session_is_over_after_half_an_hour_without_a_request(place: Office, clock: Clock) -> None:
    link = place.link(await place.requested())
    bob = await place.manager()
    for _ in range(4):
        clock.ahead += timedelta(minutes=28)
        assert (await bob.get(link)).status == 200
    clock.ahead += timedelta(minutes=31)
    sent = await bob.post(link, {"action": "accept"})
    assert (sent.status, "your answer was not taken" in sent.text) == (401, True)
    assert not await is_in(bob)
    again = await bob.log_in("bob", link, groups=[MANAGERS])
    assert (again.url, again.buttons) == (f"{place.home}{link}", ["accept", "decline"]), "it was not answered"


async def test_a_session_is_over_after_eight_hours_of_requests(place: Office, clock: Clock) -> None:
    bob = await place.manager()
    for _ in range(19):
        clock.ahead += timedelta(minutes=25)
        assert await is_in(bob)
    clock.ahead += timedelta(minutes=5)
    assert not await is_in(bob)


async def test_a_logout_ends_the_session_for_whoever_has_the_cookie(place: Office, clock: Clock) -> None:
    bob, thief = await place.manager(), place.browser()
    thief.cookies = dict(bob.cookies)
    assert await is_in(thief)
    clock.ahead += timedelta(minutes=2)
    out = await bob.post("/logout", {})
    assert out.status == 200
    assert "You are logged out here. Your identity provider may still know you." in out.text
    assert bob.cookies == {}
    assert not await is_in(thief)
    assert [record.outcome for record in place.audit if record.event == "login"] == ["ok", "ended"]
    assert (await bob.post("/logout", {})).status == 200, "a second time as well"


async def test_a_login_ends_the_session_before_it(place: Office) -> None:
    bob = await place.manager()
    before = place.browser()
    before.cookies = dict(bob.cookies)
    await bob.get(await bob.callback(await bob.send("GET", "/login"), lambda n: place.provider.id_token("carol", n)))
    assert bob.cookies != before.cookies
    assert not await is_in(before)


async def test_neither_the_store_nor_the_log_nor_the_audit_has_a_cookie_or_a_token(
    tmp_path: Path, provider: ToldProvider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "mcp_workflows")
    provider.userinfo = {"sub": "bob", "groups": [MANAGERS], "phone_number": "+49-30-secret-claim"}
    async with office(tmp_path, provider) as place:
        task = await place.requested()
        bob = place.browser()
        begun = await bob.get(place.link(task))
        secrets = [bob.cookies[LOGIN], *parse_qs(urlsplit(begun.location).query)["state"]]
        tokens: list[str] = []

        def made(nonce: str) -> str:
            tokens.append(provider.id_token("bob", nonce))
            return tokens[-1]

        back = await bob.callback(begun, made)
        secrets += [parse_qs(urlsplit(back).query)["code"][0], "opaque-access-token-5f1e", *tokens, SECRET]
        shown = await bob.get(back)
        secrets += [bob.cookies[SESSION], provider.forms[0]["code_verifier"], "+49-30-secret-claim"]
        await bob.press(shown, "accept")
        refused = await bob.get(f"/login/callback?{urlencode({'state': secrets[1], 'code': secrets[2]})}")
        await bob.post("/logout", {}, headers={"sec-fetch-site": "cross-site"})
        kept = (
            b"".join([(tmp_path / f"tasks.db{end}").read_bytes() for end in ("", "-wal")]) + repr(place.audit).encode()
        )
        log = "".join(record.getMessage() for record in caplog.records) + refused.text
        for secret in secrets:
            assert secret.encode() not in kept
            assert secret not in log
            assert secret not in shown.response.text


# --- replicas


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
def shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store for two."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shared.db"
    server: Postgres = request.getfixturevalue("postgres_server")
    return server.url(new_schema())


async def test_replicas_share_logins_sessions_and_logouts(
    tmp_path: Path, provider: ToldProvider, shared_store: str
) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    shared: Mapping[str, Any] = {"store": shared_store, "home": HOME, "engine": str(tmp_path)}
    async with office(folders[0], provider, **shared) as one, office(folders[1], provider, **shared) as two:
        task = await one.requested()
        assert one.link(task) == two.link(task)
        bob = one.browser()
        begun = await bob.get(one.link(task))
        bob.at = two.at
        shown = await bob.get(await bob.callback(begun, lambda n: provider.id_token("bob", n, groups=[MANAGERS])))
        assert shown.buttons == ["accept", "decline"]
        bob.at = one.at
        assert "It was approved by bob" in (await bob.press(shown, "accept")).text
        bob.at = two.at
        assert "It was approved by bob" in (await bob.get(two.link(task))).text
        assert "You are logged out" in (await bob.post("/logout", {})).text
        assert (await two.peer().until(task))["status"] == "completed"
        bob.at = one.at
        assert not await is_in(bob)
