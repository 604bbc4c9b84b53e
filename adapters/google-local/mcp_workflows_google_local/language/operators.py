"""Operators: their results for each type, and the types that they refuse.

Source: https://cloud.google.com/workflows/docs/reference/syntax/datatypes (implicit data type conversions)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.language.errors import Tag, WorkflowError, failure
from mcp_workflows_google_local.language.values import (
    GREATEST,
    SMALLEST,
    TEXT_LIMIT,
    is_int,
    is_list,
    is_map,
    is_number,
    type_name,
)

Apply: TypeAlias = Callable[[JSON, JSON], JSON]


def _refused(sign: str, left: JSON, right: JSON) -> WorkflowError:
    return failure(Tag.TYPE, f"unsupported operands for {sign}: {type_name(left)} and {type_name(right)}")


def as_text(value: JSON) -> str:
    """Return a string, number or boolean in the form of string().

    Raises:
        WorkflowError: TypeError, the value has another type.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) or is_number(value):
        return str(value)
    raise failure(Tag.TYPE, f"a {type_name(value)} cannot become a string: use json.encode_to_string")


def bounded(value: JSON) -> JSON:
    """Return a number or string, if it is within the limits of its type.

    Raises:
        WorkflowError: ValueError (integers of 64 bits, finite doubles) or ResourceLimitError (strings).
    """
    if is_int(value) and not SMALLEST <= value <= GREATEST:
        raise failure(Tag.VALUE, "integer overflow: it does not fit 64 bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise failure(Tag.VALUE, "the result is no finite number")
    if isinstance(value, str) and len(value.encode(errors="replace")) > TEXT_LIMIT:
        raise failure(Tag.RESOURCE_LIMIT, "a string is larger than 256 KB")
    return value


def equal(left: JSON, right: JSON) -> bool:
    """Return True if two values are equal; 1 == 1.0, but true is not 1."""
    if is_map(left) and is_map(right):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if is_list(left) and is_list(right):
        return len(left) == len(right) and all(map(equal, left, right))
    return (type(left) is type(right) or (is_number(left) and is_number(right))) and bool(left == right)


def contains(wanted: JSON, where: JSON) -> bool:
    """Evaluate `in`: a key of a map, or an element of a list."""
    if is_map(where):
        return isinstance(wanted, str) and wanted in where
    if is_list(where):
        return any(equal(wanted, item) for item in where)
    raise failure(Tag.TYPE, f"The argument of 'in' must be a dict or an array; got: {type_name(where)}")


def _plus(left: JSON, right: JSON) -> JSON:
    if isinstance(left, str) or isinstance(right, str):
        plain = (str, int, float)  # bool is an int here
        if isinstance(left, plain) and isinstance(right, plain):
            return as_text(left) + as_text(right)
        raise _refused("+", left, right)
    return _numeric("+", operator.add)(left, right)


def _numeric(sign: str, apply: Apply) -> Apply:
    def applied(left: JSON, right: JSON) -> JSON:
        if not (is_number(left) and is_number(right)):
            raise _refused(sign, left, right)
        try:
            return apply(left, right)
        except ZeroDivisionError:
            raise failure(Tag.ZERO_DIVISION, "division by zero") from None
        except OverflowError:
            raise failure(Tag.VALUE, "the result is no finite number") from None

    return applied


def _divided(left: JSON, right: JSON) -> JSON:
    return left / right


def _floored(left: JSON, right: JSON) -> JSON:
    return left // right


def _ordered(sign: str, apply: Apply) -> Apply:
    def applied(left: JSON, right: JSON) -> JSON:
        if (is_number(left) and is_number(right)) or (isinstance(left, str) and isinstance(right, str)):
            return apply(left, right)
        raise _refused(sign, left, right)

    return applied


BINARY: Final[Mapping[str, Apply]] = {
    "+": _plus,
    "-": _numeric("-", operator.sub),
    "*": _numeric("*", operator.mul),
    "/": _numeric("/", _divided),
    "//": _numeric("//", _floored),
    "%": _numeric("%", operator.mod),
    "<": _ordered("<", operator.lt),
    "<=": _ordered("<=", operator.le),
    ">": _ordered(">", operator.gt),
    ">=": _ordered(">=", operator.ge),
    "==": equal,
    "!=": lambda left, right: not equal(left, right),
    "in": contains,
}
"""All except `and` and `or`, which may not evaluate their right side."""


def truth(value: JSON, what: str) -> bool:
    """Return a boolean; no other value counts as one.

    Raises:
        WorkflowError: TypeError.
    """
    if not isinstance(value, bool):
        raise failure(Tag.TYPE, f"{what} must be a boolean; got: {type_name(value)}")
    return value


def negative(value: JSON) -> JSON:
    """Evaluate `-` before a number."""
    if not is_number(value):
        raise failure(Tag.TYPE, f"unsupported operand for -: {type_name(value)}")
    return bounded(-value)


def part(of: JSON, key: JSON) -> JSON:
    """Evaluate of[key]: a map with a string, a list with an integer from 0.

    Raises:
        WorkflowError: KeyError, IndexError or TypeError.
    """
    if is_map(of) and isinstance(key, str):
        if key not in of:
            raise failure(Tag.KEY, f"key not found: {key}")
        return of[key]
    if is_list(of) and is_int(key):
        return of[index(of, key)]
    raise failure(Tag.TYPE, f"a {type_name(of)} has no elements by {type_name(key)}")


def index(of: list[JSON], key: int) -> int:
    """Return the index if the list has it; negative ones are never valid."""
    if not 0 <= key < len(of):
        raise failure(Tag.INDEX, f"index out of range: {key} of {len(of)}")
    return key
