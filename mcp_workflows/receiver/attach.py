"""`attach(server)` adds workflows to an MCP server: the entry point for library users."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import anyio
import mcp_types as types
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.request_state import RequestStateBoundary
from mcp.server.subscriptions import SubscriptionBus, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types import jsonrpc
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_workflows.access import LOCAL, Authorizer, Principal
from mcp_workflows.access.audit import Audit, silent
from mcp_workflows.access.authn.settings import Owner
from mcp_workflows.access.limit_settings import DEFAULTS, Limits
from mcp_workflows.adapter import Adapter
from mcp_workflows.engines.polling.policy import DEFAULT_POLICY, PollingPolicy
from mcp_workflows.engines.registry import Engines
from mcp_workflows.errors import ConfigError
from mcp_workflows.events.endpoints import EventSettings
from mcp_workflows.events.notifications import Channels, channels_of, no_channel
from mcp_workflows.receiver.context import AnyServer, Callers, Context
from mcp_workflows.receiver.log_limits import limit_lines
from mcp_workflows.receiver.middleware import plain
from mcp_workflows.receiver.streams import DisconnectMiddleware
from mcp_workflows.receiver.task_tools.definitions import clashes
from mcp_workflows.receiver.v2025_11_25.session import connection_of
from mcp_workflows.receiver.workflows import Workflows
from mcp_workflows.store.key_value import notes_in
from mcp_workflows.store.protocol import Store, open_store
from mcp_workflows.telemetry import Telemetry
from mcp_workflows.tools.compatibility import actions_of, adapt_tool, find_problems
from mcp_workflows.tools.tool import AnyTool
from mcp_workflows.wire.events import Notice as EventNotice
from mcp_workflows.wire.params import KEY_PATHS, KeyPath

__all__ = ["RETENTION", "AnyServer", "Changes", "DisconnectMiddleware", "Workflows", "attach", "swap"]

RETENTION = timedelta(days=90)
_NOTIFY_TIMEOUT = 5.0  # seconds for a client that does not read its stream

logger = logging.getLogger(__name__)


def attach(
    server: AnyServer,
    *,
    tools: Sequence[AnyTool],
    engines: Mapping[str, Adapter],
    store: Store | str = "sqlite:///mcp-workflows.db",
    retention: timedelta = RETENTION,
    polling: PollingPolicy = DEFAULT_POLICY,
    my_tasks: bool = False,
    skills: bool = False,
    single_user: bool = False,
    local: Principal = LOCAL,
    owner: Owner | None = Owner.SUBJECT,
    idempotency_keys: Sequence[KeyPath] = KEY_PATHS,
    limits: Limits = DEFAULTS,
    authorizer: Authorizer | None = None,
    audit: Audit = silent,
    telemetry: Telemetry | None = None,
    events: EventSettings = EventSettings(),  # noqa: B008  # immutable
    notify: Channels | None = None,
) -> Workflows:
    """Add workflows to the server's own tools; the server's lifespan must enter the returned object.

    `my_tasks`: offer clients with tasks a tool that lists the caller's tasks. `skills`: offer a skill for each tool
    (SEP-2640). `single_user`: treat all callers over loopback HTTP without authentication as one user, `local`, as on
    stdio; only for servers that other users cannot reach. `owner`: on servers with authentication, tasks belong to the
    person in every client, or in the one client that started them; None: no caller has a token. `idempotency_keys`:
    paths of keys in a call's `_meta`, see `docs/use/retries.md`. `limits`: quotas of callers, see
    `docs/secure/limits.md`. `authorizer`: custom rules, checked after those of the tools allow a request. `audit`
    receives the audit events. `telemetry`: by default, the OpenTelemetry providers of this process, if any. `events`:
    the endpoints that may subscribe, see `docs/use/events.md`. `notify`: the channels that approvals of tools may use,
    see `docs/use/approvals.md`.

    Raises:
        ConfigError: the server is not one of the SDK, two tools have one name, an engine or a channel is missing, or
            the store is unknown.
    """
    if not isinstance(server, (MCPServer, Server)):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ConfigError(
            f"attach takes an MCPServer or Server of the MCP SDK, not a {type(server).__name__}: attach to an "
            "MCPServer and mount that in yours, see: docs/use/library.md#in-a-fastmcp-server"
        )
    limit_lines()
    opened = open_store(store) if isinstance(store, str) else store
    workflows = Workflows(
        server,
        tools=_within(limits, _by_name(tools, engines, notify or {}, my_tasks=my_tasks)),
        engines=Engines(engines, notes=notes_in(opened), telemetry=telemetry),
        store=opened,
        retention=retention,
        polling=polling,
        my_tasks=my_tasks,
        callers=Callers(local=local, single_user=single_user, owner=owner, key_paths=idempotency_keys),
        limits=limits,
        authorizer=authorizer,
        audit=audit,
        events=events,
        notify=notify,
    )
    workflows.middleware.has_own_lists = not _serve_lists(server)
    workflows.middleware.serves_skills = skills
    chain = server.middleware
    sealed = next((i for i, found in enumerate(chain) if isinstance(found, RequestStateBoundary)), len(chain))
    measured = [workflows.measuring.serve] if workflows.measuring.is_collected else []
    chain[sealed:sealed] = [*measured, workflows.middleware.seal]
    chain.append(workflows.middleware.serve)
    return workflows


async def swap(
    workflows: Workflows, *, tools: Sequence[AnyTool], engines: Mapping[str, Adapter], notify: Channels | None = None
) -> bool:
    """Replace tools and engines; return True if clients see a different list. See `Workflows.swap`.

    Raises:
        ConfigError: see `attach` and `Workflows.swap`.
    """
    channels = workflows.channels if notify is None else notify
    return await workflows.swap(_by_name(tools, engines, channels, my_tasks=workflows.my_tasks), engines, notify)


def _within(limits: Limits, tools: Mapping[str, AnyTool]) -> Mapping[str, AnyTool]:
    if wrong := [f"tool {name!r}: ttl: {text}" for name, tool in tools.items() if (text := limits.too_long(tool.ttl))]:
        raise ConfigError("\n".join(wrong))
    return tools


def _by_name(
    tools: Sequence[AnyTool], engines: Mapping[str, Adapter], channels: Channels, *, my_tasks: bool
) -> Mapping[str, AnyTool]:
    problems = [
        f"engine {name!r} is not an adapter: pass an instance, such as TemporalAdapter(TemporalSettings(...))"
        for name, adapter in engines.items()
        if isinstance(adapter, type) or not hasattr(adapter, "describe")
    ]
    if problems:
        raise ConfigError("\n".join(problems))
    tools = [adapt_tool(tool, engines.get(tool.engine)) for tool in tools]
    problems += [f"tool {tool.name!r}: {text}" for tool in tools for text in find_problems(tool, engines)]
    problems += [
        f"tool {tool.name!r}: approval.notify: {no_channel(name, channels)}"
        for tool in tools
        for name in sorted(channels_of(tool) - channels.keys())
    ]
    problems += [f"tool {name!r}: {text}" for name, text in clashes(tools, my_tasks=my_tasks)]
    names = [tool.name for tool in tools]
    problems += [f"two tools are named {name!r}" for name in dict.fromkeys(names) if names.count(name) > 1]
    if problems:
        raise ConfigError("\n".join(problems))
    return {each.name: each for tool in tools for each in (tool, *actions_of(tool, engines.get(tool.engine)))}


class _NoTools:
    """Empty lists of tools and resources, for a lowlevel server without such handlers: ours add to existing lists."""

    async def tools(self, ctx: Context, params: types.PaginatedRequestParams) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[])

    async def call(self, ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        raise MCPError(jsonrpc.INVALID_PARAMS, f"Unknown tool: {params.name}")

    async def resources(self, ctx: Context, params: types.PaginatedRequestParams) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=[])

    async def templates(self, ctx: Context, params: types.PaginatedRequestParams) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=[])

    async def read(self, ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        raise MCPError(jsonrpc.INVALID_PARAMS, "Resource not found", {"uri": params.uri})


def _no_schema(_: str) -> None:
    """Keep the SDK from listing tools to check the headers of a call, which takes 0.2 ms: see `check_param_headers`."""


def _serve_lists(server: AnyServer) -> bool:
    """Add empty lists where the server has none; return True if it has neither tools nor resources."""
    if isinstance(server, MCPServer):
        return False
    empty = _NoTools()
    own = [name for name in ("tools/list", "resources/read") if server.get_request_handler(name) is not None]
    if server.get_request_handler("tools/list") is None:
        server.get_tool_input_schema = _no_schema
        server.add_request_handler("tools/list", types.PaginatedRequestParams, empty.tools)
        server.add_request_handler("tools/call", types.CallToolRequestParams, empty.call)
    if server.get_request_handler("resources/read") is None:
        server.add_request_handler("resources/list", types.PaginatedRequestParams, empty.resources)
        server.add_request_handler("resources/templates/list", types.PaginatedRequestParams, empty.templates)
        server.add_request_handler("resources/read", types.ReadResourceRequestParams, empty.read)
    return not own


class Changes:
    """Middleware that keeps the connections of older clients; `tools_changed` notifies all clients."""

    def __init__(self, bus: SubscriptionBus) -> None:
        self._bus = bus
        self._older: set[Connection] = set()

    async def serve(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Declare the capability to older clients, and keep their connections until they close."""
        result = await call_next(ctx)
        if ctx.method == "notifications/initialized" and ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            self._remember(connection_of(ctx))
        return _with_capability(result) if ctx.method == "initialize" else result

    async def tools_changed(self) -> None:
        """Send `notifications/tools/list_changed` to all subscribed clients, with a short timeout for each."""
        await self._bus.publish(ToolsListChanged())
        async with anyio.create_task_group() as group:
            for connection in list(self._older):
                group.start_soon(_notify, connection)

    def _remember(self, connection: Connection) -> None:
        if connection not in self._older:
            self._older.add(connection)
            connection.exit_stack.callback(self._older.discard, connection)


async def _notify(connection: Connection) -> None:
    with anyio.move_on_after(_NOTIFY_TIMEOUT) as waiting:
        await connection.send_tool_list_changed()
        await connection.notify(EventNotice.LIST_CHANGED, {})  # event filters contain the names of tools
    if waiting.cancelled_caught:
        logger.warning("a client does not read its stream: it was not notified of changed tools")


def _with_capability(result: HandlerResult) -> HandlerResult:
    """Return the result of `initialize` with `capabilities.tools.listChanged` (spec 2025-11-25: server/tools)."""
    found = plain(result)
    capabilities: dict[str, Any] = found.get("capabilities", {})
    tools: dict[str, Any] = capabilities.get("tools", {})
    return {**found, "capabilities": {**capabilities, "tools": {**tools, "listChanged": True}}}
