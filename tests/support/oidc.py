"""A real OpenID provider in this process, twice over; and tokens from it as clients get them, by HTTP.

Two were tried. `pytest-iam` was taken: it is Canaille, an identity server that people run, on Authlib, with discovery,
a JWKS, the authorization code grant with PKCE and consent, client credentials, refresh tokens, introspection (RFC 7662)
and revocation (RFC 7009). `oidc-provider-mock` was not: its access tokens are opaque, and nothing can introspect or
revoke them at an endpoint of a standard, so neither what a resource server checks nor a revoked user could be shown.

What differs from Canaille as it comes: access tokens of every grant are JWTs as RFC 9068 has them (Authlib's own
generator: scope and client are claims; Canaille's tokens have neither), and the login page is skipped, as `pytest-iam`
does it. Two providers in one process share users, clients and what they have issued, each with a name and keys of its
own: the same user at the same client, of another issuer. Canaille's wheel brings a top-level package `tests`, before
which ours comes by having an `__init__.py`.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportOptionalCall=false
# Canaille and Authlib have no types.

from __future__ import annotations

import argparse
import os
import secrets
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import pytest
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from canaille import create_app
from canaille.app import models
from canaille.backends import Backend
from canaille.oidc.jose import server_jwks
from canaille.oidc.provider import authorization, get_issuer
from joserfc.jwk import RSAKey
from pytest_iam import Server

from tests.support.child_processes import free_port

AUDIENCE: Final = "https://workflows.example.com/mcp"  # the server of the tests, as tokens name it
SECRET: Final = "open-sesame"  # of every client
INTROSPECTOR: Final = "workflows"  # the server's own client at its provider: a URL has a colon, and Basic ends at one
CLIENTS: Final = ("assistant", "console")
USERS: Final = ("alice", "bob", "carol", "dora")
GROUPS: Final[Mapping[str, Sequence[str]]] = {"release-managers": ("bob", "carol"), "directors": ("dora",)}
PASSWORD: Final = "correct horse"  # of every user, for those who log in at the provider's own page
PAGES: Final = "pages"  # the client of the pages for people
SCOPES: Final = ("openid", "profile", "email", "groups", "tasks", "orders:write", "orders:approve")
REDIRECT: Final = "https://client.example.com/callback"
LIFETIME: Final = 3600  # seconds
_LOGGING: Final = {"version": 1, "disable_existing_loggers": False}  # or nobody in this process logs any more


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    name: str

    def get_user_id(self) -> str:
        """Its `sub`."""
        return self.name


class _Tokens(JWTBearerTokenGenerator):
    """JWT access tokens of whichever provider is asked: one generator serves all in a process."""

    def __init__(self) -> None:
        self.lifetime = LIFETIME
        super().__init__(issuer="", refresh_token_generator=_refresh_token, expires_generator=self._lifetime)

    @property
    def issuer(self) -> str:
        """Who is asked now."""
        return str(get_issuer())

    @issuer.setter
    def issuer(self, _: str) -> None:
        """Told by the request."""

    def get_jwks(self) -> Any:  # Any: see above
        """The keys it signs with."""
        return server_jwks(include_inactive=False)

    def get_audiences(self, client: Any, user: Any, scope: Any) -> list[str]:  # Any: see above
        """The servers this client is for."""
        return [str(audience.client_id) for audience in client.audience if audience.client_id == AUDIENCE]

    def access_token_generator(self, client: Any, grant_type: str, user: Any, scope: str) -> str:  # Any: see above
        """The token; Authlib asks a user for its id by another name than Canaille's."""
        who = None if user is None else _Subject(name=user.user_name)
        return str(super().access_token_generator(client, grant_type, who, scope))

    def _lifetime(self, client: Any, grant_type: str) -> int:  # Any: see above
        return self.lifetime


def _refresh_token(**_: Any) -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """What the token endpoint gave."""

    access: str
    refresh: str | None
    client: str


@dataclass(slots=True, kw_only=True)
class Provider:
    """One issuer, served; every token comes from its endpoints."""

    issuer: str
    tokens: _Tokens
    server: Server
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])

    async def discover(self) -> Mapping[str, str]:
        """What it says about itself at `/.well-known/openid-configuration`."""
        if not self.metadata:
            async with httpx2.AsyncClient() as http:
                found = await http.get(f"{self.issuer}/.well-known/openid-configuration")
            self.metadata = found.raise_for_status().json()
        return self.metadata

    async def log_in(
        self, user: str, client: str = CLIENTS[0], *, scopes: str = "openid tasks", lifetime: int = LIFETIME
    ) -> Granted:
        """The user logs in at that client and consents: authorization code with PKCE. `lifetime` in seconds."""
        verifier = secrets.token_urlsafe(48)
        asked = {
            "response_type": "code",
            "client_id": client,
            "redirect_uri": REDIRECT,
            "scope": scopes,
            "state": "x",
            "nonce": secrets.token_urlsafe(8),
            "code_challenge": create_s256_code_challenge(verifier),
            "code_challenge_method": "S256",
        }
        endpoint = (await self.discover())["authorization_endpoint"]
        with self.logged_in(user):
            async with httpx2.AsyncClient() as http:
                answer = await http.post(endpoint, params=asked, data={"answer": "accept"})
        assert answer.status_code == 302, answer.text
        code = parse_qs(urlsplit(answer.headers["location"]).query)["code"][0]
        grant = {"grant_type": "authorization_code", "code": code, "redirect_uri": REDIRECT, "code_verifier": verifier}
        return await self._token(client, grant, lifetime)

    def add_pages(self, web_url: str) -> None:
        """Register the pages of a server as a client that users need not consent to."""
        with self.server.app.app_context():
            store: Any = Backend.instance  # Any: see above
            redirects = [f"{web_url}/login/callback"]
            known = store.get(models.Client, client_id=PAGES)
            if known is not None:
                store.update(known, redirect_uris=[*known.redirect_uris, *redirects])
                store.save(known)
                return
            client = models.Client(
                client_id=PAGES,
                client_name=PAGES,
                client_secret=SECRET,
                client_uri="http://pages.localhost",  # a domain that Canaille trusts
                redirect_uris=redirects,
                grant_types=["authorization_code"],
                response_types=["code"],
                scope=list(SCOPES),
                token_endpoint_auth_method="client_secret_basic",
                id_token_signed_response_alg="RS256",
            )
            store.save(client)
            store.update(client, audience=[client])
            store.save(client)

    async def for_itself(self, client: str = CLIENTS[0], *, scopes: str = "tasks") -> Granted:
        """The client, on nobody's behalf: client credentials."""
        return await self._token(client, {"grant_type": "client_credentials", "scope": scopes}, LIFETIME)

    async def refresh(self, granted: Granted) -> Granted:
        """A new token for an old one; the old one is revoked by that."""
        assert granted.refresh is not None
        return await self._token(
            granted.client, {"grant_type": "refresh_token", "refresh_token": granted.refresh}, LIFETIME
        )

    async def revoke(self, granted: Granted) -> None:
        """The client gives its token back."""
        endpoint = (await self.discover())["revocation_endpoint"]
        async with httpx2.AsyncClient() as http:
            answer = await http.post(endpoint, data={"token": granted.access}, auth=(granted.client, SECRET))
        answer.raise_for_status()

    async def _token(self, client: str, grant: Mapping[str, str], lifetime: int) -> Granted:
        endpoint, self.tokens.lifetime = (await self.discover())["token_endpoint"], lifetime
        try:
            async with httpx2.AsyncClient() as http:
                answer = await http.post(endpoint, data=dict(grant), auth=(client, SECRET))
        finally:
            self.tokens.lifetime = LIFETIME
        assert answer.is_success, answer.text
        found = answer.json()
        return Granted(access=found["access_token"], refresh=found.get("refresh_token"), client=client)

    @contextmanager
    def logged_in(self, user: str) -> Generator[None]:
        """Whoever comes to the provider is this user: its own page for that is skipped."""
        with self.server.app.app_context():
            self.server.login(Backend.instance.get(models.User, user_name=user))
        try:
            yield
        finally:
            self.server.logout()


@dataclass(frozen=True, slots=True, kw_only=True)
class Providers:
    """Two issuers."""

    first: Provider
    second: Provider


@pytest.fixture(scope="session")
def providers() -> Generator[Providers]:
    """Both, up for as long as the tests run."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")  # loopback alone
        servers = [_server() for _ in range(2)]
        tokens = _Tokens()
        authorization.register_token_generator("default", tokens)
        with servers[0].app.app_context():
            _people_and_clients()
        for server in servers:
            stack.enter_context(_serving(server))
        first, second = (Provider(issuer=server.url.rstrip("/"), tokens=tokens, server=server) for server in servers)
        yield Providers(first=first, second=second)


def _server(port: int | None = None) -> Server:
    port, key = port or free_port(), RSAKey.generate_key(2048)
    key.ensure_kid()
    config = {
        "TESTING": True,
        "ENV_FILE": None,
        "SECRET_KEY": secrets.token_urlsafe(16),
        "WTF_CSRF_ENABLED": False,
        "PREFERRED_URL_SCHEME": "http",
        "SERVER_NAME": f"localhost:{port}",
        "CANAILLE": {"DATABASE": "memory", "JAVASCRIPT": False, "LOGGING": _LOGGING},
        "CANAILLE_OIDC": {"ACTIVE_JWKS": [key.as_dict(private=True)]},
    }
    app: Any = create_app(config=config)  # Any: see above
    return Server(app, port, Backend.instance)


def _people_and_clients() -> None:
    store: Any = Backend.instance  # Any: see above
    for user in USERS:
        store.save(
            models.User(
                user_name=user,
                formatted_name=user.title(),
                family_name=user,
                emails=[f"{user}@x.org"],
                password=PASSWORD,
            )
        )
    for group, members in GROUPS.items():
        found = [store.get(models.User, user_name=member) for member in members]
        store.save(models.Group(display_name=group, members=found))
    resources = [
        models.Client(client_id=name, client_name=name, client_secret=SECRET) for name in (AUDIENCE, INTROSPECTOR)
    ]
    for resource in resources:
        store.save(resource)
    for client in CLIENTS:
        store.save(
            models.Client(
                client_id=client,
                client_name=client,
                client_secret=SECRET,
                redirect_uris=[REDIRECT],
                grant_types=["authorization_code", "refresh_token", "client_credentials"],
                response_types=["code"],
                scope=list(SCOPES),
                token_endpoint_auth_method="client_secret_basic",
                audience=resources,
            )
        )


@contextmanager
def _serving(server: Server) -> Generator[None]:
    thread = threading.Thread(target=server.httpd.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.httpd.shutdown()
        server.httpd.server_close()
        thread.join()


async def serve(port: int, web_url: str, folder: Path) -> None:
    """Serve one provider for the pages of a server until cancelled, with a token of alice in a file of the folder."""
    server, tokens = _server(port), _Tokens()
    authorization.register_token_generator("default", tokens)
    with server.app.app_context():
        _people_and_clients()
    provider = Provider(issuer=server.url.rstrip("/"), tokens=tokens, server=server)
    provider.add_pages(web_url)
    with _serving(server):
        granted = await provider.log_in("alice", lifetime=24 * LIFETIME)
        (folder / "alice.token").write_text(granted.access)
        await anyio.sleep_forever()


def main() -> None:
    """Serve it for `make up`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("web_url")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"  # loopback alone
    anyio.run(serve, given.port, given.web_url, given.folder)


if __name__ == "__main__":
    main()
