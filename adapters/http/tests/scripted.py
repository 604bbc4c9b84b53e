"""A server that answers as a vendor's documentation says, step by step, and notes what it was asked.

With the vendor's OpenAPI description, each request and each reply is held against that.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mcp_workflows_http import HttpAdapter, HttpSettings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from adapters.http.tests.described import Description
from mcp_workflows.adapter import Execution, Ref, Start
from tests.support.served import serving

SAMPLES = Path(__file__).parents[3] / "samples" / "http"


def sample(name: str) -> str | None:
    """The file of a definition in samples/http; None if it is a preset of the adapter."""
    file = SAMPLES / f"{name}.yaml"
    return str(file) if file.exists() else None


def order(workflow: str, arguments: Any = None, key: str = "key-1", **options: Any) -> Start:
    return Start(
        workflow=workflow,
        arguments=[arguments or {}],
        key=key,
        created=datetime.now(UTC),
        options={"options": options},
    )


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
    description: Description | None = None
    wrong: list[str] = field(default_factory=list[str])  # what the description forbids
    replies: dict[str, Any] = field(default_factory=dict[str, Any])
    needed: dict[str, str] = field(default_factory=dict[str, str])  # credentials by path; 401 without
    asked: list[Asked] = field(default_factory=list[Asked])

    async def serve(self, request: Request) -> Response:
        """Answer as it was told to; 404 to anything else."""
        raw = await request.body()
        is_json = request.headers.get("content-type", "").startswith("application/json")
        body = json.loads(raw) if raw and is_json else raw.decode() or None
        asked = Asked(request.method, request.url.path, dict(request.query_params), body, dict(request.headers))
        self.asked.append(asked)
        if asked.headers.get("authorization") != self.needed.get(asked.path, asked.headers.get("authorization")):
            return Response(status_code=401)
        reply = self._reply(self.replies.get(f"{request.method} {request.url.path}"))
        if self.description is not None:
            told = json.loads(bytes(reply.body)) if isinstance(reply, JSONResponse) else None
            self.wrong += self.description.wrong_request(asked.method, asked.path, asked.query, asked.body)
            self.wrong += self.description.wrong_reply(asked.method, asked.path, reply.status_code, told)
        return reply

    def _reply(self, found: Any) -> Response:
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

    async def describe(self, handle: str, **options: Any) -> Execution:
        """What is told of it."""
        return await self.adapter.describe(Ref(workflow=self.workflow, handle=handle, options={"options": options}))

    async def start(self, start: Start) -> str:
        """The handle."""
        return await self.adapter.start(start)


@asynccontextmanager
async def scene(
    preset: str, workflow: str, *, description: Description | None = None, **settings: Any
) -> AsyncGenerator[Scene]:
    """A vendor and the preset; fails if either has said what the description forbids."""
    vendor = Vendor(description=description)
    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    async with serving(Starlette(routes=[Route("/{path:path}", vendor.serve, methods=methods)])) as url:
        vendor.url = url.removesuffix("/mcp")
        written = {"preset": sample(preset) or preset, "url": vendor.url, **settings}
        async with HttpAdapter(HttpSettings.model_validate(written)) as adapter:
            yield Scene(vendor, adapter, workflow)
    assert not vendor.wrong, vendor.wrong
