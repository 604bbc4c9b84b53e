"""What the watch sees of engines beside single looks: sweeps over many executions, waits, hints, and their quotas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import anyio

from mcp_workflows.adapter import Adapter, Allowance, Execution, Hints, Ref, Status, Sweeps, Waits
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
    asked = frozenset(task.execution.requests)
    return Ref(workflow=task.workflow, handle=handle, options=task.options, gates=task.gates, asked=asked)


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

    def hears(self, engine: str) -> bool:
        """Whether this engine may tell which executions changed."""
        return engine in self.hinting()

    def hinting(self) -> Mapping[str, Adapter]:
        """The adapters that may be told which executions changed, by engine."""
        return {name: adapter for name, adapter in self._engines.adapters.items() if _hints(type(adapter))}

    @property
    def swapped(self) -> anyio.Event:
        """Set when other adapters are in use."""
        return self._engines.swapped

    def allowance(self, engine: str) -> Allowance | None:
        """What the quotas of this engine leave us now, if it has any."""
        return self._engines.allowance(engine)

    async def hints(self, engine: str, changed: Callable[[str], None]) -> None:
        """Call `changed` with handles for as long as the engine tells them; returns if it never will.

        Raises:
            EngineError: it cannot tell now.
        """
        async with self._engines.calling(engine, api="hints", bounded=False) as adapter:
            if isinstance(adapter, Hints):
                await adapter.hints(changed)

    async def sweep(self, engine: str, tasks: Sequence[Task]) -> Mapping[str, Glimpse]:
        """Glimpses by task id, of those the engine did not leave out.

        Raises:
            EngineError: no answer.
        """
        refs = {task.id: ref_of(task, task.handle) for task in tasks if task.handle is not None}
        async with self._engines.calling(engine, api="sweep") as adapter:
            if not isinstance(adapter, Sweeps):
                return {}
            found = await adapter.describe_many(list(refs.values()))
            different = {id(seen): seen for seen in found.values()}  # many may be the same object
            glimpses = {key: glimpse(seen) for key, seen in different.items()}
            return {name: glimpses[id(found[ref.handle])] for name, ref in refs.items() if ref.handle in found}

    async def wait(self, task: Task) -> None:
        """Return when the execution may have ended, for as long as that takes.

        Raises:
            EngineError: it cannot be waited for now.
        """
        async with self._engines.calling(task.engine, api="wait", bounded=False) as adapter:
            if isinstance(adapter, Waits) and task.handle is not None:
                await adapter.wait(ref_of(task, task.handle))


@cache  # a check against a protocol takes as long as a look into a store
def _sweeps(kind: type[Adapter]) -> bool:
    return issubclass(kind, Sweeps)


@cache
def _waits(kind: type[Adapter]) -> bool:
    return issubclass(kind, Waits)


@cache
def _hints(kind: type[Adapter]) -> bool:
    return issubclass(kind, Hints)
