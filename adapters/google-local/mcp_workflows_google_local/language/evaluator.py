"""Expressions -> values. Asynchronous, because an expression may call a subworkflow, the clock or uuid.generate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.language import operators
from mcp_workflows_google_local.language.errors import Tag, failure
from mcp_workflows_google_local.language.nodes import Binary, Called, Expression, Listed, Literal, Name, Part, Unary
from mcp_workflows_google_local.language.values import copied
from mcp_workflows_google_local.language.yaml_nodes import At


class Surroundings(Protocol):
    """The context of an expression."""

    def read(self, name: str) -> JSON:
        """Return the variable of this name; KeyError without a value."""
        ...

    async def call(self, name: str, arguments: Sequence[JSON]) -> JSON:
        """Return the result of a function or subworkflow for arguments by position."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MapTemplate:
    """A map with expressions, also in keys."""

    fields: Sequence[tuple[Template, Template]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTemplate:
    """A list with expressions."""

    items: Sequence[Template]


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """An expression or a literal, and its place."""

    expression: Expression
    at: At


Template: TypeAlias = Formula | MapTemplate | ListTemplate
"""A value in the form of the source, with expressions."""


async def filled(template: Template, where: Surroundings) -> JSON:
    """Return the value of a template, which shares nothing with any variable.

    Raises:
        WorkflowError: raised by an expression in it.
    """
    if isinstance(template, MapTemplate):
        return {await _key(key, where): await filled(value, where) for key, value in template.fields}
    if isinstance(template, ListTemplate):
        return [await filled(item, where) for item in template.items]
    return copied(await value_of(template.expression, where))


async def _key(key: Template, where: Surroundings) -> str:
    name = await filled(key, where)
    if not isinstance(name, str):
        raise failure(Tag.TYPE, "a key of a map must be a string")
    return name


async def value_of(expression: Expression, where: Surroundings) -> JSON:
    """Return the value of an expression, which may be part of a variable.

    Raises:
        WorkflowError: raised by the operators and functions in it.
    """
    if isinstance(expression, Literal):
        return expression.value
    if isinstance(expression, Name):
        return where.read(expression.name)
    return await _EVALUATE[type(expression)](expression, where)


async def _part(expression: Part, where: Surroundings) -> JSON:
    of = await value_of(expression.of, where)
    return operators.part(of, await value_of(expression.key, where))


async def _listed(expression: Listed, where: Surroundings) -> JSON:
    return [await value_of(item, where) for item in expression.items]


async def _unary(expression: Unary, where: Surroundings) -> JSON:
    operand = await value_of(expression.operand, where)
    return operators.negative(operand) if expression.operator == "-" else not operators.truth(operand, "'not' operand")


async def _binary(expression: Binary, where: Surroundings) -> JSON:
    left = await value_of(expression.left, where)
    if expression.operator in ("and", "or"):
        decided = operators.truth(left, f"'{expression.operator}' operand")
        if decided is (expression.operator == "or"):
            return decided
        return operators.truth(await value_of(expression.right, where), f"'{expression.operator}' operand")
    right = await value_of(expression.right, where)
    return operators.bounded(operators.BINARY[expression.operator](left, right))


async def _called(expression: Called, where: Surroundings) -> JSON:
    return await where.call(expression.name, [await value_of(item, where) for item in expression.arguments])


_Evaluate: TypeAlias = Callable[..., Awaitable[JSON]]
_EVALUATE: Mapping[type, _Evaluate] = {
    Binary: _binary,
    Called: _called,
    Listed: _listed,
    Part: _part,
    Unary: _unary,
}
