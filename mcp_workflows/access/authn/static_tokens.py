"""Tokens that were handed out by hand, of which only the hash is known here; and how one is made; no I/O."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Final

from mcp_workflows.access.authn.identity import Identity
from mcp_workflows.access.authn.settings import TokenSettings

ISSUER: Final = "token"  # no issuer's URL is like that
_MARK: Final = "mcpw_"  # so that those who look for secrets in code find it


class HandedOut:
    """The tokens in the configuration."""

    def __init__(self, tokens: Sequence[TokenSettings]) -> None:
        self._known = {
            each.sha256: Identity(
                issuer=ISSUER, subject=each.subject, client=each.name, scopes=frozenset(each.scopes), claims={}
            )
            for each in tokens
        }

    def find(self, token: str) -> Identity | None:
        """Whose it is. How long the look-up takes tells something of hashes only, never of a token."""
        return self._known.get(sha256_of(token))


def make_token() -> str:
    """A new one, of 32 random bytes: nobody can guess it, nor find it from its hash."""
    return f"{_MARK}{secrets.token_urlsafe(32)}"


def sha256_of(token: str) -> str:
    """What is known here of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
