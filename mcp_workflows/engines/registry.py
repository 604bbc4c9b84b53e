"""The configured engines by name: their adapters' lifetimes, and every call to them, limited in time and counted."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import datetime
from functools import cached_property
from sys import float_info
from types import TracebackType
from typing import Final, NamedTuple, Self

import anyio
from anyio.abc import TaskGroup, TaskStatus
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from mcp_workflows.adapter import (
    DECLINE_META,
    Adapter,
    Allowance,
    DescribesMany,
    EndedExecution,
    Execution,
    Failure,
    Hints,
    InputRequest,
    Limited,
    ListsEnded,
    Notes,
    Progress,
    Ref,
    Remembers,
    Route,
    Routes,
    Status,
    Waits,
)
from mcp_workflows.adapter.boundary import MAX_STEPS
from mcp_workflows.adapter.display_text import MAX_TEXT, cleaned, cleaned_schema, safe_link
from mcp_workflows.adapter.redaction import mask, mask_details, mask_known, mask_output
from mcp_workflows.engines.circuit_breaker import Circuit
from mcp_workflows.errors import AdapterBroke, ConfigError, EngineError, EngineUnavailable, WorkflowsError
from mcp_workflows.task import START_KEY, Task, engine_key
from mcp_workflows.telemetry import Api, EngineCallRecord, Telemetry, outcome_of

logger = logging.getLogger(__name__)

CALL_TIMEOUT = 10.0  # seconds for one call to an engine, including its retries
_POLLS: Final = frozenset({"describe", "describe_many"})  # not made while the engine is known to be silent
_COUNTED: Final = _POLLS | {"find", "start"}  # their outcome shows whether the engine answers
_BROKEN: Final = "the adapter of engine %r broke the contract%s"
REBIND: Final = "mcp-workflows engines rebind"
FOREIGN: Final = (
    "the engine of this name now has another identity, so this task is not updated. If it is the same engine, the "
    f"operator can run {REBIND}"
)
_EXECUTION = TypeAdapter(Execution)
MAX_STEP_NAME = 200  # characters
MAX_FAILURE = 65_536  # characters
MAX_QUESTION = 65_536  # characters of its params, as JSON
_QUESTION = frozenset({"mode", "message", "requestedSchema", "url", "elicitationId"})  # the params of an elicitation
_NOT_SHOWN = "it asks a question that cannot be shown: it is too large, or its URL is not https"

NotesOf = Callable[[str], Notes]
"""Return the notes of an engine, by its name."""


class ExecutionDigest(NamedTuple):
    """The part of an execution that shows whether it has changed; 10,000 of these are kept in memory."""

    mark: int  # differs if the visible parts of the execution do
    status: Status


class Engines:
    """The configured adapters; entering it opens them, and leaving it closes them."""

    def __init__(
        self,
        adapters: Mapping[str, Adapter],
        *,
        call_timeout: float = CALL_TIMEOUT,
        notes: NotesOf | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        """Keep the adapters. `call_timeout`: seconds for a call. `notes`: storage for adapters, if there is a store."""
        self._notes = notes
        self._opened: Mapping[str, OpenEngine] = {
            name: OpenEngine(name, each, notes) for name, each in adapters.items()
        }
        self._call_timeout = call_timeout
        self.telemetry = telemetry or Telemetry()
        self._group: TaskGroup | None = None
        self.swapped = anyio.Event()  # set and replaced by the next `use`

    async def __aenter__(self) -> Self:
        self._group = await anyio.create_task_group().__aenter__()
        try:
            await self._open(list(self._opened.values()))
        except BaseException:
            await self._group.__aexit__(None, None, None)  # with an error it would wrap it
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opened in self._opened.values():
            opened.stop()
        await self._tasks.__aexit__(None, None, None)  # with an error it would wrap it; on Trio it returns True

    # --- the adapters

    async def opened(self, adapters: Mapping[str, Adapter]) -> Mapping[str, OpenEngine]:
        """Open these adapters and return them for `use`; adapters already in use are not opened again.

        Raises:
            ConfigError: one of them cannot be opened; nothing has changed.
        """
        used = self._opened
        same = {name: used[name] for name, adapter in adapters.items() if self.adapters.get(name) is adapter}
        new = {name: OpenEngine(name, adapter, self._notes) for name, adapter in adapters.items() if name not in same}
        try:
            await self._open(list(new.values()))
        except WorkflowsError:
            raise
        except Exception as error:  # third-party code; a reload must not end the server
            logger.exception("an adapter cannot be opened")
            raise ConfigError(f"an adapter cannot be opened ({type(error).__name__}); see the log") from None
        return {name: same.get(name) or new[name] for name in adapters}

    def use(self, opened: Mapping[str, OpenEngine]) -> None:
        """Replace the adapters in use; each removed one is closed when its last call has finished."""
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
        """The names of the engines."""
        return list(self._opened)

    @property
    def keys(self) -> Mapping[str, str]:
        """The names of the engines by the keys of their rows; the key of a row without an identity is the name."""
        return {key: name for name in self._opened for key in (engine_key(name, self.identity(name)), name)}

    def identity(self, name: str) -> str:
        """Return the identity of an engine; empty if it is not configured."""
        opened = self._opened.get(name)
        return "" if opened is None else opened.identity

    def is_foreign(self, task: Task) -> bool:
        """Return True if the engine of this name is not the one that the task was created for."""
        opened = self._opened.get(task.engine)
        return opened is not None and task.identity not in ("", opened.identity)

    def check_identity(self, task: Task) -> None:
        """Check that the task is not foreign.

        Raises:
            EngineUnavailable: it is, so nothing was sent to the engine.
        """
        if self.is_foreign(task):
            raise EngineUnavailable(FOREIGN, sent=False, silent=False)

    def get(self, name: str) -> Adapter | None:
        """Return the adapter of an engine, for checking its capabilities."""
        opened = self._opened.get(name)
        return None if opened is None else opened.adapter

    @property
    def routes(self) -> Mapping[str, Mapping[str, Route]]:
        """The HTTP routes that workflows call, by engine and path; engines without routes are left out."""
        return {name: opened.routes for name, opened in self._opened.items() if opened.routes}

    def has(self, engine: str, capability: type[object]) -> bool:
        """Return True if the adapter of this engine has the capability."""
        opened = self._opened.get(engine)
        return opened is not None and opened.has(capability)

    def hinting(self) -> Mapping[str, Adapter]:
        """Return the adapters that may report changed executions, by engine."""
        return {name: opened.adapter for name, opened in self._opened.items() if opened.has(Hints)}

    # --- calls

    def allowance(self, name: str) -> Allowance | None:
        """Return the rates that the engine's quotas allow now; None: no quotas, or the adapter failed."""
        adapter = self.get(name)
        try:
            with _contained(name):
                return adapter.allowance if isinstance(adapter, Limited) else None
        except (EngineError, TimeoutError):
            return None

    def silence(self, name: str) -> str | None:
        """Return why waiting for a poll of this engine is not worthwhile now, or None."""
        opened = self._opened.get(name)
        return None if opened is None else opened.circuit.silence

    def is_prompt(self, name: str) -> bool:
        """Return True if the engine answered the last call whose outcome was recorded."""
        opened = self._opened.get(name)
        return opened is not None and not opened.circuit.failures

    def admitted(self, name: str) -> AbstractContextManager[None]:
        """Count the body as a poll of this engine.

        Raises:
            EngineUnavailable: the engine is known to be silent, and no probe is due.
        """
        opened = self._opened.get(name)
        return nullcontext() if opened is None else opened.circuit.admitted()

    def calling(self, engine: str | Task, *, api: Api = "other", bounded: bool = True) -> EngineCall:
        """Return a context manager for one call, which yields the adapter of this name, or of this task.

        Pass the task whenever the call concerns one, so that no other engine receives it. `api` names the call in
        metrics. `bounded=False` is for calls without a time limit. While an engine is known to be silent, polls are
        refused, except for one probe at a time: see `Circuit`.

        Raises:
            EngineError: raised by the adapter; `EngineUnavailable` after the time limit, `AdapterBroke` for a defect.
        """
        if isinstance(engine, Task):
            self.check_identity(engine)
        name = engine.engine if isinstance(engine, Task) else engine
        return EngineCall(name, self._opened.get(name), self.telemetry, api, self._call_timeout if bounded else None)

    @property
    def stopped(self) -> Sequence[str]:
        """The engines whose workflows this process should run, but does not."""
        adapters = self.adapters.items()
        return [name for name, each in adapters if isinstance(each, Limited) and each.allowance.runs_here is False]

    async def hints(self, engine: str, changed: Callable[[str], None]) -> None:
        """Call `changed` with each handle that the engine reports as changed; return if it will never report any.

        Raises:
            EngineError: the engine cannot report changes now.
        """
        async with self.calling(engine, api="hints", bounded=False) as adapter:
            if isinstance(adapter, Hints):
                await adapter.hints(changed)

    async def describe_many(self, engine: str, tasks: Sequence[Task]) -> Mapping[str, ExecutionDigest]:
        """Poll many executions in one call; return digests by task id of those that the engine reported.

        Raises:
            EngineError: no answer.
        """
        refs = {task.id: ref_of(task, task.handle) for task in tasks if task.handle and not self.is_foreign(task)}
        async with self.calling(engine, api="describe_many") as adapter:
            if not isinstance(adapter, DescribesMany):
                return {}
            found = await adapter.describe_many(list(refs.values()))
            different = {id(seen): seen for seen in found.values()}  # many may be the same object
            digests = {key: digest_of(seen) for key, seen in different.items()}
            return {name: digests[id(found[ref.handle])] for name, ref in refs.items() if ref.handle in found}

    async def list_ended(self, engine: str, workflow: str, since: datetime) -> Sequence[EndedExecution]:
        """Return executions of this workflow that ended at this time or later; see `ListsEnded.list_ended`.

        Empty if the engine cannot list them.

        Raises:
            EngineError: no answer, or the workflow cannot be listed.
        """
        async with self.calling(engine, api="list_ended") as adapter:
            found = await adapter.list_ended(workflow, since) if isinstance(adapter, ListsEnded) else ()
            return [replace(each, execution_id=_name(each.execution_id, MAX_TEXT)) for each in found]

    async def wait(self, task: Task) -> None:
        """Return when the execution may have ended; this can take as long as the execution does.

        Raises:
            EngineError: waiting is impossible now.
        """
        async with self.calling(task, api="wait", bounded=False) as adapter:
            if isinstance(adapter, Waits) and task.handle is not None:
                await adapter.wait(ref_of(task, task.handle))

    # --- lifetimes

    async def _open(self, new: Sequence[OpenEngine]) -> None:
        """Open all of them, or none if one cannot be opened."""
        try:
            for opened in new:
                await self._tasks.start(opened.run, self._call_timeout)
                self.telemetry.engine_opened(opened.name)
        except BaseException:
            for opened in new:
                opened.stop()
            raise

    @property
    def _tasks(self) -> TaskGroup:
        if self._group is None:
            raise RuntimeError("Engines is not entered")
        return self._group


class EngineCall:
    """One call to an engine, as an async context manager that yields the adapter.

    It limits the call's time, counts and times it, reports it to the engine's circuit, and makes it a span of the
    current trace. An unexpected error of the adapter is logged and becomes `AdapterBroke`: see docs/decisions/0002. One
    class does all of it, because every request passes here.
    """

    __slots__ = ("_api", "_began", "_is_probe", "_name", "_opened", "_record", "_scope", "_seconds", "_telemetry")

    def __init__(
        self, name: str, opened: OpenEngine | None, telemetry: Telemetry, api: Api, seconds: float | None
    ) -> None:
        """Prepare the call. `seconds` is the time limit; None: no limit."""
        self._name = name
        self._opened = opened
        self._telemetry = telemetry
        self._api: Api = api
        self._seconds = seconds
        self._is_probe = False
        self._began = 0.0
        self._record: EngineCallRecord | None = None
        self._scope: anyio.CancelScope | None = None

    async def __aenter__(self) -> Adapter:
        opened, seconds = self._opened, self._seconds
        if opened is None:
            self._telemetry.engine_call(self._name, self._api, timed=seconds is not None).end("unavailable")
            raise EngineUnavailable("it is no longer in the configuration", sent=False)
        if self._api in _POLLS:
            self._is_probe = opened.circuit.admit()
        self._began = opened.circuit.clock()
        self._record = self._telemetry.engine_call(self._name, self._api, timed=seconds is not None)
        opened.begin(bounded=seconds is not None)
        if seconds is not None:
            self._scope = anyio.CancelScope(deadline=anyio.current_time() + seconds)
            self._scope.__enter__()
        return opened.adapter

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened, record = self._opened, self._record
        assert opened is not None
        assert record is not None
        if self._scope is not None:
            self._scope.__exit__(kind, error, trace)  # its result differs between asyncio and Trio
        is_late = self._scope is not None and self._scope.cancelled_caught
        failure = self._late() if is_late else self._failure(error)
        if self._api in _COUNTED:
            is_poll = self._api in _POLLS  # adapters may refuse starts without calling the engine
            opened.circuit.record(self._began, failure, refusal_is_answer=is_poll)
        if self._is_probe:
            opened.circuit.release(is_probe=True)
        record.end(outcome_of(failure))
        opened.end(bounded=self._seconds is not None)
        if failure is not None and failure is not error:
            raise failure from None

    def _failure(self, error: BaseException | None) -> BaseException | None:
        """Return the error of the call for its caller."""
        if isinstance(error, EngineError):
            error.args = (cleaned(mask(str(error))),)
        if error is None or isinstance(error, EngineError):
            return error
        if isinstance(error, TimeoutError):
            return self._late()
        if isinstance(error, Exception):  # third-party code
            logger.error(_BROKEN, self._name, "", exc_info=error)
            return _broken(error)
        task = asyncio.current_task()  # anyio does not report a cancellation outside its scopes
        if isinstance(error, anyio.get_cancelled_exc_class()) and task is not None and not task.cancelling():
            return EngineUnavailable("its adapter gave up (cancelled)")
        return error  # the caller was cancelled

    def _late(self) -> EngineUnavailable:
        return EngineUnavailable(f"no answer within {self._seconds:g} s" if self._seconds else "no answer in time")


class OpenEngine:
    """One adapter and its lifetime, in a separate task, because adapters that are swapped one by one do not nest."""

    def __init__(self, name: str, adapter: Adapter, notes: NotesOf | None = None) -> None:
        self.name = name
        self.adapter = adapter
        self.identity = ""  # until it is open
        self._notes = notes
        self._calls = 0  # bounded calls in progress
        self._stopping = anyio.Event()
        self._idle = anyio.Event()
        self.circuit = Circuit(on_change=self._log_silence)
        self._has: dict[type[object], bool] = {}

    def has(self, capability: type[object]) -> bool:
        """Return True if the adapter has this capability; cached, because each poll checks it, which is slow."""
        if capability not in self._has:
            self._has[capability] = isinstance(self.adapter, capability)
        return self._has[capability]

    def _log_silence(self, silence: str | None) -> None:
        if silence is None:
            logger.warning("engine %r answers again", self.name)
        else:
            logger.warning("engine %r: %s; reads are answered from the store until it answers", self.name, silence)

    async def run(self, call_timeout: float, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep the adapter open until `stop`; then wait up to `call_timeout` seconds for the calls in progress."""
        opened = False
        try:
            if self._notes is not None and isinstance(self.adapter, Remembers):
                self.adapter.remember(self._notes(self.name))
            async with self.adapter:
                self.identity = str(self.adapter.identity)
                opened = True
                task_status.started()
                await self._stopping.wait()
                with anyio.move_on_after(call_timeout if self._calls else 0):
                    await self._idle.wait()
        except Exception as error:  # third-party code; a failing close must not end the other engines
            if not opened and isinstance(error, ConfigError):
                raise ConfigError(f"engine {self.name}: {error}") from None
            if not opened:
                raise
            logger.exception("the adapter of engine %r failed to close", self.name)

    @cached_property
    def routes(self) -> Mapping[str, Route]:
        """The HTTP routes of the adapter by path. They come from its settings, so it need not be open."""
        if not isinstance(self.adapter, Routes):
            return {}
        try:
            with _contained(self.name, ": it has no routes"):
                return {route.path: route for route in self.adapter.routes()}
        except (EngineError, TimeoutError):
            return {}

    def stop(self) -> None:
        """Close the adapter once no bounded call is in progress."""
        self._stopping.set()

    def begin(self, *, bounded: bool) -> None:
        """Count the beginning of a call; closing waits only for bounded calls."""
        self._calls += bounded

    def end(self, *, bounded: bool) -> None:
        """Count the end of a call."""
        self._calls -= bounded
        if not self._calls and self._stopping.is_set():
            self._idle.set()


def validated(execution: Execution) -> Execution:
    """Return the execution in a form that can be stored: only JSON, and texts for people without invisible characters.

    If the output is not JSON, the task fails for that reason. If the code, data or details of a failure cannot be
    stored, they are left out, because the execution has ended anyway. JSON has no infinite or NaN numbers, so such
    progress or totals count as unknown.

    Raises:
        EngineUnavailable: the adapter returned no execution, so nothing is known, or its workflow asks with our key.
    """
    try:
        kept = replace(execution, progress=_finite(execution.progress))
        found = _readable(_EXECUTION.validate_json(_as_json(kept)))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        failure = getattr(execution, "failure", None)
        if isinstance(failure, Failure) and (failure.code, failure.data, failure.details) != (None, None, None):
            return validated(replace(execution, failure=replace(failure, code=None, data=None, details=None)))
        if getattr(execution, "status", None) is not Status.SUCCEEDED:
            raise EngineUnavailable(
                f"its adapter failed: it returned what cannot be stored ({type(error).__name__})"
            ) from None
        text = "the workflow completed, but its result cannot be stored: it is nested too deeply, or is not JSON"
        failure = Failure(text=text, kind="UndecodableResult")
        return replace(execution, status=Status.FAILED, output=None, message=None, failure=failure)
    if START_KEY in found.requests:
        raise EngineUnavailable(f"its workflow asks under the key {START_KEY!r}, which is reserved: use another key")
    return found


def digest_of(execution: Execution) -> ExecutionDigest:
    """Return a digest of the status, message, progress, questions, steps and cancel request of an execution."""
    seen = (execution.status, execution.message, execution.progress, tuple(sorted(execution.requests)))
    return ExecutionDigest(hash((*seen, execution.steps, execution.cancel_requested)), execution.status)


def ref_of(task: Task, handle: str) -> Ref:
    """Return the reference by which adapters know the execution of a task."""
    asked = frozenset(task.execution.requests)
    return Ref(workflow=task.workflow, handle=handle, options=task.options, gates=task.gates, asked=asked)


@contextmanager
def _contained(engine: str, consequence: str = "") -> Generator[None]:
    """Log any unexpected error of an adapter's code and raise `AdapterBroke` instead: see docs/decisions/0002."""
    try:
        yield
    except (EngineError, TimeoutError):
        raise
    except Exception as error:  # third-party code
        logger.exception(_BROKEN, engine, consequence)
        raise _broken(error) from None


def _broken(error: Exception) -> AdapterBroke:
    return AdapterBroke(f"its adapter failed ({type(error).__name__}); see the log")


def _readable(execution: Execution) -> Execution:
    """Clean all texts for people and mask credentials: see `redaction`.

    Questions keep their links to pages; the texts of gates' questions are already clean.
    """
    failure, status = execution.failure, execution.status
    message = None if execution.message is None else cleaned(mask(execution.message))
    asked = {key: replace(each, params=mask_known(each.params)) for key, each in execution.requests.items()}
    shown = {key: request if request.gate else _shown(request) for key, request in asked.items()}
    requests = {key: request for key, request in shown.items() if request is not None}
    if status is Status.INPUT_REQUIRED and shown and not requests:
        status, message = Status.RUNNING, _NOT_SHOWN
    return replace(
        execution,
        status=status,
        message=message,
        requests=requests,
        output=mask_output(execution.output),
        failure=failure
        and replace(
            failure,
            text=cleaned(mask(failure.text), MAX_FAILURE),
            kind=failure.kind and _name(mask(failure.kind)),
            data=mask_output(failure.data),
            details=mask_details(failure.details),
            step=failure.step and _name(mask(failure.step)),
        ),
        steps=tuple(replace(step, name=_name(mask(step.name))) for step in execution.steps[-MAX_STEPS:]),
        execution_id=execution.execution_id and _name(execution.execution_id, MAX_TEXT),
        url=safe_link(execution.url),
    )


def _name(text: str, limit: int = MAX_STEP_NAME) -> str:
    """Return a name on one line, so that no part of it looks like another line."""
    return cleaned(text, limit).replace("\n", " ")


def _shown(request: InputRequest) -> InputRequest | None:
    """Return a question as people may see it; None if it is too large, or links to an unsafe address."""
    known = {name: each for name, each in request.params.items() if name in _QUESTION}
    is_page = known.get("mode") == "url" or "url" in known
    if len(json.dumps(known)) > MAX_QUESTION or (is_page and safe_link(known.get("url")) is None):
        return None
    known |= {name: cleaned_schema(known[name], name) for name in known.keys() & {"message", "requestedSchema"}}
    if isinstance(message := known.get("message"), str):
        known["message"] = mask(message)
    if request.declinable is False:
        known["_meta"] = {DECLINE_META: False}
    return replace(request, params=known)


def _finite(progress: Progress | None) -> Progress | None:
    """Return the progress without a total that is not a finite float; None if its value is not."""
    if progress is None or not abs(progress.value) <= float_info.max:  # also for NaN, and for an int of any size
        return None
    return progress if abs(progress.total or 0) <= float_info.max else replace(progress, total=None)


def _as_json(execution: Execution) -> bytes:
    try:
        return _EXECUTION.dump_json(execution)
    except PydanticSerializationError:  # it has an unpaired surrogate, which JSON allows and UTF-8 does not
        plain = json.loads(json.dumps(asdict(execution), default=datetime.isoformat), parse_constant=lambda _: None)
        return json.dumps(plain, ensure_ascii=False).encode("utf-8", "replace")
