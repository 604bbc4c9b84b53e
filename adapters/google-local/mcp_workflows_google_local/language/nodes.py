"""The nodes of an expression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mcp_workflows_google_local import JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal:
    """A number, string, boolean or null."""

    value: JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A variable."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A value inside a map or list: of.key or of[key]; dotted keys are literals."""

    of: Expression
    key: Expression
    dotted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A list: [a, b]."""

    items: Sequence[Expression]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unary:
    """`-` or `not` before a value."""

    operator: str
    operand: Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """An operator between two values."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """A function or subworkflow, with arguments by position."""

    name: str
    arguments: Sequence[Expression]


Expression: TypeAlias = Literal | Name | Part | Listed | Unary | Binary | Called


def dotted(expression: Expression) -> str | None:
    """Return the dotted name in an expression, such as `http.get`; None for any other expression."""
    if isinstance(expression, Name):
        return expression.name
    if isinstance(expression, Part) and expression.dotted and isinstance(expression.key, Literal):
        before = dotted(expression.of)
        return f"{before}.{expression.key.value}" if before else None
    return None
