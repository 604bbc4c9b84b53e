"""The host of one execution: each effect happens once, and replays read its result from the journal."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from mcp_workflows_google_local import JSON
from mcp_workflows_google_local.callbacks import Callbacks
from mcp_workflows_google_local.http_client import Requests
from mcp_workflows_google_local.language.errors import Tag, WorkflowError, failure
from mcp_workflows_google_local.language.host import Path, Step
from mcp_workflows_google_local.record import Record
from mcp_workflows_google_local.store import Entry, Store

log = logging.getLogger(__name__)

Effect: TypeAlias = Callable[[Mapping[str, JSON], float], Awaitable[JSON]]

_SECONDS: Final = {"sys.sleep": "seconds", "events.await_callback": "timeout"}  # the argument with the duration
_LEVELS: Final = {"WARNING": logging.WARNING, "ERROR": logging.ERROR, "CRITICAL": logging.CRITICAL}


class ExecutionHost:
    """The host of one execution: time, HTTP, callbacks and its other effects."""

    def __init__(
        self, record: Record, store: Store, callbacks: Callbacks, requests: Requests, env: Mapping[str, str]
    ) -> None:
        self._record = record
        self._store = store
        self._callbacks = callbacks
        self._requests = requests
        self._env = env
        self._journal = dict(store.journal(record.execution))
        self._effects: Mapping[str, Effect] = {
            "sys.now": _now,
            "sys.sleep": _sleep,
            "sys.log": self._log,
            "uuid.generate": _uuid,
            "http.request": self._request,
            "events.create_callback_endpoint": self._create_callback,
            "events.await_callback": self._await_callback,
        }

    @property
    def env(self) -> Mapping[str, str]:
        """The variables for sys.get_env."""
        return self._env

    def at(self, steps: Sequence[Step]) -> None:
        """Set the current steps."""
        self._record.steps = tuple(steps)

    async def effect(self, name: str, arguments: Mapping[str, JSON], path: Path) -> JSON:
        """Perform an effect, or return its journaled result; a wait keeps its original end.

        Raises:
            WorkflowError: the effect failed, now or earlier; or the replay took another path.
        """
        key = json.dumps(path)
        entry = self._journal.pop(key, None)
        if entry is None:
            entry = self._begun(name, arguments, key)
        elif entry.name != name:
            raise failure(Tag.SYSTEM, "the execution cannot go on after the restart: it took another way than before")
        if entry.answer is not None:
            return _answered(entry)
        left = 0.0 if entry.until is None else max(0.0, entry.until - time.time())
        try:
            answer = await self._effects[name](arguments, left)
        except WorkflowError as error:
            self._note(key, replace(entry, raised=True, answer=json.dumps(error.payload)))
            raise
        self._note(key, replace(entry, answer=json.dumps(answer)))
        return answer

    def _begun(self, name: str, arguments: Mapping[str, JSON], key: str) -> Entry:
        seconds = arguments[_SECONDS[name]] if name in _SECONDS else None
        entry = Entry(name=name, until=None if seconds is None else time.time() + seconds, raised=False, answer=None)
        if seconds is not None:
            self._note(key, entry)
        return entry

    def _note(self, key: str, entry: Entry) -> None:
        self._store.note(self._record.execution, key, entry)

    async def _log(self, arguments: Mapping[str, JSON], _left: float) -> JSON:
        severity = str(arguments.get("severity", "DEFAULT"))
        said = arguments["text"] if "text" in arguments else arguments.get("data", arguments.get("json"))
        text = said if isinstance(said, str) else json.dumps(said)
        record = self._record
        log.log(_LEVELS.get(severity, logging.INFO), "%s/%s %s: %s", record.workflow, record.execution, severity, text)

    async def _request(self, arguments: Mapping[str, JSON], _left: float) -> JSON:
        return await self._requests.make(arguments, self._env["GOOGLE_CLOUD_SERVICE_ACCOUNT_NAME"])

    async def _create_callback(self, arguments: Mapping[str, JSON], _left: float) -> JSON:
        return self._callbacks.create(arguments.get("http_callback_method") or "POST")

    async def _await_callback(self, arguments: Mapping[str, JSON], left: float) -> JSON:
        return await self._callbacks.take(arguments["callback"], left)


async def _now(_arguments: Mapping[str, JSON], _left: float) -> JSON:
    return time.time()


async def _sleep(_arguments: Mapping[str, JSON], left: float) -> JSON:
    await asyncio.sleep(left)


async def _uuid(_arguments: Mapping[str, JSON], _left: float) -> JSON:
    return str(uuid.uuid4())


def _answered(entry: Entry) -> JSON:
    answer = json.loads(entry.answer or "null")
    if entry.raised:
        raise WorkflowError(answer)
    return answer
