"""Adapter for HTTP job APIs, as described by their definitions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import anyio
from pydantic import BaseModel

from mcp_workflows.adapter import (
    JSON,
    Adapter,
    Allowance,
    Execution,
    Message,
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
from mcp_workflows.kit.bulk_status import Listings
from mcp_workflows.kit.change_hints import ChangeHints
from mcp_workflows.kit.definition import action_settings
from mcp_workflows.kit.expressions import Scope, as_object, lenient
from mcp_workflows.kit.http_errors import MAX_BODY, reason_in
from mcp_workflows.kit.kept_definitions import KeptDefinitions, KeptStates
from mcp_workflows.kit.reply_reader import AskedQuestion, answer_scope
from mcp_workflows_http.client import ApiClient
from mcp_workflows_http.definition import ApiDefinition, Ask, Search, Webhook
from mcp_workflows_http.describe import describe, listings, log_end, message_outcome
from mcp_workflows_http.errors import change_error
from mcp_workflows_http.handle import Handle, run_of
from mcp_workflows_http.settings import HttpAction, HttpOptions, HttpSettings
from mcp_workflows_http.start import find_executions, send_message, start_execution
from mcp_workflows_http.tooling import HttpTooling

_LONGEST_CALL: Final = timedelta(seconds=10)  # of the core to an engine
_BATCH_EVERY: Final = 5.0  # minimum seconds between two batches
_BATCH: Final = 1000  # executions of one list
_CANCEL_AGAIN: Final = 0.1  # seconds between two polls of an execution that cannot be cancelled yet
_LISTS_SHARE: Final = 0.4  # of the rate limit, if the API has lists; starts, answers and searches get the rest
_POLLS_SHARE: Final = 0.8  # of the rate limit
_POLLS_SHARE_BESIDE_LISTS: Final = 0.5


class HttpAdapter(Adapter):
    """Adapter for a job API; the definition determines its capabilities."""

    Settings: ClassVar[type[BaseModel]] = HttpSettings
    Options: ClassVar[type[BaseModel]] = HttpOptions
    ActionSettings: ClassVar[type[BaseModel] | None] = HttpAction
    starts: ClassVar[StartGuarantee] = StartGuarantee.ONCE  # the definition may promise more
    tooling: Any = HttpTooling  # Any: see `Adapter.tooling`

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._definitions = KeptDefinitions[ApiDefinition](settings, settings.definition, ApiDefinition)
        self._client = ApiClient(settings)
        self._waits = KeptStates()
        self._listings: Listings | None = None
        self.changes = ChangeHints()
        self.tooling = HttpTooling(settings, self._client, self._definitions)
        self.starts = settings.starts  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # its own
        self.ActionSettings = action_settings(HttpAction, "request", settings.actions)  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # its own
        # An instance has the methods of a capability only if its definition supports it.
        if settings.find is not None:
            self.find, self.settling = partial(self._find, settings.find), _LONGEST_CALL + settings.settling
        if settings.describe.log is not None:
            self.log = self._log
        if settings.webhook_secret is not None:
            self.routes, self.hints = self._routes, self._hints
        if settings.has_batch_status and settings.batch_status is not None:
            self._listings = listings(
                self._client, settings, settings.batch_status, lambda: self._client.refill * _LISTS_SHARE
            )
            self.describe_many = self._listings.describe_many

    def remember(self, notes: Notes) -> None:
        """Keep definitions in the notes; see `Remembers.remember`."""
        self._definitions.remember(notes)

    @property
    def identity(self) -> str:
        """The URL of the API, and the values of the `vars` in the start request; see `Adapter.identity`.

        They distinguish projects that share a URL: those of GitHub name the repository.
        """
        settings, request = self._settings, self._settings.start.request.model_dump_json()
        public = (name for name in sorted(settings.vars) if f"vars.{name}" in request and not SECRET_KEY.search(name))
        named = [f"{name}={settings.vars[name]}" for name in public]
        return f"http:{settings.url}{'#' if named else ''}{','.join(named)}"

    async def __aenter__(self) -> Self:
        """Connect nothing; the first call does."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        await self._client.close()

    async def start(self, start: Start) -> str:
        """Send the request that starts an execution, once; see `Adapter.start`."""
        if self.message(start.options) is not None:
            async with self._in_time():
                return (await send_message(self._client, self._settings, start)).text()
        async with self._in_time():
            await self._definitions.keep()
            handle = await start_execution(self._client, self._settings, self._definitions.current_digest, start)
        self.changes.register(handle.name, handle.text())
        if self._listings is not None:
            self._listings.note_running(handle.text())  # older lists do not have it yet
        return handle.text()

    async def describe(self, ref: Ref) -> Execution:
        """Poll once, by the definition at its start; see `Adapter.describe`."""
        handle = Handle.parse(ref.handle)
        if self.message(ref.options) is not None:
            return message_outcome(handle)
        self.changes.register(handle.name, ref.handle)
        if kept := self._waits.get(ref.handle):
            return kept
        began = anyio.current_time()
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
        if self._listings is not None and seen.execution.status is Status.RUNNING:
            self._listings.note_running(ref.handle, began)  # a list that began earlier is now out of date for it
        return seen.execution

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Send answers to open questions; see `Adapter.answer`."""
        handle = Handle.parse(ref.handle)
        async with self._in_time():
            definition = await self._definitions.get(handle.definition)
            seen = await describe(self._client, definition, handle, ref.options)
            self._waits.drop(ref.handle)
            for key in responses.keys() & seen.questions.keys():
                await self._send_answer(seen.questions[key], as_object(responses[key]) or {}, ref.principal)

    async def _send_answer(self, question: AskedQuestion[Ask], response: Mapping[str, JSON], principal: JSON) -> None:
        """Deliver a response to an open question; an answered one is ignored.

        Raises:
            EngineRefused: the API does not accept it, or the question cannot be declined.
            EngineUnavailable: it may not have arrived.
        """
        how = question.how
        if how.is_on_engine_page:
            return  # the person went to the page or not; a poll shows it
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
        """Request cancellation of an execution, unless it has ended; see `Adapter.cancel`."""
        if self.message(ref.options) is not None:
            raise EngineRefused("a message that was sent cannot be taken back")
        handle = Handle.parse(ref.handle)
        self._waits.drop(ref.handle)
        async with self._in_time():
            await self._cancel(await self._definitions.get(handle.definition), handle, ref.options)

    async def _cancel(self, definition: ApiDefinition, handle: Handle, options: Mapping[str, JSON]) -> None:
        """Request cancellation of a running execution: some APIs change the outcome of an ended one.

        Some executions cannot be cancelled right after their start. The caller limits the time.

        Raises:
            EngineRefused: this API cannot cancel executions, or not this one.
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

    @staticmethod
    def message(options: Mapping[str, JSON]) -> Message | None:
        """Return the request of the engine's `actions`; see `Adapter.message`."""
        name = options.get("request")
        return Message(name=f"request {name}") if name else None

    def promise(self, options: Mapping[str, JSON]) -> StartGuarantee:
        """Return the guarantee of the definition for a start or a message; see `Adapter.promise`."""
        if self.message(options) is None:
            return self.starts
        action = self._settings.actions.get(options["request"])
        return StartGuarantee.ONCE if action is None else action.sends

    @property
    def allowance(self) -> Allowance:
        """This process's share of the API's rate limit; see `Limited.allowance`.

        One list per interval is enough, since clients learn the age of the state.
        """
        requests = 1 + sum(more.when is None and more.each is None for more in self._settings.describe.more.values())
        share = _POLLS_SHARE if self._listings is None else _POLLS_SHARE_BESIDE_LISTS
        return Allowance(
            polls_per_second=self._client.refill * share / requests,
            batch_every=_BATCH_EVERY if self._listings is None else max(_BATCH_EVERY, self._listings.every),
            batch=_BATCH,
            burst=int(min(self._client.spare / requests, _BATCH)),
        )

    @asynccontextmanager
    async def _in_time(self) -> AsyncGenerator[None]:
        """Limit the time of all requests of one call together."""
        seconds = self._settings.timeout.total_seconds()
        try:
            with anyio.fail_after(seconds):
                yield
        except TimeoutError:
            raise EngineUnavailable(f"no answer within {seconds:g} s (timeout)") from None

    # --- capabilities of some definitions

    async def _find(self, how: Search, start: Start) -> str | None:
        """Return the oldest execution of a key, and cancel the newer ones; see `Finds.find`."""
        async with self._in_time():
            digest = self._definitions.current_digest
            found = await find_executions(self._client, self._settings, how, digest, start)
            for handle in found[1:]:
                await self._cancel(self._settings, handle, start.options)
        return found[0].text() if found else None

    async def _log(self, ref: Ref) -> str:
        """Return the end of the log; see `HasLogs.log`."""
        handle = Handle.parse(ref.handle)
        async with self._in_time():
            definition = await self._definitions.get(handle.definition)
            seen = await describe(self._client, definition, handle, ref.options, with_log=False)
            how = definition.describe.log
            return "" if how is None else await log_end(self._client, how, seen.scope)

    def _routes(self) -> Sequence[Route]:
        """Return the route that the API calls; see `Routes.routes`."""
        how, secret = self._settings.webhook, self._settings.webhook_secret
        assert how is not None
        assert secret is not None
        trusted = SharedSecret(signature=how.signature, secret=secret.get_secret_value())
        return [Route(path="webhook", trusted=trusted, receive=partial(self._receive, how))]

    async def _receive(self, how: Webhook, body: JSON, account: str) -> JSON:
        """Receive a call; a call about anything but a known execution is ignored."""
        try:
            run = Scope(names={"event": body}).value(how.handle)
        except MappingError:
            run = None
        if run is not None:
            self.changes.notify_by_name(Handle.name_of(run_of(run)))
        return {}

    async def _hints(self, changed: Callable[[str], None]) -> None:
        """Report the executions that the API calls about; see `Hints.hints`."""

        def called(handle: str) -> None:
            self._waits.drop(handle)
            changed(handle)

        with self.changes.listen(called):
            await anyio.sleep_forever()
