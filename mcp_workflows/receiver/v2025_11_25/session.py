"""The session of a client of 2025-11-25 or earlier, and the server's questions to it (`elicitation/create`).

A session does not affect the ownership of tasks.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, cast

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from pydantic import ConfigDict, ValidationError

from mcp_workflows.adapter import JSON, InputRequest
from mcp_workflows.errors import INVALID_PARAMS, RequestError, WorkflowsError
from mcp_workflows.wire import v2025_11_25 as wire
from mcp_workflows.wire.commands import TaskView

logger = logging.getLogger(__name__)

_STATE: Final = "mcp_workflows"  # the key of our state at a connection
TRIES: Final = 3  # attempts per question, when the answer does not fit
_PAUSES: Final = (1, 2, 4, 8, 15, 30, 60, 60, 60, 60)  # seconds, while the engine does not accept an answer
_REACHED_WITHIN: Final = 3.0  # seconds for the reply to a ping

Deliver = Callable[[str, Mapping[str, JSON]], Awaitable[None]]
"""Deliver an answer by its question's key; raise `RequestError` if it does not fit, or is not accepted now."""


class _Question(types.Request[dict[str, Any], str]):
    method: str
    params: dict[str, Any]


class _Answer(types.Result):
    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A channel to a client: the stream of one of its requests, or the connection outside of requests."""

    session: ServerSession
    request_id: types.RequestId | None = None  # None: outside of requests
    brief: bool = False  # the request ends soon, so that only an answer proves that the question was read

    async def ask(self, request: InputRequest, task_id: str | None) -> Mapping[str, JSON] | None:
        """Return the person's answer; None if the client cannot or will not ask."""
        asked = _Question(method=request.method, params=wire.question(request, task_id))
        try:
            answer = await self.session.send_request(
                cast("types.ServerRequest", asked), _Answer, metadata=self._metadata
            )
        except (MCPError, ValidationError) as error:
            logger.info("a client did not answer a question: %s", error)
            return None
        found = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
        return {key: value for key, value in found.items() if key not in {"_meta", "resultType"}}

    async def reaches(self) -> bool:
        """True if the client still reads this channel."""
        with anyio.move_on_after(_REACHED_WITHIN):
            try:
                await self.session.send_request(types.PingRequest(), types.EmptyResult, metadata=self._metadata)
            except NoBackChannelError:
                return False
            except MCPError:  # a reply nonetheless: the client does not know ping
                return True
            return True
        return False

    @property
    def _metadata(self) -> ServerMessageMetadata | None:
        return None if self.request_id is None else ServerMessageMetadata(related_request_id=self.request_id)


@dataclass(slots=True, eq=False)
class OpenQuestion:
    """A question that the client received and has not answered."""

    channel: Channel
    scope: anyio.CancelScope
    is_read: bool = True  # False: the client no longer reads the stream; a late answer still counts
    over: anyio.Event = field(default_factory=anyio.Event)


Questions = dict[tuple[str, str], list[OpenQuestion]]
"""The open questions of one client by task and key; no question is open on two live streams."""


class TaskQuestions:
    """Asks the questions of one task on one stream of one client, each once."""

    def __init__(self, questions: Questions, channel: Channel, deliver: Deliver) -> None:
        self._questions = questions
        self._channel = channel
        self._deliver = deliver
        self._seen: set[str] = set()

    def see(self, task: TaskView, start: Callable[[Callable[[], Awaitable[object]]], None]) -> None:
        """Ask open questions that were not asked here yet; withdraw those that are no longer open."""
        withdraw(self._questions, task)
        for key, request in task.requests.items():
            if key not in self._seen:
                self._seen.add(key)
                start(partial(self.put, task.task_id, key, request))

    async def put(self, task_id: str, key: str, request: InputRequest) -> str | None:
        """Ask one question, unless it is already open on a stream that the client still reads.

        Return the error if the answer was refused and must be requested again on another channel.
        """
        opened = self._questions.setdefault((task_id, key), [])
        if await is_still_read(opened) or self._questions.get((task_id, key)) is not opened:
            return None  # or it was answered or withdrawn in the meantime
        complaint = None
        with anyio.CancelScope() as scope:
            mine = OpenQuestion(channel=self._channel, scope=scope)
            opened.append(mine)
            try:
                complaint = await self._until_taken(task_id, key, request)
            finally:
                mine.over.set()
                opened.remove(mine)
                if not opened:
                    self._questions.pop((task_id, key), None)
        return complaint

    async def _until_taken(self, task_id: str, key: str, request: InputRequest) -> str | None:
        asked = request
        for _ in range(TRIES):
            answer = await self._channel.ask(asked, task_id)
            complaint = None if answer is None else await self._complaint(key, answer)
            if complaint is None or self._channel.brief:
                return complaint
            asked = with_complaint(request, complaint)
        return None

    async def _complaint(self, key: str, answer: Mapping[str, JSON]) -> str | None:
        """Deliver an answer, and return its error if it does not fit; retry while the engine does not accept it."""
        for pause in _PAUSES:
            try:
                await self._deliver(key, answer)
            except RequestError as error:
                if error.code == INVALID_PARAMS:
                    return str(error)
                logger.warning("an answer was not accepted; it will be sent again in %d s: %s", pause, error)
            else:
                return None
            await anyio.sleep(pause)
        logger.error("an answer was not accepted for minutes; the person must be asked again")
        return None


class CallQuestions:
    """Asks the questions of one plain call on its own stream; each once, unless an answer does not fit."""

    def __init__(self, channel: Channel) -> None:
        self.answers: dict[str, JSON] = {}  # of this round
        self._channel = channel
        self._asked: Counter[str] = Counter()
        self._complaints: dict[str, str] = {}

    async def ask(self, requests: Mapping[str, InputRequest]) -> None:
        """Ask new questions, and those whose answer did not fit."""
        new = {key: request for key, request in requests.items() if key in self._complaints or not self._asked[key]}
        self._asked.update(new.keys())
        for key, request in new.items():
            complaint = self._complaints.pop(key, None)
            asked = request if complaint is None else with_complaint(request, complaint)
            if (answer := await self._channel.ask(asked, None)) is not None:
                self.answers[key] = answer

    def taken(self) -> None:
        """Begin the next round, with new answers."""
        self.answers.clear()

    def refused(self, error: RequestError, *, started: bool) -> bool:
        """Return True if the call can continue after a refused answer, which is requested again.

        After the last attempt the question counts as unanswered, if the workflow was started and continues without it.
        """
        key = next((key for key in self.answers if error.data == {"key": key}), None)
        if key is None:
            return False
        del self.answers[key]
        again = self._asked[key] < TRIES
        if again:
            self._complaints[key] = str(error)
        return again or started


def with_complaint(request: InputRequest, complaint: str) -> InputRequest:
    """Return the question with the error of its answer."""
    message = f"{request.params.get('message', '')}\n\n{complaint}".strip()
    return InputRequest(method=request.method, params={**request.params, "message": message})


async def is_still_read(opened: Sequence[OpenQuestion]) -> bool:
    """True if the client still reads a stream with the question; mark the streams that it no longer reads."""
    for question in list(opened):
        question.is_read = question.is_read and await question.channel.reaches()
    return any(question.is_read for question in opened)


def withdraw(questions: Questions, task: TaskView) -> Sequence[OpenQuestion]:
    """Cancel the questions of the task that are no longer open, and return them."""
    mine = [(key, opened) for (task_id, key), opened in questions.items() if task_id == task.task_id]
    gone = [question for key, opened in mine if key not in task.requests or task.cancelled for question in opened]
    for question in gone:
        question.scope.cancel()
    return gone


@dataclass(slots=True, eq=False)
class PolledQuestion:
    """A question that the client sees in `tasks/get` and may not have been asked; times are on the event loop's
    clock."""

    seen: int = 0
    complaint: str | None = None  # about the answer to it
    rejections: int = 0  # answers that did not fit
    pause: float = 0.0  # seconds before it is asked again, if it was not answered
    not_before: float = 0.0


@dataclass(slots=True, eq=False)
class Session:
    """One connection: the questions to its client, and background work outside of its requests."""

    connection: Connection
    augmented: bool = False  # it has requested a task
    hears_events: bool = False  # its client has declared that it can subscribe to events
    is_reachable: bool | None = None  # outside of requests; None: unknown
    is_checking: bool = False  # whether the client is reachable
    questions: Questions = field(default_factory=Questions)
    polled: dict[tuple[str, str], PolledQuestion] = field(default_factory=dict[tuple[str, str], "PolledQuestion"])
    _beside: set[anyio.CancelScope] = field(default_factory=set[anyio.CancelScope])
    _alone: dict[str, anyio.CancelScope] = field(default_factory=dict[str, anyio.CancelScope])

    def start(self, group: TaskGroup, work: Callable[[], Awaitable[object]]) -> None:
        """Start work that continues after the current request, until the session ends."""
        group.start_soon(self._guarded, work)

    async def _guarded(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run work that ends with the session; its errors never stop the server."""
        with anyio.CancelScope() as scope:
            self._beside.add(scope)
            try:
                await work()
            except WorkflowsError as error:
                logger.info("background work of a client's session ended: %s", error)
            except Exception:  # background work must not stop the server: docs/decisions/0002
                logger.exception("background work of a client's session failed")
            finally:
                self._beside.discard(scope)

    @contextmanager
    def alone(self, name: str) -> Generator[None]:
        """Cancel the body if it is entered again with this name."""
        if before := self._alone.get(name):
            before.cancel()
        with anyio.CancelScope() as scope:
            self._alone[name] = scope
            try:
                yield
            finally:
                if self._alone.get(name) is scope:
                    del self._alone[name]

    def end(self) -> None:
        """Cancel the background work, as the connection is closed."""
        for scope in tuple(self._beside):
            scope.cancel()

    def forget(self, task: TaskView) -> None:
        """Remove the questions of the task that are no longer open."""
        closed = [asked for asked in self.polled if asked[0] == task.task_id and asked[1] not in task.requests]
        for asked in closed:
            del self.polled[asked]


def connection_of(ctx: ServerRequestContext[Any, Any]) -> Connection:
    """Return the connection of a request, where the SDK allows us to keep state."""
    return ctx.session._connection  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def session_of(ctx: ServerRequestContext[Any, Any]) -> Session:
    """Return the session of a request; a new one for its first request, or for each if the server keeps no sessions."""
    connection = connection_of(ctx)
    found = connection.state.get(_STATE)
    if not isinstance(found, Session):
        found = connection.state[_STATE] = Session(connection)
        connection.exit_stack.callback(found.end)
    return found
