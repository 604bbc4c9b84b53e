"""The context of steps: an execution, its branches, and the variables of each place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.language import steps
from mcp_workflows_google_local.language.errors import Exhausted, Tag, failure
from mcp_workflows_google_local.language.evaluator import filled
from mcp_workflows_google_local.language.host import Host, Path, Step
from mcp_workflows_google_local.language.library import FUNCTIONS
from mcp_workflows_google_local.language.library_sys import GET_ENV, environment
from mcp_workflows_google_local.language.scopes import Memory, Scope
from mcp_workflows_google_local.language.values import copied

GIVE_WAY: Final = 32  # steps that run before others get a turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Goto:
    """Continue at a step of this name, or end, continue, break."""

    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """The routine has ended, with this result."""

    value: JSON


Outcome: TypeAlias = Goto | Returned | None
Run: TypeAlias = "Callable[[steps.Body, Frame], Awaitable[Outcome]]"
"""Runs steps in a frame."""


@dataclass(slots=True, kw_only=True)
class Execution:
    """The state that all branches of an execution share."""

    routines: Mapping[str, steps.Routine]
    host: Host
    run: Run
    memory: Memory = field(default_factory=Memory)
    count: int = 0
    current: dict[Path, Step] = field(default_factory=dict[Path, Step])

    async def enter(self, lane: Lane, routine: str, stage: steps.Stage) -> None:
        """Enter a step.

        Raises:
            Exhausted: ResourceLimitError, too many steps.
        """
        self.count += 1
        if self.count > steps.STEP_LIMIT:
            payload = {"message": f"more than {steps.STEP_LIMIT} steps", "tags": [Tag.RESOURCE_LIMIT.value]}
            raise Exhausted(payload)
        self.current[lane.path] = Step(routine=routine, step=stage.name)
        self.host.at(list(self.current.values()))
        if self.count % GIVE_WAY == 0:
            await asyncio.sleep(0)


@dataclass(slots=True, kw_only=True)
class Lane:
    """One sequence of steps, the main one or a branch; it numbers its effects."""

    execution: Execution
    path: Path = ()
    count: int = 0
    calls: int = 1  # depth of nested routines
    parallels: int = 0  # depth of nested parallel steps

    def next_path(self) -> Path:
        """Return the path of the next effect or parallel step."""
        self.count += 1
        return (*self.path, self.count)

    async def effect(self, name: str, arguments: Mapping[str, JSON]) -> JSON:
        """Return a copy of the host's answer, which the workflow may change."""
        return copied(await self.execution.host.effect(name, arguments, self.next_path()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The routine and the variables of a running step."""

    lane: Lane
    routine: str
    scope: Scope

    async def run(self, body: steps.Body) -> Outcome:
        """Run these steps in this frame."""
        return await self.lane.execution.run(body, self)

    def inner(self) -> Frame:
        """Return this frame with a separate inner scope."""
        return replace(self, scope=Scope(memory=self.scope.memory, outside=self.scope))

    def read(self, name: str) -> JSON:
        """Return the variable of this name."""
        return self.scope.read(name)

    async def call(self, name: str, arguments: Sequence[JSON]) -> JSON:
        """Call a function or subworkflow with arguments by position."""
        routine = self.lane.execution.routines.get(name)
        names = [parameter.name for parameter in routine.parameters] if routine else FUNCTIONS[name].parameters
        return await self.call_named(name, dict(zip(names, arguments, strict=False)))

    async def call_named(self, name: str, arguments: Mapping[str, JSON]) -> JSON:
        """Call a function or subworkflow with arguments by name; a subworkflow hides a function of its name."""
        if name in self.lane.execution.routines:
            return await run_routine(self.lane, name, arguments)
        if name == GET_ENV:
            return environment(self.lane.execution.host.env, arguments)
        return await FUNCTIONS[name].apply(arguments, self.lane.effect)


async def run_routine(lane: Lane, name: str, arguments: Mapping[str, JSON]) -> JSON:
    """Run main or a subworkflow, and return its result.

    Raises:
        WorkflowError: an uncaught error.
    """
    if lane.calls > steps.CALL_DEPTH_LIMIT:
        raise failure(Tag.RECURSION, f"more than {steps.CALL_DEPTH_LIMIT} subworkflows in one another")
    routine = lane.execution.routines[name]
    scope = Scope(memory=lane.execution.memory)
    frame = Frame(lane=lane, routine=name, scope=scope)
    lane.calls += 1
    try:
        for parameter in routine.parameters:
            scope.declare(parameter.name, await _argument(parameter, arguments, frame))
        outcome = await frame.run(routine.body)
    finally:
        lane.calls -= 1
        scope.close()
    return outcome.value if isinstance(outcome, Returned) else None


async def _argument(parameter: steps.Parameter, arguments: Mapping[str, JSON], frame: Frame) -> JSON:
    if parameter.name in arguments:
        return copied(arguments[parameter.name])
    assert parameter.default  # the checks ensured this
    return await filled(parameter.default, frame)
