"""The verifiers of a server: static tokens, JWTs (RFC 9068), introspection, and a proxy that authenticates callers.

Each token is sent only to the one source that can verify it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit, urlunsplit

from mcp_workflows.access.authn.fetch import JsonFetcher, https_url
from mcp_workflows.access.authn.identity import LONGEST_NAME, ClaimsReader, Identity, split_scopes
from mcp_workflows.access.authn.introspection import Asker, IntrospectionVerifier, nobody
from mcp_workflows.access.authn.issuers import KeySet, decode_token, read_header, read_issuer, shortened
from mcp_workflows.access.authn.settings import (
    AuthSettings,
    IntrospectionSettings,
    IssuerSettings,
    ProxySettings,
    TokenSettings,
)
from mcp_workflows.errors import IssuerUnavailable, TokenRefused

ISSUER: Final = "token"  # never the URL of an issuer
_MARK: Final = "mcpw_"  # a prefix that secret scanners recognize


class StaticTokens:
    """The tokens in the configuration."""

    def __init__(self, tokens: Sequence[TokenSettings]) -> None:
        self._known = {
            each.sha256: Identity(
                issuer=ISSUER, subject=each.subject, client=each.name, scopes=frozenset(each.scopes), claims={}
            )
            for each in tokens
        }

    def find(self, token: str) -> Identity | None:
        """Return the identity of a token. The duration of the look-up depends on hashes only, not on the token."""
        return self._known.get(sha256_of(token))


def make_token() -> str:
    """Create a token of 32 random bytes, which cannot be guessed or derived from its hash."""
    return f"{_MARK}{secrets.token_urlsafe(32)}"


def sha256_of(token: str) -> str:
    """Return the hash that identifies a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


_MOST_WORDS: Final = 1000  # scopes or groups of one request


class TrustedProxy:
    """Reads the identity of a caller from the proxy's headers."""

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._peers = [ipaddress.ip_network(each) for each in settings.peers]

    def claims_to_say(self, headers: Mapping[str, Sequence[str]]) -> bool:
        """True if a header names a caller, whether or not the proxy sent it."""
        return self._settings.subject_header in headers

    def trusts(self, peer: str | None) -> bool:
        """True if the peer of the socket is the proxy: decided by its address, never by a header."""
        try:
            address = ipaddress.ip_address(peer or "")
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return any((mapped or address) in network or address in network for network in self._peers)

    def identity(self, headers: Mapping[str, Sequence[str]]) -> Identity:
        """Return the identity that the proxy's headers name.

        Raises:
            TokenRefused: a header occurs twice (so another party sent one, too), or is not a valid name.
        """
        settings = self._settings
        subject = _one(headers, settings.subject_header)
        if subject is None:
            raise TokenRefused(f"the header {settings.subject_header} is empty")
        groups = _listed(headers, settings.groups_header, ",")
        claims: dict[str, Any] = {"sub": subject} | ({} if groups is None else {"groups": groups})
        named = frozenset(split_scopes(" ".join(_listed(headers, settings.scopes_header, ",") or ())))
        return Identity(
            issuer=settings.issuer,
            subject=subject,
            client=_one(headers, settings.client_header),
            scopes=named | frozenset(settings.scopes),
            claims=claims,
        )


def _one(headers: Mapping[str, Sequence[str]], name: str | None) -> str | None:
    value = (_single(headers, name) or "").strip()
    if len(value) > LONGEST_NAME or not value.isprintable():
        raise TokenRefused(f"the header {name} is not a name of at most {LONGEST_NAME} characters")
    return value or None


def _listed(headers: Mapping[str, Sequence[str]], name: str | None, sign: str) -> list[str] | None:
    value = _single(headers, name)
    return None if value is None else [word.strip() for word in value.split(sign) if word.strip()][:_MOST_WORDS]


def _single(headers: Mapping[str, Sequence[str]], name: str | None) -> str | None:
    """Return the only value. Repeated headers form one list (RFC 9110, 5.3), but one of them may be forged."""
    if name is None or not (values := headers.get(name)):
        return None
    if len(values) > 1:
        raise TokenRefused(f"the header {name} occurs {len(values)} times: the proxy must replace incoming ones")
    return values[0]


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
            TokenRefused, KeysUnavailable: the token is not valid, or the keys cannot be fetched.
        """
        head = read_header(token, self._algorithms)
        if head.kind is not None and head.kind.lower() not in _KINDS:  # for another purpose: RFC 8725, section 3.11
            raise TokenRefused("its typ is not that of an access token")
        key = await self.keys.get(head.key, head.algorithm)
        return self._reading.identity(decode_token(token, key, leeway=self._reading.skew, required=_REQUIRED))

    async def verify_login(self, token: str, *, client: str, nonce: str) -> Identity:
        """Return the identity that an ID token proves, requested by this client with this nonce.

        Source: OpenID Connect Core 1.0, section 3.1.3.7.

        Raises:
            TokenRefused, KeysUnavailable: the token is not valid, or the keys cannot be fetched.
        """
        head = read_header(token, self._algorithms)
        key = await self.keys.get(head.key, head.algorithm)
        claims = decode_token(token, key, leeway=self._reading.skew, required=(*_REQUIRED, "iat", "sub"))
        if not secrets.compare_digest(str(claims.get("nonce")).encode(), nonce.encode()):
            raise TokenRefused("it has another nonce")
        is_for_one = isinstance(claims["aud"], str) or len(claims["aud"]) == 1
        if claims.get("azp", client if is_for_one else None) != client:
            raise TokenRefused("it was made for another client")
        reading = replace(self._reading, audience=[client])
        identity = reading.identity(claims)
        if identity.subject is None:  # otherwise all who log in would be one person, named by the client
            raise TokenRefused(f"it has no {reading.subject_claim}, which names a person")
        return replace(identity, client=client)

    async def probe(self) -> str:
        """Return a message that tokens can be verified now.

        Raises:
            KeysUnavailable: the keys cannot be fetched.
        """
        count = await self.keys.probe()
        return f"{self.keys} can be fetched: {count}"


class MetadataLocator:
    """Finds the URL of an issuer's keys in its metadata, which must name exactly that issuer.

    Sources: OpenID Connect Discovery 1.0, section 4; RFC 8414, sections 3 and 3.3; the MCP authorization specification.
    """

    def __init__(self, issuer: str) -> None:
        self._issuer = issuer

    async def __call__(self, fetching: JsonFetcher) -> str:
        """Return the URL of the keys.

        Raises:
            IssuerUnavailable: the issuer has no usable metadata.
        """
        url = (await issuer_metadata(self._issuer, fetching)).get("jwks_uri")
        if not isinstance(url, str):
            raise IssuerUnavailable("its metadata has no jwks_uri; set jwks_url")
        try:
            return https_url(url)
        except ValueError as error:
            raise IssuerUnavailable(f"jwks_uri in its metadata {error}") from None

    def __repr__(self) -> str:
        return self._issuer


async def issuer_metadata(issuer: str, fetching: JsonFetcher) -> Mapping[str, Any]:  # Any: JSON values
    """Return the metadata of an issuer.

    Raises:
        IssuerUnavailable: no metadata names exactly this issuer.
    """
    failures: list[str] = []
    for url in metadata_urls(issuer):
        try:
            metadata = await fetching.get(url)
        except IssuerUnavailable as error:
            failures.append(f"{url}: {error}")
            continue
        found = cast("Mapping[str, Any]", metadata if isinstance(metadata, dict) else {})
        if found.get("issuer") == issuer:
            return found
        failures.append(f"{url}: its metadata is that of the issuer {shortened(found.get('issuer'))}, not {issuer!r}")
    raise IssuerUnavailable("; ".join(failures))


def metadata_urls(issuer: str) -> list[str]:
    """Return the possible URLs of an issuer's metadata, the likeliest first."""
    parts = urlsplit(issuer)
    path = parts.path.strip("/")
    after = [f"{path}/{_OPENID}"] if path else []
    places = [*after, *(f"{name}/{path}".rstrip("/") for name in (_OAUTH, _OPENID))]
    ordered = places if path else [_OPENID, _OAUTH]
    return [urlunsplit((parts.scheme, parts.netloc, f"/{place}", "", "")) for place in ordered]


S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """The ways to prove an identity on one server."""

    settings: AuthSettings
    resource: str  # the URL of the server, and the default audience of its tokens
    handed_out: StaticTokens
    signed: Sequence[JwtVerifier] = field(repr=False)
    introspected: Sequence[IntrospectionVerifier] = field(repr=False)
    proxied: TrustedProxy | None = field(repr=False)

    async def verify(self, token: str) -> Identity:
        """Return the identity that the token proves.

        A token goes to at most one issuer: an issuer that sees a foreign token could use it.

        Raises:
            TokenRefused, IssuerUnavailable: the token is not valid, or its issuer cannot be asked.
        """
        if not token:
            raise TokenRefused("it is empty")
        if (known := self.handed_out.find(token)) is not None:
            return known
        issuer = read_issuer(token)
        for each in self._issuers:
            if issuer == each.issuer:
                return await each.verify(token)
        for each in self.introspected:
            if token.startswith(each.prefix):
                return await each.verify(token)
        if issuer is None:
            raise TokenRefused("it is not known here")
        raise TokenRefused(f"its issuer is {shortened(issuer)}, which is not trusted here")

    @property
    def authorization_servers(self) -> Sequence[str]:
        """The URLs where clients can get tokens."""
        return list(dict.fromkeys(each.issuer for each in self._issuers))

    @property
    def _issuers(self) -> Sequence[JwtVerifier | IntrospectionVerifier]:
        return [*self.signed, *self.introspected]


def verifier(settings: AuthSettings, resource: str, before: Verifier | None = None, asker: Asker = nobody) -> Verifier:
    """Create the verifier of the configuration. Parts with unchanged settings keep the caches of `before`.

    `asker` returns the address from which the current token comes, for the limits on introspection requests.
    """
    alike = before is not None and (before.resource, before.settings.clock_skew) == (resource, settings.clock_skew)
    signed = zip(before.settings.issuers, before.signed, strict=True) if alike and before else ()
    introspected = zip(before.settings.introspection, before.introspected, strict=True) if alike and before else ()
    return Verifier(
        settings=settings,
        resource=resource,
        handed_out=StaticTokens(settings.tokens),
        signed=_made(
            settings.issuers, lambda each: JwtVerifier(each, _reading(each, settings, resource)), list(signed)
        ),
        introspected=_made(
            settings.introspection,
            lambda each: IntrospectionVerifier(each, _reading(each, settings, resource), asker=asker),
            list(introspected),
        ),
        proxied=None if settings.proxy is None else TrustedProxy(settings.proxy),
    )


def _made(wanted: Sequence[S], make: Callable[[S], T], known: Sequence[tuple[S, T]]) -> list[T]:
    return [next((kept for old, kept in known if old == each), None) or make(each) for each in wanted]


def _reading(one: IssuerSettings | IntrospectionSettings, settings: AuthSettings, resource: str) -> ClaimsReader:
    return ClaimsReader(
        issuer=one.issuer,
        audience=[resource] if one.audience is None else one.audience,
        scope_claims=one.scope_claim,
        client_claims=one.client_claim,
        subject_claim=one.subject_claim,
        may_grant=None if one.may_grant is None else frozenset(one.may_grant),
        skew=settings.clock_skew.total_seconds(),
    )
