"""Cursors of `tasks/list`: opaque to clients, and worth something only to the owner they were made for."""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import datetime
from typing import Final, TypeAlias

from mcp_workflows.errors import INVALID_PARAMS, RequestError

Position: TypeAlias = tuple[datetime, str]  # when a task was created, and its id

_SIGN: Final = 16  # bytes
_MOST: Final = 500  # characters


def write_cursor(key: bytes, owner: str, position: Position) -> str:
    """The place after which the next page begins."""
    place = f"{position[0].isoformat()} {position[1]}".encode()
    return urlsafe_b64encode(_sign(key, owner, place) + place).decode().rstrip("=")


def read_cursor(key: bytes, owner: str, cursor: str) -> Position:
    """The place in a cursor of `write_cursor`.

    Raises:
        RequestError: we made no such cursor for this owner (spec 2025-11-25: -32602).
    """
    try:
        raw = urlsafe_b64decode(cursor[:_MOST] + "=" * (-len(cursor) % 4))
        sign, place = raw[:_SIGN], raw[_SIGN:]
        if not hmac.compare_digest(sign, _sign(key, owner, place)):
            raise ValueError("not ours")
        created, _, task_id = place.decode().partition(" ")
        return datetime.fromisoformat(created), task_id
    except ValueError:
        raise RequestError(INVALID_PARAMS, "unknown cursor: leave it out to begin with the newest task") from None


def _sign(key: bytes, owner: str, place: bytes) -> bytes:
    return hmac.digest(key, b"%d %s %s" % (len(owner.encode()), owner.encode(), place), "sha256")[:_SIGN]
