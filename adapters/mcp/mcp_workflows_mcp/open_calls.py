"""Open calls of tools that ask first or take long and are not tasks, and the questions of the server.

A call lives in one process, and is lost with it. Its state is kept in the store, so that other replicas can show it,
and can forward answers and a cancellation to its process.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from pydantic import ValidationError

from mcp_workflows.adapter import JSON, Execution, Failure, InputRequest, Notes, Progress, Status
from mcp_workflows.adapter.display_text import safe_link
from mcp_workflows.adapter.redaction import KNOWN, mask_known
from mcp_workflows.errors import AdapterBroke, EngineError, EngineUnavailable, ExecutionNotFound
from mcp_workflows.kit.expressions import as_object
from mcp_workflows_mcp.errors import UNEXPECTED
from mcp_workflows_mcp.reply import failure_of

logger = logging.getLogger(__name__)

_KEPT_OPEN: Final = timedelta(days=400)  # longer than the lifetime of tasks
_KEPT_RESULT: Final = timedelta(days=30)
_PASSED_ON: Final = timedelta(days=1)
_NOTE_EVERY: Final = 10.0  # seconds between two notes of an open call
_LOST_AFTER: Final = 35.0  # seconds without such a note, after which its process counts as ended
_LISTEN_EVERY: Final = 1.0  # seconds between two polls for answers that another replica received
_CANDIDATES_SECONDS: Final = 60.0  # for all calls except one to end, so that a question must belong to that one
_MOST: Final = 1000  # ended calls to remember in this process
_ABANDONED_SECONDS: Final = 600.0  # in which an abandoned request may still lead to a question
_CANCELLED_SECONDS: Final = 10.0  # the same for a call whose cancellation the server knows: it should stop
MOST_QUESTIONS: Final = 20  # open questions of one execution
_MOST_QUESTIONS_IN_ALL: Final = 1000
_LONGEST_QUESTION: Final = 50_000  # characters of a question as JSON
_METHOD: Final = "elicitation/create"
_LARGEST_RESULT: Final = 8 * 2**20  # characters of a result as JSON
UNKNOWN: Final = "OutcomeUnknown"
_LOST: Final = "outcome unknown: the process that waited for the server's answer is gone"


@dataclass(slots=True)
class _Elicitation:
    params: Mapping[str, JSON]
    answered: anyio.Event = field(default_factory=anyio.Event)
    response: types.ElicitResult = field(default_factory=lambda: types.ElicitResult(action="cancel"))


class Elicitations:
    """The open questions by execution (an id of a call or of a task), each with a key that is never reused."""

    def __init__(self, changed: Callable[[str], None], *, is_local: bool) -> None:
        """`changed` is called with the execution whose questions changed.

        A server that `is_local` may send people to http pages of this machine.
        """
        self._is_local = is_local
        self._open: defaultdict[str, dict[str, _Elicitation]] = defaultdict(dict)
        self._changed = changed

    async def ask(self, execution: str, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Return the answer to a question of this execution, after a person gives it.

        A server that asks too many or too large questions, or sends people to an unsafe address, gets the answer
        `cancel`.
        """
        written = mask_known(params.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"meta", "task"}))
        if isinstance(params, types.ElicitRequestURLParams) and safe_link(params.url, local=self._is_local) is None:
            logger.warning("an MCP server asks people to visit a page without https: its question was cancelled")
            return types.ElicitResult(action="cancel")
        count, in_all = len(self._open.get(execution, ())), sum(map(len, self._open.values()))
        if count >= MOST_QUESTIONS or in_all >= _MOST_QUESTIONS_IN_ALL or len(json.dumps(written)) > _LONGEST_QUESTION:
            logger.warning("an MCP server asks too much: %d questions are open, %d of one call", in_all, count)
            return types.ElicitResult(action="cancel")
        key, question = uuid.uuid4().hex, _Elicitation(params={"mode": "form", **written})
        self._open[execution][key] = question
        self._changed(execution)
        try:
            await question.answered.wait()
        finally:
            del self._open[execution][key]
            if not self._open[execution]:
                del self._open[execution]
            self._changed(execution)
        return question.response

    def requests(self, execution: str) -> Mapping[str, InputRequest]:
        """Return the open questions of an execution by key."""
        questions = self._open.get(execution, {})
        return {key: InputRequest(method=_METHOD, params=each.params) for key, each in questions.items()}

    def answer(self, execution: str, responses: Mapping[str, JSON]) -> None:
        """Answer open questions; others are ignored."""
        questions = self._open.get(execution, {})
        for key in responses.keys() & questions.keys():
            question = questions[key]
            given = as_object(responses[key]) or {}
            try:
                question.response = types.ElicitResult.model_validate(
                    {name: given[name] for name in ("action", "content") if given.get(name) is not None}
                )
            except ValidationError:
                continue
            question.answered.set()

    def close(self, execution: str) -> None:
        """Answer the open questions of an ended execution with `cancel`, as nobody else will."""
        for question in self._open.get(execution, {}).values():
            question.answered.set()


Outcome: TypeAlias = Mapping[str, JSON]
"""One of `handle` (a text), `result` (of the tool), `failed` (a text, and `unknown`), `cancelled`."""


@dataclass(slots=True, kw_only=True)
class OpenCall:
    """One call, in this process."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    outcome: Outcome | None = None
    error: EngineError | None = None  # of a failed call
    message: str | None = None
    progress: Progress | None = None
    changed: anyio.Event = field(default_factory=anyio.Event)  # it has ended, or asks
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    is_alone: bool = False  # on its own connection
    is_kept: bool = False  # its id is a handle: it is lost if its connection ends

    async def note_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Record the progress that the server reports; the SDK calls this."""
        self.progress, self.message = Progress(value=progress, total=total), message


Work: TypeAlias = Callable[[OpenCall], Awaitable[Outcome]]


class OpenCalls:
    """The calls of this process, and the notes about those of other processes."""

    def __init__(self, *, is_local: bool) -> None:
        """`is_local`: the server runs on this machine."""
        self.elicitations = Elicitations(self._questions_changed, is_local=is_local)
        self.notes: Notes | None = None
        self._open: dict[str, OpenCall] = {}
        self._ended: OrderedDict[str, OpenCall] = OrderedDict()
        self._others = set[str]()  # requests of other kinds, and abandoned ones, that may lead to a question
        self._abandoned: dict[str, float] = {}  # end times
        self._one_ended = anyio.Event()
        self._current: ContextVar[OpenCall | None] = ContextVar("mcp_workflows_mcp_call", default=None)

    @property
    def are_open(self) -> bool:
        """True if a lost shared connection would lose a call."""
        return any(call.is_kept and not call.is_alone for call in self._open.values())

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
                call.outcome = _bounded(await work(call))
            if call.outcome is None:
                call.outcome = {"cancelled": True}
        except EngineError as error:
            self._fail(call, error)
        except UNEXPECTED as error:  # here it would end the whole engine
            logger.exception("the call of a tool failed unexpectedly")
            self._fail(call, AdapterBroke(f"its adapter failed ({type(error).__name__}); see the log"))
        finally:
            del self._open[call.id]
            if call.scope.cancel_called and not call.is_alone:
                self._abandon(call.id, _CANCELLED_SECONDS)
                self.elicitations.close(call.id)  # the server waits for the answer, and so does its other work
            self._tell_ended()
        self._ended[call.id] = call
        if len(self._ended) > _MOST:
            self._ended.popitem(last=False)
        call.changed.set()

    def _fail(self, call: OpenCall, error: EngineError) -> None:
        call.error = error
        call.outcome = {
            "failed": KNOWN.mask(str(error)),
            "unknown": isinstance(error, EngineUnavailable) and error.sent,
        }

    def _tell_ended(self) -> None:
        self._one_ended.set()
        self._one_ended = anyio.Event()

    # --- whose question it is

    @contextmanager
    def request(self) -> Generator[None]:
        """Count a request of another kind, such as a poll, which may also lead to a question."""
        name, is_answered = uuid.uuid4().hex, False
        self._others.add(name)
        try:
            yield
            is_answered = True
        except EngineError as error:
            is_answered = not (isinstance(error, EngineUnavailable) and error.silent and error.sent)
            raise
        finally:
            self._others.discard(name)
            if not is_answered:
                self._abandon(name)
            self._tell_ended()

    def _abandon(self, name: str, seconds: float = _ABANDONED_SECONDS) -> None:
        self._abandoned[name] = time.monotonic() + seconds
        while len(self._abandoned) > _MOST:
            del self._abandoned[next(iter(self._abandoned))]

    def forget_abandoned(self) -> None:
        """Forget abandoned requests, as their connection has ended."""
        self._abandoned.clear()

    def _candidates(self) -> set[str]:
        now = time.monotonic()
        self._abandoned = {name: until for name, until in self._abandoned.items() if until > now}
        return {call.id for call in self._open.values() if not call.is_alone} | self._others | self._abandoned.keys()

    @property
    def current(self) -> OpenCall | None:
        """The call whose work reads this; not reliable in another task, such as one that reads from a connection."""
        return self._current.get()

    async def only_candidate(self) -> OpenCall | None:
        """Return the call that certainly owns a question, or None if that is unclear.

        The revision of 2025-11-25 does not name it on a connection with several requests. Calls that end do not own the
        question, as its owner waits for the answer. An abandoned call may own it.
        """
        candidates = self._candidates()
        with anyio.move_on_after(_CANDIDATES_SECONDS):
            while len(candidates := candidates & self._candidates()) > 1:
                with anyio.move_on_after(_LISTEN_EVERY):  # an abandoned one expires by itself
                    await self._one_ended.wait()
        return self._open.get(candidates.pop()) if len(candidates) == 1 else None

    def _questions_changed(self, execution: str) -> None:
        call = self._open.get(execution)
        if call is not None:
            call.changed.set()

    # --- notes for other replicas, and for after a restart

    async def keep(self, call: OpenCall, group: TaskGroup) -> None:
        """Keep a note of the call until it has ended: its id becomes a handle.

        Raises:
            EngineUnavailable: the store cannot be used now.
        """
        call.is_kept = True
        await self._note(call)
        if call.outcome is None and self.notes is not None:
            group.start_soon(self._sync_with_replicas, call)

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

    async def _sync_with_replicas(self, call: OpenCall) -> None:
        """Keep a note of the open call, and take what other replicas forward, until it has ended."""
        noted, known = time.monotonic(), set(self.elicitations.requests(call.id))
        while call.outcome is None:
            await anyio.sleep(_LISTEN_EVERY)
            asks = set(self.elicitations.requests(call.id))
            try:
                await self._apply_relayed(call)
                if call.outcome is None and (asks != known or time.monotonic() - noted > _NOTE_EVERY):
                    await self._note(call)
                    noted, known = time.monotonic(), asks
            except EngineUnavailable:
                continue  # the store is unavailable now
        for pause in (0.0, 1.0, 5.0, 15.0):
            await anyio.sleep(pause)
            try:
                await self._note(call)
            except EngineUnavailable:
                continue
            return

    async def _apply_relayed(self, call: OpenCall) -> None:
        assert self.notes is not None
        if await self.notes.get(_cancellation(call.id)) is not None:
            call.scope.cancel()
        answers = _answers(call.id)
        for place, passed in (await self.notes.under(answers)).items():
            self.elicitations.answer(call.id, {place.removeprefix(answers): passed})

    # --- the verbs

    async def describe(self, call_id: str) -> Execution | str:
        """Return the execution of a call, or the handle to which the call has led.

        Raises:
            ExecutionNotFound: the call is unknown.
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
            requests = {key: InputRequest(method=_METHOD, params=params) for key, params in record["requests"].items()}
            status = Status.INPUT_REQUIRED if requests else Status.RUNNING
            progress = None if call is None else call.progress
            return Execution(status=status, message=record["message"], progress=progress, requests=requests)
        return _ended(outcome)

    async def answer(self, call_id: str, responses: Mapping[str, JSON]) -> None:
        """Answer the questions of a call, whichever replica has it.

        Raises:
            EngineUnavailable: the store cannot be used now.
        """
        if call_id in self._open:
            self.elicitations.answer(call_id, responses)
            return
        noted = as_object(None if self.notes is None else await self.notes.get(_place(call_id))) or {}
        for key in responses.keys() & (as_object(noted.get("requests")) or {}).keys():
            await self._pass_on(f"{_answers(call_id)}{key}", responses[key])

    async def cancel(self, call_id: str) -> None:
        """Cancel a call, whichever replica has it; nothing happens if it has ended.

        Raises:
            EngineUnavailable: the store cannot be used now.
        """
        call = self._open.get(call_id)
        if call is not None:
            call.scope.cancel()
        elif call_id not in self._ended and self.notes is not None and await self.notes.get(_place(call_id)):
            await self._pass_on(_cancellation(call_id), True)

    async def _pass_on(self, place: str, value: JSON) -> None:
        assert self.notes is not None
        await self.notes.put(place, value, until=datetime.now(UTC) + _PASSED_ON)


def _ended(outcome: Outcome) -> Execution | str:
    if "handle" in outcome:
        handle: str = outcome["handle"]
        return handle
    if "result" in outcome:
        result = outcome["result"]
        if result.get("isError"):
            return Execution(status=Status.FAILED, failure=failure_of(result))
        return Execution(status=Status.SUCCEEDED, output=result)
    if "failed" in outcome:
        kind = UNKNOWN if outcome.get("unknown") else None
        return Execution(status=Status.FAILED, failure=Failure(text=outcome["failed"], kind=kind))
    return Execution(status=Status.CANCELLED)


def _bounded(outcome: Outcome) -> Outcome:
    """Return an outcome that can be kept: a too large result becomes a failure."""
    if "result" in outcome and len(json.dumps(outcome["result"])) > _LARGEST_RESULT:
        return {"failed": f"its tool ended, but its result is too large (more than {_LARGEST_RESULT:,} characters)"}
    return outcome


def _place(call_id: str) -> str:
    return f"call/{call_id}"


def _answers(call_id: str) -> str:
    return f"call/{call_id}/answer/"


def _cancellation(call_id: str) -> str:
    return f"call/{call_id}/cancel"
