"""Static tokens: only their hashes are known here; no I/O."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Final

from mcp_workflows.access.authn.identity import Identity
from mcp_workflows.access.authn.settings import TokenSettings

ISSUER: Final = "token"  # no issuer's URL is like that
_MARK: Final = "mcpw_"  # so that scanners for secrets find it


class StaticTokens:
    """The tokens in the configuration."""

    def __init__(self, tokens: Sequence[TokenSettings]) -> None:
        self._known = {
            each.sha256: Identity(
                issuer=ISSUER, subject=each.subject, client=each.name, scopes=frozenset(each.scopes), claims={}
            )
            for each in tokens
        }

    def find(self, token: str) -> Identity | None:
        """Return the identity of a token. The time of the look-up depends on hashes only, never on a token."""
        return self._known.get(sha256_of(token))


def make_token() -> str:
    """Make a token of 32 random bytes, which nobody can guess or find from its hash."""
    return f"{_MARK}{secrets.token_urlsafe(32)}"


def sha256_of(token: str) -> str:
    """Return the hash by which a token is known."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
