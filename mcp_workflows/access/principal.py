"""Who asks: the principal that owns a task, as far as anybody knows who it is."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self, TypeAlias

from mcp_workflows.access.claims import Claims

PRINCIPAL_FIELDS: Final = frozenset({"id", "issuer", "subject", "client", "scopes", "claims"})  # as templates see it
Person: TypeAlias = tuple[str | None, str]  # the issuer, and whom it names


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks. `id` is the owner of the tasks they create and the only thing ever compared with one.

    All but the id is as their token says it now, and is kept with no task.
    """

    id: str
    issuer: str | None = None
    subject: str | None = None  # the person, if the token names one: `{{principal.subject}}` in mappings
    client: str | None = None  # the OAuth client through which they ask
    scopes: frozenset[str] = frozenset()
    claims: Claims = field(default_factory=dict[str, Any], repr=False, hash=False)
    expires: datetime | None = None  # until when they are let in with this token; None: does not say
    identified: bool = True  # False: anonymous, and a task's id is all that protects it
    recheck: Callable[[], Awaitable[Self | None]] | None = field(default=None, repr=False, compare=False)
    peer: str | None = field(
        default=None, repr=False, compare=False
    )  # where an anonymous caller comes from: for meters

    @property
    def scope(self) -> Mapping[str, Mapping[str, Any]]:  # Any: JSON values
        """`principal` as templates see it."""
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
        """Who it is, whatever they ask through: `not_owner` is about people, not about their clients."""
        return self.issuer, self.subject or self.client or self.id

    async def renewed(self, now: datetime) -> Self | None:
        """As they would be let in now, with the token they came with: pushes outlive requests. None: not at all."""
        if self.expires is not None and self.expires <= now:
            return None
        return self if self.recheck is None else await self.recheck()

    async def still(self, now: datetime) -> Self | None:
        """The same within a request that goes on: that its token has expired since it came is nothing to it."""
        return self if self.expires is not None and self.expires <= now else await self.renewed(now)


def owner_id(*, client: str | None, issuer: str | None, subject: str | None) -> str:
    """The id of a principal; without a client, of a subject across clients.

    The same text as the SDK's `authenticated_principal` makes of a token, so that owners stay owners.
    """
    return json.dumps([client, issuer, subject], separators=(",", ":"))


def person_of(owner: str) -> Person:
    """Who the owner of a task is: see `Principal.person`."""
    try:
        client, issuer, subject = json.loads(owner)
    except ValueError:
        return None, owner  # the local user, or anonymous ones
    return issuer, subject or client or owner


ANONYMOUS = Principal(id="anonymous", identified=False)
LOCAL = Principal(id="local")  # the one user of this machine: on stdio, and on loopback with `single_user`


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address, or have come from it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
