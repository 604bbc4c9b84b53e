"""Metrics of each request, by the semantic conventions of OpenTelemetry for MCP.

The SDK makes the spans: one for every message, with the trace parent of its `_meta`. Source:
https://github.com/open-telemetry/semantic-conventions-genai/blob/main/docs/gen-ai/mcp.md
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from typing import Final

import anyio
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError
from mcp_types import jsonrpc
from mcp_types.version import SUPPORTED_PROTOCOL_VERSIONS
from opentelemetry import trace
from pydantic import ValidationError

from mcp_workflows.receiver.companions.definitions import COMPANION_NAMES
from mcp_workflows.receiver.context import Context, name_of
from mcp_workflows.tasks.authorization import NOT_FOUND
from mcp_workflows.telemetry import TOOL, Telemetry
from mcp_workflows.wire import v2025_11_25, v2026_07_28

_OTHER: Final = "_OTHER"
_OURS: Final = frozenset({*v2026_07_28.TASK_METHODS, *v2026_07_28.REMOVED_METHODS, "tasks/list", "tasks/result"})
_KNOWN: Final = _OURS | {
    *("completion/complete", "initialize", "logging/setLevel", "ping", "server/discover", "subscriptions/listen"),
    *("notifications/cancelled", "notifications/initialized", "notifications/progress"),
    *("prompts/get", "prompts/list", "tools/call", "tools/list"),
    *("resources/list", "resources/read", "resources/subscribe", "resources/templates/list", "resources/unsubscribe"),
}
_ENDLESS: Final = "subscriptions/listen"  # it ends when its client leaves, and that is no error
_VERSIONS: Final = frozenset({*SUPPORTED_PROTOCOL_VERSIONS, v2025_11_25.PROTOCOL_VERSION, v2026_07_28.PROTOCOL_VERSION})


class RequestMetrics:
    """Measures every message, and adds attributes to the SDK's span; `tools` returns our tools of the moment."""

    def __init__(self, telemetry: Telemetry, tools: Callable[[], Container[object]]) -> None:
        self._telemetry = telemetry
        self._tools = tools

    @property
    def is_collected(self) -> bool:
        """True if anything collects metrics; otherwise requests need not be measured."""
        return self._telemetry.heard

    async def serve(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Measure a message and pass it on."""
        began, error = time.perf_counter(), _OTHER
        try:
            result = await call_next(ctx)
            error = _tool_error(ctx, result)
            if error and name_of(ctx) in COMPANION_NAMES and NOT_FOUND in str(result):
                self._telemetry.not_found(ctx.method)
        except MCPError as failed:
            error = str(failed.error.code)
            if ctx.method in _OURS and failed.error.message == NOT_FOUND:
                self._telemetry.not_found(ctx.method)
            raise
        except ValidationError:
            error = str(jsonrpc.INVALID_PARAMS)
            raise
        except anyio.get_cancelled_exc_class():
            error = "" if ctx.method == _ENDLESS else "cancelled"
            raise
        finally:
            attributes = self._attributes(ctx, error)
            trace.get_current_span().set_attribute("network.transport", attributes["network.transport"])
            self._telemetry.operation(time.perf_counter() - began, attributes)
        return result

    def _attributes(self, ctx: Context, error: str) -> dict[str, str]:
        """Return the attributes; all their values come from closed sets, and any other value is `_OTHER`."""
        found = {
            "mcp.method.name": ctx.method if ctx.method in _KNOWN else _OTHER,
            "mcp.protocol.version": ctx.protocol_version if ctx.protocol_version in _VERSIONS else _OTHER,
            "network.transport": "pipe" if ctx.request is None else "tcp",
        }
        if ctx.method == "tools/call":
            found["gen_ai.operation.name"] = "execute_tool"
            found[TOOL] = name if isinstance(name := name_of(ctx), str) and self._is_ours(name) else _OTHER
        return {**found, "error.type": error} if error else found

    def _is_ours(self, tool: str) -> bool:
        return tool in self._tools() or tool in COMPANION_NAMES


def _tool_error(ctx: Context, result: HandlerResult) -> str:
    """Return `tool_error` for a call with an error as its result, or else an empty string."""
    if ctx.method != "tools/call" or result is None:
        return ""
    wrong = result.get("isError") if isinstance(result, dict) else getattr(result, "is_error", None)
    return "tool_error" if wrong is True else ""
