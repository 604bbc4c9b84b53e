"""Nodes of the source -> steps. Anything outside the language is reported with its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from mcp_workflows_google_local.language import steps
from mcp_workflows_google_local.language.evaluator import Formula, Template
from mcp_workflows_google_local.language.library_retry import BACKOFFS, POLICIES, Backoff, Policy
from mcp_workflows_google_local.language.nodes import Literal, Name, Part
from mcp_workflows_google_local.language.shapes import (
    expression,
    fields_of,
    items_of,
    reference,
    template,
    variable,
    word,
)
from mcp_workflows_google_local.language.yaml_nodes import At, Fields, Items, Node


def stages(node: Node) -> steps.Body:
    """Return the steps of a list."""
    return [_named(item) for item in items_of(node, "steps")]


def _named(node: Node) -> steps.Stage:
    if not isinstance(node, Fields) or len(node.fields) != 1:
        raise node.at.error("A step must be a map with one key, its name: `- my_step:` and below it what it does")
    ((name, inside),) = node.fields.items()
    return stage(name, inside, node.keys[name])


def stage(name: str, node: Node, at: At, *, inline: bool = False) -> steps.Stage:
    """Return a step from the node under its name."""
    if not isinstance(node, Fields):
        raise node.at.error(f"The step {name!r} must be a map, as `assign:` or `call:`")
    action = _the_action(name, node)
    allowed, make = _ACTIONS.get(action, _JUMP)
    known = fields_of(node, f"The step {name!r}", allowed | {action} - ({"next"} if inline else frozenset()))
    target = word(known.fields["next"], "next") if "next" in known.fields else None
    return steps.Stage(name=name, action=make(name, known), next=target, at=at, inline=inline)


def _the_action(name: str, node: Fields) -> str:
    found = [key for key in node.fields if key in _ACTIONS]
    if len(found) > 1:
        raise node.keys[found[1]].error(f"The step {name!r} does both {found[0]} and {found[1]}: make it two steps")
    if not found and "next" not in node.fields:
        key = next((key for key in node.fields if key not in ("args", "result", "retry", "except")), None)
        raise node.at.error(f"The step {name!r} does nothing that is known" + (f": {key!r}" if key else ""))
    return found[0] if found else "next"


def body(name: str, node: Node, own: frozenset[str] = frozenset()) -> steps.Body:
    """Return the body of a `try`, branch, loop or condition: its `steps`, or one step without a name."""
    if not isinstance(node, Fields):
        raise node.at.error("It must be a map with `steps`, or with what one step does")
    rest = {key: value for key, value in node.fields.items() if key not in own}
    if rest.keys() == {"steps"}:
        return stages(rest["steps"])
    places = {key: node.keys[key] for key in rest}
    return [stage(name, Fields(at=node.at, fields=rest, keys=places), node.at, inline=True)]


def _assign(name: str, node: Fields) -> steps.Action:
    found: list[steps.Assignment] = []
    for item in items_of(node.fields["assign"], "assign", steps.ENTRY_LIMIT):
        if not isinstance(item, Fields) or len(item.fields) != 1:
            raise item.at.error("An assignment must be a map with one key: `- variable: value`")
        ((target, value),) = item.fields.items()
        at = item.keys[target]
        found.append(steps.Assignment(target=_target(target, at), value=template(value), at=at))
    return steps.Assign(assignments=found)


def _target(text: str, at: At) -> Name | Part:
    target = expression(text, at)
    root = target
    while isinstance(root, Part):
        root = root.of
    if not isinstance(target, Name | Part) or not isinstance(root, Name):
        raise at.error(f"{text!r} cannot be assigned: write a variable, variable.key or variable[index]")
    return target


def _call(name: str, node: Fields) -> steps.Action:
    args = node.fields.get("args", Fields(at=node.at, fields={}, keys={}))
    if not isinstance(args, Fields):
        raise args.at.error("args must be a map of arguments by name")
    return steps.Call(
        name=word(node.fields["call"], "call"),
        arguments={key: template(value) for key, value in args.fields.items()},
        result=variable(node.fields["result"], "result") if "result" in node.fields else None,
        at=node.fields["call"].at,
    )


def _switch(name: str, node: Fields) -> steps.Action:
    return steps.Switch(
        cases=[_case(name, item) for item in items_of(node.fields["switch"], "switch", steps.ENTRY_LIMIT)]
    )


def _case(name: str, node: Node) -> steps.Case:
    if not isinstance(node, Fields) or "condition" not in node.fields:
        raise node.at.error("An entry of switch must be a map with `condition`")
    own = frozenset({"condition", "next"})
    if not node.fields.keys() - {"condition"}:
        raise node.at.error("A condition needs `next`, `steps`, or what one step does")
    return steps.Case(
        condition=template(node.fields["condition"]),
        body=body(name, node, own) if node.fields.keys() - own else (),
        next=word(node.fields["next"], "next") if "next" in node.fields else None,
        at=node.at,
    )


def _for(name: str, node: Fields) -> steps.For:
    allowed = frozenset({"value", "index", "in", "range", "steps"})
    loop = fields_of(node.fields["for"], "for", allowed, frozenset({"value", "steps"}))
    if ("in" in loop.fields) == ("range" in loop.fields):
        raise loop.at.error("for needs either `in` or `range`")
    return steps.For(
        value=variable(loop.fields["value"], "value"),
        index=variable(loop.fields["index"], "index") if "index" in loop.fields else None,
        over=template(loop.fields["in"]) if "in" in loop.fields else None,
        range=_range(loop.fields["range"]) if "range" in loop.fields else None,
        body=stages(loop.fields["steps"]),
        at=loop.at,
    )


def _range(node: Node) -> Template:
    found = template(node)
    is_list = isinstance(node, Items) and len(node.items) == len(("first", "last"))
    if not (is_list or (isinstance(found, Formula) and not isinstance(found.expression, Literal))):
        raise node.at.error("range must be a list of two numbers, the first and the last, or an expression for one")
    return found


def _parallel(name: str, node: Fields) -> steps.Action:
    allowed = frozenset({"shared", "concurrency_limit", "exception_policy", "branches", "for"})
    inside = fields_of(node.fields["parallel"], "parallel", allowed)
    if ("branches" in inside.fields) == ("for" in inside.fields):
        raise inside.at.error("parallel needs either `branches` or `for`")
    policy = inside.fields.get("exception_policy")
    if policy is not None and word(policy, "exception_policy") != "continueAll":
        raise policy.at.error("exception_policy can only be continueAll")
    shared = items_of(inside.fields["shared"], "shared") if "shared" in inside.fields else ()
    limit = inside.fields.get("concurrency_limit")
    return steps.Parallel(
        shared={variable(item, "shared"): item.at for item in shared},
        limit=template(limit) if limit else None,
        branches=_branches(inside.fields["branches"]) if "branches" in inside.fields else (),
        loop=_for(name, inside) if "for" in inside.fields else None,
    )


def _branches(node: Node) -> Sequence[steps.Branch]:
    found: dict[str, steps.Branch] = {}
    for item in items_of(node, "branches", steps.BRANCH_LIMIT):
        if not isinstance(item, Fields) or len(item.fields) != 1:
            raise item.at.error("A branch must be a map with one key, its name")
        ((name, inside),) = item.fields.items()
        if name in found:
            raise item.at.error(f"There are two branches {name!r}: rename one")
        found[name] = steps.Branch(name=name, body=body(name, inside))
    return list(found.values())


def _try(name: str, node: Fields) -> steps.Action:
    retry, caught = node.fields.get("retry"), node.fields.get("except")
    if retry is None and caught is None:
        raise node.keys["try"].error("try needs `retry` or `except`")
    return steps.Try(
        body=body(name, node.fields["try"]),
        retry=_retry(retry) if retry else None,
        caught=_except(name, caught) if caught else None,
    )


def _except(name: str, node: Node) -> steps.Except:
    if not isinstance(node, Fields):
        raise node.at.error("except must be a map with `as` and `steps`")
    own = frozenset({"as"})
    return steps.Except(
        name=variable(node.fields["as"], "as") if "as" in node.fields else None,
        body=body(name, node, own) if node.fields.keys() - own else (),
    )


def _retry(node: Node) -> steps.Retry | Policy:
    if not isinstance(node, Fields):
        name = reference(node, "retry")
        if name not in POLICIES:
            raise node.at.error(f"There is no retry policy {name!r}: use {' or '.join(POLICIES)}, or a map")
        return POLICIES[name]
    keys = frozenset({"predicate", "max_retries", "backoff"})
    inside = fields_of(node, "retry", keys, keys)
    return steps.Retry(
        predicate=reference(inside.fields["predicate"], "predicate"),
        max_retries=template(inside.fields["max_retries"]),
        backoff=_backoff(inside.fields["backoff"]),
        at=inside.fields["predicate"].at,
    )


def _backoff(node: Node) -> Backoff | Mapping[str, Template]:
    if not isinstance(node, Fields):
        name = reference(node, "backoff")
        if name not in BACKOFFS:
            raise node.at.error(f"There is no backoff {name!r}: use {' or '.join(BACKOFFS)}, or a map")
        return BACKOFFS[name]
    keys = frozenset({"initial_delay", "max_delay", "multiplier"})
    return {key: template(value) for key, value in fields_of(node, "backoff", keys, keys).fields.items()}


_Make: TypeAlias = Callable[[str, Fields], steps.Action]
_NEXT: Final = frozenset({"next"})
_JUMP: Final[tuple[frozenset[str], _Make]] = (_NEXT, lambda name, node: steps.Nested(body=()))
_ACTIONS: Final[Mapping[str, tuple[frozenset[str], _Make]]] = {
    "assign": (_NEXT, _assign),
    "call": (_NEXT | {"args", "result"}, _call),
    "switch": (_NEXT, _switch),
    "for": (_NEXT, _for),
    "parallel": (_NEXT, _parallel),
    "try": (_NEXT | {"retry", "except"}, _try),
    "raise": (frozenset(), lambda name, node: steps.Raise(error=template(node.fields["raise"]))),
    "return": (frozenset(), lambda name, node: steps.Return(value=template(node.fields["return"]))),
    "steps": (_NEXT, lambda name, node: steps.Nested(body=stages(node.fields["steps"]))),
}
"""The actions of a step: for each the keys beside it, and the function that makes the step."""
