"""The identity of a caller, read from the claims of a verified token; pure."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, cast

from mcp_workflows.access.authn.issuers import shortened
from mcp_workflows.access.authn.settings import Owner
from mcp_workflows.access.principal import Principal, claim_value, owner_id
from mcp_workflows.errors import TokenRefused

LONGEST_NAME: Final = 512  # characters of a subject or a client
_LATEST: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
_SECRET_CLAIMS: Final = frozenset({"jti", "at_hash", "c_hash", "nonce", "cnf"})  # about the token, not the person


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity that a token proves."""

    issuer: str
    subject: str | None
    client: str | None
    scopes: frozenset[str] = frozenset()
    claims: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)  # Any: JSON values
    expires: datetime | None = None  # clock skew included

    def __post_init__(self) -> None:
        if self.subject is None and self.client is None:
            raise TokenRefused("it names nobody: neither a subject nor a client")

    def owner(self, owner: Owner) -> str:
        """Return the owner id. A token without a subject belongs to its client alone."""
        everywhere = owner is Owner.SUBJECT and self.subject is not None
        return owner_id(client=None if everywhere else self.client, issuer=self.issuer, subject=self.subject)

    def still_covers(self, before: Identity) -> bool:
        """True if the identity is the same and has lost no scope since `before`."""
        same = (self.issuer, self.subject, self.client) == (before.issuer, before.subject, before.client)
        return same and self.scopes >= before.scopes

    def principal(self, owner: Owner, recheck: Callable[[], Awaitable[Principal | None]] | None = None) -> Principal:
        """Return the principal for the rest of the package."""
        return Principal(
            id=self.owner(owner),
            issuer=self.issuer,
            subject=self.subject,
            client=self.client,
            scopes=self.scopes,
            claims=self.claims,
            expires=self.expires,
            recheck=recheck,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsReader:
    """The rules for reading the claims of one issuer."""

    issuer: str
    audience: Sequence[str]
    scope_claims: Sequence[str] = ("scope",)
    client_claims: Sequence[str] = ("client_id", "azp")
    subject_claim: str = "sub"
    may_grant: frozenset[str] | None = None  # None: all scopes of the token
    skew: float = 30.0  # seconds

    def identity(self, claims: Mapping[str, Any]) -> Identity:  # Any: JSON values
        """Return the identity in the claims. All but issuer and audience must be verified already.

        Raises:
            TokenRefused: the issuer or audience is wrong, or the claims name nobody.
        """
        if claims.get("iss", self.issuer) != self.issuer:
            raise TokenRefused(f"its issuer is {shortened(claims['iss'])}, not {self.issuer!r}")
        self._check_audience(claims.get("aud"))
        granted = frozenset(scope for name in self.scope_claims for scope in _words(claim_value(claims, name)))
        clients = (_name(claims, name) for name in self.client_claims)
        return Identity(
            issuer=self.issuer,
            subject=_name(claims, self.subject_claim),
            client=next((name for name in clients if name is not None), None),
            scopes=granted if self.may_grant is None else granted & self.may_grant,
            claims={name: value for name, value in claims.items() if name not in _SECRET_CLAIMS},
            expires=_expiry(claims.get("exp"), self.skew),
        )

    def _check_audience(self, found: object) -> None:
        meant: object = [found] if isinstance(found, str) else found
        if not isinstance(meant, list) or not any(one in self.audience for one in cast("list[object]", meant)):
            text = f"its audience is {shortened(found)}, not" if found is not None else "it has no audience, such as"
            raise TokenRefused(f"{text} {' or '.join(map(repr, self.audience))}")


def split_scopes(text: str) -> Collection[str]:
    """Split scopes at spaces and commas."""
    return [word for word in re.split(r"[ ,]+", text) if word]


def _words(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield from value.split()
    elif isinstance(value, list):
        yield from (one for one in cast("list[object]", value) if isinstance(one, str))


def _name(claims: Mapping[str, Any], name: str) -> str | None:  # Any: JSON values
    found = claim_value(claims, name)
    if found is None or found == "":
        return None
    if not isinstance(found, str) or len(found) > LONGEST_NAME:
        raise TokenRefused(f"its {name} is not a text of at most {LONGEST_NAME} characters")
    if not found.isprintable():  # shown to approvers
        raise TokenRefused(f"its {name} has characters that cannot be shown")
    return found


def _expiry(exp: object, skew: float) -> datetime | None:
    """Read `exp`. PyJWT validates it in JWTs, but an introspection endpoint can return anything."""
    if exp is None:
        return None
    if isinstance(exp, bool) or not isinstance(exp, int | float):
        raise TokenRefused("its exp is not a time")
    return moment(min(max(exp, 0), _LATEST) + skew)  # JSON numbers can exceed any float


def moment(seconds: float) -> datetime:
    """Return the time of a timestamp, at most the last day of the calendar. A negative number or NaN is the epoch."""
    return datetime.fromtimestamp(min(seconds, _LATEST) if seconds >= 0 else 0, UTC)
