"""Visibility of names: the variables, functions and subworkflows that a step can use.

Source: https://cloud.google.com/workflows/docs/reference/syntax/variables (scopes)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from mcp_workflows_google_local.language import steps
from mcp_workflows_google_local.language.evaluator import Formula, ListTemplate, Template
from mcp_workflows_google_local.language.library import FUNCTIONS, why_unknown
from mcp_workflows_google_local.language.nodes import Binary, Called, Expression, Listed, Name, Part, Unary
from mcp_workflows_google_local.language.yaml_nodes import At

Routines: TypeAlias = Mapping[str, steps.Routine]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a step: what it can see and jump to."""

    routines: Routines
    names: frozenset[str]  # variables it may read
    writable: frozenset[str]  # those it may assign
    targets: frozenset[str] = frozenset()  # steps it may jump to
    jumps: frozenset[str] = field(default=frozenset({"end"}))
    parallels: int = 0

    def with_own(self, own: set[str], body: steps.Body) -> Place:
        """Return this place with a separate scope, where variables that are first assigned inside are local."""
        new = own | (assigned(body) - self.names)
        return replace(self, names=self.names | new, writable=self.writable | new)


def assigned(body: steps.Body) -> set[str]:
    """Return the variables that steps create in their own scope."""
    return {name for stage in body for name in _created(stage.action)}


def _created(action: steps.Action) -> Iterator[str]:
    match action:
        case steps.Assign():
            yield from (one.target.name for one in action.assignments if isinstance(one.target, Name))
        case steps.Call():
            yield from [action.result] if action.result else []
        case steps.Switch():
            for case in action.cases:
                yield from assigned(case.body)
        case steps.Nested() | steps.Try():
            yield from assigned(action.body)
        case _:
            return


def check_template(template: Template, place: Place) -> None:
    """Raises:
    DeployError: an expression in it names what is not there.
    """
    if isinstance(template, Formula):
        check_expression(template.expression, place, template.at)
    elif isinstance(template, ListTemplate):
        for item in template.items:
            check_template(item, place)
    else:
        for key, value in template.fields:
            check_template(key, place)
            check_template(value, place)


def check_expression(expression: Expression, place: Place, at: At) -> None:
    """Raises:
    DeployError: it names a variable or function that is not there.
    """
    if isinstance(expression, Name) and expression.name not in place.names:
        raise at.error(
            f"There is no variable {expression.name!r} here: assign it first, outside of the loop, branch or except"
        )
    if isinstance(expression, Called):
        check_positional(expression, place, at)
    for part in _parts(expression):
        check_expression(part, place, at)


def _parts(expression: Expression) -> Sequence[Expression]:
    match expression:
        case Part():
            return (expression.of, expression.key)
        case Binary():
            return (expression.left, expression.right)
        case Unary():
            return (expression.operand,)
        case Listed():
            return expression.items
        case Called():
            return expression.arguments
        case _:
            return ()


def parameters(name: str, place: Place, at: At) -> tuple[Sequence[str], Sequence[str]]:
    """Return the required and the optional parameters of a function or subworkflow.

    Raises:
        DeployError: there is none of this name.
    """
    if name == "main":
        raise at.error("main cannot be called: move what is needed to a subworkflow")
    if routine := place.routines.get(name):
        needed = [parameter.name for parameter in routine.parameters if parameter.default is None]
        return needed, [parameter.name for parameter in routine.parameters if parameter.default is not None]
    if function := FUNCTIONS.get(name):
        return function.required, function.optional
    raise at.error(why_unknown(name))


def check_positional(called: Called, place: Place, at: At) -> None:
    """Raises:
    DeployError: what is called in an expression is not there, blocking, or gets a wrong number of arguments.
    """
    required, optional = parameters(called.name, place, at)
    if called.name not in place.routines and FUNCTIONS[called.name].blocking:
        raise at.error(f"{called.name} cannot be called in an expression: use a `call` step")
    if not len(required) <= len(called.arguments) <= len(required) + len(optional):
        wanted = ", ".join((*required, *(f"{name}?" for name in optional)))
        raise at.error(f"{called.name}({wanted}) got {len(called.arguments)} arguments")
