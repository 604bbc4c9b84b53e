"""Which tokens are good for which server: the truth table of JWTs, their issuers and their keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from mcp_workflows.access.authn.identity import Identity
from mcp_workflows.access.authn.settings import AuthSettings, Owner
from mcp_workflows.access.authn.verifier import Verifier, metadata_urls, verifier
from mcp_workflows.errors import IssuerUnavailable, TokenRefused
from tests.access.authn.test_issuers import BAD as NO_TOKENS
from tests.access.authn.test_issuers import moved
from tests.support.tokens import ISSUER, KeyServer, Signer, by_hand, signer

pytestmark = pytest.mark.anyio

HERE = "https://workflows.example.com/mcp"
GOOD, STRANGER = signer("good"), signer("stranger")
NO_EMAIL = ("email", "email_verified")


@dataclass(frozen=True, slots=True)
class Door:
    """A server that trusts one issuer, and a partner of it for orders only."""

    verifier: Verifier
    server: KeyServer
    path: str

    async def read(self, token: str) -> Identity:
        return await self.verifier.verify(token)


PARTNER = "https://partner.example/realms/orders"
PARTNERS_KEY = signer("partner", "ES256")


def door_of(server: KeyServer, path: str, *signers: Signer, **settings: Any) -> Door:
    url = server.publish(path, *signers)
    partners = {"issuer": PARTNER, "jwks_url": server.publish(f"{path}-partner", PARTNERS_KEY)}
    auth = {
        "issuers": [{"issuer": ISSUER, "jwks_url": url, **settings}, {**partners, "may_grant": ["orders:read"]}],
        "clock_skew": "20s",
    }
    return Door(verifier(AuthSettings.model_validate(auth), HERE), server, path)


@pytest.fixture
def door(key_server: KeyServer, request: pytest.FixtureRequest) -> Door:
    return door_of(key_server, f"tokens-{abs(hash(request.node.nodeid))}", GOOD)


def token(by: Signer = GOOD, **claims: Any) -> str:
    """A good one, but for what is given."""
    header, without = claims.pop("header", None), claims.pop("without", ())
    whole = {"aud": HERE, "sub": "alice", "client_id": "app", **claims}
    return by.token(without=[*NO_EMAIL, *without], header=header, **whole)


async def test_a_good_token_says_who_it_is(door: Door) -> None:
    found = await door.read(token(scope="orders:read orders:write", groups=["finance"], jti="secret-id"))
    assert (found.issuer, found.subject, found.client) == (ISSUER, "alice", "app")
    assert found.scopes == {"orders:read", "orders:write"}
    assert found.claims["groups"] == ["finance"]
    assert "jti" not in found.claims
    assert found.expires is not None


ALSO_GOOD: Mapping[str, Callable[[], str]] = {
    "for others too": lambda: token(aud=["https://other.example", HERE]),
    "expired within the skew": lambda: token(exp=moved(-10)),
    "not quite yet": lambda: token(nbf=moved(10), iat=moved(10)),
    "without iat": lambda: token(without=["iat"]),
    "typ at+jwt": lambda: token(header={"typ": "at+jwt"}),
    "typ application/at+jwt": lambda: token(header={"typ": "application/at+JWT"}),
    "without sub": lambda: token(without=["sub"]),
    "without client": lambda: token(without=["client_id"]),
}


@pytest.mark.parametrize("kind", ALSO_GOOD)
async def test_a_token_may_differ_in_what_does_not_matter(door: Door, kind: str) -> None:
    assert (await door.read(ALSO_GOOD[kind]())).issuer == ISSUER


BAD: Mapping[str, tuple[Callable[[], str], str]] = {
    "empty": (lambda: "", "empty"),
    "opaque": (lambda: "opaque", "it is not known here"),
    "forged": (lambda: STRANGER.token(kid="good", aud=HERE), "signature is wrong"),
    "by another key": (lambda: token(STRANGER), "no such key|a moment ago"),
    "for another": (lambda: token(aud="https://other.example/mcp"), "its audience is"),
    "for the server without path": (lambda: token(aud="https://workflows.example.com"), "its audience is"),
    "for one that begins so": (lambda: token(aud=f"{HERE}/more"), "its audience is"),
    "with a slash": (lambda: token(aud=f"{HERE}/"), "its audience is"),
    "for nobody": (lambda: token(aud=[]), "its audience is"),
    "without audience": (lambda: token(without=["aud"]), "must have iss, aud, exp"),
    "audience a number": (lambda: token(aud=7), "its audience is"),
    "audience an object": (lambda: token(aud={HERE: HERE}), "its audience is"),
    "expired": (lambda: token(exp=moved(-21)), "expired"),
    "without end": (lambda: token(without=["exp"]), "must have"),
    "not yet valid": (lambda: token(nbf=moved(40)), "not valid yet"),
    "issued later": (lambda: token(iat=moved(40)), "not valid yet"),
    "of an unknown issuer": (lambda: token(iss="https://evil.example"), "which is not trusted"),
    "of an issuer with a slash": (lambda: token(iss=f"{ISSUER}/"), "which is not trusted"),
    "without issuer": (lambda: token(without=["iss"]), "it is not known here"),
    "issuer a list": (lambda: by_hand({"alg": "RS256", "kid": "good"}, {"iss": [ISSUER]}, b"x"), "not known here"),
    "the partner's key for ours": (lambda: token(PARTNERS_KEY), "no such key|a moment ago"),
    "our key for the partner's": (lambda: token(iss=PARTNER), "no such key|a moment ago"),
    "alg none": (lambda: by_hand({"alg": "none", "kid": "good"}, {"iss": ISSUER}), "algorithm"),
    "HS256 with the public key": (lambda: by_hand({"alg": "HS256", "kid": "good"}, {"iss": ISSUER}, GOOD.pem), "algo"),
    "said to be ES256": (
        lambda: by_hand({"alg": "ES256", "kid": "good"}, {"iss": ISSUER}, b"x"),
        "not that of its key",
    ),
    "logout token": (lambda: token(header={"typ": "logout+jwt"}), "typ"),
    "secret event": (lambda: token(header={"typ": "secevent+jwt"}), "typ"),
    "typ a number": (lambda: by_hand({"alg": "RS256", "kid": "good", "typ": 7}, {"iss": ISSUER}, b"x"), "not a token"),
    "names nobody": (lambda: token(without=["sub", "client_id"]), "names nobody"),
    "subject a number": (lambda: token(sub=7), "not a token|not a text"),
    "client a list": (lambda: token(client_id=["app"]), "not a text"),
    "a subject without end": (lambda: token(sub="x" * 600), "not a text"),
    "a subject that is no text": (lambda: token(sub="\ud800"), "cannot be shown"),
    "a subject that reads backwards": (lambda: token(sub="bob\u202eecila"), "cannot be shown"),
    "huge": (lambda: token(text="x" * 10_000), "it is not known here|too long"),
    **{f"no token: {kind}": (make, "it") for kind, (make, _) in NO_TOKENS.items()},
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_bad_token_is_refused_and_not_shown(door: Door, kind: str) -> None:
    make, reason = BAD[kind]
    bad = make()
    with pytest.raises((TokenRefused, IssuerUnavailable), match=reason) as refused:
        await door.read(bad)
    assert not any(part in str(refused.value) for part in bad.split(".") if len(part) > 20)


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "EdDSA"])
async def test_each_asymmetric_algorithm_is_taken(key_server: KeyServer, algorithm: str) -> None:
    by = signer(f"by-{algorithm}", algorithm)
    door = door_of(key_server, f"tokens-{algorithm}", by)
    assert (await door.read(token(by))).subject == "alice"


async def test_an_algorithm_that_the_configuration_leaves_out_is_refused(key_server: KeyServer) -> None:
    door = door_of(key_server, "tokens-only", GOOD, algorithms=["PS256"])
    with pytest.raises(TokenRefused, match="not one of PS256"):
        await door.read(token())


async def test_a_token_that_names_no_key_needs_an_issuer_with_one(key_server: KeyServer) -> None:
    unnamed: Mapping[str, Any] = {"header": {"kid": None}}
    door = door_of(key_server, "tokens-one-key", GOOD)
    assert (await door.read(token(**unnamed))).subject == "alice"
    door = door_of(key_server, "tokens-two-keys", GOOD, signer("other"))
    with pytest.raises(TokenRefused, match="not have exactly one"):
        await door.read(token(**unnamed))


@pytest.mark.parametrize(
    ("claims", "settings", "scopes"),
    [
        ({"scope": "a b"}, {}, {"a", "b"}),
        ({"scope": ["a", "b"]}, {}, {"a", "b"}),
        ({"scp": "a b"}, {}, set[str]()),
        ({"scp": ["a"], "roles": ["admin"]}, {"scope_claim": ["scp", "roles"]}, {"a", "admin"}),
        ({"scope": "a", "roles": ["admin", 7, None]}, {"scope_claim": "roles"}, {"admin"}),
        ({"scope": {"a": 1}}, {}, set[str]()),
        ({"scope": "a b"}, {"may_grant": ["b", "c"]}, {"b"}),
        ({"scope": "a"}, {"may_grant": []}, set[str]()),
    ],
)
async def test_scopes_are_read_as_the_issuer_writes_them(
    key_server: KeyServer, claims: Mapping[str, Any], settings: Mapping[str, Any], scopes: set[str]
) -> None:
    door = door_of(key_server, "tokens-scopes", GOOD, **settings)
    assert (await door.read(token(**claims))).scopes == scopes


async def test_a_partner_grants_what_it_may_and_nothing_else(door: Door) -> None:
    found = await door.read(token(PARTNERS_KEY, iss=PARTNER, scope="orders:read admin"))
    assert (found.issuer, found.scopes) == (PARTNER, frozenset({"orders:read"}))


@pytest.mark.parametrize(
    ("claims", "settings", "client"),
    [
        ({"client_id": "one", "azp": "two"}, {}, "one"),
        ({"client_id": "", "azp": "two"}, {}, "two"),
        ({"cid": "three"}, {"client_claim": "cid"}, "three"),
    ],
)
async def test_the_client_is_where_the_issuer_writes_it(
    key_server: KeyServer, claims: Mapping[str, Any], settings: Mapping[str, Any], client: str
) -> None:
    door = door_of(key_server, "tokens-client", GOOD, **settings)
    assert (await door.read(token(**claims))).client == client


async def test_the_audience_can_be_another_but_is_always_looked_at(key_server: KeyServer) -> None:
    door = door_of(key_server, "tokens-audience", GOOD, audience=["api://workflows", "workflows"])
    assert (await door.read(token(aud="workflows"))).subject == "alice"
    for other in (HERE, "api://workflows/", "API://workflows", ""):
        with pytest.raises(TokenRefused, match="its audience is"):
            await door.read(token(aud=other))


def test_whose_a_task_is_can_be_per_client_or_per_person() -> None:
    one, other = (Identity(issuer=ISSUER, subject="alice", client=client) for client in ("app", "cli"))
    assert one.owner(Owner.CLIENT) != other.owner(Owner.CLIENT)
    assert one.owner(Owner.SUBJECT) == other.owner(Owner.SUBJECT)
    nobody = [Identity(issuer=ISSUER, subject=None, client=client) for client in ("app", "cli")]
    assert len({each.owner(Owner.SUBJECT) for each in nobody}) == 2, "without a person it stays the client's"
    elsewhere = Identity(issuer=PARTNER, subject="alice", client="app")
    assert elsewhere.owner(Owner.SUBJECT) != one.owner(Owner.SUBJECT)
    assert elsewhere.owner(Owner.CLIENT) != one.owner(Owner.CLIENT)


@pytest.mark.parametrize(
    ("issuer", "places"),
    [
        ("https://a.example", ["/.well-known/openid-configuration", "/.well-known/oauth-authorization-server"]),
        ("https://a.example/", ["/.well-known/openid-configuration", "/.well-known/oauth-authorization-server"]),
        (
            "https://a.example/realms/x",
            [
                "/realms/x/.well-known/openid-configuration",
                "/.well-known/oauth-authorization-server/realms/x",
                "/.well-known/openid-configuration/realms/x",
            ],
        ),
    ],
)
def test_metadata_is_looked_for_where_it_can_be(issuer: str, places: list[str]) -> None:
    assert metadata_urls(issuer) == [f"https://a.example{place}" for place in places]


@pytest.mark.parametrize("place", range(3))
async def test_keys_are_found_by_the_metadata_of_the_issuer(key_server: KeyServer, place: int) -> None:
    issuer = f"{key_server.address}/realms/found-{place}"
    url = key_server.publish(f"keys-of-found-{place}", GOOD)
    at = metadata_urls(issuer)[place].removeprefix(f"{key_server.address}/")
    key_server.raw[at] = json.dumps({"issuer": issuer, "jwks_uri": url}).encode()
    door = verifier(AuthSettings.model_validate({"issuers": [{"issuer": issuer}]}), HERE)
    assert (await door.verify(token(iss=issuer))).issuer == issuer


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"issuer": "https://evil.example", "jwks_uri": "KEYS"}, "not"),
        ({"issuer": "ISSUER/", "jwks_uri": "KEYS"}, "not"),
        ({"jwks_uri": "KEYS"}, "not"),
        ({"issuer": "ISSUER"}, "jwks_uri"),
        ({"issuer": "ISSUER", "jwks_uri": "http://evil.example/keys"}, "https"),
        ({"issuer": "ISSUER", "jwks_uri": "file:///etc/passwd"}, "https"),
        ([], "not"),
    ],
)
async def test_metadata_that_is_not_the_issuers_own_is_not_believed(
    key_server: KeyServer, metadata: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"wrong-{abs(hash(json.dumps(metadata)))}"
    issuer = f"{key_server.address}/{name}"
    text = json.dumps(metadata).replace("ISSUER", issuer).replace("KEYS", key_server.publish(f"{name}-keys", GOOD))
    key_server.raw[f"{name}/.well-known/openid-configuration"] = text.encode()
    door = verifier(AuthSettings.model_validate({"issuers": [{"issuer": issuer}]}), HERE)
    with pytest.raises(IssuerUnavailable):
        await door.verify(token(iss=issuer))
    assert key_server.fetches[f"{name}-keys"] == 0
    assert reason in caplog.text
