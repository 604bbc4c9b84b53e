"""A proxy in front that has checked who it is: its headers count if they come from its own address, and only then."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mcp_workflows.access.authn.identity import LONGEST_NAME, Identity, words_of
from mcp_workflows.access.authn.settings import ProxySettings
from mcp_workflows.errors import TokenRefused

_MOST_WORDS: Final = 1000  # scopes or groups of one request


class Proxied:
    """What headers say, and whose headers those are."""

    def __init__(self, settings: ProxySettings) -> None:
        self._settings = settings
        self._peers = [ipaddress.ip_network(each) for each in settings.peers]

    def claims_to_say(self, headers: Mapping[str, Sequence[str]]) -> bool:
        """Whether there is a header that would say who it is, whoever sent it."""
        return self._settings.subject_header in headers

    def trusts(self, peer: str | None) -> bool:
        """Whether the other end of the socket is the proxy: an address, and never what a header says of it."""
        try:
            address = ipaddress.ip_address(peer or "")
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return any((mapped or address) in network or address in network for network in self._peers)

    def identity(self, headers: Mapping[str, Sequence[str]]) -> Identity:
        """Who the proxy says it is.

        Raises:
            TokenRefused: it says so twice (then somebody else has, too), or nothing that could be a name.
        """
        settings = self._settings
        subject = _one(headers, settings.subject_header)
        if subject is None:
            raise TokenRefused(f"the header {settings.subject_header} is empty")
        groups = _listed(headers, settings.groups_header, ",")
        claims: dict[str, Any] = {"sub": subject} | ({} if groups is None else {"groups": groups})
        said = frozenset(words_of(" ".join(_listed(headers, settings.scopes_header, ",") or ())))
        return Identity(
            issuer=settings.issuer,
            subject=subject,
            client=_one(headers, settings.client_header),
            scopes=said | frozenset(settings.scopes),
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
    """Several headers of one name would be one list (RFC 9110, section 5.3), but somebody else could have sent one."""
    if name is None or not (values := headers.get(name)):
        return None
    if len(values) > 1:
        raise TokenRefused(f"the header {name} is there {len(values)} times: the proxy must replace what it gets")
    return values[0]
