"""The credentials of the API: headers for each request, from a secret, a file or a token endpoint."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio
import httpx2
from pydantic import SecretStr

from mcp_workflows.errors import EngineRefused, EngineUnavailable
from mcp_workflows_http.settings import Auth, Basic, ClientCredentials

_RENEWED_BEFORE: Final = 60.0  # seconds before its end
_SHORTEST: Final = 300.0  # seconds that a token lasts whose server does not say how long
_OK: Final = 200
_STARS: Final = "***"
_CREDENTIAL: Final = re.compile(
    r"""((?:bearer|basic)\s+|(?:passw(?:or)?d|secret|token|api[_-]?key)["']?\s*[:=]\s*["']?)[^\s"',;]{6,}""",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    text: str
    until: float  # of the monotonic clock


class Credentials:
    """The headers that say who we are."""

    def __init__(self, auth: Auth | None) -> None:
        self._auth = auth
        self._token: _Token | None = None
        self._renewing = anyio.Lock()

    @property
    def renewable(self) -> bool:
        """True if a token that is not accepted can be had again."""
        return self._auth is not None and (self._auth.oauth is not None or self._auth.bearer_file is not None)

    @property
    def shown(self) -> Mapping[str, str]:
        """The headers as people may see them."""
        auth = self._auth
        if auth is None:
            return {}
        if auth.header is not None:
            return {auth.header.name: _STARS}
        return {"authorization": f"{'Bearer' if auth.basic is None else 'Basic'} {_STARS}"}

    def masked(self, text: str) -> str:
        """Return a text with stars in the place of our credentials, and of what looks like others."""
        for secret in filter(None, self._secrets()):
            text = text.replace(secret, _STARS)
        return _CREDENTIAL.sub(rf"\1{_STARS}", text)

    def _secrets(self) -> Iterator[str]:
        auth = self._auth
        if self._token is not None:
            yield self._token.text
        if auth is None:
            return
        for part in (auth.bearer, auth.basic, auth.header, auth.oauth):
            if isinstance(part, SecretStr):
                yield part.get_secret_value()
            elif part is not None:
                yield part.secret.get_secret_value()

    async def headers(self, client: httpx2.AsyncClient, *, renewed: bool = False) -> Mapping[str, str]:
        """Return the headers; `renewed`: the last ones were not accepted.

        Raises:
            EngineRefused: there is nothing to say who we are with.
            EngineUnavailable: the token endpoint gives no answer; nothing was sent to the API.
        """
        auth = self._auth
        if auth is None:
            return {}
        if auth.header is not None:
            return {auth.header.name: auth.header.value.get_secret_value()}
        if auth.basic is not None:
            return {"authorization": f"Basic {_basic(auth.basic)}"}
        return {"authorization": f"Bearer {await self._bearer(auth, client, renewed=renewed)}"}

    async def _bearer(self, auth: Auth, client: httpx2.AsyncClient, *, renewed: bool) -> str:
        if auth.bearer is not None:
            return auth.bearer.get_secret_value()
        if auth.bearer_file is not None:
            try:
                return (await anyio.Path(auth.bearer_file).read_text()).strip()
            except (OSError, UnicodeDecodeError) as error:
                raise EngineRefused(f"auth.bearer_file cannot be read: {type(error).__name__}") from None
        assert auth.oauth is not None
        async with self._renewing:
            if renewed or self._token is None or self._token.until < time.monotonic():
                self._token = await _from_endpoint(auth.oauth, client)
            return self._token.text


def _basic(basic: Basic) -> str:
    return base64.b64encode(f"{basic.user}:{basic.password.get_secret_value()}".encode()).decode()


async def _from_endpoint(oauth: ClientCredentials, client: httpx2.AsyncClient) -> _Token:
    form = {"grant_type": "client_credentials", "scope": oauth.scope, "audience": oauth.audience}
    pair = (oauth.client_id, oauth.client_secret.get_secret_value())
    try:
        response = await client.post(oauth.token_url, data={k: v for k, v in form.items() if v}, auth=pair)
        found: Any = response.json() if response.status_code == _OK else None
    except (httpx2.TransportError, ValueError) as error:
        raise EngineUnavailable(f"auth.oauth: the token endpoint failed ({type(error).__name__})", sent=False) from None
    if not isinstance(found, dict) or not isinstance(text := found.get("access_token"), str):  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        raise EngineRefused(f"auth.oauth: the token endpoint answered {response.status_code}, without a token")
    lasts: Any = found.get("expires_in")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    seconds = float(lasts) if isinstance(lasts, (int, float)) else _SHORTEST
    return _Token(text=text, until=time.monotonic() + max(seconds - _RENEWED_BEFORE, seconds / 2))
