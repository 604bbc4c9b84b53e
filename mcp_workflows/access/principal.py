"""The principal of a request, who owns tasks, and the claims of its token."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, Self, TypeAlias, cast

from pydantic import AfterValidator, Field

Claims: TypeAlias = Mapping[str, Any]  # Any: JSON values
_DOT: Final = re.compile(r"(?<!\\)\.")


def claim_value(claims: Claims, name: str) -> object:
    r"""Return the value of a claim or of a path such as `realm_access.roles`; None if there is none.

    A claim with exactly that name takes precedence, even if its value is null: names such as
    `https://acme.example/roles` contain dots. Otherwise the name is a path from the outside in, in which `\.` is a dot
    in a name (as in Keycloak). A path has one reading and takes one step per part, however deeply a token is nested. It
    goes through objects only: no entry of a list would be the right one.
    """
    if name in claims:
        return claims[name]
    found = cast("object", claims)
    for part in _parts(name):
        if not isinstance(found, Mapping):
            return None
        found = cast("Claims", found).get(part)
    return found


def claim_name(name: str) -> str:
    """Return the name, if it is a valid path.

    Raises:
        ValueError: a part of the path is empty.
    """
    if "" in _parts(name):
        raise ValueError(rf"{name!r} is not a claim name: separate names by dots, and write \. for a dot in one")
    return name


def _parts(name: str) -> Sequence[str]:
    return [part.replace(r"\.", ".") for part in _DOT.split(name)]


ClaimName: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(claim_name)]


PRINCIPAL_FIELDS: Final = frozenset({"id", "issuer", "subject", "client", "scopes", "claims"})  # as templates see it
Person: TypeAlias = tuple[str | None, str]  # the issuer, and the person that it names


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The caller of a request. `id` is the owner of the tasks that it creates, and the only field compared with owners.

    All other fields come from the caller's current token and are not stored with tasks.
    """

    id: str
    issuer: str | None = None
    subject: str | None = None  # the person, if the token names one: `{{principal.subject}}` in templates
    client: str | None = None  # the OAuth client that the person uses
    scopes: frozenset[str] = frozenset()
    claims: Claims = field(default_factory=dict[str, Any], repr=False, hash=False)
    expires: datetime | None = None  # of the token; None: not stated
    identified: bool = True  # False: anonymous, and only a task's id protects it
    recheck: Callable[[], Awaitable[Self | None]] | None = field(default=None, repr=False, compare=False)
    # the address of an anonymous caller: for rate limits
    peer: str | None = field(default=None, repr=False, compare=False)

    @property
    def scope(self) -> Mapping[str, Mapping[str, Any]]:  # Any: JSON values
        """The value of `principal` in templates."""
        seen = {
            "id": self.id,
            "issuer": self.issuer,
            "subject": self.subject,
            "client": self.client,
            "scopes": sorted(self.scopes),
            "claims": dict(self.claims),
        }
        return {"principal": seen}

    @property
    def person(self) -> Person:
        """The person behind any client (or the client, without a person), for `not_owner`."""
        return self.issuer, self.subject or self.client or self.id

    async def revalidated(self, now: datetime) -> Self | None:
        """Return the principal if its token is still valid now, else None. Push streams outlive requests."""
        if self.expires is not None and self.expires <= now:
            return None
        return self if self.recheck is None else await self.recheck()

    async def revalidated_if_unexpired(self, now: datetime) -> Self | None:
        """Revalidate a running request, which may continue even if its token has expired since it began."""
        return self if self.expires is not None and self.expires <= now else await self.revalidated(now)


def owner_id(*, client: str | None, issuer: str | None, subject: str | None) -> str:
    """Return the id of a principal; without a client, the id of a subject in every client.

    The text equals that of the SDK's `authenticated_principal`, so that owners stay the same.
    """
    return json.dumps([client, issuer, subject], separators=(",", ":"))


def person_of(owner: str) -> Person:
    """Return the person who owns a task: see `Principal.person`."""
    try:
        client, issuer, subject = json.loads(owner)
    except (ValueError, TypeError):
        return None, owner  # the local user, or the anonymous caller
    return issuer, subject or client or owner


ANONYMOUS = Principal(id="anonymous", identified=False)
LOCAL = Principal(id="local")  # the only user of this machine: on stdio, and on loopback with `single_user`


def is_loopback(host: str) -> bool:
    """True if the address is reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
