"""A server that answers as a vendor's documentation says, step by step, and notes what it was asked."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from mcp_workflows_http import HttpAdapter, HttpSettings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from mcp_workflows.adapter import Execution, Ref, Start
from tests.support.served import serving


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Any
    headers: Mapping[str, str]


@dataclass
class Vendor:
    """The replies by method and path: a JSON value, a text, or a response."""

    url: str = ""
    replies: dict[str, Any] = field(default_factory=dict[str, Any])
    asked: list[Asked] = field(default_factory=list[Asked])

    async def serve(self, request: Request) -> Response:
        """Answer as it was told to; 404 to anything else."""
        raw = await request.body()
        is_json = request.headers.get("content-type", "").startswith("application/json")
        body = json.loads(raw) if raw and is_json else raw.decode() or None
        asked = Asked(request.method, request.url.path, dict(request.query_params), body, dict(request.headers))
        self.asked.append(asked)
        found = self.replies.get(f"{request.method} {request.url.path}")
        if found is None:
            return JSONResponse({"message": "Not Found"}, status_code=404)
        if isinstance(found, Response):
            return found
        return PlainTextResponse(found) if isinstance(found, str) else JSONResponse(found)

    def last(self, method: str) -> Asked:
        """The last request of a method."""
        return [each for each in self.asked if each.method == method][-1]


@dataclass(frozen=True)
class Scene:
    """A vendor, and the adapter with its preset."""

    vendor: Vendor
    adapter: HttpAdapter
    workflow: str

    async def look(self, handle: str, **options: Any) -> Execution:
        """What is told of it."""
        return await self.adapter.describe(Ref(workflow=self.workflow, handle=handle, options={"options": options}))

    async def start(self, start: Start) -> str:
        """The handle."""
        return await self.adapter.start(start)


@asynccontextmanager
async def scene(preset: str, workflow: str, **settings: Any) -> AsyncGenerator[Scene]:
    vendor = Vendor()
    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    async with serving(Starlette(routes=[Route("/{path:path}", vendor.serve, methods=methods)])) as url:
        vendor.url = url.removesuffix("/mcp")
        written = {"preset": preset, "url": vendor.url, **settings}
        async with HttpAdapter(HttpSettings.model_validate(written)) as adapter:
            yield Scene(vendor, adapter, workflow)
