"""firecrawl-mcp (npm): research agents of Firecrawl, with a stand-in for Firecrawl's API.

The replies are JSON in text. `firecrawl_agent` starts, `firecrawl_agent_status` looks, and no tool cancels.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from adapters.mcp.tests.upstreams.upstream import StandIn, Upstream, documented_engine, npm_command
from tests.support.served import serving

CONFIG: Final = documented_engine("firecrawl")
KEY: Final = "fc-s3cret"
EXPIRES: Final = "2026-11-26T00:00:00.000Z"


class Firecrawl(StandIn):
    """The part of Firecrawl's API that its agents need; an agent runs until it is told to end."""

    def __init__(self) -> None:
        super().__init__({"authorization": f"Bearer {KEY}"})
        self.prompts: dict[str, str] = {}
        self._replies_by_id: dict[str, Mapping[str, Any]] = {}

    def server(self) -> Upstream:
        """The MCP server in front of it."""
        env = {"FIRECRAWL_API_URL": self.url, "FIRECRAWL_API_KEY": KEY}
        return Upstream(command=npm_command("firecrawl-mcp/dist/index.js"), env=env)

    @property
    def starts(self) -> int:
        """How many agents were started."""
        return len(self.prompts)

    def finish(self, agent: str, data: Mapping[str, Any]) -> None:
        """Let an agent end with this result."""
        self._end(agent, status="completed", data=data, creditsUsed=12)

    def fail(self, agent: str, error: str) -> None:
        """Let an agent fail."""
        self._end(agent, status="failed", error=error)

    def _end(self, agent: str, **reply: Any) -> None:
        self._replies_by_id[agent] = {"success": True, **reply, "expiresAt": EXPIRES}

    def app(self) -> Starlette:
        """The API."""
        return Starlette(
            routes=[
                Route("/v2/agent", self.endpoint(self.start), methods=["POST"]),
                Route("/v2/agent/{agent}", self.endpoint(self.describe), methods=["GET"]),
            ]
        )

    async def start(self, request: Request) -> Response:
        """Start an agent."""
        agent = f"0199c0de-0000-7000-8000-{self.starts:012}"
        self.prompts[agent] = (await request.json())["prompt"]
        self._end(agent, status="processing")
        return JSONResponse({"success": True, "id": agent})

    async def describe(self, request: Request) -> Response:
        """Tell about an agent."""
        found = self._replies_by_id.get(request.path_params["agent"])
        if found is None:
            return JSONResponse({"success": False, "error": "Agent job not found"}, status_code=404)
        return JSONResponse(found)


@asynccontextmanager
async def firecrawl() -> AsyncGenerator[Firecrawl]:
    """The API, listening."""
    api = Firecrawl()
    async with serving(api.app()) as url:
        api.url = url.removesuffix("/mcp")
        yield api
