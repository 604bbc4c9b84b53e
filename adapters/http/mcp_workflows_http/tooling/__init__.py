"""Tools for operators: `check`, `import`, `preset`, `call --dry-run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from mcp_workflows.adapter import JSON, Finding, Start
from mcp_workflows.kit.kept_definitions import KeptDefinitions
from mcp_workflows.kit.tooling import Discovered, Preset
from mcp_workflows_http.client import ApiClient
from mcp_workflows_http.definition import ApiDefinition
from mcp_workflows_http.presets import presets
from mcp_workflows_http.settings import HttpSettings, preset_schema
from mcp_workflows_http.tooling.check import check_engine, check_workflow, made_up
from mcp_workflows_http.tooling.discover import discover as discover_workflows
from mcp_workflows_http.tooling.preview import preview as preview_start


class HttpTooling:
    """The protocols of `mcp_workflows.kit.tooling` that any job API has."""

    first_settings: ClassVar[Mapping[str, str]] = {"preset": "respond-async", "url": "https://jobs.example.com"}

    def __init__(self, settings: HttpSettings, client: ApiClient, definitions: KeptDefinitions[ApiDefinition]) -> None:
        self._settings = settings
        self._client = client
        self._definitions = definitions

    async def check_engine(self) -> Finding:
        """Check that the API answers; see `Checks.check_engine`."""
        finding = await check_engine(self._client, self._settings)
        unmapped = await self._definitions.unmapped_finding(self._settings.look.map) if finding.ok else None
        return unmapped or finding

    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        """Check a workflow, as far as the API can tell without a start; see `Checks.check`."""
        return await check_workflow(self._client, self._settings, made_up(workflow, dict(options)))

    def preview(self, start: Start) -> Mapping[str, JSON]:
        """Return the request that `start` would send; see `Previews.preview`."""
        return preview_start(self._client, self._settings, start)

    @staticmethod
    def presets() -> Mapping[str, Preset]:
        """Return the definitions of well-known APIs; see `HasPresets.presets`."""
        return presets()

    @staticmethod
    def preset_schema() -> Mapping[str, JSON]:
        """Return the JSON Schema of a preset; see `HasPresets.preset_schema`."""
        return preset_schema()


class DiscoveringHttpTooling(HttpTooling):
    """The same for a job API that lists its workflows."""

    async def discover(self) -> Sequence[Discovered]:
        """Return the workflows, with what the API knows of their inputs; see `Discovers.discover`."""
        assert self._settings.workflows is not None
        return await discover_workflows(self._client, self._settings, self._settings.workflows)
