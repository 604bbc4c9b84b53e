"""Pages of lists: a token contains the start of the next page, and identifies the query."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import TypeVar

from mcp_workflows_google_local.refusals import invalid

T = TypeVar("T")


def page(rows: Sequence[T], size: int, token: str, question: str) -> tuple[Sequence[T], str]:
    """Return this page, and the token of the next one or "".

    The rows may have changed since the last page, as Google's may: moved rows may appear twice or not at all.

    Raises:
        RefusedError: the token is from another query.
    """
    mark = hashlib.sha256(question.encode()).hexdigest()[:12]
    first = _first(token, mark)
    after = first + size
    return rows[first:after], _token(after, mark) if after < len(rows) else ""


def _token(first: int, mark: str) -> str:
    return base64.urlsafe_b64encode(f"{mark} {first}".encode()).decode()


def _first(token: str, mark: str) -> int:
    if not token:
        return 0
    try:
        of, first = base64.urlsafe_b64decode(token).decode().split()
        if of == mark:
            return int(first)
    except (ValueError, binascii.Error):
        pass  # reported below
    raise invalid("invalid page token: it is none of ours, or the other parameters are not those it was made for")
