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
_NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # sha256 of the empty text


def one_or_more(value: object) -> object:
    """Wrap a single text in a list."""
    return [value] if isinstance(value, str) else value


def _server(url: str) -> str:
    """Return the URL of a server, or of a path on it, without a trailing slash."""
    if "?" in https_url(url):
        raise ValueError("must be a URL without a ?query")
    if url.rstrip("/").endswith("/mcp"):
        raise ValueError("remove /mcp at its end: the server adds it")
    return url.rstrip("/")


def _issuer(url: str) -> str:
    """Return the URL unchanged, including any trailing slash: it must equal `iss` in tokens."""
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
    """The owner of tasks created with a token."""

    CLIENT = "client"
    SUBJECT = "subject"


class ClientAuth(StrEnum):
    """The method of client authentication at an introspection endpoint (RFC 6749, section 2.3.1)."""

    BASIC = "basic"
    POST = "post"


class _Claims(BaseModel):
    """The claims of a token or introspection reply, and their meaning."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    audience: Names | None = Field(
        default=None,
        description="The accepted `aud` of tokens: one value, or any of several. Always checked. Default: the "
        "server's address, `public_url` plus `/mcp`.",
    )
    scope_claim: ClaimNames = Field(
        default=["scope"],
        description="The claims with the scopes, as space-separated text or as lists: `scope`, `realm_access.roles`.",
    )
    client_claim: ClaimNames = Field(
        default=["client_id", "azp"], description="The claims with the OAuth client. The first one present counts."
    )
    subject_claim: ClaimName = Field(default="sub", description="The claim with the subject of the token.")
    may_grant: list[Scope] | None = Field(
        default=None, description="The only scopes that count in this issuer's tokens. Default: all."
    )


class IssuerSettings(_Claims):
    """An issuer of JWTs, which the server verifies itself (RFC 9068)."""

    issuer: IssuerUrl = Field(
        description="The issuer's URL, exactly as `iss` in its tokens, including any trailing slash."
    )
    jwks_url: HttpsUrl | None = Field(
        default=None,
        description="The URL of the issuer's public keys. Default: from its metadata (OpenID Connect, RFC 8414).",
    )
    algorithms: list[Algorithm] = Field(
        default=[Algorithm.RS256, Algorithm.PS256, Algorithm.ES256, Algorithm.EDDSA],
        min_length=1,
        description="The accepted signature algorithms.",
    )


class IntrospectionSettings(_Claims):
    """An issuer that the server asks about opaque tokens (RFC 7662)."""

    issuer: IssuerUrl = Field(description="The issuer of the tokens, which is part of each caller's identity.")
    endpoint: HttpsUrl = Field(description="The URL of the introspection endpoint.")
    client_id: str = Field(min_length=1, description="The server's client id at the issuer.")
    client_secret: SecretStr = Field(
        min_length=1, description="The server's client secret at the issuer, such as `${INTROSPECTION_SECRET}`."
    )
    client_auth: ClientAuth = Field(
        default=ClientAuth.BASIC,
        description="How the server authenticates: `basic` (a header) or `post` (in the form).",
    )
    prefix: str = Field(
        default="",
        description="Send only tokens with this prefix. Required with several introspection servers, so that "
        "none sees the tokens of another.",
    )
    cache: ShortTime = Field(
        default=timedelta(seconds=10),
        description="How long a reply is cached, and thus how long a revoked token can still work. At most 5m; "
        "`0s` disables the cache.",
    )


class TokenSettings(BaseModel):
    """A static token, known by its hash only; `mcp-workflows token` creates one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        min_length=1,
        max_length=256,
        description="The name of the token's holder, which is the client in rules and audit events.",
    )
    sha256: str = Field(
        pattern=r"^[0-9a-fA-F]{64}$", description="The SHA-256 of the token, in hexadecimal.", repr=False
    )
    subject: str | None = Field(default=None, min_length=1, description="The person, if the token belongs to one.")
    scopes: list[Scope] = Field(default_factory=list[Scope], description="The scopes of the token.")

    @field_validator("sha256")
    @classmethod
    def _of_something(cls, value: str) -> str:
        if value.lower() == _NOTHING:
            raise ValueError("is the hash of an empty token; `mcp-workflows token` creates a token")
        return value.lower()


class ProxySettings(BaseModel):
    """A proxy that authenticates callers and names them in headers; trusted only by its address."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    peers: list[str] = Field(
        min_length=1, description="The addresses of the proxy as the server sees them: 10.0.0.7, 10.1.0.0/16."
    )
    subject_header: HeaderName = Field(
        default="x-forwarded-user",
        description="The header with the subject. The proxy must overwrite any that a client sends.",
    )
    client_header: HeaderName | None = Field(default=None, description="The header with the OAuth client.")
    scopes_header: HeaderName | None = Field(
        default=None, description="The header with the scopes, separated by spaces or commas."
    )
    groups_header: HeaderName | None = Field(
        default=None,
        description="The header with the groups, separated by commas. Rules see them as the claim `groups`.",
    )
    scopes: list[Scope] = Field(default_factory=list[Scope], description="Scopes of every caller from the proxy.")
    issuer: str = Field(default="proxy", min_length=1, description="The issuer recorded for callers from the proxy.")

    @property
    def claims(self) -> frozenset[str]:
        """The claims that the headers provide."""
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
        default_factory=list[IssuerSettings], description="Authorization servers whose JWTs the server verifies."
    )
    introspection: list[IntrospectionSettings] = Field(
        default_factory=list[IntrospectionSettings],
        description="Authorization servers that the server asks about opaque tokens.",
    )
    tokens: list[TokenSettings] = Field(
        default_factory=list[TokenSettings], description="Static tokens, for small installations."
    )
    proxy: ProxySettings | None = Field(
        default=None, description="A proxy that authenticates callers and names them in headers."
    )
    required_scopes: list[Scope] = Field(default_factory=list[Scope], description="Scopes that every caller needs.")
    owner: Owner = Field(
        default=Owner.SUBJECT,
        description="The owner of a task. `subject`: the person, in every client. `client`: the person in the "
        "client that started it. A token without a subject belongs to its client.",
    )
    clock_skew: ShortTime = Field(
        default=timedelta(seconds=30),
        description="The tolerated clock difference when the server checks times in tokens.",
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
        """The number of identity sources; each has its own subjects."""
        return self.claiming + bool(self.tokens)

    @property
    def claiming(self) -> int:
        """The number of identity sources that provide claims."""
        issuers = {each.issuer for each in self.issuers} | {each.issuer for each in self.introspection}
        return len(issuers) + (self.proxy is not None)

    def says(self, claim: str) -> bool:
        """True if a caller can have this claim; static tokens have none."""
        return bool(self.issuers or self.introspection) or (self.proxy is not None and claim in self.proxy.claims)


def _once(values: list[str], complaint: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(complaint.format(value))
