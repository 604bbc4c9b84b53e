"""Steps -> effects and a result: the interpreter. It is deterministic except for the host's results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.language import operators, steps
from mcp_workflows_google_local.language.errors import Tag, WorkflowError, failure
from mcp_workflows_google_local.language.evaluator import filled, value_of
from mcp_workflows_google_local.language.frames import Frame, Goto, Outcome, Returned
from mcp_workflows_google_local.language.loops import run_for, run_parallel
from mcp_workflows_google_local.language.nodes import Name, Part
from mcp_workflows_google_local.language.retries import run_try
from mcp_workflows_google_local.language.values import copied, is_int, is_list, is_map, type_name


async def run_body(body: steps.Body, frame: Frame) -> Outcome:
    """Run steps in sequence, with their jumps; None after the last one.

    Raises:
        WorkflowError: an uncaught error, with its origin.
    """
    index = 0
    while index < len(body):
        stage = body[index]
        await frame.lane.execution.enter(frame.lane, frame.routine, stage)
        try:
            outcome: Outcome = await _RUN[type(stage.action)](stage.action, frame)
        except WorkflowError as error:
            error.origin = error.origin or (frame.routine, stage.name, stage.at.line)
            raise
        if outcome is None and stage.next:
            outcome = Goto(target=stage.next)
        index += 1
        if isinstance(outcome, Goto):
            index = _position(body, outcome.target)
            if index < 0:
                return outcome
        elif outcome is not None:
            return outcome
    return None


def _position(body: steps.Body, name: str) -> int:
    return next((index for index, stage in enumerate(body) if stage.name == name and not stage.inline), -1)


async def _assign(action: steps.Assign, frame: Frame) -> Outcome:
    for assignment in action.assignments:
        value = await filled(assignment.value, frame)
        if isinstance(assignment.target, Name):
            frame.scope.assign(assignment.target.name, value)
        else:
            await _assign_part(assignment.target, value, frame)
    return None


async def _assign_part(target: Part, value: JSON, frame: Frame) -> None:
    """Assign a value inside a map or list; the assignment is complete or has no effect."""
    keys: list[JSON] = []
    at: Any = target
    while isinstance(at, Part):
        keys.insert(0, await value_of(at.key, frame))
        at = at.of
    root = copied(frame.read(at.name))
    container = root
    for key in keys[:-1]:
        container = operators.part(container, key)
    key = keys[-1]
    if is_map(container) and isinstance(key, str):
        container[key] = value
    elif is_list(container) and is_int(key):
        container[operators.index(container, key)] = value
    else:
        raise failure(Tag.TYPE, f"a {type_name(container)} has no elements by {type_name(key)}")
    frame.scope.assign(at.name, root)


async def _call(action: steps.Call, frame: Frame) -> Outcome:
    arguments = {name: await filled(value, frame) for name, value in action.arguments.items()}
    result = await frame.call_named(action.name, arguments)
    if action.result:
        frame.scope.assign(action.result, copied(result))
    return None


async def _switch(action: steps.Switch, frame: Frame) -> Outcome:
    for case in action.cases:
        if operators.truth(await filled(case.condition, frame), "a condition"):
            outcome = await frame.run(case.body)
            return Goto(target=case.next) if outcome is None and case.next else outcome
    return None


async def _raise(action: steps.Raise, frame: Frame) -> Outcome:
    payload = await filled(action.error, frame)
    if not isinstance(payload, str) and not is_map(payload):
        raise failure(Tag.TYPE, f"only a string or a map can be raised; got: {type_name(payload)}")
    raise WorkflowError(payload)


async def _return(action: steps.Return, frame: Frame) -> Outcome:
    return Returned(value=await filled(action.value, frame))


async def _nested(action: steps.Nested, frame: Frame) -> Outcome:
    return await frame.run(action.body)


_Act: TypeAlias = Callable[[Any, Frame], Awaitable[Outcome]]  # Any: the type of the action is the key

_RUN: Final[Mapping[type, _Act]] = {
    steps.Assign: _assign,
    steps.Call: _call,
    steps.For: run_for,
    steps.Nested: _nested,
    steps.Parallel: run_parallel,
    steps.Raise: _raise,
    steps.Return: _return,
    steps.Switch: _switch,
    steps.Try: run_try,
}
