"""Pages by the last item shown, so that what is added meanwhile repeats and hides nothing."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mcp_workflows_stepfunctions.local.refusing import RefusedError

USUAL: Final = 100
MOST: Final = 1000


def page(
    items: Sequence[Any], *, under: str, key: Callable[[Any], str], size: int | None, token: str | None
) -> Mapping[str, Any]:
    """One page: `{under: items}`, and the `nextToken` if there are more.

    Raises:
        RefusedError: ValidationException, InvalidToken.
    """
    if size is not None and size > MOST:
        raise RefusedError(
            "ValidationException",
            f"1 validation error detected: Value '{size}' at 'maxResults' failed to satisfy constraint: "
            f"Member must have value less than or equal to {MOST}",
        )
    first = _after(items, key, token) if token else 0
    end = first + (size or USUAL)
    shown = {under: list(items[first:end])}
    return {**shown, "nextToken": _written(key(items[end - 1]))} if end < len(items) else shown


def _after(items: Sequence[Any], key: Callable[[Any], str], token: str) -> int:
    try:
        last = base64.urlsafe_b64decode(token).decode()
    except (binascii.Error, UnicodeDecodeError):
        last = ""
    found = next((place for place, item in enumerate(items) if key(item) == last), None)
    if found is None:
        raise RefusedError("InvalidToken", f"Invalid Token: '{token}'")
    return found + 1


def _written(last: str) -> str:
    return base64.urlsafe_b64encode(last.encode()).decode()
