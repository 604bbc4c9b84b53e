"""Tools for operators and authors: check, definition, discover, embed, explain and fixtures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel

from mcp_workflows.adapter import JSON, Execution, Finding, Fixtures, Ref, Start
from mcp_workflows.errors import EngineError, EngineRefused
from mcp_workflows.kit.tooling import Discovered, Explanation, Exposed, Use
from mcp_workflows_google.client import Client
from mcp_workflows_google.notes import ExecutionNotes
from mcp_workflows_google.settings import GoogleOptions, GoogleSettings
from mcp_workflows_google.start import preview
from mcp_workflows_google.tooling.check import check_engine, check_workflow, permissions, verify
from mcp_workflows_google.tooling.deployment import FixtureSettings
from mcp_workflows_google.tooling.discover import LabelledWorkflows
from mcp_workflows_google.tooling.discover import discover as discover_workflows
from mcp_workflows_google.tooling.explain import explain as explain_execution
from mcp_workflows_google.tooling.fixtures import NOTICE
from mcp_workflows_google.tooling.fixtures import fixtures as run_fixtures
from mcp_workflows_google.tooling.subworkflows import embedded_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of an entered adapter that the tools use."""

    client: Client
    notes: ExecutionNotes
    labelled: LabelledWorkflows
    describe: Callable[[Ref], Awaitable[Execution]]


class GoogleTooling:
    """The protocols of `mcp_workflows.kit.tooling` that Google Cloud Workflows can support."""

    first_settings: ClassVar[Mapping[str, str]] = {"project": "", "location": "${GOOGLE_CLOUD_LOCATION:-us-central1}"}

    def __init__(self, settings: GoogleSettings) -> None:
        self._settings = settings
        self.parts: Parts | None = None  # while the adapter is entered

    # --- checks

    async def check_engine(self) -> Finding:
        """Check that Google accepts the credentials in this project and location."""
        return await check_engine(self._opened.client, self._settings)

    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        """Check that the workflow exists and can be executed."""
        try:
            GoogleOptions.read(options)
        except EngineRefused as error:
            return Finding(ok=False, text=str(error))
        return await check_workflow(self._opened.client, workflow)

    async def verify(
        self, workflow: str, options: Mapping[str, JSON], gates: Mapping[str, Mapping[str, JSON]]
    ) -> Sequence[Finding]:
        """Check the steps that the gates name, and the settings that questions need; see `Verifies.verify`."""
        try:
            return await verify(self._opened.client, self._settings, workflow, gates)
        except EngineError as error:
            return [Finding(ok=None, text=f"its source could not be verified: {error}")]

    # --- workflows and executions

    async def discover(self, named: Collection[str] = ()) -> Sequence[Discovered]:
        """Return the deployed workflows; see `Discovers.discover`."""
        return await discover_workflows(self._opened.client)

    @property
    def expose_every(self) -> float | None:
        """Seconds between two searches for labelled workflows; see `Exposes.expose_every`."""
        discovery = self._settings.discover
        return None if discovery is None else discovery.every.total_seconds()

    async def exposed(self) -> Sequence[Exposed]:
        """Return the workflows with the label of `discover`; see `Exposes.exposed`."""
        return await self._opened.labelled.exposed()

    async def explain(self, ref: Ref) -> Explanation:
        """Explain the state of an execution; see `Explains.explain`."""
        execution = await self._opened.describe(ref)
        record = await self._opened.notes.read(ref.handle)
        return await explain_execution(self._opened.client, record.name, execution, ref.gates)

    def preview(self, start: Start) -> Mapping[str, JSON]:
        """Return the CreateExecution request that `start` would send; see `Previews.preview`."""
        return preview(start, self._settings)

    # --- permissions, sources, fixtures

    async def permissions(self, uses: Sequence[Use]) -> Mapping[str, JSON]:
        """Return a custom role with the least permissions that these tools need; see `Permits.permissions`."""
        return permissions(self._settings, uses)

    @staticmethod
    def embeds() -> Mapping[str, str]:
        """Return the subworkflows that ask people and claim keys, to copy into a workflow."""
        return embedded_files()

    @staticmethod
    def fixture_settings() -> type[BaseModel]:
        """Return the model of the account that workflows run as; see `HasFixtures`."""
        return FixtureSettings

    @staticmethod
    def fixtures_notice() -> str:
        """Return a notice of what is deployed, and its cost; see `HasFixtures.fixtures_notice`."""
        return NOTICE

    def fixtures(self, settings: BaseModel) -> AbstractAsyncContextManager[Fixtures]:
        """Deploy workflows with known behaviour; see `HasFixtures.fixtures`."""
        assert isinstance(settings, FixtureSettings)
        return run_fixtures(self._opened.client, self._settings, settings)

    @property
    def _opened(self) -> Parts:
        if self.parts is None:
            raise RuntimeError("enter the adapter first: async with GoogleAdapter(settings) as adapter")
        return self.parts
