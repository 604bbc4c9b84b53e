"""Cursors of `tasks/list`: opaque to clients, and valid for one owner only.

They are encrypted, because the last task of a page may be hidden from its reader.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import datetime
from typing import Final, TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mcp_workflows.errors import INVALID_PARAMS, RequestError

Position: TypeAlias = tuple[datetime, str]  # when a task was created, and its id

_NONCE: Final = 12  # bytes
_MOST: Final = 500  # characters


def write_cursor(key: bytes, owner: str, position: Position) -> str:
    """Return a cursor for the position after which the next page begins; `key` has 32 bytes."""
    nonce = secrets.token_bytes(_NONCE)
    place = f"{position[0].isoformat()} {position[1]}".encode()
    return urlsafe_b64encode(nonce + AESGCM(key).encrypt(nonce, place, owner.encode())).decode().rstrip("=")


def read_cursor(key: bytes, owner: str, cursor: str) -> Position:
    """Return the position in a cursor of `write_cursor`.

    Raises:
        RequestError: this server made no such cursor for this owner (spec 2025-11-25: -32602).
    """
    try:
        raw = urlsafe_b64decode(cursor[:_MOST] + "=" * (-len(cursor[:_MOST]) % 4))
        place = AESGCM(key).decrypt(raw[:_NONCE], raw[_NONCE:], owner.encode())
        created, _, task_id = place.decode().partition(" ")
        return datetime.fromisoformat(created), task_id
    except (ValueError, InvalidTag):
        raise RequestError(INVALID_PARAMS, "unknown cursor: leave it out to begin with the newest task") from None
