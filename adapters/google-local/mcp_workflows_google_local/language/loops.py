"""for and parallel: in sequence, or concurrently.

Source: https://cloud.google.com/workflows/docs/reference/syntax/parallel-steps
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.language import steps
from mcp_workflows_google_local.language.errors import Exhausted, Tag, WorkflowError, failure
from mcp_workflows_google_local.language.evaluator import filled
from mcp_workflows_google_local.language.frames import Frame, Goto, Lane, Outcome
from mcp_workflows_google_local.language.host import Path
from mcp_workflows_google_local.language.values import is_int, is_list, type_name


async def _iterations(loop: steps.For, frame: Frame) -> Sequence[JSON]:
    """Return the values of a loop.

    Raises:
        WorkflowError: TypeError, not a list, or a range of other values than numbers.
    """
    if loop.range is not None:
        match await filled(loop.range, frame):
            case [first, last] if is_int(first) and is_int(last):
                return range(first, last + 1)
            case _:
                raise failure(Tag.TYPE, "a range must be two integers")
    assert loop.over
    found = await filled(loop.over, frame)
    if not is_list(found):
        raise failure(Tag.TYPE, f"for can only go over a list; got: {type_name(found)}")
    return found


async def _iteration(loop: steps.For, frame: Frame, index: int, value: JSON) -> Outcome:
    """Run one iteration of a loop."""
    inner = frame.inner()
    try:
        inner.scope.declare(loop.value, value)
        if loop.index:
            inner.scope.declare(loop.index, index)
        return await inner.run(loop.body)
    finally:
        inner.scope.close()


async def run_for(action: steps.For, frame: Frame) -> Outcome:
    for index, value in enumerate(await _iterations(action, frame)):
        outcome = await _iteration(action, frame, index, value)
        if outcome == Goto(target="break"):
            return None
        if outcome is not None and outcome != Goto(target="continue"):
            return outcome
    return None


Work: TypeAlias = tuple[str | int, Callable[[Frame], Awaitable[Outcome]]]
"""A branch or iteration: the next part of its path, and its work."""


async def run_parallel(action: steps.Parallel, frame: Frame) -> Outcome:
    """Run all branches to their ends, even if others fail (continueAll)."""
    lane = frame.lane
    if lane.parallels >= steps.PARALLEL_DEPTH_LIMIT:
        raise failure(Tag.PARALLEL_NESTING, f"more than {steps.PARALLEL_DEPTH_LIMIT} parallel steps in one another")
    works = await _works(action, frame)
    branches = _Branches(frame=frame, works=iter(works), path=lane.next_path())
    most = min(await _limit(action, frame), len(works))
    resting = lane.execution.current.pop(lane.path, None)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(most):
                group.create_task(branches.work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the host's own, in the same form as without branches
    finally:
        if resting:
            lane.execution.current[lane.path] = resting
    if branches.exhausted:
        raise branches.exhausted
    if branches.errors:
        raise _unhandled(branches.errors)
    return None


async def _works(action: steps.Parallel, frame: Frame) -> Sequence[Work]:
    loop = action.loop
    if loop is None:
        return [(branch.name, _branch(branch)) for branch in action.branches]
    return [(index, _round(loop, index, value)) for index, value in enumerate(await _iterations(loop, frame))]


def _branch(branch: steps.Branch) -> Callable[[Frame], Awaitable[Outcome]]:
    async def work(frame: Frame) -> Outcome:
        inner = frame.inner()
        try:
            return await inner.run(branch.body)
        finally:
            inner.scope.close()

    return work


def _round(loop: steps.For, index: int, value: JSON) -> Callable[[Frame], Awaitable[Outcome]]:
    async def work(frame: Frame) -> Outcome:
        return await _iteration(loop, frame, index, value)

    return work


async def _limit(action: steps.Parallel, frame: Frame) -> int:
    if action.limit is None:
        return steps.CONCURRENCY_LIMIT
    limit = await filled(action.limit, frame)
    if not is_int(limit) or limit < 1:
        raise failure(Tag.VALUE, "concurrency_limit must be an integer, 1 or more")
    return min(limit, steps.CONCURRENCY_LIMIT)


@dataclass(slots=True, kw_only=True)
class _Branches:
    """The branches that have not started, and the errors of those that ended."""

    frame: Frame
    works: Iterator[Work]
    path: Path
    errors: dict[str | int, WorkflowError] = field(default_factory=dict[str | int, WorkflowError])
    exhausted: Exhausted | None = None

    async def work(self) -> None:
        """Run one branch after another until none is left."""
        for name, run in self.works:
            outside = self.frame.lane
            lane = Lane(
                execution=outside.execution,
                path=(*self.path, name),
                calls=outside.calls,
                parallels=outside.parallels + 1,
            )
            try:
                await run(replace(self.frame, lane=lane))
            except Exhausted as error:
                self.exhausted = error
            except WorkflowError as error:
                self.errors[name] = error
            finally:
                outside.execution.current.pop(lane.path, None)
            if self.exhausted:
                return


def _unhandled(errors: dict[str | int, WorkflowError]) -> WorkflowError:
    """Return the error of a parallel step with failed branches."""
    listed = sorted(errors.items(), key=lambda item: str(item[0]).rjust(20))[: steps.BRANCH_ERROR_LIMIT]
    branches: list[JSON] = [
        {"id": str(name), "error": {"context": _context(error), "payload": error.payload}} for name, error in listed
    ]
    return failure(
        Tag.UNHANDLED_BRANCH,
        "UnhandledBranchError: One or more branches or iterations encountered an unhandled runtime error",
        branches=branches,
        truncated=len(errors) > len(branches),
    )


def _context(error: WorkflowError) -> str:
    routine, step, line = error.origin or ("", "", 0)
    return f"in step {step!r}, routine {routine!r}, line: {line}"
