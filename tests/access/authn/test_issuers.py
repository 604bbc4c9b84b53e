"""Tokens: which are good, which are not, and where the keys to tell come from."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from mcp_workflows.access.authn.fetch import MOST_BYTES
from mcp_workflows.access.authn.issuers import ALGORITHMS, FETCH_WITHIN, FRESH, KEPT, PAUSE, Issuer, KeySet, account_of
from mcp_workflows.errors import KeysUnavailable, TokenRefused
from tests.support.tokens import ACCOUNT, AUDIENCE, CLAIMS, ISSUER, KeyServer, Signer, by_hand, signer
from tests.support.waiting import TIMEOUT

pytestmark = pytest.mark.anyio

GOOD, STRANGER = signer("good"), signer("stranger")


@dataclass(slots=True)
class Clock:
    """Goes on when it is told to."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """An issuer that publishes one key."""

    path: str
    server: KeyServer
    clock: Clock
    keys: KeySet
    issuer: Issuer

    @property
    def fetches(self) -> int:
        return self.server.fetches[self.path]

    async def read(self, token: str) -> Mapping[str, Any]:
        return await self.issuer.claims(token, AUDIENCE)


@pytest.fixture
def bench(key_server: KeyServer, request: pytest.FixtureRequest) -> Bench:
    path, clock = f"access-{abs(hash(request.node.nodeid))}", Clock()
    keys = KeySet(key_server.publish(path, GOOD), ALGORITHMS, clock=clock)
    return Bench(path=path, server=key_server, clock=clock, keys=keys, issuer=Issuer(ISSUER, keys))


async def test_a_good_token_says_who_calls(bench: Bench) -> None:
    claims = await bench.read(GOOD.token(aud=[AUDIENCE]))
    assert account_of(claims) == account_of(await bench.read(GOOD.token())) == ACCOUNT


def moved(seconds: float) -> float:
    return time.time() + seconds


BAD: Mapping[str, tuple[Callable[[], str], str]] = {
    "forged": (lambda: STRANGER.token(kid=GOOD.name), "signature is wrong"),
    "cut off": (lambda: GOOD.token().rpartition(".")[0] + ".", "signature is wrong"),
    "claims exchanged": (lambda: _exchanged(GOOD.token(), GOOD.token(sub="2")), "signature is wrong"),
    "alg none": (lambda: by_hand({"alg": "none", "kid": GOOD.name}, _claims()), "algorithm"),
    "alg None": (lambda: by_hand({"alg": "None", "kid": GOOD.name}, _claims()), "algorithm"),
    "no alg": (lambda: by_hand({"kid": GOOD.name}, _claims()), "algorithm"),
    "alg a list": (lambda: by_hand({"alg": ["RS256"], "kid": GOOD.name}, _claims()), "not a token|algorithm"),
    "HS256 with the public key": (lambda: by_hand({"alg": "HS256", "kid": "good"}, _claims(), GOOD.pem), "algorithm"),
    "said to be ES256": (lambda: by_hand({"alg": "ES256", "kid": GOOD.name}, _claims(), b"x"), "not that of its key|"),
    "critical": (lambda: by_hand({"alg": "RS256", "kid": "good", "crit": ["x"]}, _claims(), b"x"), "not a token"),
    "no kid": (lambda: by_hand({"alg": "RS256"}, _claims()), "names no key"),
    "kid a number": (lambda: by_hand({"alg": "RS256", "kid": 7}, _claims()), "not a token|names no key"),
    "expired": (lambda: GOOD.token(exp=moved(-31)), "expired"),
    "not yet valid": (lambda: GOOD.token(nbf=moved(60)), "not valid yet"),
    "issued later": (lambda: GOOD.token(iat=moved(60)), "not valid yet"),
    "for another": (lambda: GOOD.token(aud="https://other.example"), "audience is 'https://other.example'"),
    "for two": (lambda: GOOD.token(aud=[AUDIENCE, "https://other.example"]), "audience is"),
    "for none": (lambda: GOOD.token(aud=[]), "audience is"),
    "for a longer one": (lambda: GOOD.token(aud=AUDIENCE + "/"), "audience is"),
    "from another": (lambda: GOOD.token(iss="https://issuer.example/"), "issuer is"),
    "exp a text": (lambda: GOOD.token(exp="soon"), "not a token"),
    "exp null": (lambda: GOOD.token(exp=None), "it must have|not a token"),
    "exp a list": (lambda: GOOD.token(exp=[]), "not a token"),
    "exp without end": (lambda: GOOD.token(exp=float("inf")), "not a token"),
    **{f"no {name}": (lambda name=name: GOOD.token(without=[name]), "it must have") for name in ("iss", "aud")},
    **{f"no {name}": (lambda name=name: GOOD.token(without=[name]), "it must have") for name in ("exp", "iat")},
    "empty": (lambda: "", "not a token"),
    "garbage": (lambda: "a.b.c", "not a token"),
    "binary": (lambda: "\xff\x00\ud800", "not a token"),
    "two parts": (lambda: GOOD.token().rpartition(".")[0], "not a token"),
    "four parts": (lambda: GOOD.token() + ".x", "not a token"),
    "nested": (lambda: by_hand({"alg": "RS256", "kid": "good"}, {"a": "["}).replace(".", ".W1tb" * 500), "not a token"),
    "huge": (lambda: GOOD.token(text="x" * 10_000), "too long"),
}


def _claims() -> Mapping[str, Any]:
    return {**CLAIMS, "iat": moved(-60), "exp": moved(60)}


def _exchanged(one: str, other: str) -> str:
    head, _, signature = one.split(".")
    return ".".join((head, other.split(".")[1], signature))


@pytest.mark.parametrize("kind", BAD)
async def test_a_bad_token_is_refused_and_not_shown(bench: Bench, kind: str) -> None:
    make, reason = BAD[kind]
    token = make()
    with pytest.raises(TokenRefused, match=reason) as refused:
        await bench.read(token)
    assert not any(part in str(refused.value) for part in token.split(".") if len(part) > 3)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({}, "no email"),
        ({"email": ""}, "no email"),
        ({"email": [ACCOUNT], "email_verified": True}, "no email"),
        ({"email": ACCOUNT}, "not verified"),
        ({"email": ACCOUNT, "email_verified": False}, "not verified"),
        ({"email": ACCOUNT, "email_verified": "true"}, "not verified"),
    ],
)
def test_a_token_without_a_verified_email_names_no_account(claims: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(TokenRefused, match=reason):
        account_of(claims)


async def test_a_new_key_is_found_and_one_taken_back_is_refused_soon(bench: Bench) -> None:
    await bench.read(GOOD.token())
    new = signer("new")
    bench.server.publish(bench.path, new)
    bench.clock.now += PAUSE
    await bench.read(new.token())
    bench.clock.now += 1
    with pytest.raises(KeysUnavailable, match="a moment ago"):  # it may be newer than what was fetched
        await bench.read(GOOD.token())
    bench.clock.now += PAUSE
    with pytest.raises(TokenRefused, match="no such key"):
        await bench.read(GOOD.token())


async def test_forged_tokens_make_us_fetch_once_in_a_while(bench: Bench) -> None:
    for number in range(50):
        with pytest.raises((TokenRefused, KeysUnavailable)):
            await bench.read(STRANGER.token(kid=f"made-up-{number}"))
        await bench.read(GOOD.token())
    assert bench.fetches == 1


async def test_what_can_be_no_token_fetches_nothing(bench: Bench) -> None:
    for kind in ("alg none", "HS256 with the public key", "no kid", "garbage", "huge"):
        with pytest.raises(TokenRefused):
            await bench.read(BAD[kind][0]())
    assert bench.fetches == 0


async def test_all_who_wait_for_the_keys_share_one_fetch(bench: Bench) -> None:
    token = GOOD.token()
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(bench.read, token)
    assert bench.fetches == 1


async def test_known_keys_go_on_working_while_they_cannot_be_fetched(bench: Bench) -> None:
    await bench.read(GOOD.token())
    del bench.server.keys[bench.path]
    bench.clock.now += FRESH
    assert await bench.read(GOOD.token())
    assert await bench.read(GOOD.token())
    assert bench.fetches == 2
    with pytest.raises(KeysUnavailable, match="cannot be fetched"):
        await bench.read(STRANGER.token())
    bench.clock.now += KEPT - FRESH - PAUSE
    assert await bench.read(GOOD.token())
    bench.clock.now += PAUSE
    with pytest.raises(KeysUnavailable, match="cannot be fetched"):
        await bench.read(GOOD.token())
    bench.server.publish(bench.path, GOOD)
    bench.clock.now += PAUSE
    assert await bench.read(GOOD.token())


@pytest.mark.parametrize(
    "body", [b"", b"no JSON", b"\xff\xfe\xff", b"[]", b"{}", b'{"keys": []}', b'{"keys": [{"kty": "oct", "k": "YQ"}]}']
)
async def test_what_is_no_list_of_keys_is_as_none(bench: Bench, body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    bench.server.raw[bench.path] = body
    with pytest.raises((KeysUnavailable, TokenRefused)):
        await bench.read(GOOD.token())
    assert isinstance(bench.keys, KeySet)
    assert all(record.name == "mcp_workflows.access.authn.issuers" for record in caplog.records)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/keys", "file:///etc/passwd", "nonsense", ""])
async def test_a_server_of_keys_that_is_not_there_is_told_in_the_log(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeysUnavailable):
        await Issuer(ISSUER, KeySet(url, ALGORITHMS)).claims(GOOD.token(), AUDIENCE)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"the keys at {url} cannot be fetched: ")


async def test_a_server_of_keys_that_hangs_holds_up_nobody_who_needs_it_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.read(GOOD.token())
    monkeypatch.setattr("mcp_workflows.access.authn.issuers.FETCH_WITHIN", FETCH_WITHIN / 20)
    hangs = bench.server.hanging[bench.path] = threading.Event()
    bench.clock.now += FRESH
    refused: list[KeysUnavailable] = []

    async def unknown(who: Signer) -> None:
        try:
            await bench.read(who.token())
        except KeysUnavailable as error:
            refused.append(error)

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(unknown, STRANGER)
            with anyio.fail_after(TIMEOUT):
                while bench.fetches < 2:
                    await anyio.sleep(0.005)
            assert await bench.read(GOOD.token())
            assert refused == [], "it was not waited for"
    finally:
        hangs.set()
    assert len(refused) == 1
    assert bench.fetches == 2


async def test_keys_that_never_end_are_not_read(bench: Bench) -> None:
    bench.server.raw[bench.path] = b'{"keys": [' + b" " * MOST_BYTES
    with pytest.raises(KeysUnavailable):
        await bench.read(GOOD.token())
