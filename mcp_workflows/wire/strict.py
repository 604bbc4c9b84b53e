"""JSON that everything behind the wire can keep: not too deep, finite numbers, whole characters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, cast

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import INVALID_PARAMS, RequestError

MAX_DEPTH: Final = 100  # nested lists and objects; parsers behind us stop at about twice that


def checked(value: JSON, where: str) -> None:
    """Raise `RequestError`, naming where, if a value from a client could not be kept as it is.

    Source: RFC 8259, sections 6 (numbers), 8.2 (half surrogate pairs) and 9 (limits of nesting).
    """
    level: list[JSON] = [value]
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return
        for item in level:
            _check_scalar(item, where)
        level = [child for item in level for child in _children(item)]
    raise RequestError(INVALID_PARAMS, f"{where} is nested too deeply: at most {MAX_DEPTH} levels")


def _children(value: JSON) -> Iterable[JSON]:
    if isinstance(value, Mapping):
        found = cast("Mapping[str, JSON]", value)
        return [*found.keys(), *found.values()]
    return cast("Iterable[JSON]", value) if isinstance(value, list) else ()


def _check_scalar(value: JSON, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise RequestError(INVALID_PARAMS, f"{where} holds a number that is not finite: JSON has none")
    if isinstance(value, str) and not _whole(value):
        raise RequestError(INVALID_PARAMS, f"{where} holds half a surrogate pair: it is no Unicode text")


def _whole(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
