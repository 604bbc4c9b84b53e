"""Adapter for job APIs that are spoken to over HTTP, as their definition says."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import ClassVar, Final, Self, TypeVar, cast

import anyio
from pydantic import BaseModel

from mcp_workflows.adapter import (
    JSON,
    Allowance,
    Discovered,
    Execution,
    Finding,
    Notes,
    Preset,
    Ref,
    Route,
    SharedSecret,
    Start,
    StartGuarantee,
    Status,
)
from mcp_workflows.adapter.redaction import SECRET_KEY, mask
from mcp_workflows.errors import EngineError, EngineUnavailable, MappingError, ResultUnavailable
from mcp_workflows.kit.change_hints import ChangeHints
from mcp_workflows.kit.expressions import Scope
from mcp_workflows.kit.kept_definitions import KeptDefinitions
from mcp_workflows.kit.kept_looks import KeptLooks
from mcp_workflows_http.bulk_status import WITH_LISTS, WITHOUT_LISTS, RateShares, listings
from mcp_workflows_http.cancel import cancel
from mcp_workflows_http.client import ApiClient
from mcp_workflows_http.definition import ApiDefinition
from mcp_workflows_http.find import find
from mcp_workflows_http.handle import Handle, run_of
from mcp_workflows_http.look import log_end, look
from mcp_workflows_http.presets import presets
from mcp_workflows_http.questions import send_answer
from mcp_workflows_http.settings import HttpOptions, HttpSettings, preset_schema
from mcp_workflows_http.start import start_execution
from mcp_workflows_http.tooling.check import check_engine, check_workflow, made_up
from mcp_workflows_http.tooling.discover import discover
from mcp_workflows_http.tooling.preview import preview

_LONGEST_CALL: Final = timedelta(seconds=10)  # of the core to an engine
_SWEEP_EVERY: Final = 5.0  # seconds at least between two sweeps
_BATCH: Final = 1000  # executions of one sweep


T = TypeVar("T", bound="HttpAdapter")


class HttpAdapter:
    """Adapter for a job API; satisfies `Adapter` and the protocols that its definition makes possible."""

    Settings: ClassVar[type[BaseModel]] = HttpSettings
    Options: ClassVar[type[BaseModel]] = HttpOptions
    starts: ClassVar[StartGuarantee] = StartGuarantee.ONCE  # unless the definition says more
    first_settings: ClassVar[Mapping[str, str]] = {"preset": "respond-async", "url": "https://jobs.example.com"}
    shares: ClassVar[RateShares] = WITHOUT_LISTS

    def __new__(cls, settings: HttpSettings) -> Self:
        """Return an adapter with exactly the capabilities that the definition has."""
        return super().__new__(_kind(cls, settings))

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._definitions = KeptDefinitions[ApiDefinition](settings, settings.definition, ApiDefinition)
        self._client = ApiClient(settings)
        self._waits = KeptLooks()
        self.changes = ChangeHints()

    def remember(self, notes: Notes) -> None:
        """Keep definitions there; see `Remembers.remember`."""
        self._definitions.remember(notes)

    @property
    def identity(self) -> str:
        """The URL of the API, and those of the `vars` that the request of a start has; see `Identified.identity`.

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
            try:
                seen = await look(self._client, await self._definitions.get(handle.definition), handle, ref.options)
            except ResultUnavailable as error:
                unread = await self._definitions.without_result(ref.handle, error)
                return self._without_secrets(replace(unread, execution_id=handle.name))
            if seen.unmapped is not None:
                await self._definitions.note_unmapped(seen.unmapped)
        execution = self._without_secrets(seen.execution)
        if seen.wait and not execution.terminal:
            self._waits.keep(ref.handle, execution, seen.wait)
        return execution

    @staticmethod
    def _without_secrets(execution: Execution) -> Execution:
        failure = execution.failure
        return replace(
            execution,
            message=execution.message and mask(execution.message),
            failure=failure and replace(failure, text=mask(failure.text)),
        )

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Send answers to the questions that are open; see `Adapter.answer`."""
        handle = Handle.parse(ref.handle)
        async with self._in_time():
            definition = await self._definitions.get(handle.definition)
            seen = await look(self._client, definition, handle, ref.options)
            self._waits.drop(ref.handle)
            for key in responses.keys() & seen.questions.keys():
                await send_answer(self._client, seen.questions[key], responses[key], ref.principal)

    async def cancel(self, ref: Ref) -> None:
        """Ask to cancel it, unless it has ended; see `Adapter.cancel`."""
        handle = Handle.parse(ref.handle)
        self._waits.drop(ref.handle)
        async with self._in_time():
            await cancel(self._client, await self._definitions.get(handle.definition), handle, ref.options)

    def preview(self, start: Start) -> Mapping[str, JSON]:
        """Return the request that `start` would send; see `Previews.preview`."""
        return preview(self._client, self._settings, start)

    async def check_engine(self) -> Finding:
        """Check that the API answers; see `Checks.check_engine`."""
        finding = await check_engine(self._client, self._settings)
        unmapped = await self._definitions.unmapped_finding(self._settings.look.map) if finding.ok else None
        return unmapped or finding

    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        """Check a workflow, as far as the API can tell without a start; see `Checks.check`."""
        return await check_workflow(self._client, self._settings, made_up(workflow, dict(options)))

    @staticmethod
    def presets() -> Mapping[str, Preset]:
        """Return the definitions of well-known APIs; see `HasPresets.presets`."""
        return presets()

    @staticmethod
    def preset_schema() -> Mapping[str, JSON]:
        """Return the JSON Schema of a preset; see `HasPresets.preset_schema`."""
        return preset_schema()

    @property
    def allowance(self) -> Allowance:
        """This process's share of the API's rate limit; see `Limited.allowance`."""
        requests = 1 + sum(more.when is None and more.each is None for more in self._settings.look.more.values())
        refill = self._client.refill * self.shares.looks
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
        except EngineError as error:
            error.args = (mask(str(error)),)
            raise
        except TimeoutError:
            raise EngineUnavailable(f"no answer within {seconds:g} s (timeout)") from None


class FindingHttpAdapter(HttpAdapter):
    """Adapter for a job API whose list tells the key of an execution; satisfies `Finds` besides."""

    @property
    def settling(self) -> timedelta:
        """The longest time until the API shows the execution of a call that has begun; see `Finds.settling`."""
        return _LONGEST_CALL + self._settings.settling

    async def find(self, start: Start) -> str | None:
        """Search for the execution of a key; see `Finds.find`."""
        async with self._in_time():
            found = await find(self._client, self._settings, self._definitions.current_digest, start)
        return None if found is None else found.text()


class DiscoveringHttpAdapter(HttpAdapter):
    """Adapter for a job API that lists its workflows; satisfies `Discovers` besides."""

    async def discover(self) -> Sequence[Discovered]:
        """Return the workflows, with what the API knows of their inputs; see `Discovers.discover`."""
        assert self._settings.workflows is not None
        return await discover(self._client, self._settings, self._settings.workflows)


class LoggingHttpAdapter(HttpAdapter):
    """Adapter for a job API that shows logs; satisfies `HasLogs` besides."""

    async def log(self, ref: Ref) -> str:
        """Return the end of its log; see `HasLogs.log`."""
        handle = Handle.parse(ref.handle)
        async with self._in_time():
            definition = await self._definitions.get(handle.definition)
            seen = await look(self._client, definition, handle, ref.options, with_log=False)
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

    shares: ClassVar[RateShares] = WITH_LISTS

    @property
    def allowance(self) -> Allowance:
        """As much as `HttpAdapter.allowance`; a sweep for each list, since clients are told how old that is."""
        allowed = super().allowance
        return replace(allowed, sweep_every=max(allowed.sweep_every, self._listings.every))

    def __init__(self, settings: HttpSettings) -> None:
        super().__init__(settings)
        assert settings.sweep is not None
        self._listings = listings(self._client, settings, settings.sweep)

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
    if settings.workflows is not None:
        parents.append(DiscoveringHttpAdapter)
    if settings.webhook_secret is not None:
        parents.append(CalledHttpAdapter)
    if settings.can_sweep:
        parents.append(SweepingHttpAdapter)
    found = (*parents, cls) if cls is HttpAdapter else (cls, *parents)
    return cast("type[T]", type(cls.__name__, found, {"starts": settings.starts}))
