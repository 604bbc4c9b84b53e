"""The credentials for the API: headers of each request, from a secret, a file or a token endpoint."""

from __future__ import annotations

import base64
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

import anyio
import anyio.to_thread
import httpx2
import jwt

from mcp_workflows.adapter.redaction import KNOWN, STARS
from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows.kit.expressions import as_object
from mcp_workflows_http.errors import cause_of
from mcp_workflows_http.settings import Auth, Basic, ClientCredentials, GitHubApp

_RENEWED_BEFORE: Final = 60.0  # seconds before a token expires
_SHORTEST: Final = 300.0  # lifetime of a token if its server states none, in seconds
_CLOCKS_DIFFER: Final = 60  # seconds
_PROOF_LASTS: Final = 540  # seconds; GitHub accepts at most 600


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    text: str
    until: float  # monotonic clock

    @classmethod
    def lasting(cls, text: str, seconds: float) -> _Token:
        """Return a token that is renewed shortly before it expires."""
        return cls(text=text, until=time.monotonic() + max(seconds - _RENEWED_BEFORE, seconds / 2))


class Credentials:
    """The headers with our credentials."""

    def __init__(self, auth: Auth | None, url: str) -> None:
        """`url` is the API's."""
        self._auth = auth
        self._url = url
        self._token: _Token | None = None
        self._renewing = anyio.Lock()

    @property
    def renewable(self) -> bool:
        """True if a rejected token can be renewed."""
        auth = self._auth
        return auth is not None and any(
            (auth.oauth, auth.github_app, auth.login, auth.bearer_file, auth.google, auth.azure)
        )

    @property
    def shown(self) -> Mapping[str, str]:
        """The headers in the form that people may see."""
        auth = self._auth
        if auth is None:
            return {}
        if auth.header is not None:
            return {auth.header.name: STARS}
        return {"authorization": f"{'Bearer' if auth.basic is None else 'Basic'} {STARS}"}

    async def headers(self, client: httpx2.AsyncClient, *, renewed: bool = False) -> Mapping[str, str]:
        """Return the headers; `renewed`: the last ones were not accepted.

        Raises:
            EngineRefused: there are no usable credentials.
            EngineUnavailable: the token endpoint does not answer; nothing was sent to the API.
        """
        auth = self._auth
        if auth is None:
            return {}
        if auth.header is not None:
            return {auth.header.name: auth.header.value.get_secret_value()}
        if auth.basic is not None:
            return {"authorization": f"Basic {self._known(_basic(auth.basic))}"}
        return {"authorization": f"Bearer {self._known(await self._bearer(auth, client, renewed=renewed))}"}

    @staticmethod
    def _known(token: str) -> str:
        KNOWN.add(token)
        return token

    async def _bearer(self, auth: Auth, client: httpx2.AsyncClient, *, renewed: bool) -> str:
        if auth.bearer is not None:
            return auth.bearer.get_secret_value()
        if auth.bearer_file is not None:
            try:
                return (await anyio.Path(auth.bearer_file).read_text()).strip()
            except (OSError, UnicodeDecodeError) as error:
                raise EngineRefused(f"auth.bearer_file cannot be read: {type(error).__name__}") from None
        async with self._renewing:
            if renewed or self._token is None or self._token.until < time.monotonic():
                self._token = await self._new_token(auth, client)
            return self._token.text

    async def _new_token(self, auth: Auth, client: httpx2.AsyncClient) -> _Token:
        if auth.oauth is not None:
            return await _asked("oauth", client.post, **_of_client(auth.oauth))
        if auth.github_app is not None:
            return await _asked("github_app", client.post, **_of_app(auth.github_app, self._url))
        if auth.google is not None:
            return await _of_cloud("google", auth.google.scope)
        if auth.azure is not None:
            return await _of_cloud("azure", auth.azure.scope)
        assert auth.login is not None
        given = {"username": auth.login.user, "password": auth.login.password.get_secret_value()}
        return await _asked("login", client.post, url=f"{self._url}{auth.login.path}", json=given)


def _basic(basic: Basic) -> str:
    return base64.b64encode(f"{basic.user}:{basic.password.get_secret_value()}".encode()).decode()


def _of_client(oauth: ClientCredentials) -> Mapping[str, Any]:
    form = {"grant_type": "client_credentials", "scope": oauth.scope, "audience": oauth.audience}
    pair = (oauth.client_id, oauth.client_secret.get_secret_value())
    return {"url": oauth.token_url, "data": {name: text for name, text in form.items() if text}, "auth": pair}


def _of_app(app: GitHubApp, url: str) -> Mapping[str, Any]:
    """Return the request for a token of an installation, signed with the App's key."""
    now = int(time.time())
    claims = {"iss": app.app_id, "iat": now - _CLOCKS_DIFFER, "exp": now + _PROOF_LASTS}
    try:
        proof = jwt.encode(claims, app.private_key.get_secret_value(), algorithm="RS256")
    except (ValueError, TypeError, jwt.PyJWTError):
        raise EngineRefused("auth.github_app.private_key is no private key in PEM") from None
    headers = {"authorization": f"Bearer {proof}", "accept": "application/vnd.github+json"}
    return {"url": f"{url}/app/installations/{app.installation_id}/access_tokens", "headers": headers}


async def _asked(what: str, post: Callable[..., Awaitable[httpx2.Response]], **request: Any) -> _Token:
    """Request a token, and read it.

    Raises:
        EngineRefused: the reply has no token.
        EngineUnavailable: no answer; nothing was sent to the API.
    """
    try:
        response = await post(**request)
        found = as_object(response.json()) or {} if response.is_success else {}
    except (httpx2.RequestError, httpx2.InvalidURL, ValueError, RecursionError) as error:
        why = cause_of(error, "auth.oauth.token_url" if what == "oauth" else "url")
        raise EngineUnavailable(f"auth.{what}: no token can be had{why}", sent=False) from None
    text = found.get("access_token", found.get("token"))
    if not isinstance(text, str):
        raise EngineRefused(f"auth.{what}: it answered {response.status_code}, without a token")
    lasts: Any = found.get("expires_in")
    seconds = float(lasts) if isinstance(lasts, (int, float)) else _SHORTEST
    return _Token.lasting(text, seconds)


async def _of_cloud(cloud: str, scope: str) -> _Token:
    """Return a token from a cloud's own library, which knows all sources of an identity.

    Raises:
        EngineUnavailable: there is no token now; nothing was sent to the API.
    """

    def token() -> tuple[str, float]:
        read, module, name = _CLOUDS[cloud]
        failure: type[Exception] = getattr(import_module(module), name)
        try:
            return read(scope)
        except (failure, OSError, ValueError) as error:  # their texts may contain what people must not see
            kind = type(error).__name__
            raise EngineUnavailable(f"auth.{cloud}: no token can be had ({kind})", sent=False) from None

    text, ends = await anyio.to_thread.run_sync(token, abandon_on_cancel=True)
    return _Token.lasting(text, ends - time.time())


@lru_cache(maxsize=1)
def _azure_credential() -> Any:  # Any: only the extra `azure` has the library
    return import_module("azure.identity").DefaultAzureCredential()


def _azure_token(scope: str) -> tuple[str, float]:
    """Return a token of Azure's default credentials, and its expiry in seconds since 1970; this blocks."""
    found = _azure_credential().get_token(scope)
    return found.token, float(found.expires_on)


def _google_token(scope: str) -> tuple[str, float]:
    """Return a token of Google's default credentials, and its expiry in seconds since 1970; this blocks."""
    credentials = import_module("google.auth").default(scopes=[scope])[0]
    credentials.refresh(import_module("google.auth.transport.requests").Request())
    return credentials.token, credentials.expiry.replace(tzinfo=UTC).timestamp()


_CLOUDS: Final[Mapping[str, tuple[Callable[[str], tuple[str, float]], str, str]]] = {
    "azure": (_azure_token, "azure.core.exceptions", "AzureError"),
    "google": (_google_token, "google.auth.exceptions", "GoogleAuthError"),
}
"""By cloud: the function that reads a token, and the module and the class of its library's errors."""
