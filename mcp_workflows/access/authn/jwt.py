"""JWTs as access tokens (RFC 9068), and the metadata of their issuers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, cast
from urllib.parse import urlsplit, urlunsplit

from mcp_workflows.access.authn.fetch import JsonFetcher, https_url
from mcp_workflows.access.authn.identity import ClaimsReader, Identity
from mcp_workflows.access.authn.issuers import decode_token, read_header
from mcp_workflows.access.authn.jwks import KeySet
from mcp_workflows.access.authn.settings import IssuerSettings
from mcp_workflows.errors import IssuerUnavailable, TokenRefused

_REQUIRED: Final = ("iss", "aud", "exp")
_KINDS: Final = frozenset({"jwt", "at+jwt", "application/at+jwt", "application/jwt"})
_OPENID: Final = ".well-known/openid-configuration"
_OAUTH: Final = ".well-known/oauth-authorization-server"


class JwtVerifier:
    """Verifies the tokens of one issuer."""

    def __init__(
        self, settings: IssuerSettings, reading: ClaimsReader, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._algorithms = [each.value for each in settings.algorithms]
        self._reading = reading
        self.issuer = settings.issuer
        at = settings.jwks_url or MetadataLocator(settings.issuer)
        self.keys = KeySet(at, self._algorithms, clock=clock)

    async def verify(self, token: str) -> Identity:
        """Return the identity that the token proves.

        Raises:
            TokenRefused, KeysUnavailable: the token is not good, or the keys cannot be had.
        """
        head = read_header(token, self._algorithms)
        if head.kind is not None and head.kind.lower() not in _KINDS:  # made for something else: RFC 8725, section 3.11
            raise TokenRefused("it is no access token by its typ")
        key = await self.keys.get(head.key, head.algorithm)
        return self._reading.identity(decode_token(token, key, leeway=self._reading.skew, required=_REQUIRED))

    async def look(self) -> str:
        """Say for people that tokens could be verified now.

        Raises:
            KeysUnavailable: they could not.
        """
        count = await self.keys.look()
        return f"{self.keys} can be had: {count}"


class MetadataLocator:
    """Finds the URL of an issuer's keys in its metadata, which must name exactly that issuer.

    Sources: OpenID Connect Discovery 1.0, section 4; RFC 8414, sections 3 and 3.3; the MCP authorization specification.
    """

    def __init__(self, issuer: str) -> None:
        self._issuer = issuer

    async def __call__(self, fetching: JsonFetcher) -> str:
        """Return the URL of its keys.

        Raises:
            IssuerUnavailable: it has no usable metadata.
        """
        failures: list[str] = []
        for url in metadata_urls(self._issuer):
            try:
                return self._keys_url(await fetching.get(url))
            except IssuerUnavailable as error:
                failures.append(f"{url}: {error}")
        raise IssuerUnavailable("; ".join(failures))

    def _keys_url(self, metadata: Any) -> str:  # Any: a JSON value
        found = cast("Mapping[str, object]", metadata if isinstance(metadata, dict) else {})
        said, url = found.get("issuer"), found.get("jwks_uri")
        if said != self._issuer:
            raise IssuerUnavailable(f"its metadata is that of the issuer {repr(said)[:100]}, not {self._issuer!r}")
        if not isinstance(url, str):
            raise IssuerUnavailable("its metadata has no jwks_uri; set jwks_url")
        try:
            return https_url(url)
        except ValueError as error:
            raise IssuerUnavailable(f"jwks_uri in its metadata {error}") from None

    def __repr__(self) -> str:
        return self._issuer


def metadata_urls(issuer: str) -> list[str]:
    """Return the URLs where the metadata of an issuer can be, the likeliest first."""
    parts = urlsplit(issuer)
    path = parts.path.strip("/")
    after = [f"{path}/{_OPENID}"] if path else []
    places = [*after, *(f"{name}/{path}".rstrip("/") for name in (_OAUTH, _OPENID))]
    ordered = places if path else [_OPENID, _OAUTH]
    return [urlunsplit((parts.scheme, parts.netloc, f"/{place}", "", "")) for place in ordered]
