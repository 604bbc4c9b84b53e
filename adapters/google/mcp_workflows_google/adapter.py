"""Adapter for Google Cloud Workflows in one project and location."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, ClassVar, Self

import anyio
from pydantic import BaseModel

from mcp_workflows.adapter import (
    JSON,
    Adapter,
    Allowance,
    EndedExecution,
    Execution,
    Notes,
    Ref,
    Route,
    Start,
    StartGuarantee,
)
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
from mcp_workflows_google.start import KeySearch, build_request
from mcp_workflows_google.tooling import GoogleTooling, Parts
from mcp_workflows_google.tooling.discover import LabelledWorkflows, adopt, list_ended, same_workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """The client and what depends on it, from entering the adapter to leaving it; no durable state."""

    client: Client
    key_search: KeySearch
    listings: Listings


class GoogleAdapter(Adapter):
    """Adapter for Google Cloud Workflows.

    It has the capabilities of `mcp_workflows.adapter` that Google Cloud Workflows can support.
    """

    Settings: ClassVar[type[BaseModel]] = GoogleSettings
    Options: ClassVar[type[BaseModel]] = GoogleOptions
    GateSettings: ClassVar[type[BaseModel] | None] = GateSettings
    starts: ClassVar[StartGuarantee] = StartGuarantee.FINDABLE
    cancels_at_once: ClassVar[bool] = True
    tooling: Any = GoogleTooling  # Any: see `Adapter.tooling`

    def __init__(self, settings: GoogleSettings) -> None:
        self._settings = settings
        self._notes = ExecutionNotes(EmptyNotes())
        self._hints = ChangeHints()
        self._stack = AsyncExitStack()
        self._entered: _Session | None = None
        self.tooling = GoogleTooling(settings)

    def remember(self, notes: Notes) -> None:
        """Use this store for questions and claims; see `Remembers.remember`."""
        self._notes = ExecutionNotes(notes)

    @property
    def identity(self) -> str:
        """The project and location, without a call; see `Adapter.identity`.

        `default` stands for the project of the credentials.
        """
        settings = self._settings
        project = "emulator" if settings.emulator else settings.project or os.environ.get("GOOGLE_CLOUD_PROJECT")
        return f"google-workflows:{project or 'default'}/{settings.location}"

    async def __aenter__(self) -> Self:
        """Set up the client, without a connection to Google or credentials."""
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(open_client(self._settings))
            self._entered = _Session(
                client=client,
                key_search=KeySearch(client),
                listings=listings(client),
            )
            labelled = LabelledWorkflows(client, self._settings.discover)
            self.tooling.parts = Parts(client=client, notes=self._notes, labelled=labelled, describe=self.describe)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client."""
        self._entered = self.tooling.parts = None
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

    async def describe(self, ref: Ref) -> Execution:
        """Call GetExecution and add the open questions from the notes; see `Adapter.describe`."""
        client = self._session.client
        self._hints.register(ExecutionName.parse(ref.handle).note_prefix, ref.handle)
        return await describe_execution(client, self._notes, self._settings, ref)

    async def answer(self, ref: Ref, responses: Mapping[str, JSON]) -> None:
        """Send answers to the callbacks that wait for them; see `Adapter.answer`."""
        await answer(self._session.client, self._notes, ref, responses)

    async def cancel(self, ref: Ref) -> None:
        """Call CancelExecution, which takes effect immediately."""
        await self._session.client.cancel((await self._notes.read(ref.handle)).name)

    async def terminate(self, ref: Ref, reason: str) -> None:
        """Cancel the execution: Google has no other way to end one, and accepts no reason; see
        `Terminates.terminate`."""
        await self.cancel(ref)

    async def adopt(self, execution_id: str) -> Ref:
        """Return the execution with this resource name; see `Adopts.adopt`."""
        session = self._session
        return await adopt(session.client, execution_id)

    async def list_ended(self, workflow: str, since: datetime) -> Sequence[EndedExecution]:
        """Call ListExecutions once, with a filter on the end time; see `ListsEnded.list_ended`."""
        return await list_ended(self._session.client, workflow, since)

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
        """Return those that still run, from ListExecutions, with questions; see `DescribesMany.describe_many`."""
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

    def _register(self, handle: str) -> None:
        self._session.listings.note_running(handle)
        # it may contain the project's number where a request from the workflow contains the id
        self._hints.register(ExecutionName.parse(handle).note_prefix, handle)

    @property
    def _session(self) -> _Session:
        if self._entered is None:
            raise RuntimeError("enter the adapter first: async with GoogleAdapter(settings) as adapter")
        return self._entered
