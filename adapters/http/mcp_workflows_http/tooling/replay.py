"""Looks at an execution as a recording has them: the replies of the API, and the statuses that clients have seen."""

from __future__ import annotations

import json
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

from pydantic import ValidationError

from mcp_workflows.adapter import JSON, Execution, Ref, Replayed
from mcp_workflows.adapter.expressions import Scope
from mcp_workflows.errors import ConfigError, EngineUnavailable, ExecutionNotFound
from mcp_workflows_http.client import ApiClient, Reply
from mcp_workflows_http.definition import ApiDefinition, Request
from mcp_workflows_http.handle import Handle
from mcp_workflows_http.look import look
from mcp_workflows_http.settings import HttpSettings

_DEFINED: Final = ("start", "look", "asks", "settling")  # the parts of a definition that a look needs
_LEFT_OUT: Final = frozenset({"set-cookie", "date", "server"})  # headers
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_SHORTEST: Final = 4  # characters of a value that can be told from other words
T = TypeVar("T")
_Parts = Mapping[str, Any]  # Any: JSON


class _KeepingClient:
    """Makes the calls of a look, and keeps the replies."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self.replies: list[JSON] = []

    async def send(self, request: Request, scope: Scope) -> Reply:
        """Send a request once; see `ApiClient.send`."""
        return self._kept(request, scope, await self._client.send(request, scope))

    async def log(self, request: Request, scope: Scope, follow: Sequence[str]) -> Reply:
        """Return the end of a log; see `ApiClient.log`."""
        return self._kept(request, scope, await self._client.log(request, scope, follow))

    def _kept(self, request: Request, scope: Scope, reply: Reply) -> Reply:
        prepared = self._client.prepare(request, scope)
        headers = {name: value for name, value in reply.headers.items() if name not in _LEFT_OUT}
        content = {"text": reply.text} if reply.body is None else {"body": reply.body}
        asked = f"{prepared.method} {prepared.url}"
        self.replies.append({"request": asked, "status": reply.status, "headers": headers, **content})
        return reply


class _RecordedClient:
    """Answers the requests of a look with the replies of a recording, in their order."""

    def __init__(self, replies: Sequence[_Parts]) -> None:
        self._replies = iter(replies)

    async def send(self, request: Request, scope: Scope) -> Reply:
        """Return the next reply.

        Raises:
            ConfigError: there is none.
        """
        for found in self._replies:
            content = json.dumps(found["body"]) if "body" in found else str(found.get("text", ""))
            return Reply(status=found["status"], headers=found.get("headers", {}), content=content.encode())
        raise ConfigError(f"this recording has no reply to {request.method.value} {request.path or request.url}")

    async def log(self, request: Request, scope: Scope, follow: Sequence[str]) -> Reply:
        """Return the next reply; see `send`."""
        return await self.send(request, scope)


async def record(client: ApiClient, settings: HttpSettings, definition: ApiDefinition, ref: Ref, earlier: JSON) -> JSON:
    """Return the looks so far, and one more."""
    handle, keeping = Handle.parse(ref.handle), _KeepingClient(client)
    await look(keeping, definition, handle, ref.options)
    written = {name: each for name, each in settings.definition.items() if name in _DEFINED}
    before: Sequence[JSON] = [] if earlier is None else cast("_Parts", earlier)["looks"]
    return {
        "definition": written,
        "handle": json.loads(ref.handle),
        "options": dict(ref.options),
        "looks": [*before, keeping.replies],
    }


def private(settings: HttpSettings) -> Mapping[str, str]:
    """Return the host and the values of `vars`; see `Records.private`."""
    host = urlsplit(settings.url).hostname or ""
    named = {value: name for name, value in settings.vars.items() if len(value) >= _SHORTEST}
    return {**named, **({} if host in _LOCAL else {host: "host"})}


def replay(history: JSON) -> Sequence[Replayed]:
    """Return each change that a client would have seen.

    Raises:
        ConfigError: this is no history of this adapter.
    """
    if not isinstance(history, Mapping) or not {"definition", "handle", "looks"} <= history.keys():
        raise ConfigError(
            "this is not a history of an HTTP engine, an object with a definition and a list of looks, as "
            "`mcp-workflows verify --record` writes it"
        )
    parts = cast("_Parts", history)
    try:
        definition = ApiDefinition.model_validate(parts["definition"])
        handle = Handle.parse(json.dumps(parts["handle"]))
        return list(_changes(definition, handle, parts.get("options", {}), parts["looks"]))
    except (ValidationError, ExecutionNotFound, KeyError, TypeError) as error:
        raise ConfigError(f"this is not a history of an HTTP engine ({type(error).__name__})") from None


def _changes(
    definition: ApiDefinition, handle: Handle, options: Mapping[str, JSON], looks: Sequence[Sequence[_Parts]]
) -> Iterator[Replayed]:
    last: Execution | None = None
    for number, replies in enumerate(looks, 1):
        try:
            seen = _result_of(look(_RecordedClient(replies), definition, handle, options)).execution
        except EngineUnavailable:
            continue  # a client has seen no change then
        if seen != last:
            yield Replayed(event=str(number), execution=seen)
        if seen.terminal:
            return
        last = seen


def _result_of(coroutine: Coroutine[Any, Any, T]) -> T:  # Any: nothing is sent or awaited
    """Return the result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    coroutine.close()
    raise RuntimeError("a look at recorded replies waited for something")
