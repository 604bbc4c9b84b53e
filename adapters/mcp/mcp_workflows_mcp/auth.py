"""The credentials for a server over HTTP."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import ValidationError

from mcp_workflows.adapter.redaction import KNOWN
from mcp_workflows.errors import NotLetIn
from mcp_workflows_mcp.settings import ClientCredentials, TokenExchange, UpstreamAuth

_RENEWED_BEFORE: Final = 60.0  # seconds before a token expires
_SHORTEST: Final = 300.0  # lifetime of a token if its server states none, in seconds
_UNAUTHORIZED: Final = 401
_TOKEN_SECONDS: Final = 10.0  # time-out of the authorization server
_MAY_NEED_A_TOKEN: Final = frozenset({_UNAUTHORIZED, 403})
_LATER: Final = frozenset({408, 425, 429})
_SERVER_ERROR: Final = 500
_GRANT: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105  # the name of a type


class Credentials(httpx2.Auth):
    """The authentication of all requests to one server, over all connections.

    Errors are `NotLetIn` (there is no token) or of the transport (the authorization server does not answer). The
    transport of `mcp_workflows.client` makes each the answer to the one request that needed the token.
    """

    @staticmethod
    def _remember(token: str) -> str:
        KNOWN.add(token)
        return token


def credentials_of(auth: UpstreamAuth | None, url: str) -> Credentials | None:
    """Return the authentication of requests to this server, if it has any."""
    if auth is None:
        return None
    if auth.oauth is not None:
        return _OfClient(auth.oauth, url)
    if auth.exchange is not None:
        return _Exchanged(auth.exchange)
    return _Bearer(auth.bearer.get_secret_value() if auth.bearer is not None else auth.bearer_file)


class _Bearer(Credentials):
    """A token, or the file that has the current one."""

    def __init__(self, token: str | Path | None) -> None:
        self._token = token

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        token = self._token
        if isinstance(token, Path):
            token = await _read(token, "auth.bearer_file")
        request.headers["authorization"] = f"Bearer {self._remember(token or '')}"
        yield request


async def _read(path: Path, setting: str) -> str:
    """Return the token in a file.

    Raises:
        NotLetIn: the file has no usable token.
    """
    try:
        token = (await anyio.Path(path).read_text()).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NotLetIn(f"{setting} cannot be read: {type(error).__name__}") from None
    if not token or not token.isascii() or not token.isprintable():
        raise NotLetIn(f"{setting} has no token: one line of ASCII")
    return token


class _NoStorage:
    """No storage: each process fetches its own tokens of client credentials."""

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep nothing: the provider has the tokens."""

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep nothing."""


class _OfClient(Credentials):
    """Client credentials (RFC 6749, section 4.4), by the SDK's provider."""

    def __init__(self, oauth: ClientCredentials, url: str) -> None:
        self._client = ClientCredentialsOAuthProvider(
            server_url=url,
            storage=_NoStorage(),
            client_id=oauth.client_id,
            client_secret=oauth.client_secret.get_secret_value(),
            scope=oauth.scope,
            issuer=oauth.issuer,
        )

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send the request with the current token; if it is not accepted, get one with the provider's flow.

        In the provider's own flow, one request waits for the answer to another for an unlimited time. Here the flow
        only learns of the refusal, and ends when it has a token.
        """
        if self._client.context.is_token_valid():
            self._authorize(request)
        refused = yield request
        if refused.status_code not in _MAY_NEED_A_TOKEN:
            return
        flow = self._client.async_auth_flow(request)
        was_notified = False
        try:
            needed = await anext(flow)
            while needed is not request or not was_notified:
                if needed is request:
                    was_notified, answer = True, refused
                else:
                    needed.extensions.setdefault("timeout", httpx2.Timeout(_TOKEN_SECONDS).as_dict())
                    answer = await _body_of((yield needed))
                needed = await flow.asend(answer)
        except StopAsyncIteration:
            return  # another token would not help
        except OAuthFlowError as error:
            raise NotLetIn(f"auth.oauth: no token can be had ({error})") from None
        finally:
            await flow.aclose()
        self._authorize(request)
        yield request

    def _authorize(self, request: httpx2.Request) -> None:
        tokens = self._client.context.current_tokens
        if tokens is not None:
            request.headers["authorization"] = f"Bearer {self._remember(tokens.access_token)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    text: str
    until: float  # monotonic clock


class _Exchanged(Credentials):
    """A token that is exchanged for the workload's own, again when it expires or is not accepted.

    Source: RFC 8693, section 2.
    """

    def __init__(self, exchange: TokenExchange) -> None:
        self._exchange = exchange
        self._token: _Token | None = None
        self._lock = anyio.Lock()  # one exchange at a time

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        async with self._lock:
            known = self._token
            if known is None or known.until < time.monotonic():
                known = self._token = self._read(await _body_of((yield await self._request())))
        request.headers["authorization"] = f"Bearer {known.text}"
        response = yield request
        if response.status_code != _UNAUTHORIZED:
            return
        async with self._lock:
            if self._token is known:  # no other request has fetched a new one
                self._token = None
                self._token = self._read(await _body_of((yield await self._request())))
            known = self._token
        if known is not None:
            request.headers["authorization"] = f"Bearer {known.text}"
            yield request

    async def _request(self) -> httpx2.Request:
        how = self._exchange
        form = {
            "grant_type": _GRANT,
            "subject_token": self._remember(await _read(how.subject_token_file, "auth.exchange.subject_token_file")),
            "subject_token_type": how.subject_token_type,
            "requested_token_type": _ACCESS_TOKEN,
            "audience": how.audience,
            "resource": how.resource,
            "scope": how.scope,
        }
        secret = how.client_secret
        if how.client_id is not None and secret is None:
            form["client_id"] = how.client_id
        request = httpx2.Request(
            "POST",
            how.token_url,
            data={name: text for name, text in form.items() if text},
            extensions={"timeout": httpx2.Timeout(_TOKEN_SECONDS).as_dict()},
        )
        if how.client_id is not None and secret is not None:
            basic = httpx2.BasicAuth(how.client_id, secret.get_secret_value())
            request = next(basic.auth_flow(request))
        return request

    def _read(self, response: httpx2.Response) -> _Token:
        """Return the token in the answer of the authorization server.

        Raises:
            NotLetIn: the server refuses.
            httpx2.ConnectError: the server cannot answer now; the request that needs the token was not sent.
        """
        status = response.status_code
        if status in _LATER or status >= _SERVER_ERROR:
            raise httpx2.ConnectError(f"auth.exchange: it answered {status}")
        try:
            found = OAuthToken.model_validate_json(response.content)
        except ValidationError:
            raise NotLetIn(f"auth.exchange: it answered {status}, without a token") from None
        seconds = float(found.expires_in or _SHORTEST)
        self._remember(found.access_token)
        return _Token(text=found.access_token, until=time.monotonic() + max(seconds - _RENEWED_BEFORE, seconds / 2))


async def _body_of(response: httpx2.Response) -> httpx2.Response:
    await response.aread()
    return response
