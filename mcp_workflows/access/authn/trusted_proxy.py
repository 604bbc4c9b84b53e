"""A proxy that authenticates callers: its headers count only if they come from its own address."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mcp_workflows.access.authn.identity import LONGEST_NAME, Identity, split_scopes
from mcp_workflows.access.authn.settings import ProxySettings
from mcp_workflows.errors import TokenRefused

_MOST_WORDS: Final = 1000  # scopes or groups of one request


class TrustedProxy:
    """The identity that the headers of the proxy name."""

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._peers = [ipaddress.ip_network(each) for each in settings.peers]

    def claims_to_say(self, headers: Mapping[str, Sequence[str]]) -> bool:
        """True if a header names a caller, even if somebody else sent it."""
        return self._settings.subject_header in headers

    def trusts(self, peer: str | None) -> bool:
        """True if the other end of the socket is the proxy: by its address, never by a header."""
        try:
            address = ipaddress.ip_address(peer or "")
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return any((mapped or address) in network or address in network for network in self._peers)

    def identity(self, headers: Mapping[str, Sequence[str]]) -> Identity:
        """Return the identity that the proxy names.

        Raises:
            TokenRefused: a header is there twice (then somebody else has sent one, too), or is no name.
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
        raise TokenRefused(f"the header {name} is no name of at most {LONGEST_NAME} characters")
    return value or None


def _listed(headers: Mapping[str, Sequence[str]], name: str | None, sign: str) -> list[str] | None:
    value = _single(headers, name)
    return None if value is None else [word.strip() for word in value.split(sign) if word.strip()][:_MOST_WORDS]


def _single(headers: Mapping[str, Sequence[str]], name: str | None) -> str | None:
    """Return the only value. Several headers of one name are one list (RFC 9110, 5.3), but one may be forged."""
    if name is None or not (values := headers.get(name)):
        return None
    if len(values) > 1:
        raise TokenRefused(f"the header {name} is there {len(values)} times: the proxy must replace what it gets")
    return values[0]
