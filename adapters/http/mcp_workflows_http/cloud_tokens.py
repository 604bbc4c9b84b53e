"""Tokens of clouds, from their own libraries: these know every place where an identity can come from."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Reason: google-auth has no types.

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from functools import lru_cache
from typing import Any, Final

import anyio
import anyio.to_thread

from mcp_workflows.errors import EngineUnavailable

RENEWED_BEFORE: Final = 60.0  # seconds before its end


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token, and until when it is used."""

    text: str
    until: float  # of the monotonic clock


async def google_token(scope: str) -> Token:
    """Return a token of Google's default credentials.

    Raises:
        EngineUnavailable: there is none now; nothing was sent to the API.
    """
    return await _from_library("google", _google, scope)


async def azure_token(scope: str) -> Token:
    """Return a token of Azure's default credentials.

    Raises:
        EngineUnavailable: there is none now; nothing was sent to the API.
    """
    return await _from_library("azure", _azure, scope)


async def _from_library(name: str, ask: Callable[[str], tuple[str, float]], scope: str) -> Token:
    try:
        text, ends = await anyio.to_thread.run_sync(ask, scope, abandon_on_cancel=True)
    except Exception as error:  # noqa: BLE001  # each library has errors of its own, which may say more than we show
        what = f"auth.{name}: no token can be had ({type(error).__name__})"
        raise EngineUnavailable(what, sent=False) from None
    seconds = ends - time.time()
    return Token(text=text, until=time.monotonic() + max(seconds - RENEWED_BEFORE, seconds / 2))


def _google(scope: str) -> tuple[str, float]:
    """Return a token and when it ends; this blocks."""
    import google.auth  # noqa: PLC0415  # an extra
    from google.auth.transport.requests import Request  # noqa: PLC0415

    credentials: Any = google.auth.default(scopes=[scope])[0]
    credentials.refresh(Request())
    return credentials.token, credentials.expiry.replace(tzinfo=UTC).timestamp()


@lru_cache(maxsize=1)
def _azure_credential() -> Any:
    from azure.identity import DefaultAzureCredential  # noqa: PLC0415  # an extra

    return DefaultAzureCredential()


def _azure(scope: str) -> tuple[str, float]:
    """Return a token and when it ends; this blocks."""
    found = _azure_credential().get_token(scope)
    return found.token, float(found.expires_on)
