"""What a verified token says of who came with it; pure."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, cast

from mcp_workflows.access.authn.issuers import shortened
from mcp_workflows.access.authn.settings import Owner
from mcp_workflows.access.claims import said
from mcp_workflows.access.principal import Principal, owner_id
from mcp_workflows.errors import TokenRefused

LONGEST_NAME: Final = 512  # characters of a subject or a client
_LATEST: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
_SECRET_CLAIMS: Final = frozenset({"jti", "at_hash", "c_hash", "nonce", "cnf"})  # of the token, not of whom it names


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who somebody is, by one token."""

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
        """The id of whom they are. A token without a subject stays its client's alone."""
        everywhere = owner is Owner.SUBJECT and self.subject is not None
        return owner_id(client=None if everywhere else self.client, issuer=self.issuer, subject=self.subject)

    def still_covers(self, before: Identity) -> bool:
        """Whether it is the same one, who has lost nothing of what they were let in with."""
        same = (self.issuer, self.subject, self.client) == (before.issuer, before.subject, before.client)
        return same and self.scopes >= before.scopes

    def principal(self, owner: Owner, recheck: Callable[[], Awaitable[Principal | None]] | None = None) -> Principal:
        """As the rest of the house knows them."""
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
class Reading:
    """How the claims of one issuer are read."""

    issuer: str
    audience: Sequence[str]
    scope_claims: Sequence[str] = ("scope",)
    client_claims: Sequence[str] = ("client_id", "azp")
    subject_claim: str = "sub"
    may_grant: frozenset[str] | None = None  # None: whatever it says
    skew: float = 30.0  # seconds

    def identity(self, claims: Mapping[str, Any]) -> Identity:  # Any: JSON values
        """Who the claims are about; they have been verified but for issuer and audience.

        Raises:
            TokenRefused: they are of another issuer or for somebody else, or they name nobody.
        """
        if claims.get("iss", self.issuer) != self.issuer:
            raise TokenRefused(f"its issuer is {shortened(claims['iss'])}, not {self.issuer!r}")
        self._check_audience(claims.get("aud"))
        granted = frozenset(scope for name in self.scope_claims for scope in _words(said(claims, name)))
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


def words_of(text: str) -> Collection[str]:
    """Scopes as they are written in one line."""
    return [word for word in re.split(r"[ ,]+", text) if word]


def _words(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield from value.split()
    elif isinstance(value, list):
        yield from (one for one in cast("list[object]", value) if isinstance(one, str))


def _name(claims: Mapping[str, Any], name: str) -> str | None:  # Any: JSON values
    found = said(claims, name)
    if found is None or found == "":
        return None
    if not isinstance(found, str) or len(found) > LONGEST_NAME:
        raise TokenRefused(f"its {name} is no text of at most {LONGEST_NAME} characters")
    if not found.isprintable():  # approvers are shown it
        raise TokenRefused(f"its {name} has characters that cannot be shown")
    return found


def _expiry(exp: object, skew: float) -> datetime | None:
    """PyJWT has looked at it; an introspection endpoint can say anything."""
    if exp is None:
        return None
    if isinstance(exp, bool) or not isinstance(exp, int | float):
        raise TokenRefused("its exp is no time")
    return moment(min(max(exp, 0), _LATEST) + skew)  # numbers in JSON can be larger than any float


def moment(seconds: float) -> datetime:
    """A time of a token; what is too late for a calendar is its last day, and what is no number has long passed."""
    return datetime.fromtimestamp(min(seconds, _LATEST) if seconds >= 0 else 0, UTC)
