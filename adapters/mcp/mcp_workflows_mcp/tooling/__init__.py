"""Tools for operators: `check`, `import`, `call --dry-run`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import ClassVar, Final

import mcp_types as types
from mcp.client import ClientRequestContext

from mcp_workflows.adapter import JSON, Finding, Start
from mcp_workflows.adapter.redaction import KNOWN
from mcp_workflows.kit.kept_definitions import KeptDefinitions
from mcp_workflows.kit.tooling import Discovered, DraftedEngine, Exposed
from mcp_workflows_mcp.client import Connection, Upstream, render_call
from mcp_workflows_mcp.definition import ToolsDefinition
from mcp_workflows_mcp.open_calls import OpenCalls
from mcp_workflows_mcp.settings import McpSettings
from mcp_workflows_mcp.start import order_scope
from mcp_workflows_mcp.tooling.check import check_engine, check_workflow
from mcp_workflows_mcp.tooling.discover import address_of, draft_engine, exposed
from mcp_workflows_mcp.tooling.discover import discover as discover_workflows

_EXPOSE_EVERY: Final = 60.0  # seconds between two polls of the list of tools


class McpTooling:
    """The protocols of `mcp_workflows.kit.tooling` that every MCP server supports."""

    first_settings: ClassVar[Mapping[str, str]] = {"url": "https://tools.example.com/mcp"}

    def __init__(
        self, settings: McpSettings, upstream: Upstream, definitions: KeptDefinitions[ToolsDefinition]
    ) -> None:
        self._settings = settings
        self._upstream = upstream
        self._definitions = definitions

    async def check_engine(self) -> Finding:
        """Check that the server answers and has the tools; see `Checks.check_engine`."""
        finding = await check_engine(self._upstream, self._settings)
        how = self._settings.describe
        unmapped = await self._definitions.unmapped_finding(how.map) if finding.ok and how is not None else None
        return unmapped or finding

    async def check(self, workflow: str, options: Mapping[str, JSON]) -> Finding:
        """Check that the tool of a workflow exists; see `Checks.check`."""
        return await check_workflow(self._upstream, self._settings, workflow, options)

    def preview(self, start: Start) -> Mapping[str, JSON]:
        """Return the call that `start` would make; see `Previews.preview`."""
        name, arguments = render_call(self._settings.start, order_scope(start, self._settings))
        return {"tool": name, "arguments": arguments}

    async def discover(self, named: Collection[str] = ()) -> Sequence[Discovered]:
        """Return the tools that start executions; see `Discovers.discover`."""
        return await discover_workflows(self._upstream, self._settings)

    @property
    def expose_every(self) -> float | None:
        """The interval of polls of the list of tools; see `Exposes.expose_every`."""
        return _EXPOSE_EVERY if self._settings.expose else None

    async def exposed(self) -> Sequence[Exposed]:
        """Return the tools in `expose` as the server describes them; see `Exposes.exposed`."""
        return await exposed(self._upstream, self._settings)

    @staticmethod
    async def draft(address: str, start: str | None) -> DraftedEngine:
        """Return a draft of the engine for a server; see `Drafts.draft`."""
        how, shown = address_of(address)
        settings = McpSettings.model_validate(how)
        KNOWN.add_all(settings)
        upstream = Upstream(settings, OpenCalls(is_local=settings.is_local), _cancel_elicitation)
        stack = AsyncExitStack()
        await stack.enter_async_context(upstream.running())
        try:
            return draft_engine(list((await upstream.tools()).values()), await upstream.connection(), shown, start)
        finally:
            await stack.aclose()  # `async with` would let its task group wrap the error


async def _cancel_elicitation(
    connection: Connection, context: ClientRequestContext, params: types.ElicitRequestParams
) -> types.ElicitResult:
    """Cancel a question of the server, as nobody has called a tool."""
    return types.ElicitResult(action="cancel")
