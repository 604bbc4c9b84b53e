"""Nodes of the source -> names, maps, lists and values with expressions, or their problems."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.language import expressions
from mcp_workflows_google_local.language.evaluator import Formula, ListTemplate, MapTemplate, Template
from mcp_workflows_google_local.language.expressions import Malformed
from mcp_workflows_google_local.language.nodes import Expression, Literal, dotted
from mcp_workflows_google_local.language.yaml_nodes import At, Fields, Items, Node, Scalar

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED: Final = frozenset({"and", "or", "not", "in", "true", "false", "null"})


def fields_of(node: Node, what: str, allowed: frozenset[str], required: frozenset[str] = frozenset()) -> Fields:
    """Return a map with these keys.

    Raises:
        DeployError: it is not a map, has an unknown key, or lacks one.
    """
    if not isinstance(node, Fields):
        raise node.at.error(f"{what} must be a map")
    for key, at in node.keys.items():
        if key not in allowed:
            raise at.error(f"{what} has the unknown key {key!r}: it may have {', '.join(sorted(allowed))}")
    for key in sorted(required - node.fields.keys()):
        raise node.at.error(f"{what} needs {key!r}")
    return node


def items_of(node: Node, what: str, limit: int | None = None) -> Sequence[Node]:
    """Return a list that is not empty.

    Raises:
        DeployError: it is not a list, empty, or longer than the limit.
    """
    if not isinstance(node, Items) or not node.items:
        raise node.at.error(f"{what} must be a list that is not empty")
    if limit is not None and len(node.items) > limit:
        raise node.at.error(f"{what} has {len(node.items)} entries; at most {limit} are allowed: split it")
    return node.items


def word(node: Node, what: str) -> str:
    """Return a string, or a scalar that reads like one.

    Raises:
        DeployError: it is neither, or an expression.
    """
    if not isinstance(node, Scalar) or not isinstance(node.value, str) or "${" in node.value:
        raise node.at.error(f"{what} must be a plain name")
    return node.value


def variable(node: Node, what: str) -> str:
    """Return the name of a variable.

    Raises:
        DeployError: it is not one.
    """
    return checked_variable(word(node, what), what, node.at)


def checked_variable(name: str, what: str, at: At) -> str:
    """Return the name, if it is valid for a variable."""
    if not _VARIABLE.fullmatch(name) or name.lower() in _RESERVED:
        raise at.error(f"{what}: {name!r} cannot be a variable: use letters, digits and _, not first a digit")
    return name


def expression(text: str, at: At) -> Expression:
    """Return the expression of a text without its ${}.

    Raises:
        DeployError: it is not an expression.
    """
    try:
        return expressions.parse(text)
    except Malformed as error:
        raise at.error(f"Wrong expression: {error}") from None


def template(node: Node) -> Template:
    """Return a value with expressions.

    Raises:
        DeployError: an expression is invalid.
    """
    if isinstance(node, Fields):
        pairs = ((_text(key, node.keys[key]), template(value)) for key, value in node.fields.items())
        return MapTemplate(fields=list(pairs))
    if isinstance(node, Items):
        return ListTemplate(items=[template(item) for item in node.items])
    return _text(node.value, node.at)


def _text(value: JSON, at: At) -> Formula:
    if not isinstance(value, str) or "${" not in value:
        return Formula(expression=Literal(value=value), at=at)
    text = value.strip()
    if not (text.startswith("${") and text.endswith("}")):
        raise at.error('Text and ${...} cannot be mixed: write ${"text " + string(value)}')
    return Formula(expression=expression(text[2:-1], at), at=at)


def reference(node: Node, what: str) -> str:
    """Return the function that an expression like ${http.default_retry} names.

    Raises:
        DeployError: it does not name one.
    """
    found = template(node)
    name = dotted(found.expression) if isinstance(found, Formula) else None
    if name is None:
        raise node.at.error(f"{what} must name a function or subworkflow, as ${{http.default_retry_predicate}}")
    return name
