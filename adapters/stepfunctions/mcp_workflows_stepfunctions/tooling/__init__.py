"""Tools for operators and authors: checks, drafts, explanations, policies, replays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import ClassVar, Final

from pydantic import BaseModel

from mcp_workflows.adapter import JSON, Execution, Finding, Fixtures, Gate, Ref, Start
from mcp_workflows.errors import EngineError, EngineRefused
from mcp_workflows.kit.tooling import Discovered, Explanation, Exposed, Replayed, Use
from mcp_workflows_stepfunctions.client import Client
from mcp_workflows_stepfunctions.describe import HistoryReader
from mcp_workflows_stepfunctions.settings import StepFunctionsOptions, StepFunctionsSettings
from mcp_workflows_stepfunctions.start import Machines
from mcp_workflows_stepfunctions.tooling.check import check_engine, check_machine, verify
from mcp_workflows_stepfunctions.tooling.deployment import FixtureSettings
from mcp_workflows_stepfunctions.tooling.discover import TaggedMachines
from mcp_workflows_stepfunctions.tooling.discover import discover as discover_workflows
from mcp_workflows_stepfunctions.tooling.explain import explain as explain_execution
from mcp_workflows_stepfunctions.tooling.fixtures import NOTICE
from mcp_workflows_stepfunctions.tooling.fixtures import fixtures as run_fixtures
from mcp_workflows_stepfunctions.tooling.iam import permissions
from mcp_workflows_stepfunctions.tooling.offline import preview, read_embedded_files, replay

NO_ROLE: Final = "source_identity needs assume_role of the engine: a session of that role carries it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of an entered adapter that the tools use."""

    client: Client
    machines: Machines
    reader: HistoryReader
    tagged: TaggedMachines
    describe: Callable[[Ref], Awaitable[Execution]]


class StepFunctionsTooling:
    """The protocols of `mcp_workflows.kit.tooling` that Step Functions supports."""

    first_settings: ClassVar[Mapping[str, str]] = {"region": ""}

    def __init__(self, settings: StepFunctionsSettings) -> None:
        self._settings = settings
        self.parts: Parts | None = None  # while the adapter is entered

    # --- checks

    async def check_engine(self) -> Finding:
        """Check that Step Functions accepts these credentials, and that the queue of `events` can be read."""
        return await check_engine(self._opened.client, self._settings.events)

    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        """Check that the state machine exists and has the type that the tool sets."""
        opened = self._opened
        try:
            read = StepFunctionsOptions.read(options)
        except EngineRefused as error:
            return Finding(ok=False, text=str(error))
        if read.source_identity is not None and self._settings.assume_role is None:
            return Finding(ok=False, text=NO_ROLE)
        return await check_machine(opened.client, opened.machines, workflow, read)

    async def verify(
        self, workflow: str, options: Mapping[str, JSON], gates: Mapping[str, Mapping[str, JSON]]
    ) -> Sequence[Finding]:
        """Check that the machine has the states that the gates name; see `Verifies.verify`."""
        opened = self._opened
        try:
            machine, read = await opened.machines.find(workflow), StepFunctionsOptions.read(options)
        except EngineError as error:
            return [Finding(ok=None, text=f"its states could not be verified: {error}")]
        return await verify(opened.client, machine, read, gates)

    # --- workflows and executions

    async def discover(self, named: Collection[str] = ()) -> Sequence[Discovered]:
        """Return all state machines; see `Discovers.discover`."""
        return await discover_workflows(self._opened.client, named)

    @property
    def expose_every(self) -> float | None:
        """The interval of searches for tagged state machines, in seconds; see `Exposes.expose_every`."""
        discovery = self._settings.discover
        return None if discovery is None else discovery.every.total_seconds()

    async def exposed(self) -> Sequence[Exposed]:
        """Return the state machines with the tag of `discover`; see `Exposes.exposed`."""
        return await self._opened.tagged.exposed()

    async def explain(self, ref: Ref) -> Explanation:
        """Explain the state of an execution from the newest events of its history; see `Explains.explain`."""
        opened, execution = self._opened, await self._opened.describe(ref)
        return await explain_execution(opened.client, opened.machines, opened.reader, ref, execution)

    def preview(self, start: Start) -> Mapping[str, JSON]:
        """Return the StartExecution that `start` would send; see `Previews.preview`."""
        return preview(start, self._opened.machines)

    @staticmethod
    def replay(history: JSON, gates: Mapping[str, Gate]) -> Sequence[Replayed]:
        """Return each status that clients would have seen, from `aws stepfunctions get-execution-history`.

        Raises:
            ConfigError: see `Replays.replay`.
        """
        return replay(history, gates)

    # --- permissions, sources, fixtures

    async def permissions(self, uses: Sequence[Use]) -> Mapping[str, JSON]:
        """Return the IAM policy document with the minimum permissions for these tools; see `Permits.permissions`."""
        return await permissions(self._opened.client, self._settings, uses)

    @staticmethod
    def embeds() -> Mapping[str, str]:
        """Return states that ask people, to copy into a definition."""
        return read_embedded_files()

    @staticmethod
    def fixture_settings() -> type[BaseModel]:
        """Return the model of the role that state machines run as; see `HasFixtures`."""
        return FixtureSettings

    @staticmethod
    def fixtures_notice() -> str:
        """Return what is deployed and its cost; see `HasFixtures.fixtures_notice`."""
        return NOTICE

    def fixtures(self, settings: BaseModel) -> AbstractAsyncContextManager[Fixtures]:
        """Deploy state machines of known behaviour; see `HasFixtures.fixtures`."""
        assert isinstance(settings, FixtureSettings)
        return run_fixtures(self._settings, settings)

    @property
    def _opened(self) -> Parts:
        if self.parts is None:
            raise RuntimeError("enter the adapter first: async with StepFunctionsAdapter(settings) as adapter")
        return self.parts
