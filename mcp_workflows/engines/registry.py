"""The engines by name, every call to them bounded in total time, and no adapter's defect anybody else's."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import asdict, replace
from functools import cache, cached_property
from types import TracebackType
from typing import Final, NamedTuple, Self, cast

import anyio
from anyio.abc import TaskGroup, TaskStatus
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from mcp_workflows.adapter import (
    JSON,
    Adapter,
    Allowance,
    Checks,
    Execution,
    Failure,
    Finding,
    Hints,
    InputRequest,
    Notes,
    Ref,
    Remembers,
    Route,
    Routes,
    Status,
    Sweeps,
    Waits,
)
from mcp_workflows.adapter.display_text import cleaned
from mcp_workflows.engines.circuit_breaker import Circuit
from mcp_workflows.errors import AdapterBroke, ConfigError, EngineError, EngineUnavailable, WorkflowsError
from mcp_workflows.task import Task
from mcp_workflows.telemetry import Api, Telemetry

logger = logging.getLogger(__name__)

CHECK_PATIENCE = 2.0  # seconds for a look at an engine's health
PATIENCE = 10.0  # seconds for one call to an engine, its own retries included
_LOOKS: Final = frozenset({"describe", "sweep"})  # these are not made while the engine is known to be silent
_COUNTED: Final = _LOOKS | {"find", "start"}  # their outcome shows whether it is


NotesOf = Callable[[str], Notes]  # of an engine, by its name

_EXECUTION = TypeAdapter(Execution)
_FOR_PEOPLE = frozenset({"message", "title", "description", "enumNames", "url"})  # in the params of an elicitation


def sound(execution: Execution) -> Execution:
    """The look as it can be kept: JSON all the way down, and texts for people without what cannot be seen in them.

    A result that is no JSON ends the task with that reason.

    What a failure brings beside its text is left out if that is what cannot be kept: it has ended all the same.

    Raises:
        EngineUnavailable: it is no look at all; nothing is known.
    """
    try:
        return _readable(_EXECUTION.validate_json(_as_json(execution)))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        failure = getattr(execution, "failure", None)
        if isinstance(failure, Failure) and failure.data is not None:
            return sound(replace(execution, failure=replace(failure, data=None)))
        if getattr(execution, "status", None) is not Status.SUCCEEDED:
            raise EngineUnavailable(
                f"its adapter failed: it told what cannot be kept ({type(error).__name__})"
            ) from None
        text = "the workflow completed, but its result cannot be kept: it is nested too deeply, or is no JSON"
        failure = Failure(text=text, kind="UndecodableResult")
        return replace(execution, status=Status.FAILED, output=None, message=None, failure=failure)


def _readable(execution: Execution) -> Execution:
    """The look with its message and its questions cleaned; the questions of gates are ours, and were."""
    message = None if execution.message is None else cleaned(execution.message)
    requests = {key: request if request.gate else _cleaned(request) for key, request in execution.requests.items()}
    return replace(execution, message=message, requests=requests)


def _cleaned(request: InputRequest) -> InputRequest:
    """A workflow's own question; what stands for an answer in its form (values, patterns) stays as it is."""
    return replace(request, params={key: _cleaned_texts(key, value) for key, value in request.params.items()})


def _cleaned_texts(name: str, value: JSON) -> JSON:
    if isinstance(value, str):
        return cleaned(value) if name in _FOR_PEOPLE else value
    if isinstance(value, dict):
        return {key: _cleaned_texts(key, each) for key, each in cast("dict[str, JSON]", value).items()}
    if isinstance(value, list):
        return [_cleaned_texts(name, each) for each in cast("Sequence[JSON]", value)]
    return value


def _as_json(execution: Execution) -> bytes:
    try:
        return _EXECUTION.dump_json(execution)
    except PydanticSerializationError:  # half a surrogate pair somewhere in it, which JSON allows and UTF-8 does not
        return json.dumps(asdict(execution), ensure_ascii=False).encode("utf-8", "replace")


class Opened:
    """One adapter and its lifetime, in a task of its own: adapters that come and go one by one do not nest."""

    def __init__(self, name: str, adapter: Adapter, notes: NotesOf | None = None) -> None:
        self.name = name
        self.adapter = adapter
        self._notes = notes
        self._calls = 0  # under way
        self._stopping = anyio.Event()
        self._idle = anyio.Event()
        self.circuit = Circuit(on_change=self._log_silence)

    def _log_silence(self, silence: str | None) -> None:
        if silence is None:
            logger.warning("engine %r answers again", self.name)
        else:
            logger.warning("engine %r: %s; reads are answered from the store until it answers", self.name, silence)

    async def keep(self, patience: float, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Open it, until it is to stop and the calls under way have finished, or `patience` seconds have passed."""
        opened = False
        try:
            if self._notes is not None and isinstance(self.adapter, Remembers):
                self.adapter.remember(self._notes(self.name))
            async with self.adapter:
                opened = True
                task_status.started()
                await self._stopping.wait()
                with anyio.move_on_after(patience if self._calls else 0):
                    await self._idle.wait()
        except Exception as error:  # an adapter is a stranger's code: see docs/decisions/0002
            if not opened and isinstance(error, ConfigError):
                raise ConfigError(f"engine {self.name}: {error}") from None
            if not opened:
                raise
            logger.exception("the adapter of engine %r failed to close", self.name)

    @cached_property
    def routes(self) -> Mapping[str, Route]:
        """Where its workflows call it over HTTP, by path; its settings say so, it need not be open."""
        if not isinstance(self.adapter, Routes):
            return {}
        try:
            return {route.path: route for route in self.adapter.routes()}
        except Exception:  # an adapter is a stranger's code: see docs/decisions/0002
            logger.exception("the adapter of engine %r broke the contract: it has no routes", self.name)
            return {}

    def stop(self) -> None:
        """Close it soon."""
        self._stopping.set()

    def begin(self, *, bounded: bool) -> None:
        """One more call is under way; nobody waits for those that are not bounded."""
        self._calls += bounded

    def end(self, *, bounded: bool) -> None:
        """One less."""
        self._calls -= bounded
        if not self._calls and self._stopping.is_set():
            self._idle.set()


class Engines:
    """The configured adapters; entering opens them, whoever opens them closes them."""

    def __init__(
        self,
        adapters: Mapping[str, Adapter],
        *,
        patience: float = PATIENCE,
        notes: NotesOf | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        """`notes`: what the adapters that must remember something get, if there is a store."""
        self._notes = notes
        self._opened: Mapping[str, Opened] = {name: Opened(name, each, notes) for name, each in adapters.items()}
        self._patience = patience
        self.telemetry = telemetry or Telemetry()
        self._group: TaskGroup | None = None
        self.swapped = anyio.Event()  # at the next `use`; then it is another one

    async def __aenter__(self) -> Self:
        self._group = await anyio.create_task_group().__aenter__()
        try:
            await self._open(list(self._opened.values()))
        except BaseException:
            await self._group.__aexit__(None, None, None)  # it would wrap what it is given
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        for opened in self._opened.values():
            opened.stop()
        return await self._tasks.__aexit__(None, None, None)  # likewise

    @property
    def _tasks(self) -> TaskGroup:
        if self._group is None:
            raise RuntimeError("Engines is not entered")
        return self._group

    async def _open(self, new: Sequence[Opened]) -> None:
        """All of them, or none if one cannot be opened."""
        try:
            for opened in new:
                await self._tasks.start(opened.keep, self._patience)
        except BaseException:
            for opened in new:
                opened.stop()
            raise

    async def opened(self, adapters: Mapping[str, Adapter]) -> Mapping[str, Opened]:
        """These adapters, open, to be put to `use`; those in use already stay as they are.

        Raises:
            ConfigError: one of them cannot be opened; then all is as before.
        """
        used = self._opened
        same = {name: used[name] for name, adapter in adapters.items() if self.adapters.get(name) is adapter}
        new = {name: Opened(name, adapter, self._notes) for name, adapter in adapters.items() if name not in same}
        try:
            await self._open(list(new.values()))
        except WorkflowsError:
            raise
        except Exception as error:  # an adapter is a stranger's code: see docs/decisions/0002
            logger.exception("an adapter cannot be opened")
            raise ConfigError(f"an adapter cannot be opened ({type(error).__name__}); see the log") from None
        return {name: same.get(name) or new[name] for name in adapters}

    def use(self, opened: Mapping[str, Opened]) -> None:
        """Have these from now on; those that are none of them are closed when the calls under way have finished."""
        before, self._opened = self._opened, opened
        swapped, self.swapped = self.swapped, anyio.Event()
        swapped.set()
        for name, old in before.items():
            if opened.get(name) is not old:
                old.stop()

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        """The adapters by engine."""
        return {name: opened.adapter for name, opened in self._opened.items()}

    @property
    def names(self) -> Sequence[str]:
        """The engines there are."""
        return list(self._opened)

    def get(self, name: str) -> Adapter | None:
        """The adapter of this name, to see what it can do."""
        opened = self._opened.get(name)
        return None if opened is None else opened.adapter

    @property
    def routes(self) -> Mapping[str, Mapping[str, Route]]:
        """Where workflows call their engines over HTTP, by engine and path; without those that are not called."""
        return {name: opened.routes for name, opened in self._opened.items() if opened.routes}

    def allowance(self, name: str) -> Allowance | None:
        """What its quotas leave us now; None: it has none, or its adapter cannot tell."""
        try:
            found = getattr(self.get(name), "allowance", None)
        except Exception:  # an adapter is a stranger's code: see docs/decisions/0002
            logger.exception("the adapter of engine %r broke the contract", name)
            return None
        return found if isinstance(found, Allowance) else None

    def silence(self, name: str) -> str | None:
        """Why a look at this engine is not worth waiting for now; None if it is."""
        opened = self._opened.get(name)
        return None if opened is None else opened.circuit.silence

    def admitted(self, name: str) -> AbstractContextManager[None]:
        """Count what is done in here as a look.

        Raises:
            EngineUnavailable: the engine is known to be silent, and it is not time for a probe.
        """
        opened = self._opened.get(name)
        return nullcontext() if opened is None else opened.circuit.admitted()

    def _counted(self, name: str, api: Api) -> AbstractContextManager[None]:
        opened = self._opened.get(name)
        if opened is None or api not in _COUNTED:
            return nullcontext()
        return opened.circuit.counted(refusal_is_answer=api in _LOOKS)  # of starts, adapters refuse some themselves

    @asynccontextmanager
    async def calling(self, name: str, *, api: Api = "other", bounded: bool = True) -> AsyncGenerator[Adapter]:
        """The adapter of this name, for one call; not `bounded` if it is its nature to take as long as it takes.

        `api` is what is asked for, as it is counted. Looks at an engine that is known to be silent are not made, but
        for one at a time now and then: see `Circuit`.

        Raises:
            EngineError: what the adapter raised; `EngineUnavailable` when time is up, `AdapterBroke` when it broke.
        """
        admitted = self.admitted(name) if api in _LOOKS else nullcontext()
        with admitted, self._counted(name, api), self.telemetry.engine_call(name, api, timed=bounded):
            async with self._calling(name, bounded=bounded) as adapter:
                yield adapter

    @asynccontextmanager
    async def _calling(self, name: str, *, bounded: bool) -> AsyncGenerator[Adapter]:
        opened = self._opened.get(name)
        if opened is None:
            raise EngineUnavailable("it is not in the configuration any more", sent=False)
        opened.begin(bounded=bounded)
        try:
            with anyio.fail_after(self._patience if bounded else None):
                yield opened.adapter
        except TimeoutError:
            raise EngineUnavailable(f"no answer within {self._patience:g} s") from None
        except EngineError:
            raise
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == float("-inf"):
                raise  # it is us who were cancelled
            raise EngineUnavailable("its adapter gave up (cancelled)") from None
        except Exception as error:  # an adapter is a stranger's code: see docs/decisions/0002
            logger.exception("the adapter of engine %r broke the contract", name)
            raise AdapterBroke(f"its adapter failed ({type(error).__name__}); see the log") from None
        finally:
            opened.end(bounded=bounded)

    async def check(self) -> Mapping[str, Finding]:
        """Whether each engine answers, all asked at once; unknown if its adapter cannot tell."""
        findings: dict[str, Finding] = {}
        adapters = self.adapters
        async with anyio.create_task_group() as group:
            for name, adapter in adapters.items():
                group.start_soon(self._check, name, adapter, findings)
        return {name: findings[name] for name in adapters}

    async def _check(self, name: str, adapter: Adapter, findings: dict[str, Finding]) -> None:
        if not isinstance(adapter, Checks):
            findings[name] = Finding(ok=None, text="not checked: its adapter cannot tell")
            return
        try:
            findings[name] = Finding(ok=False, text=f"no answer within {CHECK_PATIENCE:g} s")
            with anyio.move_on_after(CHECK_PATIENCE):
                async with self.calling(name, api="check"):
                    findings[name] = await adapter.check_engine()
        except EngineError as error:
            findings[name] = Finding(ok=False, text=str(error))
        if (silence := self.silence(name)) and not findings[name].ok:
            findings[name] = replace(findings[name], text=f"{findings[name].text}; looks at tasks: {silence}")


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
