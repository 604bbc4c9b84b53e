"""Elicitation in 2025-11-25 and before: requests of the server to the client (`elicitation/create`)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, cast

import anyio
import mcp_types as types
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from pydantic import ConfigDict, ValidationError

from mcp_workflows.adapter import JSON, InputRequest
from mcp_workflows.errors import INVALID_PARAMS, RequestError
from mcp_workflows.wire import v2025_11_25 as wire
from mcp_workflows.wire.commands import TaskView

logger = logging.getLogger(__name__)

TRIES: Final = 3  # of one question, when the answer does not fit it
_PAUSES: Final = (1, 2, 4, 8, 15, 30, 60, 60, 60, 60)  # seconds, while the engine does not take an answer
_REACHED_WITHIN: Final = 3.0  # seconds for the answer to a ping

Deliver = Callable[[str, Mapping[str, JSON]], Awaitable[None]]
"""Deliver an answer by its question's key; raise `RequestError` if it does not fit, or is not taken now."""


class _Question(types.Request[dict[str, Any], str]):
    method: str
    params: dict[str, Any]


class _Answer(types.Result):
    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A channel to a client: the stream of one of its requests, or the connection outside of any."""

    session: ServerSession
    request_id: types.RequestId | None = None  # None: outside of any
    brief: bool = False  # that request is answered right after, so that only an answer shows the question was read

    async def ask(self, request: InputRequest, task_id: str | None) -> Mapping[str, JSON] | None:
        """Return the person's answer; None if the client cannot or will not ask."""
        asked = _Question(method=request.method, params=wire.question(request, task_id))
        try:
            answer = await self.session.send_request(
                cast("types.ServerRequest", asked), _Answer, metadata=self._metadata
            )
        except (MCPError, ValidationError) as error:
            logger.info("a client was asked, and did not answer: %s", error)
            return None
        found = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
        return {key: value for key, value in found.items() if key not in {"_meta", "resultType"}}

    async def reaches(self) -> bool:
        """Return True if the client still reads this channel."""
        with anyio.move_on_after(_REACHED_WITHIN):
            try:
                await self.session.send_request(types.PingRequest(), types.EmptyResult, metadata=self._metadata)
            except NoBackChannelError:
                return False
            except MCPError:  # an answer all the same: it knows no ping
                return True
            return True
        return False

    @property
    def _metadata(self) -> ServerMessageMetadata | None:
        return None if self.request_id is None else ServerMessageMetadata(related_request_id=self.request_id)


@dataclass(slots=True, eq=False)
class OpenQuestion:
    """A question that the client was asked and has not answered."""

    channel: Channel
    scope: anyio.CancelScope
    is_read: bool = True  # False: the client does not read the stream any more; a late answer counts all the same
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
        """Ask open questions that were not asked here before; withdraw those that are not open any more."""
        withdraw(self._questions, task)
        for key, request in task.requests.items():
            if key not in self._seen:
                self._seen.add(key)
                start(partial(self.put, task.task_id, key, request))

    async def put(self, task_id: str, key: str, request: InputRequest) -> str | None:
        """Ask one question, unless it is open already on a stream that the client still reads.

        Returns the error of an answer that has to be asked for again on another channel.
        """
        opened = self._questions.setdefault((task_id, key), [])
        if await is_still_read(opened) or self._questions.get((task_id, key)) is not opened:
            return None  # or it was answered or withdrawn meanwhile
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
        """Deliver an answer, and return its error if it does not fit; retry while the engine does not take it."""
        for pause in _PAUSES:
            try:
                await self._deliver(key, answer)
            except RequestError as error:
                if error.code == INVALID_PARAMS:
                    return str(error)
                logger.warning("an answer was not taken, it is sent again in %d s: %s", pause, error)
            else:
                return None
            await anyio.sleep(pause)
        logger.error("an answer was not taken for minutes, the person has to be asked again")
        return None


class CallQuestions:
    """Asks the questions of one plain call on its own stream; each once, unless an answer does not fit."""

    def __init__(self, channel: Channel) -> None:
        self.answers: dict[str, JSON] = {}  # of this round
        self._channel = channel
        self._asked: Counter[str] = Counter()
        self._complaints: dict[str, str] = {}

    async def ask(self, requests: Mapping[str, InputRequest]) -> None:
        """Ask new questions, and those with an answer that does not fit."""
        new = {key: request for key, request in requests.items() if key in self._complaints or not self._asked[key]}
        self._asked.update(new.keys())
        for key, request in new.items():
            complaint = self._complaints.pop(key, None)
            asked = request if complaint is None else with_complaint(request, complaint)
            if (answer := await self._channel.ask(asked, None)) is not None:
                self.answers[key] = answer

    def taken(self) -> None:
        """Begin the next round, which has answers of its own."""
        self.answers.clear()

    def refused(self, error: RequestError, *, started: bool) -> bool:
        """Return True if the call can go on with a refused answer: it is asked for again.

        After some tries the question counts as not answered, if a workflow was started that goes on without.
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
    """Return True if the client still reads a stream with the question; mark the streams that it does not."""
    for question in list(opened):
        question.is_read = question.is_read and await question.channel.reaches()
    return any(question.is_read for question in opened)


def withdraw(questions: Questions, task: TaskView) -> Sequence[OpenQuestion]:
    """Cancel the questions of the task that are not open any more, and return them."""
    mine = [(key, opened) for (task_id, key), opened in questions.items() if task_id == task.task_id]
    gone = [question for key, opened in mine if key not in task.requests or task.cancelled for question in opened]
    for question in gone:
        question.scope.cancel()
    return gone
