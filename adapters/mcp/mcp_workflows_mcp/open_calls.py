"""Calls that have not ended yet: of tools that ask first, or that take long and are no tasks.

A call lives in one process, and is lost with it. What is known of it is kept in the store, so that other replicas can
show it, and pass on answers and a cancellation to the process that has it.
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import anyio
from anyio.abc import TaskGroup

from mcp_workflows.adapter import JSON, Execution, Failure, InputRequest, Notes, Progress, Status
from mcp_workflows.errors import EngineError, EngineUnavailable, ExecutionNotFound
from mcp_workflows_mcp.elicitations import Elicitations
from mcp_workflows_mcp.upstream_tasks import text_of

_KEPT_OPEN: Final = timedelta(days=400)  # longer than tasks live
_KEPT_RESULT: Final = timedelta(days=30)
_NOTE_EVERY: Final = 10.0  # seconds between two notes that a call is still open
_LOST_AFTER: Final = 35.0  # seconds without such a note: its process is gone
_LISTEN_EVERY: Final = 1.0  # seconds between two looks for answers that another replica took
_CANDIDATES_SECONDS: Final = 60.0  # for all calls but one to end, so that a question must be of that one
_MOST: Final = 1000  # ended calls that are remembered here
UNKNOWN: Final = "OutcomeUnknown"
_LOST: Final = "outcome unknown: the process that waited for the server's answer is gone"

Outcome: TypeAlias = Mapping[str, JSON]
"""One of `handle` (a text), `result` (of the tool), `failed` (a text, and `unknown`), `cancelled`."""


@dataclass(slots=True, kw_only=True)
class OpenCall:
    """One call, in this process."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    outcome: Outcome | None = None
    error: EngineError | None = None  # of a call that failed
    message: str | None = None
    progress: Progress | None = None
    changed: anyio.Event = field(default_factory=anyio.Event)  # it has ended, or asks
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    async def note_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Take the progress that the server reports; as the SDK calls it."""
        self.progress, self.message = Progress(value=progress, total=total), message


Work: TypeAlias = Callable[[OpenCall], Awaitable[Outcome]]


class OpenCalls:
    """The calls of this process, and what is noted of others'."""

    def __init__(self) -> None:
        self.elicitations = Elicitations(self._questions_changed)
        self.notes: Notes | None = None
        self._open: dict[str, OpenCall] = {}
        self._ended: OrderedDict[str, OpenCall] = OrderedDict()
        self._one_ended = anyio.Event()
        self._current: ContextVar[OpenCall | None] = ContextVar("mcp_workflows_mcp_call", default=None)

    @property
    def are_open(self) -> bool:
        """True if a call is open in this process."""
        return bool(self._open)

    def begin(self, work: Work, group: TaskGroup) -> OpenCall:
        """Begin a call; `work` makes it, and returns its outcome."""
        call = OpenCall()
        self._open[call.id] = call
        group.start_soon(self._run, call, work)
        return call

    async def _run(self, call: OpenCall, work: Work) -> None:
        self._current.set(call)
        try:
            with call.scope:
                call.outcome = await work(call)
            if call.outcome is None:
                call.outcome = {"cancelled": True}
        except EngineError as error:
            call.error = error
            call.outcome = {"failed": str(error), "unknown": isinstance(error, EngineUnavailable)}
        finally:
            del self._open[call.id]
            self._one_ended.set()
            self._one_ended = anyio.Event()
        self._ended[call.id] = call
        if len(self._ended) > _MOST:
            self._ended.popitem(last=False)
        call.changed.set()

    # --- whose question it is

    @property
    def current(self) -> OpenCall | None:
        """The call whose work asks for it; not good for what another task does, such as reading from a connection."""
        return self._current.get()

    async def only_candidate(self) -> OpenCall | None:
        """Return the call that a question belongs to, certainly; None: it cannot be told.

        The revision of 2025-11-25 does not say it on a connection that has several calls. Those that end are not the
        one which waits for the answer.
        """
        candidates = set(self._open)
        with anyio.move_on_after(_CANDIDATES_SECONDS):
            while len(candidates := candidates & self._open.keys()) > 1:
                await self._one_ended.wait()
        return self._open[candidates.pop()] if len(candidates) == 1 else None

    def _questions_changed(self, execution: str) -> None:
        call = self._open.get(execution)
        if call is not None:
            call.changed.set()

    # --- notes for other replicas, and for after a restart

    async def keep(self, call: OpenCall, group: TaskGroup) -> None:
        """Note the call, from now until it has ended: its id becomes a handle.

        Raises:
            EngineUnavailable: the store cannot be used now.
        """
        await self._note(call)
        if call.outcome is None and self.notes is not None:
            group.start_soon(self._tend, call)

    async def _note(self, call: OpenCall) -> None:
        if self.notes is None:
            return
        kept = _KEPT_RESULT if call.outcome and "result" in call.outcome else _KEPT_OPEN
        await self.notes.put(_place(call.id), self._record(call), until=datetime.now(UTC) + kept)

    def _record(self, call: OpenCall) -> Mapping[str, JSON]:
        requests = self.elicitations.requests(call.id)
        return {
            "at": time.time(),
            "outcome": call.outcome and dict(call.outcome),
            "message": call.message,
            "requests": {key: dict(request.params) for key, request in requests.items()},
        }

    async def _tend(self, call: OpenCall) -> None:
        """Note that the call is open, and take what other replicas pass on, until it has ended."""
        noted, told = time.monotonic(), set(self.elicitations.requests(call.id))
        while call.outcome is None:
            await anyio.sleep(_LISTEN_EVERY)
            asks = set(self.elicitations.requests(call.id))
            try:
                await self._take_passed_on(call)
                if call.outcome is None and (asks != told or time.monotonic() - noted > _NOTE_EVERY):
                    await self._note(call)
                    noted, told = time.monotonic(), asks
            except EngineUnavailable:
                continue  # the store is not there now
        for pause in (0.0, 1.0, 5.0, 15.0):
            await anyio.sleep(pause)
            try:
                await self._note(call)
            except EngineUnavailable:
                continue
            return

    async def _take_passed_on(self, call: OpenCall) -> None:
        assert self.notes is not None
        for place, passed in (await self.notes.under(f"{_place(call.id)}/")).items():
            if place.endswith("/cancel"):
                call.scope.cancel()
            else:
                self.elicitations.answer(call.id, {place.rpartition("/")[2]: passed})

    # --- the verbs

    async def look(self, call_id: str) -> Execution | str:
        """Return the execution of a call, or the handle that the call has led to.

        Raises:
            ExecutionNotFound: nothing is known of it.
            EngineUnavailable: the store cannot be used now.
        """
        call = self._open.get(call_id) or self._ended.get(call_id)
        noted: JSON = None
        if call is not None:
            record = self._record(call)
        else:
            noted = None if self.notes is None else await self.notes.get(_place(call_id))
            if noted is None:
                raise ExecutionNotFound("nothing is known of this call: its process is gone")
            record = noted
        outcome: Any = record["outcome"]
        if outcome is None and noted is not None and time.time() - record["at"] > _LOST_AFTER:
            outcome = {"failed": _LOST, "unknown": True}
        if outcome is None:
            requests = {
                key: InputRequest(method="elicitation/create", params=params)
                for key, params in record["requests"].items()
            }
            status = Status.INPUT_REQUIRED if requests else Status.RUNNING
            progress = None if call is None else call.progress
            return Execution(status=status, message=record["message"], progress=progress, requests=requests)
        return _ended(outcome)

    async def answer(self, call_id: str, responses: Mapping[str, JSON]) -> None:
        """Answer the questions of a call, in whatever replica it is open.

        Raises:
            EngineUnavailable: the store cannot be used now.
        """
        if call_id in self._open:
            self.elicitations.answer(call_id, responses)
            return
        for key, response in responses.items():
            await self._pass_on(call_id, key, response)

    async def cancel(self, call_id: str) -> None:
        """Cancel a call, in whatever replica it is open; nothing happens if it has ended.

        Raises:
            EngineUnavailable: the store cannot be used now.
        """
        call = self._open.get(call_id)
        if call is not None:
            call.scope.cancel()
        elif call_id not in self._ended:
            await self._pass_on(call_id, "cancel", True)

    async def _pass_on(self, call_id: str, key: str, value: JSON) -> None:
        if self.notes is not None and await self.notes.get(_place(call_id)) is not None:
            until = datetime.now(UTC) + timedelta(days=1)
            await self.notes.put(f"{_place(call_id)}/{key}", value, until=until)


def _ended(outcome: Outcome) -> Execution | str:
    if "handle" in outcome:
        handle: str = outcome["handle"]
        return handle
    if "result" in outcome:
        result = outcome["result"]
        if result.get("isError"):
            return Execution(status=Status.FAILED, failure=Failure(text=text_of(result)))
        return Execution(status=Status.SUCCEEDED, output=result)
    if "failed" in outcome:
        kind = UNKNOWN if outcome.get("unknown") else None
        return Execution(status=Status.FAILED, failure=Failure(text=outcome["failed"], kind=kind))
    return Execution(status=Status.CANCELLED)


def _place(call_id: str) -> str:
    return f"call/{call_id}"
