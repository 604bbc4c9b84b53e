"""Tokens of Google's default credentials, from google-auth; only the extra `google` has it."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Reason: google-auth has no types.

from __future__ import annotations

from datetime import UTC
from typing import Any, Final

import google.auth
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import Request

ERRORS: Final = (GoogleAuthError, OSError, ValueError)
"""The errors of `token`; their texts may say more than people may see."""


def token(scope: str) -> tuple[str, float]:
    """Return a token and when it ends, in seconds since 1970; this blocks."""
    credentials: Any = google.auth.default(scopes=[scope])[0]
    credentials.refresh(Request())
    return credentials.token, credentials.expiry.replace(tzinfo=UTC).timestamp()
