"""Source text to a program, checked as at deployment: main and its subworkflows, with their parameters."""

from __future__ import annotations

from collections.abc import Mapping

from mcp_workflows_google_local.language import steps
from mcp_workflows_google_local.language.builder import stages
from mcp_workflows_google_local.language.checks import check
from mcp_workflows_google_local.language.program import Program
from mcp_workflows_google_local.language.shapes import checked_variable, fields_of, template, variable
from mcp_workflows_google_local.language.yaml_nodes import At, Fields, Items, Node, read


def load(source: str) -> Program:
    """Return the program of this text.

    Raises:
        DeployError: it cannot be deployed, or needs what this engine lacks.
    """
    found = routines(read(source))
    check(found)
    return Program(source=source, routines=found)


def routines(node: Node) -> Mapping[str, steps.Routine]:
    """Return main and the subworkflows of a source: a map of them, or only the steps of main."""
    if isinstance(node, Items):
        return {"main": steps.Routine(name="main", parameters=(), body=stages(node), at=node.at)}
    if not isinstance(node, Fields):
        raise node.at.error("A workflow must be a map with `main`, or a list of steps")
    if "main" not in node.fields:
        raise node.at.error("There is no `main`: name the first workflow so")
    return {name: _routine(name, inside, node.keys[name]) for name, inside in node.fields.items()}


def _routine(name: str, node: Node, at: At) -> steps.Routine:
    checked_variable(name, "A workflow", at)
    inside = fields_of(node, f"{name}", frozenset({"params", "steps"}), frozenset({"steps"}))
    params = inside.fields.get("params", Items(at=at, items=()))
    if not isinstance(params, Items):
        raise params.at.error("params must be a list of names")
    parameters = [_parameter(item) for item in params.items]
    if len({parameter.name for parameter in parameters}) != len(parameters):
        raise params.at.error("Two parameters have one name: rename one")
    if name == "main" and len(parameters) > 1:
        raise params.at.error("main takes at most one parameter: the argument of the execution")
    return steps.Routine(name=name, parameters=parameters, body=stages(inside.fields["steps"]), at=at)


def _parameter(node: Node) -> steps.Parameter:
    if isinstance(node, Fields) and len(node.fields) == 1:
        ((name, default),) = node.fields.items()
        name = checked_variable(name, "A parameter", node.at)
        return steps.Parameter(name=name, default=template(default), at=node.at)
    return steps.Parameter(name=variable(node, "A parameter"), default=None, at=node.at)
