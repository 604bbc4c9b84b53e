"""Adapter for Google Cloud Workflows in one project and location."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
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
    Fixtures,
    Notes,
    Ref,
    Route,
    Start,
    StartGuarantee,
    Use,
)
from mcp_workflows.errors import EngineError, EngineRefused
from mcp_workflows.kit.bulk_status import Listings
from mcp_workflows.kit.change_hints import ChangeHints
from mcp_workflows_google.client import Client, open_client
from mcp_workflows_google.describe import describe_execution, describe_many, listings
from mcp_workflows_google.gates import GateSettings
from mcp_workflows_google.input_requests import answer
from mcp_workflows_google.notes import EmptyNotes, ExecutionNotes
from mcp_workflows_google.questions import receive_claim, receive_question
from mcp_workflows_google.resources import ExecutionName
from mcp_workflows_google.settings import GoogleOptions, GoogleSettings
from mcp_workflows_google.start import KeySearch, build_request, preview
from mcp_workflows_google.tooling.check import check_engine, check_workflow, permissions, verify
from mcp_workflows_google.tooling.deployment import FixtureSettings
from mcp_workflows_google.tooling.discover import LabelledWorkflows, adopt, discover, same_workflow
from mcp_workflows_google.tooling.embed import embedded_files
from mcp_workflows_google.tooling.explain import explain
from mcp_workflows_google.tooling.fixtures import NOTICE, fixtures


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """The client and what depends on it, from entering the adapter to leaving it; no durable state."""

    client: Client
    labelled_workflows: LabelledWorkflows
    key_search: KeySearch
    listings: Listings


class GoogleAdapter:
    """Adapter for Google Cloud Workflows.

    Satisfies `Adapter` and those protocols of `mcp_workflows.adapter` that Google Cloud Workflows can support.
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
        self._notes = ExecutionNotes(EmptyNotes())
        self._hints = ChangeHints()
        self._stack = AsyncExitStack()
        self._entered: _Session | None = None

    def remember(self, notes: Notes) -> None:
        """Use this store for questions and claims; see `Remembers.remember`."""
        self._notes = ExecutionNotes(notes)

    @property
    def identity(self) -> str:
        """The project and location, without a call; see `Identified.identity`.

        `default` stands for the project of the credentials.
        """
        settings = self._settings
        project = "emulator" if settings.emulator else settings.project or os.environ.get("GOOGLE_CLOUD_PROJECT")
        return f"google-workflows:{project or 'default'}/{settings.location}"

    async def __aenter__(self) -> Self:
        """Set up the client. This needs neither a connection to Google nor credentials."""
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(open_client(self._settings))
            self._entered = _Session(
                client=client,
                labelled_workflows=LabelledWorkflows(client, self._settings.discover),
                key_search=KeySearch(client),
                listings=listings(client),
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client."""
        self._entered = None
        await self._stack.aclose()

    async def start(self, start: Start) -> str:
        """Call CreateExecution once and return the execution's resource name; see `Adapter.start`."""
        session = self._session
        GoogleOptions.read(start.options)
        wanted = build_request(start, await session.client.place())
        resource = await session.client.create(wanted.workflow, wanted.argument, wanted.labels)
        self._register(resource.name)
        return resource.name

    @property
    def settling(self) -> timedelta:
        """The longest time until Google lists a new execution; see `Finds.settling`."""
        return self._settings.settle

    async def find(self, start: Start) -> str | None:
        """Find an execution by the label of its key; see `Finds.find`."""
        found = await self._session.key_search.find(start, self._notes)
        if found is not None:
            self._register(found)
        return found

    def preview(self, start: Start) -> Mapping[str, JSON]:
        """Return the CreateExecution request that `start` would send; see `Previews.preview`."""
        return preview(start, self._settings)

    async def describe(self, ref: Ref) -> Execution:
        """Call GetExecution and add the open questions from the notes; see `Adapter.describe`."""
        client = self._session.client
        self._hints.register(ExecutionName.parse(ref.handle).note_prefix, ref.handle)
        return await describe_execution(client, self._notes, self._settings, ref)

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Send answers to the callbacks that wait for them; see `Adapter.answer`."""
        await answer(self._session.client, self._notes, ref, responses)

    async def cancel(self, ref: Ref) -> None:
        """Call CancelExecution, which takes effect at once."""
        await self._session.client.cancel((await self._notes.read(ref.handle)).name)

    async def terminate(self, ref: Ref, reason: str) -> None:
        """Cancel the execution: Google has no other way to end one, and takes no reason; see `Terminates.terminate`."""
        await self.cancel(ref)

    async def adopt(self, execution_id: str) -> Ref:
        """Return the execution with this resource name; see `Adopts.adopt`."""
        session = self._session
        return await adopt(session.client, execution_id)

    @staticmethod
    def same_workflow(written: str, found: str) -> bool:
        """Return whether a tool's workflow and a resource name from `adopt` are the same workflow."""
        return same_workflow(written, found)

    def routes(self) -> Sequence[Route]:
        """Return the routes that workflows call, `input` and `claim`, if `inbound` is set; see `Routes.routes`."""
        trusted = self._settings.trusted
        if trusted is None:
            return []
        return [
            Route(path="input", trusted=trusted, receive=self._receive_question),
            Route(path="claim", trusted=trusted, receive=self._receive_claim),
        ]

    async def _receive_question(self, body: JSON, account: str) -> JSON:
        return await receive_question(self._session.client, self._notes, self._hints, body)

    async def _receive_claim(self, body: JSON, account: str) -> JSON:
        return await receive_claim(self._session.client, self._notes, body)

    async def describe_many(self, refs: Sequence[Ref]) -> Mapping[str, Execution]:
        """Return the executions that still run, by ListExecutions, with their questions; see `Sweeps.describe_many`."""
        return await describe_many(self._session.listings, self._notes, refs)

    @property
    def allowance(self) -> Allowance:
        """This process's share of the quotas; see `Limited.allowance`."""
        return self._session.client.allowance

    async def hints(self, changed: Callable[[str], None]) -> None:
        """Report executions whose workflows have just called the adapter's routes; see `Hints.hints`."""
        if self._settings.trusted is None:
            return
        with self._hints.listen(changed):
            await anyio.sleep_forever()

    @property
    def expose_every(self) -> float | None:
        """Seconds between two searches for labelled workflows; see `Exposes.expose_every`."""
        discovery = self._settings.discover
        return None if discovery is None else discovery.every.total_seconds()

    async def exposed(self) -> Sequence[Exposed]:
        """Return the workflows with the label of `discover`; see `Exposes.exposed`."""
        return await self._session.labelled_workflows.exposed()

    async def permissions(self, uses: Sequence[Use]) -> Mapping[str, JSON]:
        """Return a custom role with the least permissions that these tools need; see `Permits.permissions`."""
        return permissions(self._settings, uses)

    async def discover(self) -> Sequence[Discovered]:
        """Return the deployed workflows; see `Discovers.discover`."""
        return await discover(self._session.client)

    async def explain(self, ref: Ref) -> Explanation:
        """Explain the state of an execution; see `Explains.explain`."""
        execution = await self.describe(ref)
        record = await self._notes.read(ref.handle)
        return await explain(self._session.client, record.name, execution, ref.gates)

    async def check_engine(self) -> Finding:
        """Check that Google accepts the credentials in this project and location."""
        return await check_engine(self._session.client, self._settings)

    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        """Check that the workflow exists and can be executed."""
        try:
            GoogleOptions.read(options)
        except EngineRefused as error:
            return Finding(ok=False, text=str(error))
        return await check_workflow(self._session.client, workflow)

    async def verify(
        self, workflow: str, options: Mapping[str, JSON], gates: Mapping[str, Mapping[str, JSON]]
    ) -> Sequence[Finding]:
        """Check the steps that the gates name, and the settings that questions need; see `Verifies.verify`."""
        try:
            return await verify(self._session.client, self._settings, workflow, gates)
        except EngineError as error:
            return [Finding(ok=None, text=f"its source could not be verified: {error}")]

    @staticmethod
    def embeds() -> Mapping[str, str]:
        """Return the subworkflows that ask people and claim keys, for copying into a workflow."""
        return embedded_files()

    @staticmethod
    def fixture_settings() -> type[BaseModel]:
        """Return the model of the account that workflows run as; see `HasFixtures`."""
        return FixtureSettings

    def fixtures_notice(self) -> str:
        """Say what is deployed, and what that costs; see `HasFixtures.fixtures_notice`."""
        return NOTICE

    def fixtures(self, settings: BaseModel) -> AbstractAsyncContextManager[Fixtures]:
        """Deploy workflows of known behaviour; see `HasFixtures.fixtures`."""
        assert isinstance(settings, FixtureSettings)
        return fixtures(self._session.client, self._settings, settings)

    def _register(self, handle: str) -> None:
        self._session.listings.note_running(handle)
        # it may contain the project's number where a request from the workflow contains the id
        self._hints.register(ExecutionName.parse(handle).note_prefix, handle)

    @property
    def _session(self) -> _Session:
        if self._entered is None:
            raise RuntimeError("enter the adapter first: async with GoogleAdapter(settings) as adapter")
        return self._entered
