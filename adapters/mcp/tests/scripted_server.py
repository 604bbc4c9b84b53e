"""An MCP server over HTTP whose every answer a test decides, in either revision: no SDK keeps it from lying."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.served import serving

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
TASKS = "io.modelcontextprotocol/tasks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """A JSON-RPC error."""

    code: int
    message: str
    data: Any = None


Answer: TypeAlias = Mapping[str, Any] | Error | Response
"""A result, a JSON-RPC error, or what HTTP has in the place of either."""
Script: TypeAlias = Answer | Callable[[Mapping[str, Any]], Answer | Awaitable[Answer]]
"""The answer, or what makes it of the params."""


def text(said: str, *, is_error: bool = False) -> Mapping[str, Any]:
    """Return the result of a tool that is a text."""
    return {"content": [{"type": "text", "text": said}], "isError": is_error}


def structured(value: Any) -> Mapping[str, Any]:
    """Return the result of a tool with structured content."""
    return {"content": [], "structuredContent": value, "isError": False}


def tool(name: str, **more: Any) -> Mapping[str, Any]:
    """Return a tool as `tools/list` has it."""
    return {"name": name, "inputSchema": {"type": "object"}, **more}


@dataclass(frozen=True, slots=True, kw_only=True)
class ElicitationHandler:
    """One request."""

    method: str
    params: Mapping[str, Any]
    headers: Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class ScriptedServer:
    """The server; `replies` are answers by the name of a tool, or by a method."""

    revision: str = LEGACY
    capabilities: Mapping[str, Any] = field(default_factory=lambda: {"tools": {"listChanged": True}})
    tools: list[Mapping[str, Any]] = field(
        default_factory=lambda: [tool("start_job"), tool("get_job"), tool("stop_job"), tool("answer_job")]
    )
    replies: dict[str, Script] = field(default_factory=dict[str, Script])
    let_in: Callable[[Request], bool] = lambda _: True
    asked: list[ElicitationHandler] = field(default_factory=list[ElicitationHandler])

    def calls(self, name: str) -> list[ElicitationHandler]:
        """Return the calls of a tool."""
        return [each for each in self.asked if each.params.get("name") == name and each.method == "tools/call"]

    @asynccontextmanager
    async def served(self, port: int = 0) -> AsyncGenerator[str]:
        """Serve, and yield the URL."""
        app = Starlette(routes=[Route("/mcp", self._serve, methods=["GET", "POST", "DELETE"])])
        async with serving(app, port=port) as url:
            yield url

    async def _serve(self, request: Request) -> Response:
        if not self.let_in(request):
            return JSONResponse({"error": "unauthorized"}, status_code=401)
        if request.method != "POST":
            return Response(status_code=405)
        message = await request.json()
        if "id" not in message or "method" not in message:
            return Response(status_code=202)
        method: str = message["method"]
        params: Mapping[str, Any] = message.get("params") or {}
        self.asked.append(ElicitationHandler(method=method, params=params, headers=dict(request.headers)))
        answer = await self._answer(method, params)
        if isinstance(answer, Response):
            return answer
        if isinstance(answer, Error):
            error = {"code": answer.code, "message": answer.message, "data": answer.data}
            return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "error": error})
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": self._of_revision(method, answer)})

    async def _answer(self, method: str, params: Mapping[str, Any]) -> Answer:
        script = self.replies.get(params.get("name", "")) if method == "tools/call" else self.replies.get(method)
        if script is None:
            return self._ordinary(method)
        answer = script(params) if callable(script) and not isinstance(script, Response) else script
        return await answer if inspect.isawaitable(answer) else answer

    def _ordinary(self, method: str) -> Answer:
        is_modern = self.revision == MODERN
        about = {"capabilities": self.capabilities, "serverInfo": {"name": "scripted", "version": "1"}}
        match method:
            case "server/discover" if is_modern:
                return {**about, "supportedVersions": [MODERN]}
            case "initialize" if not is_modern:
                return {**about, "protocolVersion": LEGACY}
            case "tools/list":
                return {"tools": self.tools}
            case _:
                return Error(code=-32601, message="Method not found")

    def _of_revision(self, method: str, result: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.revision != MODERN:
            return result
        cached = {"ttlMs": 0, "cacheScope": "private"} if method in {"server/discover", "tools/list"} else {}
        return {"resultType": "complete", **cached, **result}
