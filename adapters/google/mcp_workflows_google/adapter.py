"""GoogleAdapter: the four verbs, in front of Google Cloud Workflows in one project and location."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import ClassVar, Self

import anyio
from pydantic import BaseModel

from mcp_workflows.adapter import (
    JSON,
    Allowance,
    Discovered,
    Execution,
    Explanation,
    Exposed,
    Finding,
    Notes,
    Ref,
    Route,
    Start,
    StartGuarantee,
    Use,
)
from mcp_workflows.adapter.bulk_status import Listings
from mcp_workflows.errors import EngineError, EngineRefused
from mcp_workflows_google.answer import answer
from mcp_workflows_google.bulk_status import describe_many, listings
from mcp_workflows_google.client import Calls, open_calls
from mcp_workflows_google.describe import Console, look
from mcp_workflows_google.find import Labelled, find
from mcp_workflows_google.gates import GateSettings
from mcp_workflows_google.hints import News
from mcp_workflows_google.inbound import receive_claim, receive_question
from mcp_workflows_google.notes import NoNotes, Noting
from mcp_workflows_google.options import GoogleOptions
from mcp_workflows_google.projects import Projects
from mcp_workflows_google.settings import GoogleSettings
from mcp_workflows_google.start import order
from mcp_workflows_google.tooling.adopt import adopt, same_workflow
from mcp_workflows_google.tooling.check import check_engine, check_workflow
from mcp_workflows_google.tooling.discover import discover
from mcp_workflows_google.tooling.embed import embedded_files
from mcp_workflows_google.tooling.explain import explain
from mcp_workflows_google.tooling.expose import Exposing
from mcp_workflows_google.tooling.iam import permissions
from mcp_workflows_google.tooling.preview import preview
from mcp_workflows_google.tooling.verify import verify


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """What there is while the adapter is entered; nothing in it must be kept."""

    calls: Calls
    console: Console
    exposing: Exposing
    labelled: Labelled
    listings: Listings
    projects: Projects


class GoogleAdapter:
    """Workflows of Google Cloud Workflows.

    Satisfies `Adapter`, and of `mcp_workflows.adapter` all that Google Cloud Workflows is good at.
    """

    Settings: ClassVar[type[BaseModel]] = GoogleSettings
    Options: ClassVar[type[BaseModel]] = GoogleOptions
    GateSettings: ClassVar[type[BaseModel]] = GateSettings
    starts: ClassVar[StartGuarantee] = StartGuarantee.FINDABLE
    start_options: ClassVar[frozenset[str]] = frozenset()
    first_settings: ClassVar[Mapping[str, str]] = {"project": "", "location": "${GOOGLE_CLOUD_LOCATION:-us-central1}"}
    cancels_at_once: ClassVar[bool] = True  # see `capabilities.cancels_at_once`

    def __init__(self, settings: GoogleSettings) -> None:
        self._settings = settings
        self._noting = Noting(NoNotes())
        self._news = News()
        self._stack = AsyncExitStack()
        self._entered: _Opened | None = None

    def remember(self, notes: Notes) -> None:
        """Keep questions and claims there; see `Remembers.remember`."""
        self._noting = Noting(notes)

    async def __aenter__(self) -> Self:
        """Set up the client, which needs neither Google nor credentials."""
        async with AsyncExitStack() as stack:
            calls = await stack.enter_async_context(open_calls(self._settings))
            self._entered = _Opened(
                calls=calls,
                console=Console.of(self._settings),
                exposing=Exposing(calls, self._settings.discover),
                labelled=Labelled(calls),
                listings=listings(calls),
                projects=Projects(calls),
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the client."""
        self._entered = None
        await self._stack.aclose()

    async def start(self, start: Start) -> str:
        """CreateExecution, once; see `Adapter.start`. The handle is the execution's resource name."""
        opened = self._opened
        GoogleOptions.read(start.options)
        wanted = order(start, await opened.calls.place())
        seen = await opened.calls.create(wanted.workflow, wanted.argument, wanted.labels)
        self._know(seen.name)
        return seen.name

    @property
    def settling(self) -> timedelta:
        """How long Google may take to list an execution; see `Finds.settling`."""
        return self._settings.settle

    async def find(self, start: Start) -> str | None:
        """By the label of its key; see `Finds.find`."""
        opened = self._opened
        found = await find(opened.calls, opened.labelled, self._noting, opened.projects, start)
        if found is not None:
            self._know(found)
        return found

    def preview(self, start: Start) -> Mapping[str, JSON]:
        """The CreateExecution that `start` would send; see `Previews.preview`."""
        return preview(start, self._settings)

    async def describe(self, ref: Ref) -> Execution:
        """GetExecution, and what is noted of its questions; see `Adapter.describe`."""
        opened = self._opened
        self._news.know(ref.handle)
        return await look(opened.calls, self._noting, opened.projects, opened.console, ref, grace=self._settings.grace)

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Send answers to the callbacks that wait for them; see `Adapter.answer`."""
        opened = self._opened
        await answer(opened.calls, self._noting, opened.projects, ref, responses)

    async def cancel(self, ref: Ref) -> None:
        """CancelExecution, which takes effect at once."""
        await self._opened.calls.cancel((await self._noting.of(ref.handle)).name)

    async def terminate(self, ref: Ref, reason: str) -> None:
        """The same: Google knows no other way, and takes no reason; see `Terminates.terminate`."""
        await self.cancel(ref)

    async def adopt(self, execution_id: str) -> Ref:
        """The execution with this resource name; see `Adopts.adopt`."""
        opened = self._opened
        return await adopt(opened.calls, execution_id)

    @staticmethod
    def same_workflow(written: str, found: str) -> bool:
        """Whether a resource name that `adopt` found is what a tool names."""
        return same_workflow(written, found)

    def routes(self) -> Sequence[Route]:
        """What workflows call: `input` and `claim`, if `inbound` is set; see `Routes.routes`."""
        trusted = self._settings.trusted
        if trusted is None:
            return []
        return [
            Route(path="input", trusted=trusted, receive=self._receive_question),
            Route(path="claim", trusted=trusted, receive=self._receive_claim),
        ]

    async def _receive_question(self, body: JSON, account: str) -> JSON:
        return await receive_question(self._opened.calls, self._noting, self._news, body)

    async def _receive_claim(self, body: JSON, account: str) -> JSON:
        return await receive_claim(self._opened.calls, self._noting, self._opened.projects, body)

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """Those that still run, by ListExecutions, with what they ask us; see `Sweeps.describe_many`."""
        return await describe_many(self._opened.listings, self._noting, refs)

    @property
    def allowance(self) -> Allowance:
        """Our share of the quotas; see `Limited.allowance`."""
        return self._opened.calls.allowance

    async def hints(self, changed: Callable[[str], None]) -> None:
        """Executions whose workflows have just told us something; see `Hints.hints`."""
        if self._settings.trusted is None:
            return
        with self._news.heard_by(changed):
            await anyio.sleep_forever()

    @property
    def expose_every(self) -> float | None:
        """How often labelled workflows are looked for; see `Exposes.expose_every`."""
        discovery = self._settings.discover
        return None if discovery is None else discovery.every.total_seconds()

    async def exposed(self) -> Sequence[Exposed]:
        """The workflows with the label of `discover`; see `Exposes.exposed`."""
        return await self._opened.exposing.exposed()

    async def permissions(self, uses: Sequence[Use]) -> Mapping[str, JSON]:
        """A custom role with the least that these tools need; see `Permits.permissions`."""
        return permissions(self._settings, uses)

    async def discover(self) -> Sequence[Discovered]:
        """The workflows there are; see `Discovers.discover`."""
        return await discover(self._opened.calls)

    async def explain(self, ref: Ref) -> Explanation:
        """Why it is where it is; see `Explains.explain`."""
        execution = await self.describe(ref)
        noted = await self._noting.of(ref.handle)
        return await explain(self._opened.calls, noted.name, execution, ref.gates)

    async def check_engine(self) -> Finding:
        """Whether Google answers these credentials in this project and location."""
        return await check_engine(self._opened.calls, self._settings)

    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        """Whether the workflow is there and can be executed."""
        try:
            GoogleOptions.read(options)
        except EngineRefused as error:
            return Finding(ok=False, text=str(error))
        return await check_workflow(self._opened.calls, workflow)

    async def verify(
        self, workflow: str, options: Mapping[str, JSON], gates: Mapping[str, Mapping[str, JSON]]
    ) -> Sequence[Finding]:
        """Whether it has the steps that the gates name, and what its questions need; see `Verifies.verify`."""
        try:
            return await verify(self._opened.calls, self._settings, workflow, gates)
        except EngineError as error:
            return [Finding(ok=None, text=f"its source could not be verified: {error}")]

    @staticmethod
    def embeds() -> Mapping[str, str]:
        """Subworkflows that ask people and claim keys, to copy into a workflow."""
        return embedded_files()

    def _know(self, handle: str) -> None:
        self._opened.listings.started(handle)
        self._news.know(handle)

    @property
    def _opened(self) -> _Opened:
        if self._entered is None:
            raise RuntimeError("enter the adapter first: async with GoogleAdapter(settings) as adapter")
        return self._entered
