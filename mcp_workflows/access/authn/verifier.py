"""The verifier of a server: it asks the one source that can verify a token, and no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from mcp_workflows.access.authn.fair_queue import Asker, nobody
from mcp_workflows.access.authn.identity import ClaimsReader, Identity
from mcp_workflows.access.authn.introspection import IntrospectionVerifier
from mcp_workflows.access.authn.issuers import read_issuer, shortened
from mcp_workflows.access.authn.jwt import JwtVerifier
from mcp_workflows.access.authn.settings import AuthSettings, IntrospectionSettings, IssuerSettings
from mcp_workflows.access.authn.static_tokens import StaticTokens
from mcp_workflows.access.authn.trusted_proxy import TrustedProxy
from mcp_workflows.errors import TokenRefused

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """All the ways to prove an identity on one server."""

    settings: AuthSettings
    resource: str  # the URL of the server, and the audience of tokens for it where nothing else is said
    handed_out: StaticTokens
    signed: Sequence[JwtVerifier] = field(repr=False)
    introspected: Sequence[IntrospectionVerifier] = field(repr=False)
    proxied: TrustedProxy | None = field(repr=False)

    async def verify(self, token: str) -> Identity:
        """Return the identity that the token proves.

        A token goes to one issuer at most: an issuer that is shown a foreign token could use it.

        Raises:
            TokenRefused, IssuerUnavailable: the token is not good, or its issuer cannot be asked.
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
            raise TokenRefused("nobody here knows it")
        raise TokenRefused(f"its issuer is {shortened(issuer)}, which is none of those trusted here")

    @property
    def authorization_servers(self) -> Sequence[str]:
        """The URLs where clients can get tokens."""
        return list(dict.fromkeys(each.issuer for each in self._issuers))

    @property
    def _issuers(self) -> Sequence[JwtVerifier | IntrospectionVerifier]:
        return [*self.signed, *self.introspected]


def verifier(settings: AuthSettings, resource: str, before: Verifier | None = None, asker: Asker = nobody) -> Verifier:
    """Make the verifier of the configuration. Parts with the settings of `before` keep what they fetched.

    `asker` returns the address that the current token comes from, for issuers that are asked about tokens.
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
