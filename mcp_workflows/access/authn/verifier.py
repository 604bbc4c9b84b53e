"""Who came with a token: asked of whoever can tell, and of nobody else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from mcp_workflows.access.authn.fair_queue import Asker, nobody
from mcp_workflows.access.authn.identity import Identity, Reading
from mcp_workflows.access.authn.introspection import Introspected
from mcp_workflows.access.authn.issuers import issuer_said, shortened
from mcp_workflows.access.authn.jwt import Signed
from mcp_workflows.access.authn.settings import AuthSettings, IntrospectionSettings, IssuerSettings
from mcp_workflows.access.authn.static_tokens import HandedOut
from mcp_workflows.access.authn.trusted_proxy import Proxied
from mcp_workflows.errors import TokenRefused

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """All the ways in which somebody can prove who they are on one server."""

    settings: AuthSettings
    resource: str  # the URL of the server, and the audience of tokens for it where nothing else is said
    handed_out: HandedOut
    signed: Sequence[Signed] = field(repr=False)
    introspected: Sequence[Introspected] = field(repr=False)
    proxied: Proxied | None = field(repr=False)

    async def verify(self, token: str) -> Identity:
        """Who came with it.

        A token goes to one issuer at most: who is shown a token that is not its own could use it.

        Raises:
            TokenRefused, IssuerUnavailable: it is not good, or that cannot be told.
        """
        if not token:
            raise TokenRefused("it is empty")
        if (known := self.handed_out.find(token)) is not None:
            return known
        said = issuer_said(token)
        for each in self._issuers:
            if said == each.issuer:
                return await each.verify(token)
        for each in self.introspected:
            if token.startswith(each.prefix):
                return await each.verify(token)
        if said is None:
            raise TokenRefused("nobody here knows it")
        raise TokenRefused(f"its issuer is {shortened(said)}, which is none of those trusted here")

    @property
    def authorization_servers(self) -> Sequence[str]:
        """Where clients can get tokens."""
        return list(dict.fromkeys(each.issuer for each in self._issuers))

    @property
    def _issuers(self) -> Sequence[Signed | Introspected]:
        return [*self.signed, *self.introspected]


def verifier(settings: AuthSettings, resource: str, before: Verifier | None = None, asker: Asker = nobody) -> Verifier:
    """What the configuration says. Whoever is as they were `before` keeps what was fetched of them.

    `asker`: where who comes with the token at hand comes from, for issuers that are asked about it.
    """
    alike = before is not None and (before.resource, before.settings.clock_skew) == (resource, settings.clock_skew)
    signed = zip(before.settings.issuers, before.signed, strict=True) if alike and before else ()
    introspected = zip(before.settings.introspection, before.introspected, strict=True) if alike and before else ()
    return Verifier(
        settings=settings,
        resource=resource,
        handed_out=HandedOut(settings.tokens),
        signed=_made(settings.issuers, lambda each: Signed(each, _reading(each, settings, resource)), list(signed)),
        introspected=_made(
            settings.introspection,
            lambda each: Introspected(each, _reading(each, settings, resource), asker=asker),
            list(introspected),
        ),
        proxied=None if settings.proxy is None else Proxied(settings.proxy),
    )


def _made(wanted: Sequence[S], make: Callable[[S], T], known: Sequence[tuple[S, T]]) -> list[T]:
    return [next((kept for old, kept in known if old == each), None) or make(each) for each in wanted]


def _reading(one: IssuerSettings | IntrospectionSettings, settings: AuthSettings, resource: str) -> Reading:
    return Reading(
        issuer=one.issuer,
        audience=[resource] if one.audience is None else one.audience,
        scope_claims=one.scope_claim,
        client_claims=one.client_claim,
        subject_claim=one.subject_claim,
        may_grant=None if one.may_grant is None else frozenset(one.may_grant),
        skew=settings.clock_skew.total_seconds(),
    )
