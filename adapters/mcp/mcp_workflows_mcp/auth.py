"""The credentials for a server over HTTP, and texts without them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import httpx2
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import ValidationError

from mcp_workflows.errors import EngineRefused
from mcp_workflows_mcp.settings import ClientCredentials, TokenExchange, UpstreamAuth

_RENEWED_BEFORE: Final = 60.0  # seconds before its end
_SHORTEST: Final = 300.0  # seconds that a token lasts whose server does not say how long
_SHORTEST_SECRET: Final = 6  # characters: a shorter one is a part of many texts
_STARS: Final = "***"
_UNAUTHORIZED: Final = 401
_GRANT: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105  # the name of a type


def auth_of(auth: UpstreamAuth | None, url: str) -> httpx2.Auth | None:
    """Return the authentication of requests to this server; None: there is none."""
    if auth is None:
        return None
    if auth.oauth is not None:
        return _of_client(auth.oauth, url)
    if auth.exchange is not None:
        return _Exchanged(auth.exchange)
    return _Bearer(auth.bearer.get_secret_value() if auth.bearer is not None else auth.bearer_file)


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return a text with stars in place of secrets."""
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, _STARS)
    return text


class _Bearer(httpx2.Auth):
    """A token, or the file that has it now."""

    def __init__(self, token: str | Path | None) -> None:
        self._token = token

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        token = self._token
        if isinstance(token, Path):
            token = await _read(token, "auth.bearer_file")
        request.headers["authorization"] = f"Bearer {token}"
        yield request


async def _read(path: Path, setting: str) -> str:
    try:
        return (await anyio.Path(path).read_text()).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise EngineRefused(f"{setting} cannot be read: {type(error).__name__}") from None


class _NoStorage:
    """Tokens of client credentials are had anew by each process."""

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep nothing: the provider has them."""

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep nothing."""


def _of_client(oauth: ClientCredentials, url: str) -> httpx2.Auth:
    return ClientCredentialsOAuthProvider(
        server_url=url,
        storage=_NoStorage(),
        client_id=oauth.client_id,
        client_secret=oauth.client_secret.get_secret_value(),
        scope=oauth.scope,
        issuer=oauth.issuer,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    text: str
    until: float  # of the monotonic clock


class _Exchanged(httpx2.Auth):
    """A token that is exchanged for the workload's own; had again when it ends, or is not accepted.

    Source: RFC 8693, section 2.
    """

    requires_response_body = True

    def __init__(self, exchange: TokenExchange) -> None:
        self._exchange = exchange
        self._token: _Token | None = None

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        known = self._token
        if known is None or known.until < time.monotonic():
            known = self._token = self._read(await _body_of((yield await self._request())))
        request.headers["authorization"] = f"Bearer {known.text}"
        response = yield request
        if response.status_code != _UNAUTHORIZED:
            return
        self._token = self._read(await _body_of((yield await self._request())))
        request.headers["authorization"] = f"Bearer {self._token.text}"
        yield request

    async def _request(self) -> httpx2.Request:
        how = self._exchange
        form = {
            "grant_type": _GRANT,
            "subject_token": await _read(how.subject_token_file, "auth.exchange.subject_token_file"),
            "subject_token_type": how.subject_token_type,
            "requested_token_type": _ACCESS_TOKEN,
            "audience": how.audience,
            "resource": how.resource,
            "scope": how.scope,
        }
        secret = how.client_secret
        if how.client_id is not None and secret is None:
            form["client_id"] = how.client_id
        request = httpx2.Request("POST", how.token_url, data={name: text for name, text in form.items() if text})
        if how.client_id is not None and secret is not None:
            basic = httpx2.BasicAuth(how.client_id, secret.get_secret_value())
            request = next(basic.auth_flow(request))
        return request

    def _read(self, response: httpx2.Response) -> _Token:
        try:
            found = OAuthToken.model_validate_json(response.content)
        except ValidationError:
            raise EngineRefused(f"auth.exchange: it answered {response.status_code}, without a token") from None
        seconds = float(found.expires_in or _SHORTEST)
        return _Token(text=found.access_token, until=time.monotonic() + max(seconds - _RENEWED_BEFORE, seconds / 2))


async def _body_of(response: httpx2.Response) -> httpx2.Response:
    await response.aread()
    return response
