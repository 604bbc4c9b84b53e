"""The OpenID provider of the tests is one: what it issues, introspects and revokes, by its own endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2
import jwt
import pytest

from tests.support.oidc import AUDIENCE, CLIENTS, INTROSPECTOR, SECRET, Granted, Provider, Providers

pytestmark = pytest.mark.anyio


async def introspected(provider: Provider, token: str) -> Mapping[str, Any]:
    """What it says about a token to the server that the token is for."""
    endpoint = (await provider.discover())["introspection_endpoint"]
    async with httpx2.AsyncClient() as http:
        return (await http.post(endpoint, data={"token": token}, auth=(INTROSPECTOR, SECRET))).raise_for_status().json()


async def keys_of(provider: Provider) -> jwt.PyJWKSet:
    async with httpx2.AsyncClient() as http:
        return jwt.PyJWKSet.from_json((await http.get((await provider.discover())["jwks_uri"])).text)


async def claims(provider: Provider, granted: Granted) -> Mapping[str, Any]:
    """Its claims, by the keys that the provider publishes."""
    [key] = (await keys_of(provider)).keys
    return jwt.decode(granted.access, key, algorithms=["RS256"], audience=AUDIENCE)


async def test_a_user_who_logs_in_gets_a_jwt_that_the_published_keys_verify(providers: Providers) -> None:
    granted = await providers.first.log_in("alice", scopes="openid tasks orders:write")
    found = await claims(providers.first, granted)
    assert found["iss"] == providers.first.issuer
    assert (found["sub"], found["client_id"]) == ("alice", CLIENTS[0])
    assert set(found["scope"].split()) == {"openid", "tasks", "orders:write"}
    assert found["exp"] - found["iat"] == 3600
    header = jwt.get_unverified_header(granted.access)
    assert (header["typ"], header["kid"]) == ("at+jwt", (await keys_of(providers.first)).keys[0].key_id)


async def test_a_client_gets_one_for_itself(providers: Providers) -> None:
    found = await claims(providers.first, await providers.first.for_itself(CLIENTS[1]))
    assert (found["sub"], found["client_id"]) == (CLIENTS[1], CLIENTS[1])


async def test_a_token_is_refreshed_and_introspected_and_revoked(providers: Providers) -> None:
    provider = providers.first
    old = await provider.log_in("bob")
    assert (await introspected(provider, old.access))["active"] is True
    new = await provider.refresh(old)
    seen = await introspected(provider, new.access)
    assert (seen["active"], seen["sub"], seen["client_id"], seen["iss"]) == (True, "bob", CLIENTS[0], provider.issuer)
    await provider.revoke(new)
    assert await introspected(provider, new.access) == {"active": False}


async def test_an_expired_token_is_not_active(providers: Providers) -> None:
    granted = await providers.first.log_in("bob", lifetime=-60)
    assert (await introspected(providers.first, granted.access))["active"] is False


async def test_the_other_provider_signs_with_keys_of_its_own(providers: Providers) -> None:
    granted = await providers.second.log_in("alice")
    assert (await claims(providers.second, granted))["iss"] == providers.second.issuer != providers.first.issuer
    [key] = (await keys_of(providers.first)).keys
    with pytest.raises(jwt.InvalidSignatureError):
        jwt.decode(granted.access, key, algorithms=["RS256"], audience=AUDIENCE)
