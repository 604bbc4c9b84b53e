"""Looks until something is as it must become."""

from __future__ import annotations

from collections.abc import Callable

import anyio
from mcp_workflows_stepfunctions import StepFunctionsAdapter

from mcp_workflows.adapter import Execution, Ref, Status

PATIENCE = 15.0  # seconds


async def until(adapter: StepFunctionsAdapter, ref: Ref, wanted: Callable[[Execution], bool]) -> Execution:
    """The first look that is as wanted."""
    with anyio.fail_after(PATIENCE):
        while not wanted(seen := await adapter.describe(ref)):
            await anyio.sleep(0.02)  # nothing here tells us
    return seen


async def until_ended(adapter: StepFunctionsAdapter, ref: Ref) -> Execution:
    """The first look at its end."""
    return await until(adapter, ref, lambda seen: seen.terminal)


async def until_asked(adapter: StepFunctionsAdapter, ref: Ref) -> Execution:
    """The first look with a question."""
    return await until(adapter, ref, lambda seen: seen.status is Status.INPUT_REQUIRED)
