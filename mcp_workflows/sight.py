"""What the watch sees of engines beside single looks: sweeps over many executions, and waits for one to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from mcp_workflows.adapter import Adapter, Execution, Ref, Status
from mcp_workflows.capabilities import Sweeps, Waits
from mcp_workflows.engines import Engines
from mcp_workflows.task import Task


class Glimpse(NamedTuple):
    """What a sweep tells of one execution, as far as it matters: whether it is still the same."""

    mark: int  # differs when what can be seen does
    status: Status


def glimpse(execution: Execution) -> Glimpse:
    """An execution reduced to what a change of it would change; 10,000 of these are kept in memory."""
    seen = (execution.status, execution.message, execution.progress, tuple(sorted(execution.requests)))
    return Glimpse(hash((*seen, execution.cancel_requested)), execution.status)


def ref_of(task: Task, handle: str) -> Ref:
    """The execution of a task, as adapters take it."""
    return Ref(workflow=task.workflow, handle=handle, options=task.options, gates=task.gates)


class Sight:
    """The optional senses of the engines, every error an `EngineError`."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def sweeps(self, engine: str) -> bool:
        """Whether this engine can be swept."""
        adapter = self._engines.get(engine)
        return adapter is not None and _sweeps(type(adapter))

    def waits(self, engine: str) -> bool:
        """Whether this engine can be waited for."""
        adapter = self._engines.get(engine)
        return adapter is not None and _waits(type(adapter))

    async def sweep(self, engine: str, tasks: Sequence[Task]) -> Mapping[str, Glimpse]:
        """Glimpses by task id, of those the engine did not leave out.

        Raises:
            EngineError: no answer.
        """
        refs = {task.id: ref_of(task, task.handle) for task in tasks if task.handle is not None}
        async with self._engines.calling(engine) as adapter:
            if not isinstance(adapter, Sweeps):
                return {}
            found = await adapter.describe_many(list(refs.values()))
            return {name: glimpse(found[ref.handle]) for name, ref in refs.items() if ref.handle in found}

    async def wait(self, task: Task) -> None:
        """Return when the execution may have ended, for as long as that takes.

        Raises:
            EngineError: it cannot be waited for now.
        """
        async with self._engines.calling(task.engine, bounded=False) as adapter:
            if isinstance(adapter, Waits) and task.handle is not None:
                await adapter.wait(ref_of(task, task.handle))


@cache  # a check against a protocol takes as long as a look into a store
def _sweeps(kind: type[Adapter]) -> bool:
    return issubclass(kind, Sweeps)


@cache
def _waits(kind: type[Adapter]) -> bool:
    return issubclass(kind, Waits)
