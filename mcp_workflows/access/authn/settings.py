"""The settings of `server.auth` in workflows.yaml."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from mcp_workflows.access.authn.fetch import https_url
from mcp_workflows.access.principal import ClaimName
from mcp_workflows.units import parse_duration

_SCOPE = r"^[\x21\x23-\x5B\x5D-\x7E]+$"  # RFC 6749, section 3.3
_HEADER = r"^[A-Za-z0-9][A-Za-z0-9-]*$"
_OURS = frozenset({"authorization", "host", "cookie", "content-length", "content-type"})
_NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # sha256 of no text at all


def one_or_more(value: object) -> object:
    """Return a text alone as a list of one."""
    return [value] if isinstance(value, str) else value


def _server(url: str) -> str:
    """Return the URL of a server, or of a part of it, without a slash at its end."""
    if "?" in https_url(url):
        raise ValueError("must be a URL without a ?query")
    if url.rstrip("/").endswith("/mcp"):
        raise ValueError("remove /mcp at its end: the server adds it")
    return url.rstrip("/")


def _issuer(url: str) -> str:
    """Return the URL unchanged, with a slash at its end if it has one: it must equal `iss` in tokens."""
    if "?" in https_url(url):
        raise ValueError("must be a URL without a ?query")
    return url


_MANY = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})

Scope: TypeAlias = Annotated[str, Field(pattern=_SCOPE, max_length=256)]
HttpsUrl: TypeAlias = Annotated[str, AfterValidator(https_url)]
ServerUrl: TypeAlias = Annotated[str, AfterValidator(_server)]
IssuerUrl: TypeAlias = Annotated[str, AfterValidator(_issuer)]
HeaderName: TypeAlias = Annotated[str, Field(pattern=_HEADER), AfterValidator(str.lower)]
Named: TypeAlias = Annotated[str, Field(min_length=1)]
Names: TypeAlias = Annotated[list[Named], Field(min_length=1), BeforeValidator(one_or_more), _MANY]
ClaimNames: TypeAlias = Annotated[list[ClaimName], Field(min_length=1), BeforeValidator(one_or_more), _MANY]
ShortTime: TypeAlias = Annotated[
    timedelta,
    Field(strict=True, ge=timedelta(0), le=timedelta(minutes=5)),
    BeforeValidator(parse_duration),
    WithJsonSchema({"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*(ms|s|m)\s*$", "examples": ["10s", "1m"]}),
]
"""A duration of 0s to 5m."""


class Algorithm(StrEnum):
    """The algorithms of token signatures. All are asymmetric, so that a verifier cannot sign."""

    RS256 = "RS256"
    RS384 = "RS384"
    RS512 = "RS512"
    PS256 = "PS256"
    PS384 = "PS384"
    PS512 = "PS512"
    ES256 = "ES256"
    ES384 = "ES384"
    ES512 = "ES512"
    EDDSA = "EdDSA"


class Owner(StrEnum):
    """The owner of the tasks that are created with a token."""

    CLIENT = "client"
    SUBJECT = "subject"


class ClientAuth(StrEnum):
    """The way to authenticate ourselves at an introspection endpoint (RFC 6749, section 2.3.1)."""

    BASIC = "basic"
    POST = "post"


class _Claims(BaseModel):
    """The claims of a token, or of an answer about one, and their meaning."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    audience: Names | None = Field(
        default=None,
        description="What tokens for this server have in `aud`: one, or one of several. Always checked. "
        "Default: the address of this server, `public_url` and `/mcp`.",
    )
    scope_claim: ClaimNames = Field(
        default=["scope"],
        description="The claims with the scopes, as text with blanks or as lists: `scope`, `realm_access.roles`.",
    )
    client_claim: ClaimNames = Field(
        default=["client_id", "azp"], description="The claims with the OAuth client; the first one that is there."
    )
    subject_claim: ClaimName = Field(default="sub", description="The claim with whom the token is about.")
    may_grant: list[Scope] | None = Field(
        default=None, description="The only scopes that count in its tokens. Default: all that they have."
    )


class IssuerSettings(_Claims):
    """An issuer of tokens that we verify ourselves: JWTs (RFC 9068)."""

    issuer: IssuerUrl = Field(description="Its URL, to the letter as `iss` in its tokens, slash at the end or not.")
    jwks_url: HttpsUrl | None = Field(
        default=None,
        description="Where its public keys are. Default: what its metadata says (OpenID Connect, RFC 8414).",
    )
    algorithms: list[Algorithm] = Field(
        default=[Algorithm.RS256, Algorithm.PS256, Algorithm.ES256, Algorithm.EDDSA],
        min_length=1,
        description="How its tokens may be signed.",
    )


class IntrospectionSettings(_Claims):
    """An issuer that is asked about opaque tokens (RFC 7662)."""

    issuer: IssuerUrl = Field(description="The issuer of the tokens; part of each caller's identity.")
    endpoint: HttpsUrl = Field(description="Its introspection endpoint.")
    client_id: str = Field(min_length=1, description="Our client id there.")
    client_secret: SecretStr = Field(
        min_length=1, description="Our secret there, for example `${INTROSPECTION_SECRET}`."
    )
    client_auth: ClientAuth = Field(
        default=ClientAuth.BASIC, description="How we prove who we are: `basic` (a header) or `post` (in the form)."
    )
    prefix: str = Field(
        default="",
        description="Only tokens that begin so are sent there. Needed if there are several: nobody shall see the "
        "tokens of others.",
    )
    cache: ShortTime = Field(
        default=timedelta(seconds=10),
        description="For how long an answer counts, and so for how long a revoked token may still work. At most 5m; "
        "`0s`: ask every time.",
    )


class TokenSettings(BaseModel):
    """A token that was handed out, known by its hash only; `mcp-workflows token` makes one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=256, description="Whose it is; the client in rules and records.")
    sha256: str = Field(
        pattern=r"^[0-9a-fA-F]{64}$", description="The SHA-256 of the token, in hexadecimal.", repr=False
    )
    subject: str | None = Field(default=None, min_length=1, description="The person, if it is one's own.")
    scopes: list[Scope] = Field(default_factory=list[Scope], description="What it is good for.")

    @field_validator("sha256")
    @classmethod
    def _of_something(cls, value: str) -> str:
        if value.lower() == _NOTHING:
            raise ValueError("is the hash of an empty token; `mcp-workflows token` creates a token")
        return value.lower()


class ProxySettings(BaseModel):
    """A proxy that has authenticated the caller and says so in headers; trusted by its address only."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    peers: list[str] = Field(
        min_length=1, description="The addresses of the proxy, as this server sees them: 10.0.0.7, 10.1.0.0/16."
    )
    subject_header: HeaderName = Field(
        default="x-forwarded-user",
        description="The header that says who it is. The proxy must replace any that it gets.",
    )
    client_header: HeaderName | None = Field(default=None, description="The header with the OAuth client.")
    scopes_header: HeaderName | None = Field(
        default=None, description="The header with the scopes, with blanks or commas between them."
    )
    groups_header: HeaderName | None = Field(
        default=None, description="The header with the groups, with commas between them: the claim `groups` in rules."
    )
    scopes: list[Scope] = Field(
        default_factory=list[Scope], description="Scopes that everybody has who comes that way."
    )
    issuer: str = Field(default="proxy", min_length=1, description="The issuer recorded for callers from the proxy.")

    @property
    def claims(self) -> frozenset[str]:
        """The claims that come from its headers."""
        return frozenset({"sub"} if self.groups_header is None else {"sub", "groups"})

    @field_validator("peers")
    @classmethod
    def _addresses(cls, value: list[str]) -> list[str]:
        for each in value:
            try:
                network = ipaddress.ip_network(each)
            except ValueError as error:
                raise ValueError(f"{each!r} is not an address or a network: {error}") from None
            if network.prefixlen == 0:
                raise ValueError(f"{each!r} is every address; name the proxy's own addresses")
        return value

    @model_validator(mode="after")
    def _each_its_own(self) -> Self:
        given = [self.subject_header, self.client_header, self.scopes_header, self.groups_header]
        named = [name for name in given if name is not None]
        for name in named:
            if name in _OURS:
                raise ValueError(f"the header {name} has its own meaning; choose another")
            if named.count(name) > 1:
                raise ValueError(f"the header {name} is used for two things")
        return self


class AuthSettings(BaseModel):
    """The ways in which callers over HTTP can prove their identity."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuers: list[IssuerSettings] = Field(
        default_factory=list[IssuerSettings], description="Authorization servers whose JWTs are verified here."
    )
    introspection: list[IntrospectionSettings] = Field(
        default_factory=list[IntrospectionSettings], description="Authorization servers that are asked about tokens."
    )
    tokens: list[TokenSettings] = Field(
        default_factory=list[TokenSettings], description="Tokens that were handed out by hand, for small set-ups."
    )
    proxy: ProxySettings | None = Field(default=None, description="A proxy that says in headers who it is.")
    required_scopes: list[Scope] = Field(
        default_factory=list[Scope], description="Scopes without which nobody is let in at all."
    )
    owner: Owner = Field(
        default=Owner.SUBJECT,
        description="The owner of a task. `subject`: the person, in every client. `client`: the person in the one "
        "client that started it. A token without a subject always belongs to its client.",
    )
    clock_skew: ShortTime = Field(
        default=timedelta(seconds=30), description="How far clocks may differ when times in tokens are looked at."
    )

    @model_validator(mode="after")
    def _somebody(self) -> Self:
        if not (self.issuers or self.introspection or self.tokens or self.proxy):
            raise ValueError("nobody could be let in: set issuers, introspection, tokens or a proxy")
        _once([each.issuer for each in self.issuers], "the issuer {} is listed twice")
        _once([each.sha256 for each in self.tokens], "two tokens have the sha256 {}")
        _once([each.prefix for each in self.introspection], "introspection: with several, each needs its own prefix")
        if any(
            one is not other and one.prefix.startswith(other.prefix)
            for one in self.introspection
            for other in self.introspection
        ):
            raise ValueError("introspection: with several, no prefix may be the beginning of another")
        return self

    @property
    def sources(self) -> int:
        """The number of sources that name subjects, each its own."""
        return self.claiming + bool(self.tokens)

    @property
    def claiming(self) -> int:
        """The number of sources that have claims."""
        issuers = {each.issuer for each in self.issuers} | {each.issuer for each in self.introspection}
        return len(issuers) + (self.proxy is not None)

    def says(self, claim: str) -> bool:
        """True if a caller could have this claim; static tokens have none."""
        return bool(self.issuers or self.introspection) or (self.proxy is not None and claim in self.proxy.claims)


def _once(values: list[str], complaint: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(complaint.format(value))
