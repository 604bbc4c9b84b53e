"""Google's checks at deployment: unknown variables, functions and steps, and invalid jumps.

Source: https://cloud.google.com/workflows/docs/reference/syntax/variables (scopes), .../jumps, .../parallel-steps
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from mcp_workflows_google_local.language import steps
from mcp_workflows_google_local.language.library_retry import PREDICATES
from mcp_workflows_google_local.language.nodes import Expression, Name, Part
from mcp_workflows_google_local.language.visibility import Place, Routines, check_expression, check_template, parameters
from mcp_workflows_google_local.language.yaml_nodes import At


def check(routines: Routines) -> None:
    """Raises:
    DeployError: a routine would not be accepted.
    """
    for routine in routines.values():
        nothing = Place(routines=routines, names=frozenset(), writable=frozenset())
        place = nothing.with_own({parameter.name for parameter in routine.parameters}, routine.body)
        for parameter in routine.parameters:
            if parameter.default:
                check_template(parameter.default, place)
        check_body(routine.body, place)


def check_body(body: steps.Body, place: Place) -> None:
    """Raises:
    DeployError: a step of it would not be accepted.
    """
    seen: set[str] = set()
    for stage in body:
        if stage.name in steps.JUMPS:
            raise stage.at.error(f"A step cannot be called {stage.name!r}: `next` means something else by it")
        if stage.name in seen or (stage.name in place.targets and not stage.inline):
            raise stage.at.error(f"There are two steps {stage.name!r}: rename one")
        seen.add(stage.name)
    inside = replace(place, targets=place.targets | frozenset(stage.name for stage in body if not stage.inline))
    for stage in body:
        check_jump(stage.next, stage.at, inside)
        _CHECKS[type(stage.action)](stage.action, inside, stage.at)


def check_jump(target: str | None, at: At, place: Place) -> None:
    """Raises:
    DeployError: `next` leads nowhere.
    """
    if target is None or target in place.targets or target in place.jumps:
        return
    if target in ("break", "continue"):
        raise at.error(f"next: {target} cannot be used here: it belongs in a `for` loop (break: not a parallel one)")
    if target == "end":
        raise at.error("next: end cannot be used in a parallel step: let its branches come to their end")
    raise at.error(f"next: there is no step {target!r} that can be jumped to from here")


def _assign(action: steps.Assign, place: Place, at: At) -> None:
    for assignment in action.assignments:
        check_template(assignment.value, place)
        root: Expression = assignment.target
        while isinstance(root, Part):
            check_expression(root.key, place, assignment.at)
            root = root.of
        assert isinstance(root, Name)  # the builder checked this
        check_expression(root, place, assignment.at)
        check_writable(root.name, place, assignment.at)


def check_writable(name: str, place: Place, at: At) -> None:
    """Raises:
    DeployError: it is a variable of outside, and the parallel step does not share it.
    """
    if name not in place.writable:
        raise at.error(f"{name!r} is assigned in a parallel step: add it to the step's `shared`")


def _call(action: steps.Call, place: Place, at: At) -> None:
    required, optional = parameters(action.name, place, action.at)
    for name in action.arguments:
        if name not in (*required, *optional):
            allowed = ", ".join((*required, *optional)) or "none"
            raise action.at.error(f"{action.name} has no argument {name!r} here: it has {allowed}")
    for name in required:
        if name not in action.arguments:
            raise action.at.error(f"{action.name} needs the argument {name!r}")
    for value in action.arguments.values():
        check_template(value, place)
    if action.result:
        check_writable(action.result, place, at)


def _switch(action: steps.Switch, place: Place, at: At) -> None:
    for case in action.cases:
        check_template(case.condition, place)
        check_jump(case.next, case.at, place)
        check_body(case.body, place)


def _loop(loop: steps.For, place: Place, jumps: frozenset[str]) -> None:
    for template in (loop.over, loop.range):
        if template is not None:
            check_template(template, place)
    own = {name for name in (loop.value, loop.index) if name}
    inside = place.with_own(own, loop.body)
    check_body(loop.body, replace(inside, targets=frozenset(), jumps=jumps))


def _for(action: steps.For, place: Place, at: At) -> None:
    _loop(action, place, (place.jumps & {"end"}) | {"break", "continue"})


def _parallel(action: steps.Parallel, place: Place, at: At) -> None:
    if place.parallels >= steps.PARALLEL_DEPTH_LIMIT:
        raise at.error(f"At most {steps.PARALLEL_DEPTH_LIMIT} parallel steps can stand in one another")
    if action.limit:
        check_template(action.limit, place)
    for name, where in action.shared.items():
        if name not in place.names:
            raise where.error(f"shared: there is no variable {name!r} before this step: assign it first")
        check_writable(name, place, where)
    inside = replace(
        place, writable=frozenset(action.shared), targets=frozenset(), jumps=frozenset(), parallels=place.parallels + 1
    )
    for branch in action.branches:
        check_body(branch.body, inside.with_own(set(), branch.body))
    if action.loop:
        _loop(action.loop, inside, frozenset({"continue"}))


def _try(action: steps.Try, place: Place, at: At) -> None:
    check_body(action.body, place)
    if isinstance(action.retry, steps.Retry):
        _retry(action.retry, place)
    if action.caught:
        own = {action.caught.name} if action.caught.name else set[str]()
        check_body(action.caught.body, place.with_own(own, action.caught.body))


def _retry(retry: steps.Retry, place: Place) -> None:
    check_template(retry.max_retries, place)
    for delay in retry.backoff.values() if isinstance(retry.backoff, Mapping) else ():
        check_template(delay, place)
    if retry.predicate in PREDICATES and retry.predicate not in place.routines:
        return
    routine = place.routines.get(retry.predicate)
    if routine is None:
        ready = ", ".join(PREDICATES)
        raise retry.at.error(f"There is no predicate {retry.predicate!r}: use a subworkflow, or one of {ready}")
    if not routine.parameters or any(parameter.default is None for parameter in routine.parameters[1:]):
        raise retry.at.error(f"The predicate {retry.predicate!r} must take one parameter: the error")


def _return(action: steps.Return, place: Place, at: At) -> None:
    if place.parallels:
        raise at.error("return cannot be used in a parallel step: assign to a shared variable instead")
    check_template(action.value, place)


Check: TypeAlias = Callable[[Any, Place, At], None]  # Any: the type of the action is the key

_CHECKS: Mapping[type, Check] = {
    steps.Assign: _assign,
    steps.Call: _call,
    steps.For: _for,
    steps.Nested: lambda action, place, at: check_body(action.body, place),
    steps.Parallel: _parallel,
    steps.Raise: lambda action, place, at: check_template(action.error, place),
    steps.Return: _return,
    steps.Switch: _switch,
    steps.Try: _try,
}
