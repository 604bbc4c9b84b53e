"""Tokens of Azure's default credentials, from azure-identity; only the extra `azure` has it."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from azure.core.exceptions import AzureError
from azure.identity import DefaultAzureCredential

ERRORS: Final = (AzureError, OSError, ValueError)
"""The errors of `token`; their texts may say more than people may see."""


@lru_cache(maxsize=1)
def _credential() -> DefaultAzureCredential:
    return DefaultAzureCredential()


def token(scope: str) -> tuple[str, float]:
    """Return a token and when it ends, in seconds since 1970; this blocks."""
    found = _credential().get_token(scope)
    return found.token, float(found.expires_on)
