"""The limits of JSON that everything behind the wire can keep: depth, finite numbers, whole characters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, cast

from mcp_workflows.adapter import JSON
from mcp_workflows.errors import INVALID_PARAMS, RequestError

MAX_DEPTH: Final = 100  # nested lists and objects; parsers behind us stop at about twice that


def checked(value: JSON, where: str) -> None:
    """Raise `RequestError`, naming where, if a value from a client could not be kept as it is.

    Source: RFC 8259, sections 6 (numbers), 8.2 (half surrogate pairs) and 9 (limits of nesting).
    """
    level: list[JSON] = [value]
    for _ in range(MAX_DEPTH + 1):  # a level at a time, as a function call for each of 100,000 values takes too long
        if not level:
            return
        for item in level:
            if isinstance(item, float) or (isinstance(item, str) and not item.isascii()):
                _check_scalar(item, where)
        inside: list[JSON] = [each for each in level if isinstance(each, dict | list)]
        objects = [cast("Mapping[str, JSON]", each) for each in inside if isinstance(each, dict)]
        level = [child for each in inside for child in each]  # of an object the names
        level += [child for each in objects for child in each.values()]
    raise RequestError(INVALID_PARAMS, f"{where} is nested too deeply: at most {MAX_DEPTH} levels")


def _check_scalar(value: JSON, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise RequestError(INVALID_PARAMS, f"{where} holds a number that is not finite: JSON has none")
    if isinstance(value, str) and not _whole(value):
        raise RequestError(INVALID_PARAMS, f"{where} holds half a surrogate pair: it is no Unicode text")


def _whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
