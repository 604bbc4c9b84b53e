"""Adapter for job APIs that are spoken to over HTTP, as their definition says."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar, cast

import anyio
from pydantic import BaseModel

from mcp_workflows.adapter import (
    JSON,
    Adapter,
    Allowance,
    Execution,
    Notes,
    Ref,
    Route,
    SharedSecret,
    Start,
    StartGuarantee,
    Status,
)
from mcp_workflows.adapter.redaction import SECRET_KEY
from mcp_workflows.errors import EngineRefused, EngineUnavailable, MappingError, ResultUnavailable
from mcp_workflows.kit.change_hints import ChangeHints
from mcp_workflows.kit.definition import AnsweredAt
from mcp_workflows.kit.expressions import Scope, as_object, lenient
from mcp_workflows.kit.http_errors import MAX_BODY, reason_in
from mcp_workflows.kit.kept_definitions import KeptDefinitions
from mcp_workflows.kit.kept_looks import KeptLooks
from mcp_workflows.kit.reply_reader import AskedQuestion, answer_scope
from mcp_workflows_http.client import ApiClient
from mcp_workflows_http.definition import ApiDefinition, Ask
from mcp_workflows_http.describe import describe, listings, log_end
from mcp_workflows_http.errors import change_error
from mcp_workflows_http.handle import Handle, run_of
from mcp_workflows_http.settings import HttpOptions, HttpSettings
from mcp_workflows_http.start import find_executions, start_execution
from mcp_workflows_http.tooling import DiscoveringHttpTooling, HttpTooling

_LONGEST_CALL: Final = timedelta(seconds=10)  # of the core to an engine
_SWEEP_EVERY: Final = 5.0  # seconds at least between two sweeps
_BATCH: Final = 1000  # executions of one sweep
_CANCEL_AGAIN: Final = 0.1  # seconds between two looks at an execution that cannot be cancelled yet
_LISTS_SHARE: Final = 0.4  # of the rate limit, where the API has lists; starts, answers and searches get the rest

T = TypeVar("T", bound="HttpAdapter")


class HttpAdapter(Adapter):
    """Adapter for a job API; it has the capabilities that its definition makes possible."""

    Settings: ClassVar[type[BaseModel]] = HttpSettings
    Options: ClassVar[type[BaseModel]] = HttpOptions
    starts: ClassVar[StartGuarantee] = StartGuarantee.ONCE  # unless the definition says more
    tooling: Any = HttpTooling  # Any: see `Adapter.tooling`
    looks_share: ClassVar[float] = 0.8  # of the rate limit

    def __new__(cls, settings: HttpSettings) -> Self:
        """Return an adapter with exactly the capabilities that the definition has."""
        return super().__new__(_kind(cls, settings))

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._definitions = KeptDefinitions[ApiDefinition](settings, settings.definition, ApiDefinition)
        self._client = ApiClient(settings)
        self._waits = KeptLooks()
        self.changes = ChangeHints()
        kind = HttpTooling if settings.workflows is None else DiscoveringHttpTooling
        self.tooling = kind(settings, self._client, self._definitions)

    def remember(self, notes: Notes) -> None:
        """Keep definitions there; see `Remembers.remember`."""
        self._definitions.remember(notes)

    @property
    def identity(self) -> str:
        """The URL of the API, and those of the `vars` that the request of a start has; see `Adapter.identity`.

        They tell one project from another where all have one URL: those of GitHub are the repository.
        """
        settings, request = self._settings, self._settings.start.request.model_dump_json()
        told = (name for name in sorted(settings.vars) if f"vars.{name}" in request and not SECRET_KEY.search(name))
        named = [f"{name}={settings.vars[name]}" for name in told]
        return f"http:{settings.url}{'#' if named else ''}{','.join(named)}"

    async def __aenter__(self) -> Self:
        """Nothing is connected before the first call."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        await self._client.close()

    async def start(self, start: Start) -> str:
        """Send the request that starts it, once; see `Adapter.start`."""
        async with self._in_time():
            await self._definitions.keep()
            handle = await start_execution(self._client, self._settings, self._definitions.current_digest, start)
        self.changes.register(handle.name, handle.text())
        return handle.text()

    async def describe(self, ref: Ref) -> Execution:
        """Look once, as the definition of its start says; see `Adapter.describe`."""
        handle = Handle.parse(ref.handle)
        self.changes.register(handle.name, ref.handle)
        if kept := self._waits.get(ref.handle):
            return kept
        async with self._in_time():
            definition = await self._definitions.get(handle.definition)
            try:
                seen = await describe(self._client, definition, handle, ref.options)
            except ResultUnavailable as error:
                unread = await self._definitions.without_result(ref.handle, error)
                return replace(unread, execution_id=handle.name)
            if seen.unmapped is not None:
                await self._definitions.note_unmapped(seen.unmapped)
        if seen.wait and not seen.execution.terminal:
            self._waits.keep(ref.handle, seen.execution, seen.wait)
        return seen.execution

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Send answers to the questions that are open; see `Adapter.answer`."""
        handle = Handle.parse(ref.handle)
        async with self._in_time():
            definition = await self._definitions.get(handle.definition)
            seen = await describe(self._client, definition, handle, ref.options)
            self._waits.drop(ref.handle)
            for key in responses.keys() & seen.questions.keys():
                await self._send_answer(seen.questions[key], as_object(responses[key]) or {}, ref.principal)

    async def _send_answer(self, question: AskedQuestion[Ask], response: Mapping[str, JSON], principal: JSON) -> None:
        """Deliver a response to an open question; one that was answered meanwhile is ignored.

        Raises:
            EngineRefused: the API does not take it, or the question cannot be declined.
            EngineUnavailable: it may not have arrived.
        """
        how = question.how
        if how.at is AnsweredAt.ENGINE:
            return  # the person went to the page, or did not; a look tells
        request = how.send if response.get("action") == "accept" else how.decline
        if request is None:
            raise EngineRefused("this question cannot be declined: cancel the task in its place")
        scope = answer_scope(how, question.scope, as_object(response.get("content")) or {}, principal)
        reply = await self._client.send(request, scope, changes=True)
        if reply.status in how.late:
            return
        if not reply.ok:
            raise change_error(reply)
        if how.refused is not None and (scope | {"reply": reply.as_json()}).is_true(how.refused):
            reason = reason_in(reply.content[:MAX_BODY])
            raise EngineRefused(f"the API refused the answer{f': {reason}' if reason else ''}")

    async def cancel(self, ref: Ref) -> None:
        """Ask to cancel it, unless it has ended; see `Adapter.cancel`."""
        handle = Handle.parse(ref.handle)
        self._waits.drop(ref.handle)
        async with self._in_time():
            await self._cancel(await self._definitions.get(handle.definition), handle, ref.options)

    async def _cancel(self, definition: ApiDefinition, handle: Handle, options: Mapping[str, JSON]) -> None:
        """Ask to cancel an execution that still runs: some APIs rewrite how one has ended.

        Some executions cannot be cancelled while they begin. The caller bounds the time.

        Raises:
            EngineRefused: this API cannot cancel, or not this one.
        """
        how = definition.cancel
        if how is None:
            raise EngineRefused("this API cannot cancel an execution")
        while True:
            seen = await describe(self._client, definition, handle, options, with_log=False)
            if seen.execution.terminal:
                return
            if how.when is None or lenient(partial(seen.scope.is_true, how.when)):
                break
            await anyio.sleep(_CANCEL_AGAIN)
        reply = await self._client.send(how.request, seen.scope, changes=True)
        if not reply.ok and reply.status not in how.late:
            raise change_error(reply)

    @property
    def allowance(self) -> Allowance:
        """This process's share of the API's rate limit; see `Limited.allowance`."""
        requests = 1 + sum(more.when is None and more.each is None for more in self._settings.look.more.values())
        refill = self._client.refill * self.looks_share
        return Allowance(
            looks_per_second=refill / requests,
            sweep_every=_SWEEP_EVERY,
            batch=_BATCH,
            burst=int(min(self._client.spare / requests, _BATCH)),
        )

    @asynccontextmanager
    async def _in_time(self) -> AsyncGenerator[None]:
        """Bound all requests of one call together."""
        seconds = self._settings.timeout.total_seconds()
        try:
            with anyio.fail_after(seconds):
                yield
        except TimeoutError:
            raise EngineUnavailable(f"no answer within {seconds:g} s (timeout)") from None


class FindingHttpAdapter(HttpAdapter):
    """Adapter for a job API whose list tells the key of an execution; satisfies `Finds` besides."""

    @property
    def settling(self) -> timedelta:
        """The longest time until the API shows the execution of a call that has begun; see `Finds.settling`."""
        return _LONGEST_CALL + self._settings.settling

    async def find(self, start: Start) -> str | None:
        """Return the oldest execution of a key, and cancel the later ones; see `Finds.find`."""
        settings = self._settings
        assert settings.find is not None
        async with self._in_time():
            digest = self._definitions.current_digest
            found = await find_executions(self._client, settings, settings.find, digest, start)
            for handle in found[1:]:
                await self._cancel(settings, handle, start.options)
        return found[0].text() if found else None


class LoggingHttpAdapter(HttpAdapter):
    """Adapter for a job API that shows logs; satisfies `HasLogs` besides."""

    async def log(self, ref: Ref) -> str:
        """Return the end of its log; see `HasLogs.log`."""
        handle = Handle.parse(ref.handle)
        async with self._in_time():
            definition = await self._definitions.get(handle.definition)
            seen = await describe(self._client, definition, handle, ref.options, with_log=False)
            how = definition.look.log
            return "" if how is None else await log_end(self._client, how, seen.scope)


class CalledHttpAdapter(HttpAdapter):
    """Adapter for a job API that calls when an execution changes; satisfies `Routes` and `Hints` besides."""

    def routes(self) -> Sequence[Route]:
        """Return the route that the API calls; see `Routes.routes`."""
        how, secret = self._settings.webhook, self._settings.webhook_secret
        assert how is not None
        assert secret is not None
        trusted = SharedSecret(signature=how.signature, secret=secret.get_secret_value())
        return [Route(path="webhook", trusted=trusted, receive=self._receive)]

    async def hints(self, changed: Callable[[str], None]) -> None:
        """Report the executions that the API calls about; see `Hints.hints`."""

        def called(handle: str) -> None:
            self._waits.drop(handle)
            changed(handle)

        with self.changes.listen(called):
            await anyio.sleep_forever()

    async def _receive(self, body: JSON, account: str) -> JSON:
        """Take a call; one about anything but an execution that is known here is ignored."""
        how = self._settings.webhook
        assert how is not None
        try:
            run = Scope(names={"event": body}).value(how.handle)
        except MappingError:
            run = None
        if run is not None:
            self.changes.notify_by_name(Handle.name_of(run_of(run)))
        return {}


class SweepingHttpAdapter(HttpAdapter):
    """Adapter for a job API that lists the executions that run; satisfies `Sweeps` besides."""

    looks_share: ClassVar[float] = 0.5

    @property
    def allowance(self) -> Allowance:
        """As much as `HttpAdapter.allowance`; a sweep for each list, since clients are told how old that is."""
        allowed = super().allowance
        return replace(allowed, sweep_every=max(allowed.sweep_every, self._listings.every))

    def __init__(self, settings: HttpSettings) -> None:
        super().__init__(settings)
        assert settings.sweep is not None
        self._listings = listings(self._client, settings, settings.sweep, lambda: self._client.refill * _LISTS_SHARE)

    async def start(self, start: Start) -> str:
        """Start it; older lists do not have it yet."""
        handle = await super().start(start)
        self._listings.note_running(handle)
        return handle

    async def describe(self, ref: Ref) -> Execution:
        """Look once; a list that began before says no more of it."""
        began = anyio.current_time()
        seen = await super().describe(ref)
        if seen.status is Status.RUNNING:
            self._listings.note_running(ref.handle, began)
        return seen

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """Return the executions that still run; see `Sweeps.describe_many`."""
        return await self._listings.describe_many(refs)


def _kind(cls: type[T], settings: HttpSettings) -> type[T]:
    """Return the class with the capabilities and the guarantee of this definition: the core asks the class."""
    parents: list[type[HttpAdapter]] = []
    if settings.find is not None:
        parents.append(FindingHttpAdapter)
    if settings.look.log is not None:
        parents.append(LoggingHttpAdapter)
    if settings.webhook_secret is not None:
        parents.append(CalledHttpAdapter)
    if settings.can_sweep:
        parents.append(SweepingHttpAdapter)
    found = (*parents, cls) if cls is HttpAdapter else (cls, *parents)
    return cast("type[T]", type(cls.__name__, found, {"starts": settings.starts}))
